/* Three parts: the network with times on it, what a family of nested sets really costs, and the
 * fill between the steps: greedily, and by mixing what is before a large step with what is after.
 *
 * The network has one time for each op that runs again. That is right but for an op that only the
 * backward, or other such ops, have a use for: run again, its first run may fall away, and then
 * running it again costs nothing. The network counts it as free, so its hull stays a lower bound;
 * the points count what the schedule really does. */
#include "frontier.h"

#include "../../base/sort.h"

#define FILLS_LEAST 16 /* targets of the fill */
#define FILLS_MOST 128
#define FILL_WORK (4 << 20) /* targets times ops: some 0.1 s */

const char *const cb_tradeoff_names[CB_TRADEOFF_KINDS] = {"hull", "step", "fill"};

/* Nodes of the network of mincut.h. */
enum { SOURCE = 0, SINK = 1, FIRST_RUN = 2 };

typedef struct maker {
    cb_tradeoffs *t;
    const cb_cut *cut;
    const cb_facts *f;
    cb_arena *arena, *scratch;
    bool *held;       /* [n_storage] made in the forward and saved in every schedule */
    bool *is_limited; /* [n_region] */
    uint32_t *run_of; /* [n_op] index in cut->run_op */
    uint32_t *again;  /* [n_op] the op runs again in steps before this one */
    uint32_t *drop;   /* [n_op] its first run falls away in steps before this one */
    uint32_t *need;   /* [n_storage] the backward needs it in steps before this one */
    uint32_t *use;    /* [n_storage] a first run reads it from this step on */
    uint32_t *shown; /* [n_value] like `need` and `use`, of a value: what a view reads beside its */
    uint32_t *watch; /*           own storage goes with the view */
    int64_t *time;   /* [n_node] of the network */
    /* the steps of the frontier, node by node */
    uint32_t *begin; /* [n_step + 1] into `node` */
    uint32_t *node;
    bool *in; /* [n_node] on the sink side, while filling */
    CB_VEC(cb_tradeoff) found;
} maker;

static cb_status allocate(maker *m, cb_error *err) {
    const cb_problem *p = m->f->p;
    m->held = CB_NEW(m->scratch, bool, p->n_storage);
    m->is_limited = CB_NEW(m->scratch, bool, p->n_region);
    m->run_of = CB_NEW(m->scratch, uint32_t, p->n_op);
    m->again = CB_NEW(m->scratch, uint32_t, p->n_op);
    m->drop = CB_NEW(m->scratch, uint32_t, p->n_op);
    m->need = CB_NEW(m->scratch, uint32_t, p->n_storage);
    m->use = CB_NEW(m->scratch, uint32_t, p->n_storage);
    m->shown = CB_NEW(m->scratch, uint32_t, p->n_value);
    m->watch = CB_NEW(m->scratch, uint32_t, p->n_value);
    m->time = CB_NEW(m->scratch, int64_t, m->cut->flow.n_node);
    m->in = CB_NEW(m->scratch, bool, m->cut->flow.n_node);
    bool ok = m->held && m->is_limited && m->run_of && m->again && m->drop && m->need && m->use &&
              m->shown && m->watch && m->time && m->in;
    return ok ? CB_OK : cb_no_memory(err);
}

static uint32_t node_of_run(uint32_t run) { return FIRST_RUN + run; }
static uint32_t node_of_save(const cb_cut *cut, uint32_t save) {
    return FIRST_RUN + cut->n_run + save;
}
static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* ---- what may run again ---------------------------------------------------------------------- */

static bool is_forward(const cb_facts *f, uint32_t storage) {
    uint32_t op = f->root[storage];
    return op != CB_NONE && f->position[op] < f->base_backward;
}

/* What lives to the end and need not be there when the backward starts would not live on from the
 * first run if there were a second: the op that makes it is better not run again. */
static void mark_held(maker *m, bool *may_run) {
    const cb_facts *f = m->f;
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++)
        m->held[s] = is_forward(f, s) && (p->storage_flags[s] & CB_STORE_HOLD_FORWARD);
    for (uint32_t i = 0; i < p->n_forward_output; i++) {
        uint32_t s = p->value_storage[p->forward_output[i]];
        m->held[s] = is_forward(f, s);
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t s = p->value_storage[p->backward_output[i]];
        if (!is_forward(f, s) || m->held[s]) continue;
        may_run[f->root[s]] = false;
        m->held[s] = true;
    }
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (is_forward(f, s) && !m->held[s] && (p->storage_flags[s] & CB_STORE_HOLD_END)) {
            may_run[f->root[s]] = false;
            m->held[s] = true;
        }
        if (m->held[s]) m->t->held_bytes += p->storage_bytes[s];
    }
}

