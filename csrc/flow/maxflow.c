/* Dinic (1970) as it pays on the shallow networks of training graphs: distances are measured from
 * the sink by a reverse search that stops at the source's level; each node remembers the half-arc
 * it tries next; a path that saturates an arc is cut back to that arc, not to the source.
 *
 * Infinity is one above the sum of all finite capacities, which no finite cut reaches, so a flow
 * never overflows: every augmenting path has a finite arc. That such a cut exists is checked first,
 * by a search over infinite arcs; its path is what the user has asked for twice. */
#include "maxflow.h"

static bool allocate(cb_flow *f, cb_arena *arena) {
    size_t n = f->n_node, m = f->n_arc;
    f->first = CB_NEW(arena, uint32_t, n + 1);
    f->to = CB_NEW(arena, uint32_t, 2 * m);
    f->pair = CB_NEW(arena, uint32_t, 2 * m);
    f->half = CB_NEW(arena, uint32_t, m);
    f->residual = CB_NEW(arena, int64_t, 2 * m);
    f->level = CB_NEW(arena, uint32_t, n);
    f->current = CB_NEW(arena, uint32_t, n);
    f->queue = CB_NEW(arena, uint32_t, n);
    f->stack = CB_NEW(arena, uint32_t, n);
    f->sink_side = CB_NEW(arena, bool, n);
    f->path = CB_NEW(arena, uint32_t, n);
    return f->first && f->to && f->pair && f->half && f->residual && f->level && f->current &&
           f->queue && f->stack && f->sink_side && f->path;
}

cb_status cb_flow_build(cb_flow *f, cb_arena *arena, uint32_t n_node, uint32_t n_arc,
                        const uint32_t *from, const uint32_t *to, cb_error *err) {
    *f = (cb_flow){.n_node = n_node, .n_arc = n_arc};
    if (n_arc >= CB_NONE / 2)
        return cb_fail(err, CB_INVALID, "network: %u arcs are too many", n_arc);
    for (uint32_t i = 0; i < n_arc; i++) {
        if (from[i] >= n_node || to[i] >= n_node) {
            return cb_fail(err, CB_INVALID, "network: arc %u joins %u and %u of %u nodes", i,
                           from[i], to[i], n_node);
        }
    }
    if (!allocate(f, arena)) return cb_no_memory(err);
    for (uint32_t i = 0; i < n_arc; i++) {
        f->first[from[i] + 1]++;
        f->first[to[i] + 1]++;
    }
    for (uint32_t v = 0; v < n_node; v++) f->first[v + 1] += f->first[v];
    memcpy(f->current, f->first,
           n_node * sizeof *f->current); /* where each node's next half-arc goes */
    for (uint32_t i = 0; i < n_arc; i++) {
        uint32_t there = f->current[from[i]]++, back = f->current[to[i]]++;
        f->to[there] = to[i];
        f->to[back] = from[i];
        f->pair[there] = back;
        f->pair[back] = there;
        f->half[i] = there;
    }
    return CB_OK;
}

static cb_status set_capacities(cb_flow *f, const int64_t *capacity, cb_error *err) {
    int64_t sum = 0;
    for (uint32_t i = 0; i < f->n_arc; i++) {
        if (capacity[i] < 0)
            return cb_fail(err, CB_INVALID, "network: arc %u has a negative capacity", i);
        if (capacity[i] == CB_FLOW_INF) continue;
        if (capacity[i] >= CB_FLOW_MOST - sum)
            return cb_fail(err, CB_INVALID, "network: the capacities together pass 2^62");
        sum += capacity[i];
    }
    memset(f->residual, 0, 2 * (size_t)f->n_arc * sizeof *f->residual);
    for (uint32_t i = 0; i < f->n_arc; i++) {
        f->residual[f->half[i]] += capacity[i] == CB_FLOW_INF ? sum + 1 : capacity[i];
    }
    return CB_OK;
}

