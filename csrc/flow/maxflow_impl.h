/* maxflow_impl.h: the source of maxflow.c and maxflow128.c.
 *
 * Networks of training graphs are shallow, and almost every node has an arc from the source or to
 * the sink. So these two are not nodes of the search. Their arcs become one number for each node,
 * its excess: what the source could still supply minus what the sink could still take. The smaller
 * of the two passes straight through. For any flow, the cost of a cut with sink side T is
 *
 *     constant + sum of excess over T + sum of residuals of arcs that enter T
 *
 * When no supply can reach a demand any more, T is the set of nodes that can reach a demand.
 *
 * Infinite arcs are removed first. Nodes reached from the source by infinite arcs are on the source
 * side of every finite cut, and likewise for the sink; a path of them from source to sink is
 * reported as a contradiction. Infinite arcs between the remaining nodes always keep a residual of
 * CB_CAPACITY_INF.
 *
 * The flow is found by Dinic's algorithm (1970) with distances measured from the demands. A phase
 * sends every supply along falling distances, not only the nearest one. Afterwards every remaining
 * supply is further away than before, so there are no more phases than in the original algorithm,
 * and few on training graphs. If there are many, push-relabel continues from the flow found so far.
 * Each node remembers the half-arc that it tries next. After a path has filled an arc, the search
 * continues from that arc, not from the beginning of the path. */
#include "maxflow_bits.h"
#include "push_relabel.h"

typedef enum cb_fixed { FREE = 0, ON_SOURCE_SIDE, ON_SINK_SIDE } cb_fixed;

/* ---- building -------------------------------------------------------------------------------- */

bool CB_FLOW_FN(reserve)(CB_NETWORK *f, cb_arena *arena, uint32_t n_node, uint32_t n_arc) {
    size_t n = n_node, m = n_arc;
    *f = (CB_NETWORK){.n_node = n_node, .n_arc = n_arc};
    f->first = CB_NEW(arena, uint32_t, n + 1);
    f->arc = CB_NEW(arena, cb_half_arc, 2 * m);
    f->half = CB_NEW(arena, uint32_t, m);
    f->residual = CB_NEW(arena, CB_CAPACITY, 2 * m);
    f->excess = CB_NEW(arena, CB_CAPACITY, n);
    f->fixed = CB_NEW(arena, uint8_t, n);
    f->level = CB_NEW(arena, uint32_t, n);
    f->current = CB_NEW(arena, uint32_t, n);
    f->queue = CB_NEW(arena, uint32_t, n);
    f->stack = CB_NEW(arena, uint32_t, n);
    f->sink_side = CB_NEW(arena, bool, n);
    f->path = f->stack; /* a solve that fails never grows a path */
    bool ok = f->first && f->arc && f->half && f->residual && f->excess && f->fixed && f->level &&
              f->current && f->queue && f->stack && f->sink_side;
    for (int i = 0; i < 3; i++) ok = (f->list[i] = CB_NEW(arena, uint32_t, n)) && ok;
    return ok;
}

cb_status CB_FLOW_FN(build)(CB_NETWORK *f, cb_arena *arena, uint32_t n_node, uint32_t n_arc,
                            const uint32_t *from, const uint32_t *to, cb_error *err) {
    if (n_arc >= CB_NONE / 2)
        return cb_fail(err, CB_INVALID, "network: %u arcs; there must be fewer than 2^31 - 1",
                       n_arc);
    for (uint32_t i = 0; i < n_arc; i++) {
        if (from[i] >= n_node || to[i] >= n_node) {
            return cb_fail(err, CB_INVALID,
                           "network: arc %u joins nodes %u and %u, but there are only %u nodes", i,
                           from[i], to[i], n_node);
        }
    }
    if (!CB_FLOW_FN(reserve)(f, arena, n_node, n_arc)) return cb_no_memory(err);
    for (uint32_t i = 0; i < n_arc; i++) {
        f->first[from[i] + 1]++;
        f->first[to[i] + 1]++;
    }
    for (uint32_t v = 0; v < n_node; v++) f->first[v + 1] += f->first[v];
    uint32_t *next = f->current; /* where each node's next half-arc goes */
    if (n_node) memcpy(next, f->first, n_node * sizeof *next);
    for (uint32_t i = 0; i < n_arc; i++) {
        uint32_t there = next[from[i]]++, back = next[to[i]]++;
        f->arc[there] = (cb_half_arc){.to = to[i], .pair = back};
        f->arc[back] = (cb_half_arc){.to = from[i], .pair = there};
        f->half[i] = there;
    }
    return CB_OK;
}

/* ---- loading capacities ---------------------------------------------------------------------- */

