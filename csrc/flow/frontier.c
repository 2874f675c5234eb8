/* The parametric cut of Gallo, Grigoriadis and Tarjan (1989) by divide and conquer.
 *
 * Two solves on the whole network determine the ends: lambda = 0, and lambda = infinity, where
 * every node that takes time is banned from T. The nodes that change sides in between are divided
 * into pieces connected by residual arcs. From then on each piece is solved separately: it is all
 * in T at some price and all out of T at some higher price. Both costs are linear in the price, and
 * they meet at
 *
 *     lambda = (bytes that leaving T adds) / (time that leaving T saves)
 *
 * where the piece is cut again. If the sink-minimal cut has all of the piece outside T, the piece
 * leaves as a whole at lambda: no proper part of it has a better price. Otherwise some nodes leave
 * before lambda and some after it. Arcs from the former to the latter become excess at both ends,
 * and the two parts are divided into smaller pieces. So the undecided nodes are partitioned, never
 * copied, and the pieces of training graphs are small. A network constructed to split off one node
 * at a time takes quadratic time.
 *
 * At the price at which it leaves, a piece has a maximum flow that meets every demand. The strongly
 * connected components of its residual graph can leave one after another; these are the steps
 * within a price.
 *
 * All pieces share one residual form of the network (see maxflow_impl.h) with capacities below
 * 2^62. At lambda = p/q they are multiplied by q < 2^62, which needs 128 bits. */
#include "frontier.h"

#include "../base/vec.h"
#include "components.h"

typedef struct piece {
    uint32_t begin, end; /* range in `order` */
} piece;

/* A piece that leaves as a whole, at lambda = p / q. */
typedef struct leaver {
    int64_t p, q;
    uint32_t begin, end; /* range in `order`, where this part no longer changes */
    uint32_t n_part;     /* number of components, which leave in order */
} leaver;

typedef struct maker {
    const cb_priced_network *net;
    cb_arena *scratch;
    cb_flow flow;     /* residual form of the network */
    cb_flow128 small; /* the current piece, at its price */
    cb_components components;
    bool *is_arc;      /* [2 n_arc of small] half-arcs with a residual */
    uint32_t *part;    /* [n_node of small] component */
    uint32_t *part_of; /* [n_node] component within the piece that the node leaves with */
    /* [n_node] begin of the node's piece, or CB_DECIDED; while a piece is divided, also
     * CB_LEAVES_EARLY or CB_LEAVES_LATE */
    uint32_t *in_piece;
    uint32_t *number; /* [n_node] the node's number in `small` */
    uint32_t *slot;   /* [2 n_arc] the half-arc's index in `small` */
    uint32_t *order;  /* [n_node] undecided nodes, grouped by piece */
    uint32_t *found;  /* [n_node] scratch of add_pieces */
    cb_frontier_step start;
    CB_VEC(piece) todo;
    CB_VEC(leaver) leavers;
} maker;

#define CB_DECIDED CB_NONE
#define CB_LEAVES_EARLY (CB_NONE - 1) /* leaves T at or before the current price */
#define CB_LEAVES_LATE (CB_NONE - 2)  /* leaves T after the current price */

