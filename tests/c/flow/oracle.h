/* oracle.h: small random networks, and brute-force answers. */
#ifndef CB_TESTS_FLOW_ORACLE_H
#define CB_TESTS_FLOW_ORACLE_H

#include "flow/generate.h"

enum { SMALL_NODES = 48, SMALL_ARCS = 400 };

typedef struct small_network {
    uint32_t n_node, n_arc, source, sink;
    uint32_t from[SMALL_ARCS], to[SMALL_ARCS];
    int64_t capacity[SMALL_ARCS];
    int64_t time[SMALL_NODES];
} small_network;

/* Returns a network with capacities up to `most`, some zero, and `infinite` percent of them
 * infinite. It has loops, parallel arcs, arcs into the source and arcs out of the sink. */
static inline small_network random_network(random_state *r, uint32_t n_node, uint32_t n_arc,
                                           uint64_t most, uint32_t infinite) {
    small_network g = {.n_node = n_node, .n_arc = n_arc};
    g.source = random_below(r, n_node);
    g.sink = (g.source + 1 + random_below(r, n_node - 1)) % n_node;
    for (uint32_t i = 0; i < n_arc; i++) {
        uint32_t kind = random_below(r, 100);
        g.from[i] = random_below(r, 4) ? random_below(r, n_node) : g.source;
        g.to[i] = random_below(r, 4) ? random_below(r, n_node) : g.sink;
        g.capacity[i] = (int64_t)(random_next(r) % (most + 1));
        if (kind < infinite) g.capacity[i] = CB_FLOW_INF;
        else if (kind < infinite + 10) g.capacity[i] = 0;
    }
    for (uint32_t v = 0; v < n_node; v++) {
        g.time[v] = random_below(r, 3) ? (int64_t)random_below(r, 12) : 0;
    }
    return g;
}

/* Computes the cost of the cut with sink side `side`. Returns false if it cuts an infinite arc. */
static inline bool cut_costs(const small_network *g, const bool *side, cb_int128 *cost) {
    *cost = 0;
    for (uint32_t i = 0; i < g->n_arc; i++) {
        if (side[g->from[i]] || !side[g->to[i]]) continue;
        if (g->capacity[i] == CB_FLOW_INF) return false;
        *cost += g->capacity[i];
    }
    return true;
}

/* Tries all cuts; the sink-minimal minimum is the intersection of all minima. Returns false if
 * there is no finite cut. */
static inline bool brute_cut(const small_network *g, cb_int128 *value, bool *side) {
    bool found = false, trial[SMALL_NODES];
    for (uint32_t set = 0; set < 1u << g->n_node; set++) {
        cb_int128 cost;
        if (set >> g->source & 1 || !(set >> g->sink & 1)) continue;
        for (uint32_t v = 0; v < g->n_node; v++) trial[v] = set >> v & 1;
        if (!cut_costs(g, trial, &cost) || (found && cost > *value)) continue;
        for (uint32_t v = 0; v < g->n_node; v++) {
            side[v] = trial[v] && (!found || cost < *value || side[v]);
        }
        *value = cost;
        found = true;
    }
    return found;
}

/* Finds a cut by shortest augmenting paths on a matrix (Edmonds and Karp). Returns false if there
 * is no finite cut. */
static inline bool slow_cut(const small_network *g, cb_int128 *value, bool *side) {
    static cb_int128 room[SMALL_NODES][SMALL_NODES];
    uint32_t n = g->n_node, before[SMALL_NODES], queue[SMALL_NODES];
    cb_int128 infinite = 1;
    memset(room, 0, sizeof room);
    for (uint32_t i = 0; i < g->n_arc; i++) {
        if (g->capacity[i] != CB_FLOW_INF) infinite += g->capacity[i];
    }
    for (uint32_t i = 0; i < g->n_arc; i++) {
        bool is_infinite = g->capacity[i] == CB_FLOW_INF;
        room[g->from[i]][g->to[i]] += is_infinite ? infinite : g->capacity[i];
    }
    *value = 0;
    for (;;) { /* backwards from the sink, so that the last search gives the sink side */
        uint32_t head = 0, tail = 0;
        for (uint32_t v = 0; v < n; v++) before[v] = CB_NONE;
        queue[tail++] = g->sink;
        before[g->sink] = g->sink;
        while (head < tail) {
            uint32_t v = queue[head++];
            for (uint32_t u = 0; u < n; u++) {
                if (before[u] != CB_NONE || room[u][v] == 0) continue;
                before[u] = v;
                queue[tail++] = u;
            }
        }
        if (before[g->source] == CB_NONE) break;
        cb_int128 amount = infinite * SMALL_ARCS;
        for (uint32_t v = g->source; v != g->sink; v = before[v]) {
            if (room[v][before[v]] < amount) amount = room[v][before[v]];
        }
        for (uint32_t v = g->source; v != g->sink; v = before[v]) {
            room[v][before[v]] -= amount;
            room[before[v]][v] += amount;
        }
        *value += amount;
    }
    for (uint32_t v = 0; v < n; v++) side[v] = before[v] != CB_NONE;
    return *value < infinite;
}

#endif