static cb_status set_residuals(CB_NETWORK *f, const CB_CAPACITY *capacity, cb_error *err) {
    CB_CAPACITY sum = 0;
    if (f->n_arc) memset(f->residual, 0, 2 * (size_t)f->n_arc * sizeof *f->residual);
    for (uint32_t i = 0; i < f->n_arc; i++) {
        if (capacity[i] < 0)
            return cb_fail(err, CB_INVALID, "network: arc %u has a negative capacity", i);
        f->residual[f->half[i]] = capacity[i];
        if (capacity[i] == CB_CAPACITY_INF) continue;
        if (capacity[i] >= CB_CAPACITY_MOST - sum) {
            return cb_fail(err, CB_INVALID, "network: the sum of the capacities exceeds 2^%d",
                           CB_FLOW_BITS - 2);
        }
        sum += capacity[i];
    }
    return CB_OK;
}

/* Fixes the nodes connected to `root` by infinite arcs, followed forward on the source side and
 * backward on the sink side. `level` stores the node that each was found from. Stops early at
 * `other`, the opposite terminal. */
static void fix(CB_NETWORK *f, uint32_t root, uint32_t other, cb_fixed side) {
    uint32_t head = 0, tail = 0;
    f->queue[tail++] = root;
    f->fixed[root] = (uint8_t)side;
    while (head < tail && f->fixed[other] != (uint8_t)side) {
        uint32_t v = f->queue[head++];
        for (uint32_t e = f->first[v]; e < f->first[v + 1]; e++) {
            uint32_t u = f->arc[e].to;
            uint32_t along = side == ON_SOURCE_SIDE ? e : f->arc[e].pair;
            if (f->fixed[u] == (uint8_t)side || f->residual[along] != CB_CAPACITY_INF) continue;
            f->fixed[u] = (uint8_t)side;
            f->level[u] = v;
            f->queue[tail++] = u;
        }
    }
}

static cb_status fail_contradiction(CB_NETWORK *f, uint32_t source, uint32_t sink, cb_error *err) {
    uint32_t n = 1;
    for (uint32_t v = sink; v != source; v = f->level[v]) n++;
    f->n_path = n;
    for (uint32_t v = sink; n > 0; v = f->level[v]) f->path[--n] = v;
    return cb_fail(err, CB_INFEASIBLE,
                   "network: a path of %u arcs without limit joins source and sink", f->n_path - 1);
}

/* Arcs at fixed nodes become excess or part of the constant, or are dropped. They carry no flow
 * later. */
static void absorb_fixed_nodes(CB_NETWORK *f) {
    for (uint32_t v = 0; v < f->n_node; v++) {
        for (uint32_t e = f->first[v]; e < f->first[v + 1]; e++) {
            uint32_t u = f->arc[e].to;
            CB_CAPACITY capacity = f->residual[e];
            if (capacity == 0 || (f->fixed[v] | f->fixed[u]) == 0) continue;
            f->residual[e] = 0;
            if (f->fixed[v] == ON_SINK_SIDE || f->fixed[u] == ON_SOURCE_SIDE) continue;
            if (f->fixed[u] == ON_SINK_SIDE) f->value += capacity;
            if (f->fixed[v] == FREE) f->excess[v] -= capacity;
            if (f->fixed[u] == FREE) f->excess[u] += capacity;
        }
    }
    for (uint32_t v = 0; v < f->n_node; v++)
        if (f->excess[v] < 0) f->value += f->excess[v];
}

/* Sets residuals, excesses and fixed nodes. */
static cb_status load(CB_NETWORK *f, uint32_t source, uint32_t sink, const CB_CAPACITY *capacity,
                      cb_error *err) {
    f->value = 0;
    f->n_path = 0;
    if (source >= f->n_node || sink >= f->n_node || source == sink) {
        return cb_fail(err, CB_INVALID,
                       "network: source %u and sink %u must be different nodes below %u", source,
                       sink, f->n_node);
    }
    CB_TRY(set_residuals(f, capacity, err));
    memset(f->excess, 0, f->n_node * sizeof *f->excess);
    memset(f->fixed, FREE, f->n_node);
    fix(f, source, sink, ON_SOURCE_SIDE);
    if (f->fixed[sink] == ON_SOURCE_SIDE) return fail_contradiction(f, source, sink, err);
    fix(f, sink, source, ON_SINK_SIDE);
    absorb_fixed_nodes(f);
    return CB_OK;
}

/* ---- flow ------------------------------------------------------------------------------------ */

/* Lists the nodes that have supply or demand. While the flow grows, no others appear. */
static void list_terminals(const CB_NETWORK *f, uint32_t *n_supply, uint32_t *n_demand) {
    *n_supply = *n_demand = 0;
    for (uint32_t v = 0; v < f->n_node; v++) {
        if (f->excess[v] > 0) f->list[0][(*n_supply)++] = v;
        if (f->excess[v] < 0) f->list[1][(*n_demand)++] = v;
    }
}

/* Sets `level` to the distance to the nearest demand over residual arcs, counted from 1. Returns
 * false if no remaining supply can reach a demand. */
