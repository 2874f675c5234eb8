/* The sets of the steps are nested, so they are not evaluated one by one: this file records the
 * changes from step to step and takes prefix sums. */
#include "frontier_parts.h"

/* Records the reads of `op`: a recomputed run reads the inputs in steps before `by`, and the first
 * run reads them from step `from` on. */
static void note_reads(const maker *m, uint32_t op, uint32_t by, uint32_t from) {
    const cb_problem *p = m->f->p;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t v = p->in_value[j], s = p->value_storage[v];
        if (by > m->need[s]) m->need[s] = by;
        if (by > m->shown[v]) m->shown[v] = by;
        m->use[s] = cb_least(m->use[s], from);
        m->watch[v] = cb_least(m->watch[v], from);
    }
}

/* A view is recomputed in the steps in which its storage is recomputed and read through it; in the
 * other steps, its first run reads its input. */
static void follow_view(const maker *m, const uint32_t *until, uint32_t op) {
    const cb_facts *f = m->f;
    const cb_problem *p = f->p;
    uint32_t by = 0, from = CB_NONE;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t root = f->root[p->value_storage[v]],
                 run = root == CB_NONE ? CB_NONE : m->run_of[root],
                 again = run == CB_NONE ? 0 : until[run], level = cb_least(again, m->shown[v]);
        if (level > by) by = level;
        from = cb_least(from, m->watch[v]);
        if (m->shown[v] > again) from = cb_least(from, again);
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
    for (uint32_t s = 0; m->counts_late && s < p->n_storage; s++)
        if (m->late[s]) m->need[s] = CB_NONE;
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i];
        m->shown[v] = CB_NONE;
        if (cb_may_remake_at_end(m->f, v)) m->need[p->value_storage[v]] = CB_NONE;
    }
}

/* Run i of the cut may be recomputed in steps before `until`[i]. Visits the ops from last to first.
 * A storage is needed while one of its readers is; an op is recomputed while its result is needed;
 * its first run is dropped while no first run reads its result. */
void cb_frontier_follow(const maker *m, const uint32_t *until) {
    const cb_facts *f = m->f;
    const cb_problem *p = f->p;
    start_following(m);
    for (uint32_t k = f->n_base; k-- > 0;) {
        uint32_t op = f->base[k], run = m->run_of[op], need = 0, use = CB_NONE;
        bool backward = k >= f->base_backward;
        if (!backward && (p->op_flags[op] & CB_POP_VIEW) && !f->once[op] && !f->stays[op]) {
            follow_view(m, until, op);
            continue;
        }
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            if (f->root[s] != op) continue;
            if (m->need[s] > need) need = m->need[s];
            bool stays = m->held[s] && !(m->counts_late && m->late[s]);
            use = cb_least(use, stays ? 0 : m->use[s]);
        }
        m->again[op] = run == CB_NONE ? 0 : cb_least(until[run], need);
        m->drop[op] = cb_least(m->again[op], use);
        if (p->op_flags[op] & CB_POP_ACTS) m->drop[op] = 0;
        note_reads(m, op, backward ? CB_NONE : m->again[op], backward ? CB_NONE : m->drop[op]);
    }
}

bool cb_changes_init(changes *c, cb_arena *arena, uint32_t n_step) {
    c->n_step = n_step;
    c->bytes = CB_NEW(arena, int64_t, n_step + 1);
    c->time = CB_NEW(arena, int64_t, n_step + 1);
    c->lawful = CB_NEW(arena, bool, n_step);
    return c->bytes && c->time && c->lawful;
}

static void add_span(int64_t *change, uint32_t n_step, uint32_t begin, uint32_t end, int64_t by) {
    if (begin >= end) return;
    change[cb_least(begin, n_step)] += by;
    change[cb_least(end, n_step)] -= by;
}

static void sum_up(int64_t *change, uint32_t n_step, int64_t start) {
    for (uint32_t k = 0; k < n_step; k++) change[k] = start += change[k];
}

/* Sums the saved bytes of each step. A storage is saved from the step at which its op is no longer
 * recomputed to the step at which it is no longer needed. */
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

/* Must be called after cb_frontier_follow. Computes the real bytes and times of the steps, and
 * whether regions keep their limits. */
void cb_frontier_measure(const maker *m, changes *c) {
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

cb_status cb_frontier_add_point(maker *m, cb_tradeoff point, cb_error *err) {
    int64_t extra = 0, budget = (int64_t)(point.saved_bytes - m->t->sure_bytes);
    if (m->t->has_bound) CB_TRY(cb_frontier_bound(&m->t->frontier, budget, &extra, err));
    point.bound_ps = m->f->once_ps + extra;
    return CB_PUSH(m->scratch, m->found, point) ? CB_OK : cb_no_memory(err);
}
