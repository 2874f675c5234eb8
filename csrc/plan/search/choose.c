#include "choose.h"

#include "../schedule/plan.h"

cb_status cb_weigh(cb_chooser *k, const cb_candidate *c, uint64_t *bytes, cb_error *err) {
    cb_trial *t = k->t;
    const cb_problem *p = k->f->p;
    cb_arena scratch;
    cb_arena_init(&scratch, t->scratch->alloc);
    cb_schedule schedule;
    cb_lives lives;
    uint64_t arena_bytes = 0;
    cb_status status;
    if (!k->settles) CB_TRY_DONE(cb_trial_poll(t, err)); /* placing a long plan takes a while */
    CB_TRY_DONE(cb_sim_run(t->sim, c->pair, c->n_pair, err));
    CB_TRY_DONE(cb_sim_schedule(t->sim, &scratch, &schedule, err));
    CB_TRY_DONE(cb_schedule_walk(p, &schedule, k->f->device, &scratch, &lives, err));
    if (t->goal->measure == CB_MEASURE_ARENA)
        CB_TRY_DONE(cb_place(p, &lives, &scratch, t->goal->poll, &arena_bytes, err));
    *bytes = cb_measured(p, t->goal->measure, &lives, arena_bytes);
    k->weighed_ps = lives.time_ps;
    if (*bytes >= k->smallest) goto done;
    k->smallest = *bytes;
    k->smallest_op = schedule.n_step > 0 ? schedule.step[lives.peak_step] : CB_NONE;
done:
    cb_arena_free(&scratch);
    return status;
}

/* Its own size is a floor for what a candidate measures in the end. */
static bool may_fit(const cb_trial *t, const cb_candidate *c, uint64_t bytes) {
    return c->size + cb_beside_bytes(t) <= bytes;
}

static cb_status take(cb_chooser *k, const cb_candidate *c, uint64_t bytes, cb_error *err) {
    k->best = *c;
    k->best_bytes = bytes;
    k->best.pair = CB_NEW(k->arena, cb_pair, c->n_pair);
    if (!k->best.pair) return cb_no_memory(err);
    if (c->n_pair > 0) memcpy(k->best.pair, c->pair, c->n_pair * sizeof *c->pair);
    return CB_OK;
}

cb_status cb_consider(cb_chooser *k, const cb_candidate *c, cb_error *err) {
    uint64_t bytes;
    if (!may_fit(k->t, c, k->t->goal->bytes)) return CB_OK;
    if (cb_has_best(k) && c->time_ps > k->best.time_ps) return CB_OK;
    CB_TRY(cb_weigh(k, c, &bytes, err));
    if (bytes > k->t->goal->bytes) return CB_OK;
    if (cb_has_best(k) && c->time_ps == k->best.time_ps && bytes >= k->best_bytes) return CB_OK;
    return take(k, c, bytes, err);
}

/* Fastest first: sizes fall from the end. */
cb_status cb_consider_candidates(cb_chooser *k, cb_error *err) {
    const cb_candidates *all = k->t->candidates;
    for (uint32_t i = all->n; i-- > 0;) {
        if (cb_has_best(k) && all->at[i].time_ps > k->best.time_ps) return CB_OK;
        CB_TRY(cb_consider(k, &all->at[i], err));
    }
    return CB_OK;
}

cb_status cb_consider_small(cb_chooser *k, const cb_candidate *c, cb_error *err) {
    uint64_t bytes;
    if (cb_has_best(k) && !may_fit(k->t, c, k->best_bytes)) return CB_OK;
    CB_TRY(cb_weigh(k, c, &bytes, err));
    if (cb_has_best(k) && bytes >= k->best_bytes) return CB_OK;
    if (k->t->goal->smallest && (double)k->weighed_ps > cb_most_time(k->t)) return CB_OK;
    return take(k, c, bytes, err);
}

cb_status cb_consider_small_of(cb_chooser *k, const cb_candidates *candidates, double most_ps,
                               cb_error *err) {
    for (uint32_t i = 0; i < candidates->n; i++) {
        if ((double)candidates->at[i].time_ps <= most_ps)
            CB_TRY(cb_consider_small(k, &candidates->at[i], err));
    }
    return CB_OK;
}

cb_status cb_consider_small_candidates(cb_chooser *k, double most_ps, cb_error *err) {
    return cb_consider_small_of(k, k->t->candidates, most_ps, err);
}