static void mark_runnable(const maker *m, cb_preset preset, bool *may_run) {
    const cb_facts *f = m->f;
    for (uint32_t i = 0; i < m->cut->n_run; i++) {
        uint32_t op = m->cut->run_op[i];
        bool wanted = f->wish[op] == CB_MUST_RECOMPUTE || f->wish[op] == CB_PREFER_RECOMPUTE ||
                      f->wish[op] == CB_PREFER_SAVE;
        may_run[op] =
            wanted ? !f->once[op] : f->wish[op] == CB_FREE && cb_preset_allows(f, preset, op);
        m->run_of[op] = i;
    }
}

/* ---- what a family of nested sets costs ------------------------------------------------------ */

/* Somebody reads the inputs of `op`: again in steps before `by`, and at its first run from step
 * `from` on. */
static void note_reads(const maker *m, uint32_t op, uint32_t by, uint32_t from) {
    const cb_problem *p = m->f->p;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t v = p->in_value[j], s = p->value_storage[v];
        if (by > m->need[s]) m->need[s] = by;
        if (by > m->shown[v]) m->shown[v] = by;
        m->use[s] = least(m->use[s], from);
        m->watch[v] = least(m->watch[v], from);
    }
}

/* A view runs again where its storage is made again and somebody reads through it, and reads what
 * it reads the first time only where it is not. */
static void follow_view(const maker *m, const uint32_t *until, uint32_t op) {
    const cb_facts *f = m->f;
    const cb_problem *p = f->p;
    uint32_t by = 0, from = CB_NONE;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t root = f->root[p->value_storage[v]],
                 run = root == CB_NONE ? CB_NONE : m->run_of[root],
                 again = run == CB_NONE ? 0 : until[run], level = least(again, m->shown[v]);
        if (level > by) by = level;
        from = least(from, m->watch[v]);
        if (m->shown[v] > again) from = least(from, again);
    }
    note_reads(m, op, by, from);
}

static void start_following(const maker *m) {
    const cb_problem *p = m->f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        m->need[s] = 0;
        m->use[s] = CB_NONE;
    }
    for (uint32_t v = 0; v < p->n_value; v++) {
        m->shown[v] = 0;
        m->watch[v] = CB_NONE;
    }
    for (uint32_t i = 0; i < p->n_forward_output; i++) m->watch[p->forward_output[i]] = 0;
    for (uint32_t i = 0; i < p->n_backward_output; i++) m->shown[p->backward_output[i]] = CB_NONE;
}

/* Run i of the cut may run again in steps before `until`[i]. From the last op to the first: a
 * storage is needed as long as a reader is, an op runs again as long as what it makes is needed,
 * and its first run falls away as long as no first run reads it. */
static void follow(const maker *m, const uint32_t *until) {
    const cb_facts *f = m->f;
    const cb_problem *p = f->p;
    start_following(m);
    for (uint32_t k = f->n_base; k-- > 0;) {
        uint32_t op = f->base[k], run = m->run_of[op], need = 0, use = CB_NONE;
        bool backward = k >= f->base_backward;
        if (!backward && (p->op_flags[op] & CB_POP_VIEW) && !f->once[op]) {
            follow_view(m, until, op);
            continue;
        }
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            if (f->root[s] != op) continue;
            if (m->need[s] > need) need = m->need[s];
            use = least(use, m->held[s] ? 0 : m->use[s]);
        }
        m->again[op] = run == CB_NONE ? 0 : least(until[run], need);
        m->drop[op] = least(m->again[op], use);
        if (p->op_flags[op] & (CB_POP_ONCE & ~CB_POP_UNKNOWN)) m->drop[op] = 0;
        note_reads(m, op, backward ? CB_NONE : m->again[op], backward ? CB_NONE : m->drop[op]);
    }
}

/* Changes from step to step, to be summed up. */
typedef struct changes {
    uint32_t n_step;
    int64_t *bytes, *time; /* [n_step + 1] */
    bool *lawful;          /* [n_step] */
} changes;

