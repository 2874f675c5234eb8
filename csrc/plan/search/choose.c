#include "choose.h"

#include <math.h>

static void note_smallest(cb_chooser *k, const cb_weight *w) {
    if (w->bytes >= k->smallest) return;
    k->smallest = w->bytes;
    k->smallest_op = w->peak_op;
}

static cb_status measure(cb_chooser *k, const cb_schedule *s, cb_weight *out, cb_error *err) {
    CB_TRY(cb_weigh_schedule(k->f, k->t->goal, k->memo->placings, s, out, err));
    note_smallest(k, out);
    return CB_OK;
}

static const cb_weighed *recall(const cb_memo *memo, const cb_candidate *c) {
    for (size_t i = 0; i < memo->list.len; i++) {
        const cb_weighed *w = &memo->list.at[i];
        bool same = w->n_pair == c->n_pair &&
                    (c->n_pair == 0 || memcmp(w->pair, c->pair, c->n_pair * sizeof *c->pair) == 0);
        if (same) return w;
    }
    return NULL;
}

static cb_status remember(cb_memo *memo, const cb_candidate *c, const cb_weight *weight,
                          cb_error *err) {
    cb_weighed w = {.n_pair = c->n_pair, .weight = *weight};
    CB_TRY_NEW(w.pair, memo->arena, c->n_pair, err);
    if (c->n_pair > 0) memcpy(w.pair, c->pair, c->n_pair * sizeof *c->pair);
    return CB_PUSH(memo->arena, memo->list, w) ? CB_OK : cb_no_memory(err);
}

/* Makes, checks and places the schedule. */
static cb_status weigh_pairs(cb_chooser *k, const cb_candidate *c, cb_weight *out, cb_error *err) {
    cb_trial *t = k->t;
    cb_arena scratch;
    cb_schedule schedule;
    cb_status status;
    cb_arena_init(&scratch, t->scratch->alloc);
    CB_TRY_DONE(cb_sim_run(t->sim, c->pair, c->n_pair, err));
    CB_TRY_DONE(cb_sim_schedule(t->sim, &scratch, &schedule, err));
    CB_TRY_DONE(measure(k, &schedule, out, err));
done:
    cb_arena_free(&scratch);
    return status;
}

double cb_time_to_beat(const cb_chooser *k) {
    const int64_t known = k->t->goal->smallest ? 0 : k->t->goal->known_ps;
    double time = cb_has_best(k) ? (double)k->best.time_ps : INFINITY;
    return known > 0 ? fmin(time, (double)known) : time;
}

cb_status cb_weigh(cb_chooser *k, const cb_candidate *c, cb_weight *out, cb_error *err) {
    if (!k->settles) CB_TRY(cb_trial_poll(k->t, err)); /* placing a long plan takes a while */
    if (k->t->goal->measure != CB_MEASURE_ARENA) return weigh_pairs(k, c, out, err);
    const cb_weighed *known = recall(k->memo, c);
    if (!known) {
        CB_TRY(weigh_pairs(k, c, out, err));
        return remember(k->memo, c, out, err);
    }
    *out = known->weight;
    note_smallest(k, out);
    return CB_OK;
}

static cb_best best_of(const cb_chooser *k) {
    return cb_has_best(k) ? (cb_best){k->best.time_ps, k->best_bytes} : CB_NO_BEST;
}

/* A candidate's size is a lower bound on its final measure. */
static bool may_fit(const cb_trial *t, const cb_candidate *c, uint64_t bytes) {
    return c->size + cb_beside_bytes(t->f, t->goal) <= bytes;
}

/* Measures a candidate or, if `s` is given, the result of the sweep (then `c` describes it). */
static cb_status weigh(cb_chooser *k, const cb_candidate *c, const cb_swept *s, cb_weight *out,
                       cb_error *err) {
    return s ? measure(k, &s->schedule, out, err) : cb_weigh(k, c, out, err);
}

static cb_status take(cb_chooser *k, const cb_candidate *c, const cb_swept *s, uint64_t bytes,
                      cb_error *err) {
    k->best = *c;
    k->best_bytes = bytes;
    k->swept = s;
    CB_TRY_NEW(k->best.pair, k->arena, c->n_pair, err);
    if (c->n_pair > 0) memcpy(k->best.pair, c->pair, c->n_pair * sizeof *c->pair);
    return CB_OK;
}

static cb_status consider(cb_chooser *k, const cb_candidate *c, const cb_swept *s, cb_error *err) {
    const cb_goal *goal = k->t->goal;
    cb_weight w;
    if ((double)c->time_ps < k->t->least_ps) return CB_OK;
    if (!may_fit(k->t, c, goal->bytes) || c->time_ps > best_of(k).time_ps) return CB_OK;
    CB_TRY(weigh(k, c, s, &w, err));
    bool wins = cb_is_faster(goal, c->time_ps, w.bytes, best_of(k));
    return wins ? take(k, c, s, w.bytes, err) : CB_OK;
}

cb_status cb_consider(cb_chooser *k, const cb_candidate *c, cb_error *err) {
    return consider(k, c, NULL, err);
}

/* Considers the fastest candidates first: sizes fall from the end of the list. */
cb_status cb_consider_all_of(cb_chooser *k, const cb_candidates *all, cb_error *err) {
    for (uint32_t i = all->n; i-- > 0;) {
        if (cb_has_best(k) && all->at[i].time_ps > k->best.time_ps) return CB_OK;
        CB_TRY(cb_consider(k, &all->at[i], err));
    }
    return CB_OK;
}

cb_status cb_consider_candidates(cb_chooser *k, cb_error *err) {
    return cb_consider_all_of(k, k->t->candidates, err);
}

static cb_status consider_small(cb_chooser *k, const cb_candidate *c, const cb_swept *s,
                                cb_error *err) {
    const cb_goal *goal = k->t->goal;
    double most_ps = goal->smallest ? cb_most_time(k->t->f, goal) : INFINITY;
    cb_weight w;
    if ((double)c->time_ps < k->t->least_ps) return CB_OK;
    if (!may_fit(k->t, c, best_of(k).bytes)) return CB_OK;
    CB_TRY(weigh(k, c, s, &w, err));
    return cb_is_smaller(most_ps, &w, best_of(k)) ? take(k, c, s, w.bytes, err) : CB_OK;
}

cb_status cb_consider_small(cb_chooser *k, const cb_candidate *c, cb_error *err) {
    return consider_small(k, c, NULL, err);
}

cb_status cb_consider_swept(cb_chooser *k, const cb_swept *s, bool small, cb_error *err) {
    const cb_candidate c = {.size = s->size, .time_ps = s->time_ps};
    if (s->schedule.n_step == 0) return CB_OK;
    return small ? consider_small(k, &c, s, err) : consider(k, &c, s, err);
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
