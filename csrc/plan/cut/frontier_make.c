#include "../../base/sort.h"
#include "frontier_parts.h"

const char *const cb_tradeoff_names[CB_TRADEOFF_KINDS] = {"hull", "step", "fill"};

/* ---- which ops may be recomputed ------------------------------------------------------------- */

static bool is_forward(const cb_facts *f, uint32_t storage) {
    uint32_t op = f->root[storage];
    return op != CB_NONE && f->position[op] < f->base_backward;
}

/* True if all results of the op stay to the end, so that recomputing it frees nothing. */
static bool all_stays(const maker *m, uint32_t op) {
    const cb_problem *p = m->f->p;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
        if (m->f->root[p->value_storage[v]] == op && !m->late[p->value_storage[v]]) return false;
    return true;
}

/* Marks storages that are held from their op's first run to the end: those with the flag, and those
 * whose views the backward returns. The schedule of a point makes them in the forward; other
 * schedules may make them in the backward, and then do not save them. */
static void mark_late(maker *m) {
    const cb_facts *f = m->f;
    const cb_problem *p = f->p;
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i], s = p->value_storage[v];
        if (!is_forward(f, s) || m->held[s] || cb_may_remake_at_end(f, v)) continue;
        m->held[s] = m->late[s] = true;
    }
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (!is_forward(f, s) || m->held[s] || !(p->storage_flags[s] & CB_STORE_HOLD_END)) continue;
        m->held[s] = m->late[s] = true;
    }
}

static void mark_held(maker *m, bool *may_run) {
    const cb_facts *f = m->f;
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++)
        m->held[s] = is_forward(f, s) &&
                     ((p->storage_flags[s] & CB_STORE_HOLD_FORWARD) || cb_is_updating(p, s));
    for (uint32_t i = 0; i < p->n_forward_output; i++) {
        uint32_t s = p->value_storage[p->forward_output[i]];
        m->held[s] = is_forward(f, s);
    }
    mark_late(m);
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (m->held[s]) m->t->held_bytes += p->storage_bytes[s];
        if (!m->late[s]) continue;
        bool flagged = p->storage_flags[s] & CB_STORE_HOLD_END, all = all_stays(m, f->root[s]);
        if (!flagged || all) may_run[f->unit[s]] = false;
        if (!flagged && !all) m->t->has_bound = false; /* the op's other outputs may run again */
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

/* ---- the network ----------------------------------------------------------------------------- */

/* The node of an output costs the time of writing it; each member that it needs costs its own time,
 * once for all outputs. */
static void set_inner_times(maker *m, const bool *may_run) {
    const cb_cut *cut = m->cut;
    const cb_facts *f = m->f;
    for (uint32_t i = 0; i < cut->n_run; i++) {
        uint32_t unit = cut->run_op[i], op = cb_unit_op(f, unit);
        if (!may_run[unit]) continue;
        m->time[cb_node_of_run(i)] =
            unit < f->p->n_op
                ? f->time_ps[unit]
                : cb_write_time_ps(f->p, f->p->out_begin[op] + (unit - f->unit_begin[op]),
                                   f->device);
    }
    for (uint32_t i = 0; i < cut->n_inner; i++) {
        uint32_t op = cut->inner_op[i], member = cut->inner_member[i];
        m->time[cb_node_of_save(cut, cut->n_save) + i] =
            member == CB_NONE ? cb_own_time_ps(f->p, op, f->device)
                              : cb_member_time_ps(f->p, op, member, f->device);
    }
}

/* Counts the bytes that every schedule saves: held storages, except those that may be made in the
 * backward. */
static void count_sure(maker *m) {
    const cb_facts *f = m->f;
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        if (!m->held[s] || (m->late[s] && m->drop[f->root[s]] > 0)) continue;
        m->t->sure_bytes += f->p->storage_bytes[s];
    }
}

/* Sets the times of the nodes. Ops whose first run may be dropped take no time. Ops that make
 * `late` storages count as recomputable here, because other schedules may make them late. */