static bool changes_init(changes *c, cb_arena *arena, uint32_t n_step) {
    c->n_step = n_step;
    c->bytes = CB_NEW(arena, int64_t, n_step + 1);
    c->time = CB_NEW(arena, int64_t, n_step + 1);
    c->lawful = CB_NEW(arena, bool, n_step);
    return c->bytes && c->time && c->lawful;
}

static void add_span(int64_t *change, uint32_t n_step, uint32_t begin, uint32_t end, int64_t by) {
    if (begin >= end) return;
    change[least(begin, n_step)] += by;
    change[least(end, n_step)] -= by;
}

static void sum_up(int64_t *change, uint32_t n_step, int64_t start) {
    for (uint32_t k = 0; k < n_step; k++) change[k] = start += change[k];
}

/* Bytes saved between the steps at which it no longer runs again and is no longer needed. */
static void add_saved(const maker *m, changes *c, uint32_t region) {
    const cb_cut *cut = m->cut;
    memset(c->bytes, 0, ((size_t)c->n_step + 1) * sizeof *c->bytes);
    for (uint32_t i = 0; i < cut->n_save; i++) {
        uint32_t s = cut->save_storage[i];
        if (m->held[s] || (region != CB_NONE && !cb_inside_region(m->f, s, region))) continue;
        add_span(c->bytes, c->n_step, m->again[m->f->root[s]], m->need[s],
                 (int64_t)m->f->p->storage_bytes[s]);
    }
    sum_up(c->bytes, c->n_step, region == CB_NONE ? (int64_t)m->t->held_bytes : 0);
}

/* After follow: real bytes and times of the steps, and whether regions keep their limits. */
static void measure(const maker *m, changes *c) {
    const cb_facts *f = m->f;
    memset(c->time, 0, ((size_t)c->n_step + 1) * sizeof *c->time);
    for (uint32_t i = 0; i < m->cut->n_run; i++) {
        uint32_t op = m->cut->run_op[i];
        add_span(c->time, c->n_step, 0, m->again[op], f->time_ps[op]);
        add_span(c->time, c->n_step, 0, m->drop[op], -f->time_ps[op]);
    }
    sum_up(c->time, c->n_step, f->once_ps);
    for (uint32_t k = 0; k < c->n_step; k++) c->lawful[k] = true;
    for (uint32_t r = 0; r < f->p->n_region; r++) {
        if (!m->is_limited[r]) continue;
        add_saved(m, c, r);
        for (uint32_t k = 0; k < c->n_step; k++)
            c->lawful[k] &= (uint64_t)c->bytes[k] <= f->p->region_limit[r];
    }
    add_saved(m, c, CB_NONE);
}

/* ---- the network ----------------------------------------------------------------------------- */

/* Times of the nodes; ops whose first run may fall away take none. */
static cb_status set_times(maker *m, const bool *may_run, cb_error *err) {
    const cb_facts *f = m->f;
    uint32_t *until = CB_NEW(m->scratch, uint32_t, m->cut->n_run);
    if (!until) return cb_no_memory(err);
    for (uint32_t i = 0; i < m->cut->n_run; i++)
        until[i] = may_run[m->cut->run_op[i]] ? CB_NONE : 0;
    follow(m, until);
    for (uint32_t i = 0; i < m->cut->n_run; i++) {
        uint32_t op = m->cut->run_op[i];
        if (!may_run[op] || m->drop[op] > 0) continue;
        bool bent = f->wish[op] == CB_PREFER_SAVE;
        m->time[node_of_run(i)] = f->time_ps[op] * (bent ? CB_AGAINST_PREFERENCE : 1);
    }
    return CB_OK;
}

static int64_t save_cost(const maker *m, uint32_t storage) {
    uint8_t wish = m->f->wish[m->f->root[storage]];
    int64_t bytes = (int64_t)m->f->p->storage_bytes[storage];
    if (m->held[storage]) return 0;
    if (wish == CB_MUST_RECOMPUTE) return CB_FLOW_INF;
    return wish == CB_PREFER_RECOMPUTE ? bytes * CB_AGAINST_PREFERENCE : bytes;
}