static bool label(CB_NETWORK *f, uint32_t *n_demand) {
    uint32_t head = 0, tail = 0, *demand = f->list[1];
    bool reached = false;
    if (f->n_node) memset(f->level, 0xFF, f->n_node * sizeof *f->level);
    for (uint32_t i = 0; i < *n_demand; i++) {
        uint32_t v = demand[i];
        if (f->excess[v] == 0) continue;
        f->level[v] = 1;
        f->current[v] = f->first[v];
        demand[tail] = v;
        f->queue[tail++] = v;
    }
    *n_demand = tail;
    while (head < tail) {
        uint32_t v = f->queue[head++];
        for (uint32_t e = f->first[v]; e < f->first[v + 1]; e++) {
            uint32_t u = f->arc[e].to;
            if (f->level[u] != CB_NONE || f->residual[f->arc[e].pair] == 0) continue;
            f->level[u] = f->level[v] + 1;
            f->current[u] = f->first[u];
            f->queue[tail++] = u;
            reached |= f->excess[u] > 0;
        }
    }
    return reached;
}

/* Sends as much as the path of `depth` half-arcs from s to v can take. Returns the length of the
 * path up to the first arc that is now full. */
static uint32_t augment(CB_NETWORK *f, uint32_t s, uint32_t v, uint32_t depth) {
    CB_CAPACITY amount = f->excess[s] < -f->excess[v] ? f->excess[s] : -f->excess[v];
    uint32_t left = depth;
    for (uint32_t i = 0; i < depth; i++)
        if (f->residual[f->stack[i]] < amount) amount = f->residual[f->stack[i]];
    for (uint32_t i = depth; i-- > 0;) {
        uint32_t e = f->stack[i], back = f->arc[e].pair;
        if (f->residual[e] != CB_CAPACITY_INF) f->residual[e] -= amount;
        if (f->residual[back] != CB_CAPACITY_INF) f->residual[back] += amount;
        if (f->residual[e] == 0) left = i;
    }
    f->excess[s] -= amount;
    f->excess[v] += amount;
    f->value += amount;
    return left;
}

/* Sends the supply of s along falling levels until it is spent or cannot reach a demand. */
static void drain(CB_NETWORK *f, uint32_t s) {
    uint32_t depth = 0, v = s;
    for (;;) {
        if (f->excess[v] < 0) {
            depth = augment(f, s, v, depth);
            if (f->excess[s] == 0) return;
            v = depth ? f->arc[f->stack[depth - 1]].to : s;
            continue;
        }
        uint32_t e = f->current[v], end = f->first[v + 1];
        while (e < end && (f->level[f->arc[e].to] + 1 != f->level[v] || f->residual[e] == 0)) e++;
        f->current[v] = e;
        if (e < end) {
            f->stack[depth++] = e;
            v = f->arc[e].to;
        } else if (depth > 0) {
            f->level[v] = CB_NONE; /* a dead end for this phase */
            v = f->arc[f->arc[f->stack[--depth]].pair].to;
            f->current[v]++;
        } else {
            return;
        }
    }
}

static void read_cut(CB_NETWORK *f) {
    for (uint32_t v = 0; v < f->n_node; v++)
        f->sink_side[v] = f->level[v] != CB_NONE || f->fixed[v] == ON_SINK_SIDE;
}

/* Runs phases until nothing more can be delivered, or until n_phase is `most` (returns false). */
static bool run_phases(CB_NETWORK *f, uint32_t most) {
    uint32_t n_supply, n_demand;
    list_terminals(f, &n_supply, &n_demand);
    while (label(f, &n_demand)) {
        if (f->n_phase == most) return false;
        f->n_phase++;
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n_supply; i++) {
            uint32_t s = f->list[0][i];
            if (f->level[s] != CB_NONE) drain(f, s);
            if (f->excess[s] > 0) f->list[0][kept++] = s;
        }
        n_supply = kept;
    }
    read_cut(f);
    return true;
}

/* Finds the sink-minimal cut of a maximum flow: the nodes that can reach a demand. */
static void settle(CB_NETWORK *f) {
    uint32_t n_supply, n_demand;
    list_terminals(f, &n_supply, &n_demand);
    (void)label(f, &n_demand);
    read_cut(f);
}

void CB_FLOW_FN(run)(CB_NETWORK *f) {
    f->n_phase = 0;
    if (run_phases(f, CB_FLOW_PATIENCE)) return;
    bool all = CB_FLOW_FN(push)(f);
    if (all) settle(f);
    else (void)run_phases(f, CB_NONE);
}

cb_status CB_FLOW_FN(solve)(CB_NETWORK *f, uint32_t source, uint32_t sink,
                            const CB_CAPACITY *capacity, cb_error *err) {
    CB_TRY(load(f, source, sink, capacity, err));
    CB_FLOW_FN(run)(f);
    return CB_OK;
}

cb_status CB_FLOW_FN(solve_by_push)(CB_NETWORK *f, uint32_t source, uint32_t sink,
                                    const CB_CAPACITY *capacity, cb_error *err) {
    CB_TRY(load(f, source, sink, capacity, err));
    f->n_phase = 0;
    if (!CB_FLOW_FN(push)(f)) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "network: push-relabel cannot represent a supply this large in %d bits",
                       CB_FLOW_BITS);
    }
    settle(f);
    return CB_OK;
}