static cb_status set_times(maker *m, const bool *may_run, const bool *runnable, cb_error *err) {
    const cb_facts *f = m->f;
    if (cb_frontier_is_walked(m)) {
        set_inner_times(m, may_run);
        return CB_OK;
    }
    uint32_t *until = CB_NEW(m->scratch, uint32_t, m->cut->n_run);
    if (!until) return cb_no_memory(err);
    for (uint32_t i = 0; i < m->cut->n_run; i++)
        until[i] = runnable[m->cut->run_op[i]] ? CB_NONE : 0;
    m->counts_late = true;
    cb_frontier_follow(m, until);
    m->counts_late = false;
    count_sure(m);
    for (uint32_t i = 0; i < m->cut->n_run; i++) {
        uint32_t op = m->cut->run_op[i];
        if (!may_run[op] || m->drop[op] > 0) continue;
        bool bent = f->wish[op] == CB_PREFER_SAVE;
        m->time[cb_node_of_run(i)] = f->time_ps[op] * (bent ? CB_AGAINST_PREFERENCE : 1);
    }
    return CB_OK;
}

static int64_t save_cost(const maker *m, uint32_t storage) {
    uint8_t wish = m->f->wish[m->f->unit[storage]];
    int64_t bytes = (int64_t)m->f->p->storage_bytes[storage];
    if (m->held[storage]) return 0;
    if (wish == CB_MUST_RECOMPUTE) return CB_FLOW_INF;
    return wish == CB_PREFER_RECOMPUTE ? bytes * CB_AGAINST_PREFERENCE : bytes;
}

static cb_status make_frontier(maker *m, const bool *may_run, const bool *runnable, cb_error *err) {
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
        else bytes[i] = i < cut->n_run + cut->n_save + cut->n_inner ? 0 : CB_FLOW_INF;
    }
    CB_TRY(set_times(m, may_run, runnable, err));
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
    m->t->has_bound = !cb_frontier_is_walked(m);
    for (uint32_t i = 0; i < m->cut->n_run; i++) {
        uint8_t wish = m->f->wish[m->cut->run_op[i]];
        if (wish == CB_PREFER_SAVE || wish == CB_PREFER_RECOMPUTE) m->t->has_bound = false;
    }
}

/* ---- points ---------------------------------------------------------------------------------- */

static cb_status add_point_of_step(maker *m, uint32_t step, uint64_t bytes, int64_t time_ps,
                                   cb_error *err) {
    const cb_frontier *f = &m->t->frontier;
    const bool corner = f->point[f->step[step].point].step == step;
    const cb_tradeoff point = {.saved_bytes = bytes,
                               .time_ps = time_ps,
                               .kind = corner ? CB_TRADEOFF_HULL : CB_TRADEOFF_STEP,
                               .step = step};
    return cb_frontier_add_point(m, point, err);
}

/* If outputs of one op are recomputed at different moments, their common members run twice. So
 * steps are simulated one by one. */
static cb_status simulate_steps(maker *m, cb_sim *sim, cb_error *err) {
    const cb_frontier *f = &m->t->frontier;
    bool *recompute = CB_NEW(m->scratch, bool, m->f->n_unit);
    cb_pairs pairs = {.arena = m->scratch};
    if (!recompute) return cb_no_memory(err);
    for (uint32_t k = 0; k < f->n_step; k++) {
        CB_TRY(cb_cut_poll(m->cut, err));
        for (uint32_t i = 0; i < m->cut->n_run; i++)
            recompute[m->cut->run_op[i]] = cb_frontier_has(f, cb_node_of_run(i), k);
        CB_TRY(cb_recompute_lazily(m->f, recompute, NULL, &pairs, err));
        CB_TRY(cb_sim_run(sim, pairs.list.at, pairs.list.len, err));
        if (cb_within_region_limits(m->f, sim->life.at, sim->life.len, sim->backward_starts))
            CB_TRY(add_point_of_step(m, k, sim->saved, sim->time_ps, err));
    }
    return CB_OK;
}

static cb_status add_walked_steps(maker *m, cb_error *err) {
    cb_sim sim;
    CB_TRY(cb_sim_init(&sim, m->f, m->f->alloc, err));
    cb_status status = simulate_steps(m, &sim, err);
    cb_sim_free(&sim);
    return status;
}

static cb_status add_steps(maker *m, cb_error *err) {
    const cb_frontier *f = &m->t->frontier;
    if (cb_frontier_is_walked(m)) return add_walked_steps(m, err);
    changes c;
    uint32_t *until = CB_NEW(m->scratch, uint32_t, m->cut->n_run);
    if (!until || !cb_changes_init(&c, m->scratch, f->n_step)) return cb_no_memory(err);
    for (uint32_t i = 0; i < m->cut->n_run; i++) until[i] = f->leaves[cb_node_of_run(i)];
    cb_frontier_follow(m, until);
    cb_frontier_measure(m, &c);
    for (uint32_t k = 0; k < f->n_step; k++)
        if (c.lawful[k]) CB_TRY(add_point_of_step(m, k, (uint64_t)c.bytes[k], c.time[k], err));
    return CB_OK;
}

