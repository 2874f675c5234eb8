/* With the cost of a cut written as in maxflow_impl.h, a ban adds BAN to the excess of one node and
 * its end takes it off again, whatever flow was sent in between (Kohli and Torr 2007). The cut
 * stays minimum while
 *
 *     supply is on the source side, demand on the sink side, and no residual arc leads across,
 *
 * and only the changed node can offend: a ban may give the sink side a supply, its end the source
 * side a demand. So flow is sent between that node and the rest of its side until the search from
 * it finds nothing more; what the last search saw then changes sides, and the three hold again. A
 * node that is already across costs nothing. Nodes move one way while bans last, which is why long
 * series stay cheap.
 *
 * The depth-first searches could take many rounds on a network built for that; after a few, Dinic
 * does the rest. Infinite arcs remember the flow they carry, which may go round in circles over a
 * long series: before that could overflow (a call adds
 * less than CB_FLOW_MOST), the flow is found afresh. */
#include "session.h"

#define BAN CB_FLOW_MOST /* no cut costs as much, and an excess has room for one */
#define ROUNDS 16

/* By an infinite arc: finite ones cannot overflow. */
static int64_t most_carried(const cb_flow *f) {
    int64_t most = 0;
    for (size_t e = 0; e < 2 * (size_t)f->n_arc; e++) {
        int64_t carried = f->residual[f->arc[e].pair];
        if (f->residual[e] == CB_FLOW_INF && carried > most) most = carried;
    }
    return most;
}

cb_status cb_session_open(cb_session *s, cb_flow *flow, uint32_t source, uint32_t sink,
                          const int64_t *capacity, cb_arena *arena, cb_error *err) {
    cb_bitset banned;
    uint32_t *seen = CB_NEW(arena, uint32_t, flow->n_node);
    if (!seen || !cb_bitset_init(&banned, arena, flow->n_node)) return cb_no_memory(err);
    CB_TRY(cb_flow_solve(flow, source, sink, capacity, err));
    *s = (cb_session){.flow = flow,
                      .source = source,
                      .sink = sink,
                      .capacity = capacity,
                      .banned = banned,
                      .seen = seen,
                      .pushed = most_carried(flow)};
    return CB_OK;
}

static void add_excess(cb_flow *f, uint32_t v, int64_t amount) {
    int64_t before = f->excess[v] < 0 ? f->excess[v] : 0;
    f->excess[v] += amount;
    f->value += (f->excess[v] < 0 ? f->excess[v] : 0) - before;
}

static void start_afresh(cb_session *s) {
    cb_flow *f = s->flow;
    cb_status status = cb_flow_load(f, s->source, s->sink, s->capacity, NULL);
    (void)status; /* these capacities were good before */
    for (uint32_t v = 0; v < f->n_node; v++) {
        if (cb_bitset_has(&s->banned, v) && f->fixed[v] == 0) add_excess(f, v, BAN);
    }
    cb_flow_run(f);
    s->pushed = most_carried(f);
}

/* One local search. Bans look for demand along residual arcs, their ends for supply against them.
 */
typedef struct search {
    cb_session *s;
    cb_flow *f;
    uint32_t root;
    bool is_ban;     /* else everything is the other way round */
    uint32_t n_seen; /* in f->queue */
    uint32_t depth;  /* in f->stack: half-arcs from the root on */
    bool found;
} search;

/* The half-arc whose residual a step over e uses: from giver to taker. */
static uint32_t used_by(const search *q, uint32_t e) { return q->is_ban ? e : q->f->arc[e].pair; }

static void see(search *q, uint32_t v) {
    q->s->seen[v] = q->s->search;
    q->f->current[v] = q->f->first[v];
    q->f->queue[q->n_seen++] = v;
}