static cb_status make_frontier(maker *m, const bool *may_run, cb_error *err) {
    const cb_cut *cut = m->cut;
    const cb_flow *flow = &cut->flow;
    uint32_t *from = CB_NEW(m->scratch, uint32_t, flow->n_arc);
    uint32_t *to = CB_NEW(m->scratch, uint32_t, flow->n_arc);
    int64_t *bytes = CB_NEW(m->scratch, int64_t, flow->n_arc);
    if (!from || !to || !bytes) return cb_no_memory(err);
    for (uint32_t i = 0; i < flow->n_arc; i++) {
        const cb_half_arc *half = &flow->arc[flow->half[i]];
        to[i] = half->to;
        from[i] = flow->arc[half->pair].to;
        if (i < cut->n_run) bytes[i] = may_run[cut->run_op[i]] ? 0 : CB_FLOW_INF;
        else if (i < cut->n_run + cut->n_save)
            bytes[i] = save_cost(m, cut->save_storage[i - cut->n_run]);
        else bytes[i] = CB_FLOW_INF;
    }
    CB_TRY(set_times(m, may_run, err));
    cb_priced_network net = {.n_node = flow->n_node,
                             .n_arc = flow->n_arc,
                             .source = SOURCE,
                             .sink = SINK,
                             .from = from,
                             .to = to,
                             .bytes = bytes,
                             .time = m->time};
    return cb_frontier_make(&m->t->frontier, &net, m->arena, err);
}

static void find_bends(maker *m) {
    m->t->has_bound = true;
    for (uint32_t i = 0; i < m->cut->n_run; i++) {
        uint8_t wish = m->f->wish[m->cut->run_op[i]];
        if (wish == CB_PREFER_SAVE || wish == CB_PREFER_RECOMPUTE) m->t->has_bound = false;
    }
}

/* ---- points ---------------------------------------------------------------------------------- */

static cb_status add_point(maker *m, cb_tradeoff point, cb_error *err) {
    int64_t extra = 0, budget = (int64_t)(point.saved_bytes - m->t->held_bytes);
    if (m->t->has_bound) CB_TRY(cb_frontier_bound(&m->t->frontier, budget, &extra, err));
    point.bound_ps = m->f->once_ps + extra;
    return CB_PUSH(m->scratch, m->found, point) ? CB_OK : cb_no_memory(err);
}

static cb_status add_steps(maker *m, cb_error *err) {
    const cb_frontier *f = &m->t->frontier;
    changes c;
    uint32_t *until = CB_NEW(m->scratch, uint32_t, m->cut->n_run);
    if (!until || !changes_init(&c, m->scratch, f->n_step)) return cb_no_memory(err);
    for (uint32_t i = 0; i < m->cut->n_run; i++) until[i] = f->leaves[node_of_run(i)];
    follow(m, until);
    measure(m, &c);
    for (uint32_t k = 0; k < f->n_step; k++) {
        bool corner = f->point[f->step[k].point].step == k;
        cb_tradeoff point = {.saved_bytes = (uint64_t)c.bytes[k],
                             .time_ps = c.time[k],
                             .kind = corner ? CB_TRADEOFF_HULL : CB_TRADEOFF_STEP,
                             .step = k};
        if (c.lawful[k]) CB_TRY(add_point(m, point, err));
    }
    return CB_OK;
}

static int compare_points(const void *a, const void *b) {
    const cb_tradeoff *x = a, *y = b;
    if (x->saved_bytes != y->saved_bytes) return x->saved_bytes < y->saved_bytes ? -1 : 1;
    if (x->time_ps != y->time_ps) return x->time_ps < y->time_ps ? -1 : 1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    return (x->step > y->step) - (x->step < y->step);
}

/* Drops what another point beats. */
static cb_status keep_best(maker *m, cb_error *err) {
    cb_tradeoffs *t = m->t;
    size_t n = m->found.len;
    if (n == 0) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "frontier: no point keeps the limits of all regions; plan without it, or "
                       "raise a saved_limit");
    }
    cb_sort(m->found.at, n, sizeof *m->found.at, compare_points);
    t->point = CB_NEW(m->arena, cb_tradeoff, n);
    if (!t->point) return cb_no_memory(err);
    for (size_t i = 0; i < n; i++) {
        const cb_tradeoff *point = &m->found.at[i];
        if (t->n_point > 0 && point->time_ps >= t->point[t->n_point - 1].time_ps) continue;
        t->point[t->n_point++] = *point;
    }
    return CB_OK;
}

/* ---- the fill -------------------------------------------------------------------------------- */