static bool allocate(maker *m) {
    size_t n = m->net->n_node, n_half = 2 * (size_t)m->net->n_arc;
    m->part_of = CB_NEW(m->scratch, uint32_t, n);
    m->in_piece = CB_NEW(m->scratch, uint32_t, n);
    m->number = CB_NEW(m->scratch, uint32_t, n);
    m->slot = CB_NEW(m->scratch, uint32_t, n_half);
    m->order = CB_NEW(m->scratch, uint32_t, n);
    m->found = CB_NEW(m->scratch, uint32_t, n);
    return m->part_of && m->in_piece && m->number && m->slot && m->order && m->found;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static bool is_joined(const cb_flow *f, uint32_t e) {
    return f->residual[e] > 0 || f->residual[f->arc[e].pair] > 0;
}

/* Divides the nodes of order[begin..end) into pieces: connected nodes with the same mark. */
static cb_status add_pieces(maker *m, uint32_t begin, uint32_t end, cb_error *err) {
    const cb_flow *f = &m->flow;
    uint32_t tail = 0, head = 0;
    for (uint32_t i = begin; i < end; i++) {
        uint32_t first = tail, mark = m->in_piece[m->order[i]];
        if (mark != CB_LEAVES_EARLY && mark != CB_LEAVES_LATE) continue;
        m->in_piece[m->order[i]] = begin + first;
        m->found[tail++] = m->order[i];
        for (; head < tail; head++) {
            uint32_t v = m->found[head];
            for (uint32_t e = f->first[v]; e < f->first[v + 1]; e++) {
                uint32_t u = f->arc[e].to;
                if (m->in_piece[u] != mark || !is_joined(f, e)) continue;
                m->in_piece[u] = begin + first;
                m->found[tail++] = u;
            }
        }
        if (!CB_PUSH(m->scratch, m->todo, (piece){begin + first, begin + tail}))
            return cb_no_memory(err);
    }
    if (tail) memcpy(m->order + begin, m->found, tail * sizeof *m->found);
    return CB_OK;
}

/* The price at which the piece costs the same inside T and outside it: its nodes have the excess
 * that the first solve left, plus the price times their time (write_small), and this sum is 0. */
static cb_status meeting_price(const maker *m, piece s, int64_t *p, int64_t *q, cb_error *err) {
    cb_int128 bytes = 0, time = 0;
    for (uint32_t i = s.begin; i < s.end; i++) {
        bytes -= m->flow.excess[m->order[i]];
        time += m->net->time[m->order[i]];
    }
    if (bytes <= 0 || time <= 0) {
        return cb_fail(err, CB_INTERNAL, "frontier: no price for a piece of %u nodes",
                       s.end - s.begin);
    }
    int64_t a = (int64_t)bytes, b = (int64_t)time;
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    *p = (int64_t)bytes / a;
    *q = (int64_t)time / a;
    return CB_OK;
}

/* Writes the piece at lambda = p / q as a separate network, `small`. */
static void write_small(maker *m, piece s, int64_t p, int64_t q) {
    const cb_flow *f = &m->flow;
    cb_flow128 *g = &m->small;
    uint32_t n_half = 0;
    for (uint32_t i = s.begin; i < s.end; i++) m->number[m->order[i]] = i - s.begin;
    g->n_node = s.end - s.begin;
    g->value = 0;
    for (uint32_t i = s.begin; i < s.end; i++) {
        uint32_t v = m->order[i];
        g->first[i - s.begin] = n_half;
        g->excess[i - s.begin] = (cb_int128)f->excess[v] * q + (cb_int128)m->net->time[v] * p;
        for (uint32_t e = f->first[v]; e < f->first[v + 1]; e++) {
            uint32_t u = f->arc[e].to, pair = f->arc[e].pair;
            if (m->in_piece[u] != s.begin || !is_joined(f, e)) continue;
            m->slot[e] = n_half;
            g->arc[n_half].to = m->number[u];
            g->residual[n_half] =
                f->residual[e] == CB_FLOW_INF ? CB_FLOW128_INF : (cb_int128)f->residual[e] * q;
            /* The other half has its slot already. */
            if (m->number[u] < i - s.begin || (u == v && pair < e)) {
                g->arc[n_half].pair = m->slot[pair];
                g->arc[m->slot[pair]].pair = n_half;
            }
            n_half++;
        }
    }
    g->first[g->n_node] = n_half;
    g->n_arc = n_half / 2;
}

/* Records that the piece leaves at p / q, and numbers its components in the order in which they
 * leave. */
static cb_status add_leaver(maker *m, piece s, int64_t p, int64_t q, cb_error *err) {
    cb_flow128 *g = &m->small;
    uint32_t n_part = 1;
    if (s.end - s.begin > 1) {
        for (uint32_t e = 0; e < 2 * g->n_arc; e++) m->is_arc[e] = g->residual[e] > 0;
        n_part =
            cb_components_find(&m->components, g->n_node, g->first, g->arc, m->is_arc, m->part);
    }
    for (uint32_t i = s.begin; i < s.end; i++) {
        m->part_of[m->order[i]] = s.end - s.begin > 1 ? m->part[i - s.begin] : 0;
        m->in_piece[m->order[i]] = CB_DECIDED;
    }
    leaver fresh = {.p = p, .q = q, .begin = s.begin, .end = s.end, .n_part = n_part};
    return CB_PUSH(m->scratch, m->leavers, fresh) ? CB_OK : cb_no_memory(err);
}

/* Marks nodes as early or late, and turns arcs from early to late nodes into excess: an early node
 * sees late nodes in T, a late node sees early nodes outside T. */
static void part_early_from_late(maker *m, piece s) {
    cb_flow *f = &m->flow;
    for (uint32_t i = s.begin; i < s.end; i++) {
        uint32_t v = m->order[i];
        m->in_piece[v] = m->small.sink_side[i - s.begin] ? CB_LEAVES_LATE : CB_LEAVES_EARLY;
    }
    for (uint32_t i = s.begin; i < s.end; i++) {
        uint32_t v = m->order[i];
        if (m->in_piece[v] != CB_LEAVES_EARLY) continue;
        for (uint32_t e = f->first[v]; e < f->first[v + 1]; e++) {
            uint32_t u = f->arc[e].to;
            if (m->in_piece[u] != CB_LEAVES_LATE) continue;
            f->excess[v] -= f->residual[e];
            f->excess[u] += f->residual[e];
        }
    }
}

static cb_status divide(maker *m, piece s, cb_error *err) {
    int64_t p = 0, q = 1;
    bool is_whole = true;
    CB_TRY(meeting_price(m, s, &p, &q, err));
    if (s.end - s.begin > 1) {
        write_small(m, s, p, q);
        cb_flow128_run(&m->small);
        for (uint32_t i = 0; i < m->small.n_node; i++) is_whole &= !m->small.sink_side[i];
    }
    if (is_whole) return add_leaver(m, s, p, q, err);
    part_early_from_late(m, s);
    return add_pieces(m, s.begin, s.end, err);
}

/* ---- the ends -------------------------------------------------------------------------------- */

static cb_status check_times(const cb_priced_network *net, cb_error *err) {
    int64_t sum = 0;
    for (uint32_t v = 0; v < net->n_node; v++) {
        int64_t t = net->time[v];
        if (t < 0) return cb_fail(err, CB_INVALID, "network: node %u has a negative time", v);
        if (t >= CB_FLOW_MOST - sum)
            return cb_fail(err, CB_INVALID, "network: the sum of the times exceeds 2^62");
        sum += t;
    }
    return CB_OK;
}

/* Bans every node that takes time from T by adding `excess`; a negative one lifts the ban. */
static void ban_slow(maker *m, int64_t excess) {
    for (uint32_t v = 0; v < m->net->n_node; v++)
        if (m->net->time[v] > 0 && m->flow.fixed[v] == 0) m->flow.excess[v] += excess;
}

/* Finds the nodes that are in T at price 0 but not at infinity, and step 0 of the frontier. */
static cb_status find_undecided(maker *m, cb_frontier *f, uint32_t *n_order, cb_error *err) {
    const cb_priced_network *net = m->net;
    const bool *in_cut = m->flow.sink_side;
    uint32_t n = 0;
    CB_TRY(cb_flow_solve(&m->flow, net->source, net->sink, net->bytes, err));
    m->start.bytes = m->flow.value;
    for (uint32_t v = 0; v < net->n_node; v++) {
        m->in_piece[v] = CB_DECIDED;
        if (!in_cut[v]) continue;
        m->start.time += net->time[v];
        if (m->flow.fixed[v] == 0) m->in_piece[v] = CB_LEAVES_EARLY;
        else f->leaves[v] = CB_NONE;
    }
    ban_slow(m, CB_FLOW_MOST);
    cb_flow_run(&m->flow);
    ban_slow(m, -CB_FLOW_MOST);
    for (uint32_t v = 0; v < net->n_node; v++) {
        if (m->in_piece[v] == CB_DECIDED) continue;
        if (in_cut[v]) {
            f->leaves[v] = CB_NONE;
            m->in_piece[v] = CB_DECIDED;
        } else {
            m->order[n++] = v;
        }
    }
    *n_order = n;
    return CB_OK;
}

/* Allocates `small` and its scratch for the largest piece. */
static cb_status allocate_small(maker *m, cb_error *err) {
    const uint32_t *first = m->flow.first;
    uint32_t n_node = 0, n_half = 0;
    for (size_t k = 0; k < m->todo.len; k++) {
        piece s = m->todo.at[k];
        uint32_t degrees = 0;
        for (uint32_t i = s.begin; i < s.end; i++)
            degrees += first[m->order[i] + 1] - first[m->order[i]];
        if (s.end - s.begin > n_node) n_node = s.end - s.begin;
        if (degrees > n_half) n_half = degrees;
    }
    m->is_arc = CB_NEW(m->scratch, bool, n_half);
    m->part = CB_NEW(m->scratch, uint32_t, n_node);
    bool ok = m->is_arc && m->part &&
              cb_flow128_reserve(&m->small, m->scratch, n_node, n_half / 2 + 1) &&
              cb_components_init(&m->components, m->scratch, n_node);
    return ok ? CB_OK : cb_no_memory(err);
}

/* ---- the result ------------------------------------------------------------------------------ */

static int compare_prices(const leaver *a, const leaver *b) {
    cb_int128 left = (cb_int128)a->p * b->q, right = (cb_int128)b->p * a->q;
    return (left > right) - (left < right);
}

/* Merge sort, which keeps the order of equal prices. Returns the array with the result: `at` or
 * `spare`. */
static leaver *sort_by_price(leaver *at, leaver *spare, size_t n) {
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            size_t middle = begin + width < n ? begin + width : n;
            size_t end = middle + width < n ? middle + width : n;
            size_t i = begin, j = middle;
            for (size_t k = begin; k < end; k++) {
                bool left = j == end || (i < middle && compare_prices(&at[i], &at[j]) <= 0);
                spare[k] = left ? at[i++] : at[j++];
            }
        }
        leaver *swapped = at;
        at = spare;
        spare = swapped;
    }
    return at;
}

