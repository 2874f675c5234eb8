#include "trial.h"

#define POLL_EVERY 16 /* trials of some 10 to 1000 microseconds */

static bool is_lawful(const cb_trial *t) {
    const cb_facts *f = t->f;
    const cb_sim *sim = t->sim;
    for (size_t i = 0; i < sim->life.len; i++) {
        const cb_sim_life *life = &sim->life.at[i];
        if (life->made == CB_NONE || life->made >= sim->backward_starts ||
            life->last < sim->backward_starts)
            continue;
        if (f->wish[f->root[life->storage]] == CB_MUST_RECOMPUTE && !f->held[life->storage])
            return false;
    }
    for (uint32_t r = 0; r < f->p->n_region; r++) {
        if (f->p->region_limit[r] != UINT64_MAX &&
            cb_sim_saved_inside(sim, r) > f->p->region_limit[r])
            return false;
    }
    return true;
}

cb_status cb_try_pairs(cb_trial *t, const cb_pair *pair, size_t n_pair, cb_error *err) {
    if (t->goal->poll && t->count++ % POLL_EVERY == 0 && t->goal->poll(t->goal->poll_user)) {
        return cb_fail(err, CB_CANCELLED, "plan: cancelled");
    }
    CB_TRY(cb_sim_run(t->sim, pair, n_pair, err));
    t->size = t->goal->measure == CB_MEASURE_SAVED ? t->sim->saved : t->sim->peak;
    t->time_ps = t->sim->cost_ps;
    t->lawful = !t->has_demands || is_lawful(t);
    return t->lawful ? cb_pool_offer(t->pool, t->size, t->time_ps, pair, n_pair, err) : CB_OK;
}