/* The nodes that leave at each step, side by side. */
static cb_status sort_nodes(maker *m, cb_error *err) {
    const cb_frontier *f = &m->t->frontier;
    m->begin = CB_NEW(m->scratch, uint32_t, f->n_step + 1);
    m->node = CB_NEW(m->scratch, uint32_t, f->n_node);
    if (!m->begin || !m->node) return cb_no_memory(err);
    for (uint32_t v = 0; v < f->n_node; v++) {
        if (f->leaves[v] != 0 && f->leaves[v] != CB_NONE) m->begin[f->leaves[v]]++;
    }
    for (uint32_t k = 0, sum = 0; k <= f->n_step; k++) {
        uint32_t n = k < f->n_step ? m->begin[k] : 0;
        m->begin[k] = sum;
        sum += n;
    }
    for (uint32_t v = 0; v < f->n_node; v++) {
        if (f->leaves[v] != 0 && f->leaves[v] != CB_NONE) m->node[m->begin[f->leaves[v]]++] = v;
    }
    for (uint32_t k = f->n_step; k > 0; k--) m->begin[k] = m->begin[k - 1];
    m->begin[0] = 0;
    return CB_OK;
}

static int64_t real_bytes(const maker *m, uint32_t node) {
    uint32_t s = m->cut->save_storage[node - node_of_save(m->cut, 0)];
    return m->held[s] ? 0 : (int64_t)m->f->p->storage_bytes[s];
}

/* Bytes that are saved more when all nodes of step k leave the sink side; false: some that stay
 * need one of them. */
static bool weigh_step(const maker *m, uint32_t k, int64_t *bytes) {
    const cb_flow *flow = &m->cut->flow;
    const uint32_t *leaves = m->t->frontier.leaves;
    uint32_t first_save = node_of_save(m->cut, 0);
    *bytes = 0;
    for (uint32_t i = m->begin[k]; i < m->begin[k + 1]; i++) {
        uint32_t v = m->node[i];
        bool is_run = v < first_save;
        uint32_t own = is_run ? v : node_of_run(m->cut->save_run[v - first_save]);
        if (!is_run && !m->in[own]) *bytes -= real_bytes(m, v);
        for (uint32_t e = flow->first[v]; e < flow->first[v + 1]; e++) {
            uint32_t u = flow->arc[e].to;
            if (u < FIRST_RUN || !m->in[u] || leaves[u] == k) continue;
            if (!is_run && u != own) return false; /* a reader that runs again */
            bool makes =
                is_run && u >= first_save && node_of_run(m->cut->save_run[u - first_save]) == v;
            if (makes) *bytes += real_bytes(m, u);
        }
    }
    return true;
}

/* From the last step within the target on: takes each later one that still fits, skips the others.
 */
static void fill_to(maker *m, uint32_t start, int64_t room) {
    const cb_frontier *f = &m->t->frontier;
    for (uint32_t v = 0; v < f->n_node; v++) m->in[v] = cb_frontier_has(f, v, start);
    for (uint32_t k = start + 1; k < f->n_step; k++) {
        int64_t bytes;
        if (!weigh_step(m, k, &bytes) || bytes > room) continue;
        for (uint32_t i = m->begin[k]; i < m->begin[k + 1]; i++) m->in[m->node[i]] = false;
        room -= bytes;
    }
}

typedef struct filler {
    changes c; /* of the one set at hand */
    uint32_t *until;
    int64_t n; /* targets, evenly spaced between the least and the most bytes */
    int64_t low, high;
} filler;

/* What is in the set `m->in` as a point. */
static cb_status add_fill(maker *m, filler *l, uint32_t start, cb_error *err) {
    CB_TRY(cb_cut_poll(m->cut, err));
    bool *runs = CB_NEW(m->arena, bool, m->cut->n_run);
    if (!runs) return cb_no_memory(err);
    for (uint32_t i = 0; i < m->cut->n_run; i++) {
        runs[i] = m->in[node_of_run(i)];
        l->until[i] = runs[i] ? 1 : 0;
    }
    follow(m, l->until);
    measure(m, &l->c);
    if (!l->c.lawful[0]) return CB_OK;
    return add_point(m,
                     (cb_tradeoff){.saved_bytes = (uint64_t)l->c.bytes[0],
                                   .time_ps = l->c.time[0],
                                   .kind = CB_TRADEOFF_FILL,
                                   .step = start,
                                   .runs = runs},
                     err);
}

