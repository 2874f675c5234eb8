#include "trial.h"

#include <math.h>

#include "../tuning.h"

/* Checks the constraints. `backward_starts` is the step at which the backward of these lives
 * starts. */
static bool is_lawful(const cb_trial *t, const cb_sim_life *life, size_t n,
                      uint32_t backward_starts) {
    const cb_facts *f = t->f;
    for (size_t i = 0; i < n; i++) {
        if (!cb_is_saved(&life[i], backward_starts)) continue;
        if (f->wish[f->unit[life[i].storage]] == CB_MUST_RECOMPUTE && !f->held[life[i].storage])
            return false;
    }
    return cb_within_region_limits(f, life, n, backward_starts);
}

/* Reports the best of the candidates in use, if it is better than the last one reported. */
static void tell(const cb_trial *t, cb_progress *told) {
    const cb_goal *goal = t->goal;
    const cb_candidates *all = t->candidates;
    double once = (double)t->f->once_ps + 1, bound = once;
    uint32_t at = cb_candidates_fitting(all, goal->smallest ? UINT64_MAX : goal->bytes);
    if (at == CB_NONE) return;
    while (goal->smallest && at > 0 && (double)all->at[at - 1].time_ps <= once * (1 + goal->share))
        at--;
    const cb_candidate *c = &all->at[at];
    double extra = (double)(c->time_ps - t->f->once_ps) / once;
    bool worse = goal->smallest ? c->size > told->best_bytes : extra > told->extra;
    if (told->best_bytes > 0 && worse) return;
    if (t->proven && !t->f->bent)
        bound += cb_tangents_bound(t->proven, t->proven->len,
                                   (double)(goal->smallest ? c->size : goal->bytes));
    told->best_bytes = c->size;
    told->extra = extra;
    told->gap = fmax(0, ((double)c->time_ps - bound) / bound); /* `bound` is at least 1 ps */
}

cb_status cb_trial_poll(const cb_trial *t, cb_error *err) {
    const cb_goal *goal = t->goal;
    if (!goal->poll.ask) return CB_OK;
    if (goal->progress) tell(t, goal->progress);
    return cb_poll_answer(goal->poll) == CB_POLL_GO ? CB_OK
                                                    : cb_fail(err, CB_CANCELLED, "plan: cancelled");
}

/* Returns the time that preferences add to a plan with moves; `marked` is free after a run. */
static int64_t bend(cb_offload_sim *m) {
    int64_t more_ps = 0;
    for (uint32_t op = 0; op < m->f->p->n_op; op++) m->marked[op] = CB_NONE;
    for (size_t r = 0; r < m->run.len; r++) {
        uint32_t op = m->step.at[m->run.at[r]].op;
        if (m->marked[op] != CB_NONE) more_ps += m->f->cost_ps[op] - m->f->time_ps[op];
        m->marked[op] = 0;
    }
    return more_ps;
}

static cb_status try_moves(cb_trial *t, const cb_pair *pair, size_t n_pair, cb_error *err) {
    cb_offload_sim *m = t->offload_sim;
    CB_TRY(cb_offload_sim_run(m, pair, n_pair, t->target, err));
    t->size = m->peak;
    t->time_ps = m->time_ps + (t->f->bent ? bend(m) : 0);
    t->lawful = !m->broken && m->host_bytes <= t->goal->pinned_bytes &&
                (!t->has_demands || is_lawful(t, m->life.at, m->life.len, m->backward));
    return CB_OK;
}

static cb_status try_runs(cb_trial *t, const cb_pair *pair, size_t n_pair, cb_error *err) {
    CB_TRY(cb_sim_run(t->sim, pair, n_pair, err));
    t->size = t->goal->measure == CB_MEASURE_SAVED ? t->sim->saved : t->sim->peak;
    t->time_ps = t->sim->cost_ps;
    t->lawful =
        !t->has_demands || is_lawful(t, t->sim->life.at, t->sim->life.len, t->sim->backward_starts);
    return CB_OK;
}

cb_status cb_try_pairs(cb_trial *t, const cb_pair *pair, size_t n_pair, cb_error *err) {
    if (t->count++ % CB_TRIALS_A_POLL == 0) CB_TRY(cb_trial_poll(t, err));
    CB_TRY(t->offload_sim ? try_moves(t, pair, n_pair, err) : try_runs(t, pair, n_pair, err));
    return t->lawful ? cb_candidates_offer(t->candidates, t->size, t->time_ps, pair, n_pair, err)
                     : CB_OK;
}