/* Is there a path over infinite arcs? `level` serves as the node before (CB_NONE: not reached). */
static cb_status find_contradiction(cb_flow *f, uint32_t source, uint32_t sink,
                                    const int64_t *capacity, cb_error *err) {
    uint32_t head = 0, tail = 0;
    for (uint32_t v = 0; v < f->n_node; v++) f->level[v] = CB_NONE;
    int64_t infinite = 0;
    for (uint32_t i = 0; i < f->n_arc; i++) {
        if (capacity[i] == CB_FLOW_INF) infinite = f->residual[f->half[i]];
    }
    if (infinite == 0) return CB_OK;
    f->queue[tail++] = source;
    f->level[source] = source;
    while (head < tail && f->level[sink] == CB_NONE) {
        uint32_t v = f->queue[head++];
        for (uint32_t e = f->first[v]; e < f->first[v + 1]; e++) {
            uint32_t u = f->to[e];
            if (f->residual[e] < infinite || f->level[u] != CB_NONE) continue;
            f->level[u] = v;
            f->queue[tail++] = u;
        }
    }
    if (f->level[sink] == CB_NONE) return CB_OK;
    uint32_t n = 1;
    for (uint32_t v = sink; v != source; v = f->level[v]) n++;
    f->n_path = n;
    for (uint32_t v = sink; n > 0; v = f->level[v]) f->path[--n] = v;
    return cb_fail(err, CB_INFEASIBLE, "network: %u arcs without limit join source and sink",
                   f->n_path - 1);
}

/* Distances to the sink over residual arcs; false when the source cannot reach it. Nodes no nearer
 * than the source are of no use and keep CB_NONE, unless the search is to end: then all are
 * labelled. */
static bool label(cb_flow *f, uint32_t source, uint32_t sink) {
    uint32_t head = 0, tail = 0;
    for (uint32_t v = 0; v < f->n_node; v++) f->level[v] = CB_NONE;
    f->level[sink] = 0;
    f->queue[tail++] = sink;
    while (head < tail) {
        uint32_t v = f->queue[head++];
        if (f->level[v] >= f->level[source]) break;
        for (uint32_t e = f->first[v]; e < f->first[v + 1]; e++) {
            uint32_t u = f->to[e];
            if (f->level[u] != CB_NONE || f->residual[f->pair[e]] == 0) continue;
            f->level[u] = f->level[v] + 1;
            f->queue[tail++] = u;
        }
    }
    return f->level[source] != CB_NONE;
}

/* Sends what the path of `depth` half-arcs can take; returns the place of the first arc it
 * saturates. */
static uint32_t augment(cb_flow *f, uint32_t depth) {
    int64_t amount = CB_FLOW_INF;
    uint32_t cut = 0;
    for (uint32_t i = 0; i < depth; i++) {
        if (f->residual[f->stack[i]] < amount) amount = f->residual[f->stack[i]];
    }
    for (uint32_t i = depth; i-- > 0;) {
        uint32_t e = f->stack[i];
        f->residual[e] -= amount;
        f->residual[f->pair[e]] += amount;
        if (f->residual[e] == 0) cut = i;
    }
    f->value += amount;
    return cut;
}

/* Paths along falling levels until none is left. */
static void block(cb_flow *f, uint32_t source, uint32_t sink) {
    uint32_t depth = 0, v = source;
    memcpy(f->current, f->first, f->n_node * sizeof *f->current);
    for (;;) {
        if (v == sink) {
            depth = augment(f, depth);
            v = f->to[f->pair[f->stack[depth]]];
            continue;
        }
        uint32_t e = f->current[v], end = f->first[v + 1];
        while (e < end && (f->residual[e] == 0 || f->level[f->to[e]] == CB_NONE ||
                           f->level[f->to[e]] + 1 != f->level[v]))
            e++;
        f->current[v] = e;
        if (e < end) {
            f->stack[depth++] = e;
            v = f->to[e];
        } else if (depth > 0) {
            f->level[v] = CB_NONE; /* a dead end for this phase */
            v = f->to[f->pair[f->stack[--depth]]];
            f->current[v]++;
        } else {
            return;
        }
    }
}

cb_status cb_flow_solve(cb_flow *f, uint32_t source, uint32_t sink, const int64_t *capacity,
                        cb_error *err) {
    f->value = 0;
    f->n_path = 0;
    if (source >= f->n_node || sink >= f->n_node || source == sink) {
        return cb_fail(err, CB_INVALID, "network: source %u and sink %u of %u nodes", source, sink,
                       f->n_node);
    }
    CB_TRY(set_capacities(f, capacity, err));
    CB_TRY(find_contradiction(f, source, sink, capacity, err));
    while (label(f, source, sink)) block(f, source, sink);
    for (uint32_t v = 0; v < f->n_node; v++) f->sink_side[v] = f->level[v] != CB_NONE;
    return CB_OK;
}