static cb_status add_greedy(maker *m, filler *l, cb_error *err) {
    const cb_frontier *f = &m->t->frontier;
    for (int64_t i = 1; i < l->n; i++) {
        int64_t target = l->low + (l->high - l->low) / l->n * i;
        uint32_t k;
        CB_TRY(cb_frontier_at(f, target, &k, err));
        if (k + 1 == f->n_step || f->step[k].bytes == target) continue;
        fill_to(m, k, target - f->step[k].bytes);
        CB_TRY(add_fill(m, l, k, err));
    }
    return CB_OK;
}

/* The set after step k, and of the runs that leave at it the first `n` in program order, or the
 * others. */
static void mix(maker *m, uint32_t k, uint32_t n, bool others) {
    uint32_t end = m->begin[k + 1], first_save = node_of_save(m->cut, 0);
    for (uint32_t v = FIRST_RUN; v < first_save; v++)
        m->in[v] = cb_frontier_has(&m->t->frontier, v, k);
    for (uint32_t i = m->begin[k], seen = 0; i < end && m->node[i] < first_save; i++, seen++)
        m->in[m->node[i]] = (seen < n) != others;
}

/* A large step is a chain of layers that leave together. Up to some layer they leave, from there on
 * they stay, or the other way round. */
static cb_status add_mixtures(maker *m, filler *l, cb_error *err) {
    const cb_frontier *f = &m->t->frontier;
    uint32_t first_save = node_of_save(m->cut, 0);
    int64_t grain = (l->high - l->low) / l->n + 1;
    for (uint32_t k = 1; k < f->n_step; k++) {
        int64_t n = (f->step[k].bytes - f->step[k - 1].bytes) / grain;
        uint32_t n_run = 0;
        for (uint32_t i = m->begin[k]; i < m->begin[k + 1]; i++) n_run += m->node[i] < first_save;
        for (int64_t j = 1; j <= n && n_run > 1; j++) {
            uint32_t part = (uint32_t)(n_run * j / (n + 1));
            mix(m, k, part, false);
            CB_TRY(add_fill(m, l, k, err));
            mix(m, k, part, true);
            CB_TRY(add_fill(m, l, k, err));
        }
    }
    return CB_OK;
}

/* Targets lie on a fixed grid, so that what is found does not depend on any budget. Preferences
 * make bytes of the network and bytes of memory two things; then there is no fill. */
static cb_status add_fills(maker *m, cb_error *err) {
    const cb_frontier *f = &m->t->frontier;
    int64_t n = FILL_WORK / (m->f->p->n_op + 1);
    if (!m->t->has_bound || f->n_step < 2) return CB_OK;
    filler l = {.n = n, .low = f->step[0].bytes, .high = f->step[f->n_step - 1].bytes};
    if (l.n < FILLS_LEAST) l.n = FILLS_LEAST;
    if (l.n > FILLS_MOST) l.n = FILLS_MOST;
    l.until = CB_NEW(m->scratch, uint32_t, m->cut->n_run);
    if (!l.until || !changes_init(&l.c, m->scratch, 1)) return cb_no_memory(err);
    CB_TRY(sort_nodes(m, err));
    CB_TRY(add_greedy(m, &l, err));
    return add_mixtures(m, &l, err);
}

/* ---- use ------------------------------------------------------------------------------------- */

static cb_status make(maker *m, cb_preset preset, cb_error *err) {
    const cb_problem *p = m->f->p;
    bool *may_run = CB_NEW(m->scratch, bool, p->n_op);
    if (!may_run) return cb_no_memory(err);
    CB_TRY(allocate(m, err));
    for (uint32_t op = 0; op < p->n_op; op++) m->run_of[op] = CB_NONE;
    for (uint32_t r = 0; r < p->n_region; r++) m->is_limited[r] = p->region_limit[r] != UINT64_MAX;
    mark_runnable(m, preset, may_run);
    mark_held(m, may_run);
    find_bends(m);
    CB_TRY(make_frontier(m, may_run, err));
    CB_TRY(add_steps(m, err));
    CB_TRY(add_fills(m, err));
    return keep_best(m, err);
}

cb_status cb_tradeoffs_make(cb_tradeoffs *t, const cb_cut *cut, cb_preset preset, cb_arena *arena,
                            cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, arena->alloc);
    cb_tradeoffs made = {.cut = cut};
    maker m = {.t = &made, .cut = cut, .f = cut->f, .arena = arena, .scratch = &scratch};
    cb_status status = make(&m, preset, err);
    if (status == CB_OK) *t = made;
    cb_arena_free(&scratch);
    return status;
}