/* Sends flow between the root and v, and goes back to before the first arc that is now full. */
static void exchange(search *q, uint32_t v) {
    cb_flow *f = q->f;
    uint32_t giver = q->is_ban ? q->root : v, taker = q->is_ban ? v : q->root;
    int64_t amount = f->excess[giver] < -f->excess[taker] ? f->excess[giver] : -f->excess[taker];
    uint32_t left = q->depth;
    for (uint32_t i = 0; i < q->depth; i++) {
        int64_t room = f->residual[used_by(q, f->stack[i])];
        if (room < amount) amount = room;
    }
    for (uint32_t i = q->depth; i-- > 0;) {
        uint32_t e = used_by(q, f->stack[i]), back = f->arc[e].pair;
        if (f->residual[e] != CB_FLOW_INF) f->residual[e] -= amount;
        if (f->residual[back] != CB_FLOW_INF) f->residual[back] += amount;
        if (f->residual[e] == 0) left = i;
    }
    add_excess(f, giver, -amount);
    add_excess(f, taker, amount);
    q->s->pushed += amount;
    q->depth = left;
    q->found = true;
}

static bool is_wanted(const search *q, uint32_t v) {
    return q->is_ban ? q->f->excess[v] < 0 : q->f->excess[v] > 0;
}

static bool is_settled(const search *q) {
    return q->is_ban ? q->f->excess[q->root] <= 0 : q->f->excess[q->root] >= 0;
}

/* Sees each node of the root's side once; true when the root is settled or nothing was found. */
static bool search_once(search *q) {
    cb_flow *f = q->f;
    const bool *side = f->sink_side;
    if (++q->s->search == 0) { /* after 2^32 searches */
        memset(q->s->seen, 0, f->n_node * sizeof *q->s->seen);
        q->s->search = 1;
    }
    q->n_seen = q->depth = 0;
    q->found = false;
    see(q, q->root);
    for (uint32_t v = q->root;;) {
        if (is_wanted(q, v)) {
            exchange(q, v);
            if (is_settled(q)) return true;
            v = q->depth ? f->arc[f->stack[q->depth - 1]].to : q->root;
            continue;
        }
        uint32_t e = f->current[v], end = f->first[v + 1];
        for (; e < end; e++) {
            uint32_t u = f->arc[e].to;
            if (side[u] == q->is_ban && q->s->seen[u] != q->s->search &&
                f->residual[used_by(q, e)] > 0)
                break;
        }
        f->current[v] = e + (e < end);
        if (e < end) {
            f->stack[q->depth++] = e;
            v = f->arc[e].to;
            see(q, v);
        } else if (q->depth > 0) {
            v = f->arc[f->arc[f->stack[--q->depth]].pair].to;
        } else {
            return !q->found;
        }
    }
}

static void repair(cb_session *s, uint32_t root, bool is_ban) {
    search q = {.s = s, .f = s->flow, .root = root, .is_ban = is_ban};
    if (is_settled(&q)) return;
    for (int round = 0; !search_once(&q); round++) {
        if (round == ROUNDS) {
            cb_flow_run(s->flow);
            s->pushed = most_carried(s->flow);
            return;
        }
    }
    if (is_settled(&q)) return;
    for (uint32_t i = 0; i < q.n_seen; i++) s->flow->sink_side[s->flow->queue[i]] = !is_ban;
}

cb_status cb_session_ban(cb_session *s, uint32_t node, cb_error *err) {
    cb_flow *f = s->flow;
    if (node >= f->n_node) {
        return cb_fail(err, CB_INVALID, "network: ban of node %u of %u", node, f->n_node);
    }
    if (f->sink_side[node] && f->fixed[node] != 0) {
        return cb_fail(err, CB_INFEASIBLE,
                       "network: node %u cannot be banned, arcs without limit join it to the sink",
                       node);
    }
    if (cb_bitset_has(&s->banned, node)) return CB_OK;
    cb_bitset_add(&s->banned, node);
    if (f->fixed[node] != 0) return CB_OK; /* on the source side as it is */
    if (s->pushed >= CB_FLOW_MOST) {
        start_afresh(s);
        return CB_OK;
    }
    add_excess(f, node, BAN);
    if (f->sink_side[node]) repair(s, node, true);
    return CB_OK;
}

void cb_session_unban(cb_session *s, uint32_t node) {
    cb_flow *f = s->flow;
    if (node >= f->n_node || !cb_bitset_has(&s->banned, node)) return;
    cb_bitset_remove(&s->banned, node);
    if (f->fixed[node] != 0) return;
    if (s->pushed >= CB_FLOW_MOST) {
        start_afresh(s);
        return;
    }
    add_excess(f, node, -BAN);
    if (!f->sink_side[node]) repair(s, node, false);
}

void cb_session_settle(cb_session *s) { cb_flow_settle(s->flow); }