static int compare_points(const void *a, const void *b) {
    const cb_tradeoff *x = a, *y = b;
    if (x->saved_bytes != y->saved_bytes) return x->saved_bytes < y->saved_bytes ? -1 : 1;
    if (x->time_ps != y->time_ps) return x->time_ps < y->time_ps ? -1 : 1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    return (x->step > y->step) - (x->step < y->step);
}

/* Drops points that another point beats. */
static cb_status keep_best(maker *m, cb_error *err) {
    cb_tradeoffs *t = m->t;
    size_t n = m->found.len;
    if (n == 0) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "frontier: no point keeps the limits of all regions; plan without the "
                       "frontier, or raise a saved_limit");
    }
    cb_sort(m->found.at, n, sizeof *m->found.at, compare_points);
    CB_TRY_NEW(t->point, m->arena, n, err);
    for (size_t i = 0; i < n; i++) {
        const cb_tradeoff *point = &m->found.at[i];
        if (t->n_point > 0 && point->time_ps >= t->point[t->n_point - 1].time_ps) continue;
        t->point[t->n_point++] = *point;
    }
    return CB_OK;
}

/* ---- use ------------------------------------------------------------------------------------- */

static cb_status allocate(maker *m, cb_error *err) {
    const cb_problem *p = m->f->p;
    m->held = CB_NEW(m->scratch, bool, p->n_storage);
    m->late = CB_NEW(m->scratch, bool, p->n_storage);
    m->is_limited = CB_NEW(m->scratch, bool, p->n_region);
    m->run_of = CB_NEW(m->scratch, uint32_t, m->f->n_unit);
    m->again = CB_NEW(m->scratch, uint32_t, p->n_op);
    m->drop = CB_NEW(m->scratch, uint32_t, p->n_op);
    m->need = CB_NEW(m->scratch, uint32_t, p->n_storage);
    m->use = CB_NEW(m->scratch, uint32_t, p->n_storage);
    m->shown = CB_NEW(m->scratch, uint32_t, p->n_value);
    m->watch = CB_NEW(m->scratch, uint32_t, p->n_value);
    m->time = CB_NEW(m->scratch, int64_t, m->cut->flow.n_node);
    m->in = CB_NEW(m->scratch, bool, m->cut->flow.n_node);
    bool ok = m->held && m->late && m->is_limited && m->run_of && m->again && m->drop && m->need &&
              m->use && m->shown && m->watch && m->time && m->in;
    return ok ? CB_OK : cb_no_memory(err);
}

static cb_status make(maker *m, cb_preset preset, cb_error *err) {
    const cb_problem *p = m->f->p;
    bool *may_run = CB_NEW(m->scratch, bool, m->f->n_unit);
    bool *runnable = CB_NEW(m->scratch, bool, m->f->n_unit); /* `may_run`, ignoring held storages */
    if (!may_run || !runnable) return cb_no_memory(err);
    CB_TRY(allocate(m, err));
    for (uint32_t u = 0; u < m->f->n_unit; u++) m->run_of[u] = CB_NONE;
    for (uint32_t r = 0; r < p->n_region; r++) m->is_limited[r] = p->region_limit[r] != UINT64_MAX;
    mark_runnable(m, preset, may_run);
    memcpy(runnable, may_run, m->f->n_unit * sizeof *runnable);
    find_bends(m);
    mark_held(m, may_run);
    CB_TRY(make_frontier(m, may_run, runnable, err));
    CB_TRY(add_steps(m, err));
    CB_TRY(cb_frontier_add_fills(m, err));
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
    uint32_t low = 0, high = t->n_point; /* the answer is the last point before `low` */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (t->point[middle].saved_bytes <= saved_bytes) low = middle + 1;
        else high = middle;
    }
    return low > 0 ? low - 1 : CB_NONE;
}

void cb_tradeoffs_recompute(const cb_tradeoffs *t, uint32_t point, bool *recompute) {
    const cb_tradeoff *at = &t->point[point];
    memset(recompute, 0, t->cut->f->n_unit * sizeof *recompute);
    for (uint32_t i = 0; i < t->cut->n_run; i++) {
        recompute[t->cut->run_op[i]] =
            at->runs ? at->runs[i] : cb_frontier_has(&t->frontier, cb_node_of_run(i), at->step);
    }
}