/* Fills in steps and points. A step's time is reduced by the nodes that leave at it; the bytes it
 * adds follow from its price. That division is exact: the cuts before and after the step both cost
 * least at this price, so bytes + lambda * time is the same for both. */
static void write_steps(const maker *m, cb_frontier *f, leaver *leavers) {
    uint32_t k = 1;
    *f->point = (cb_frontier_point){.bytes = f->step->bytes, .time = f->step->time, .q = 1};
    f->n_point = 1;
    for (size_t l = 0; l < m->leavers.len; l++) {
        leaver *now = &leavers[l];
        if (l == 0 || compare_prices(now - 1, now) != 0) f->n_point++;
        for (uint32_t i = now->begin; i < now->end; i++) {
            uint32_t v = m->order[i];
            f->leaves[v] = k + m->part_of[v];
            f->step[f->leaves[v]].time -= m->net->time[v];
        }
        for (uint32_t part = 0; part < now->n_part; part++, k++) {
            cb_frontier_step *step = &f->step[k];
            int64_t saved = -step->time;
            step->bytes = step[-1].bytes + (int64_t)((cb_int128)saved * now->p / now->q);
            step->time = step[-1].time - saved;
            step->point = f->n_point - 1;
        }
        f->point[f->n_point - 1] = (cb_frontier_point){.bytes = f->step[k - 1].bytes,
                                                       .time = f->step[k - 1].time,
                                                       .p = now->p,
                                                       .q = now->q,
                                                       .step = k - 1};
    }
}