uint32_t cb_tradeoffs_at(const cb_tradeoffs *t, uint64_t saved_bytes) {
    uint32_t low = 0, high = t->n_point; /* the answer is the last before `low` */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (t->point[middle].saved_bytes <= saved_bytes) low = middle + 1;
        else high = middle;
    }
    return low > 0 ? low - 1 : CB_NONE;
}

void cb_tradeoffs_recompute(const cb_tradeoffs *t, uint32_t point, bool *recompute) {
    const cb_tradeoff *at = &t->point[point];
    memset(recompute, 0, t->cut->f->p->n_op * sizeof *recompute);
    for (uint32_t i = 0; i < t->cut->n_run; i++) {
        recompute[t->cut->run_op[i]] =
            at->runs ? at->runs[i] : cb_frontier_has(&t->frontier, node_of_run(i), at->step);
    }
}

/* ---- budgets --------------------------------------------------------------------------------- */

/* What a goal about saved bytes picks, CB_NONE: nothing fits. */
static uint32_t pick(const cb_tradeoffs *t, const cb_goal *goal) {
    double once = (double)t->cut->f->once_ps;
    if (!goal->smallest) return cb_tradeoffs_at(t, goal->bytes);
    for (uint32_t i = 0; i < t->n_point; i++) {
        if ((double)t->point[i].time_ps <= once * (1 + goal->share)) return i;
    }
    return CB_NONE;
}

/* The largest value that the smallest point saves is what a user can do something about. */
static cb_status fail_budget(const cb_tradeoffs *t, const bool *recompute, const cb_goal *goal,
                             cb_error *err) {
    const cb_facts *f = t->cut->f;
    uint32_t largest = CB_NONE;
    char text[CB_OP_TEXT];
    if (goal->smallest) {
        return cb_fail(err, CB_INFEASIBLE,
                       "budget: no plan takes at most %.1f %% more time; the fastest takes %.1f %%",
                       100 * goal->share,
                       100 * ((double)t->point[t->n_point - 1].time_ps / (double)f->once_ps - 1));
    }
    for (uint32_t i = 0; i < t->cut->n_save; i++) {
        uint32_t s = t->cut->save_storage[i];
        if (recompute[f->root[s]]) continue;
        if (largest == CB_NONE || f->p->storage_bytes[s] > f->p->storage_bytes[largest])
            largest = s;
    }
    return cb_fail(err, CB_INFEASIBLE,
                   "budget: no plan saves at most %llu bytes; the smallest found needs %llu bytes, "
                   "the largest value that is not recomputed in it is of %s",
                   (unsigned long long)goal->bytes, (unsigned long long)t->point->saved_bytes,
                   largest == CB_NONE ? "no op" : cb_op_text(f->p, f->root[largest], text));
}

static cb_status answer(const cb_tradeoffs *t, const cb_goal *goal, cb_arena *scratch,
                        cb_found *out, cb_error *err) {
    const cb_facts *f = t->cut->f;
    uint32_t i = pick(t, goal);
    bool *recompute = CB_NEW(scratch, bool, f->p->n_op);
    if (!recompute) return cb_no_memory(err);
    cb_tradeoffs_recompute(t, i == CB_NONE ? 0 : i, recompute);
    if (i == CB_NONE) return fail_budget(t, recompute, goal, err);
    out->least_extra_ps = t->has_bound ? (double)(t->point[i].bound_ps - f->once_ps) : -1;
    return cb_recompute_lazily(f, recompute, NULL, &out->pairs, err);
}

cb_status cb_search_saved(const cb_facts *f, const cb_cut *cut, cb_preset preset,
                          const cb_goal *goal, cb_found *out, cb_error *err) {
    cb_tradeoffs t;
    cb_arena scratch;
    if (cb_poll_cancels(goal->poll, goal->poll_user))
        return cb_fail(err, CB_CANCELLED, "plan: cancelled");
    cb_arena_init(&scratch, f->alloc);
    if (preset == CB_PRESET_AUTOGRAD) preset = CB_PRESET_RECOMPUTE_ALL;
    cb_status status = cb_tradeoffs_make(&t, cut, preset, &scratch, err);
    if (status == CB_OK) status = answer(&t, goal, &scratch, out, err);
    cb_arena_free(&scratch);
    return status;
}