static cb_status write_frontier(maker *m, cb_frontier *f, cb_arena *arena, cb_error *err) {
    size_t n = m->leavers.len;
    f->n_step = 1;
    for (size_t i = 0; i < n; i++) f->n_step += m->leavers.at[i].n_part;
    CB_TRY_NEW(f->step, arena, f->n_step, err);
    CB_TRY_NEW(f->point, arena, n + 1, err);
    leaver *spare = CB_NEW(m->scratch, leaver, n);
    if (!spare) return cb_no_memory(err);
    *f->step = m->start;
    write_steps(m, f, sort_by_price(m->leavers.at, spare, n));
    return CB_OK;
}

/* ---- use ------------------------------------------------------------------------------------- */

static cb_status make(maker *m, cb_frontier *f, cb_arena *arena, cb_error *err) {
    const cb_priced_network *net = m->net;
    uint32_t n_order;
    CB_TRY(check_times(net, err));
    CB_TRY(cb_flow_build(&m->flow, m->scratch, net->n_node, net->n_arc, net->from, net->to, err));
    f->n_node = net->n_node;
    CB_TRY_NEW(f->leaves, arena, net->n_node, err);
    if (!allocate(m)) return cb_no_memory(err);
    CB_TRY(find_undecided(m, f, &n_order, err));
    CB_TRY(add_pieces(m, 0, n_order, err));
    CB_TRY(allocate_small(m, err));
    while (m->todo.len > 0) {
        piece s = m->todo.at[--m->todo.len];
        CB_TRY(divide(m, s, err));
    }
    return write_frontier(m, f, arena, err);
}

cb_status cb_frontier_make(cb_frontier *f, const cb_priced_network *net, cb_arena *arena,
                           cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, arena->alloc);
    maker m = {.net = net, .scratch = &scratch};
    cb_frontier made = {0};
    cb_status status = make(&m, &made, arena, err);
    if (status == CB_OK) *f = made;
    cb_arena_free(&scratch);
    return status;
}

static cb_status fail_budget(const cb_frontier *f, int64_t budget, cb_error *err) {
    return cb_fail(err, CB_INFEASIBLE, "no cut fits %lld bytes; the smallest takes %lld",
                   (long long)budget, (long long)f->step[0].bytes);
}

cb_status cb_frontier_at(const cb_frontier *f, int64_t budget, uint32_t *step, cb_error *err) {
    uint32_t low = 0, high = f->n_step;
    if (f->step[0].bytes > budget) return fail_budget(f, budget, err);
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (f->step[middle].bytes <= budget) low = middle;
        else high = middle;
    }
    *step = low;
    return CB_OK;
}

cb_status cb_frontier_bound(const cb_frontier *f, int64_t budget, int64_t *time, cb_error *err) {
    uint32_t k = 0;
    CB_TRY(cb_frontier_at(f, budget, &k, err));
    const cb_frontier_step *s = &f->step[k];
    *time = s->time;
    if (k + 1 < f->n_step) {
        const cb_frontier_point *next = &f->point[s[1].point];
        *time -= (int64_t)((cb_int128)(budget - s->bytes) * next->q / next->p);
    }
    return CB_OK;
}
