/* A budget searches the rungs that may hold the answer, from the first that may fit. The smallest
 * plan is found by descending the rungs until none is fast enough. A budget that no plan meets also
 * searches for the smallest plan, so that its refusal can name it.
 *
 * The answers to `min` (CB_MIN_SHARE) and to position 0, which is found with less effort, may be
 * between two rungs, and still be the best for a budget. The answer to `min` is no faster than the
 * smallest plan of the rungs that `min` accepts. So a budget with an answer that `min` accepts has
 * one at least as fast, and all others consider it. The answer to position 0 costs at least
 * cb_ladder_little_extra, so only budgets whose answer costs more consider it. */
#include "pick.h"

#include <math.h>

#include "front.h"
#include "low.h"
#include "refusal.h"
#include "tuning.h"

/* ---- within a budget ------------------------------------------------------------------------- */

/* Considers the front, which replaces rungs for problems with few ops. */
static cb_status consider_front(cb_chooser *k, cb_ladder *d, cb_error *err) {
    CB_TRY(cb_front_walk(d, err));
    for (uint32_t i = d->front->n; i-- > 0;) CB_TRY(cb_consider(k, &d->front->at[i], err));
    return cb_consider_swept(k, &d->swept, false, err);
}

/* Finds the fastest plan with a search at `target`. If offsets take more than `bytes`, the search
 * is repeated at a smaller target, because an arena is larger than its live bytes. Size 0: none
 * fits. */
static cb_status search_to_fit(cb_chooser *k, cb_ladder *d, const cb_candidate *from,
                               uint64_t bytes, uint64_t target, cb_candidate *out, cb_error *err) {
    for (int i = 0; i < CB_REFINED; i++) {
        cb_weight w;
        CB_TRY(cb_ladder_refine(d, from, target, out, err));
        if (out->size == 0) return CB_OK;
        CB_TRY(cb_weigh(k, out, &w, err));
        if (w.bytes <= bytes) return CB_OK;
        if (out->size <= w.bytes - bytes) break;
        target = out->size - (w.bytes - bytes);
    }
    out->size = 0;
    return CB_OK;
}

/* Searches for a plan whose offsets fit, if those of the rung's plan exceed the rung's target. The
 * result obeys the rung's rules: it is larger than the next target and not faster than allowed. */
static cb_status consider_tighter(cb_chooser *k, cb_ladder *d, uint32_t r, const cb_candidate *c,
                                  cb_error *err) {
    uint64_t beside = cb_beside_bytes(k->t->f, k->t->goal), most = d->target[r] + beside;
    cb_candidate *tight = &d->tight[r];
    cb_weight w;
    if (k->t->goal->measure != CB_MEASURE_ARENA || k->t->f->n_base > CB_TIGHT_OPS) return CB_OK;
    if (d->follows) return CB_OK;
    if (cb_ladder_pages(d)) return CB_OK; /* the next target is close, and its plan may fit */
    if (!d->tightened[r]) {
        CB_TRY(cb_weigh(k, c, &w, err));
        uint64_t over = w.bytes > most ? w.bytes - most : 0;
        if (over > 0 && over < c->size) {
            const cb_candidate *from; /* a search at a deep rung needs a start that fits */
            CB_TRY(cb_ladder_climb(d, r + 1, &from, err));
            CB_TRY(search_to_fit(k, d, from ? from : c, most, c->size - over, tight, err));
        }
        d->tightened[r] = true;
    }
    if (tight->size == 0) return CB_OK;
    CB_TRY(cb_weigh(k, tight, &w, err));
    bool counts = w.bytes > d->target[r + 1] + beside && cb_ladder_may_take(d, r, tight->time_ps);
    return counts ? cb_consider(k, tight, err) : CB_OK;
}

/* Considers the stairs of a rung: smaller plans may follow a plan of the rung that exceeds the
 * budget. They are no faster, so a budget that has room for the rung's plan does not need them. */
static cb_status consider_stairs(cb_chooser *k, cb_ladder *d, uint32_t r, const cb_candidate *c,
                                 cb_error *err) {
    const cb_stairs *stairs;
    cb_weight w;
    if ((double)c->time_ps > cb_time_to_beat(k)) return CB_OK;
    CB_TRY(cb_weigh(k, c, &w, err));
    if (w.bytes <= k->t->goal->bytes) return CB_OK;
    CB_TRY(cb_ladder_climb_stairs(d, r, &stairs, err));
    for (uint32_t i = 0; stairs && i < stairs->n; i++) CB_TRY(cb_consider(k, &stairs->at[i], err));
    return CB_OK;
}

/* Searches the rungs from the first that may fit until no later one can have a faster plan. */
static cb_status consider_rungs(cb_chooser *k, cb_ladder *d, cb_error *err) {
    uint64_t bytes = k->t->goal->bytes, beside = cb_beside_bytes(k->t->f, k->t->goal);
    double once = (double)k->t->f->once_ps;
    bytes = bytes > beside ? bytes - beside : 0;
    for (uint32_t first = cb_ladder_first(d, bytes), r = first; r < d->n_rung; r++) {
        const cb_candidate *c;
        double least = cb_ladder_least(d, r, r > first && r > d->n_near);
        bool hopeless = once + least >= cb_time_to_beat(k);
        if (!hopeless) CB_TRY(cb_ladder_excludes(d, r, cb_time_to_beat(k), &hopeless, err));
        if (hopeless) return CB_OK;
        if (cb_time_to_beat(k) < INFINITY && r < d->n_near)
            CB_TRY(cb_ladder_screen(d, r, &least, err));
        if (once + least >= cb_time_to_beat(k)) continue;
        bool spared;
        CB_TRY(cb_ladder_spares(d, r, &spared, err));
        if (spared) continue;
        CB_TRY(cb_ladder_climb(d, r, &c, err));
        k->climbed[r] = true;
        if (c) CB_TRY(cb_consider(k, c, err));
        if (c) CB_TRY(consider_tighter(k, d, r, c, err));
        if (c) CB_TRY(consider_stairs(k, d, r, c, err));
        CB_TRY(cb_ladder_build(d, r, &c, err));
        if (c) CB_TRY(cb_consider(k, c, err));
    }
    return CB_OK;
}

/* Runs another search with exactly the budget as its target. */
static cb_status refine(cb_chooser *k, cb_ladder *d, cb_error *err) {
    uint64_t bytes = k->t->goal->bytes, target = bytes - cb_beside_bytes(k->t->f, k->t->goal);
    cb_candidate c;
    const double pace = d->first.moves.pace;
    if (!d->follows) d->first.moves.pace = 1; /* the rungs may have taken a share of the effort */
    const cb_status status = search_to_fit(k, d, &k->best, bytes, target, &c, err);
    d->first.moves.pace = pace;
    CB_TRY(status);
    return c.size > 0 ? cb_consider(k, &c, err) : CB_OK;
}

/* Also tries plans below the last rung, for budgets smaller than every rung. */
static cb_status consider_dug(cb_chooser *k, cb_ladder *d, cb_error *err) {
    CB_TRY(cb_ladder_dig_down(d, err));
    for (uint32_t i = 0; i < d->n_dug; i++) CB_TRY(cb_consider(k, &d->dug[i], err));
    return CB_OK;
}

static cb_status consider_found(cb_chooser *k, cb_ladder *d, cb_error *err) {
    CB_TRY(d->few ? consider_front(k, d, err) : consider_rungs(k, d, err));
    CB_TRY(cb_consider_all_of(k, d->drops, err));
    if (d->few) return CB_OK;
    bool digs = cb_time_to_beat(k) == INFINITY && cb_is_tiny_search(&d->first.moves);
    return digs ? consider_dug(k, d, err) : CB_OK;
}

/* ---- the smallest ---------------------------------------------------------------------------- */

static cb_status consider_small_front(cb_chooser *k, cb_ladder *d, double most_ps, cb_error *err) {
    CB_TRY(cb_front_walk(d, err));
    CB_TRY(cb_consider_small_of(k, d->front, most_ps, err));
    return (double)d->swept.time_ps > most_ps ? CB_OK : cb_consider_swept(k, &d->swept, true, err);
}

/* Tries thirds of the range between the smallest plan so far and the first missed target. */
static cb_status consider_between(cb_chooser *k, cb_ladder *d, uint64_t missed, double most_ps,
                                  cb_error *err) {
    if (!cb_has_best(k) || k->best.size <= missed + 1) return CB_OK;
    uint64_t part = (k->best.size - missed) / (CB_ATTEMPTS + 1), target[CB_ATTEMPTS];
    const int64_t least_ps = k->best.time_ps;
    cb_candidate found[CB_ATTEMPTS];
    for (uint32_t i = 0; i < CB_ATTEMPTS; i++) target[i] = missed + (i + 1) * part;
    const cb_dig_effort effort = {.descent = CB_DESCENT_SHARE, .share = CB_DIG_SHARE};
    CB_TRY(cb_ladder_dig(d, &k->best, effort, target, found, err));
    for (uint32_t i = 0; i < CB_ATTEMPTS; i++) {
        bool counts = found[i].size > 0 && found[i].time_ps >= least_ps;
        if (counts && (double)found[i].time_ps <= most_ps)
            CB_TRY(cb_consider_small(k, &found[i], err));
    }
    return CB_OK;
}

/* True if no plan is smaller than the best so far. */
static bool is_at_floor(const cb_chooser *k, const cb_ladder *d) {
    return cb_has_best(k) && d->has_floor &&
           k->best_bytes <= d->floor.bytes + cb_beside_bytes(k->t->f, k->t->goal);
}

/* Near rungs from `first` on are searched, all at once, only if the first deep rung has no plan
 * that is fast enough. `first` receives the rung to continue from. */
static cb_status skip_near(const cb_chooser *k, cb_ladder *d, double most_ps, uint32_t *first,
                           cb_error *err) {
    double once = (double)k->t->f->once_ps;
    bool wanted[CB_RUNGS_MOST] = {false};
    const cb_candidate *c = NULL;
    if (*first >= d->n_near) return CB_OK;
    if (d->n_near < d->n_rung && once + cb_ladder_least(d, d->n_near, false) <= most_ps)
        CB_TRY(cb_ladder_climb(d, d->n_near, &c, err));
    if (is_at_floor(k, d) || (c && (double)c->time_ps <= most_ps)) {
        *first = d->n_near;
        return CB_OK;
    }
    for (uint32_t r = *first; r < d->n_near; r++)
        wanted[r] = once + cb_ladder_least(d, r, false) <= most_ps;
    return cb_ladder_climb_many(d, wanted, err);
}

/* Returns the size below which the descent looks for plans: that of the best so far or, for a
 * following ladder, of the rival's answer to position 0, which has been found. */
static uint64_t size_to_beat(const cb_chooser *k, const cb_ladder *d, double most_ps) {
    const cb_candidate *low = d->follows ? &d->rival->low[k->t->goal->measure] : NULL;
    if (cb_has_best(k)) return k->best.size;
    return low && low->size > 0 && (double)low->time_ps <= most_ps ? low->size : d->whole;
}

/* Descends the rungs until two in a row have no plan that is fast enough. */
static cb_status consider_small_rungs(cb_chooser *k, cb_ladder *d, double most_ps, cb_error *err) {
    double once = (double)k->t->f->once_ps;
    uint64_t missed = 0;
    uint32_t failed = 0, first = cb_ladder_first(d, size_to_beat(k, d, most_ps));
    if (!is_at_floor(k, d)) CB_TRY(skip_near(k, d, most_ps, &first, err));
    if (is_at_floor(k, d)) return CB_OK;
    for (uint32_t r = first; r < d->n_rung && failed < 2; r++) {
        const cb_candidate *c;
        if (once + cb_ladder_least(d, r, r > first && r > d->n_near) > most_ps) break;
        CB_TRY(cb_ladder_climb(d, r, &c, err));
        k->climbed[r] = true;
        if (!c && cb_ladder_passes(d, r)) continue;
        bool fast = c && (double)c->time_ps <= most_ps;
        failed = fast ? 0 : failed + 1;
        if (failed == 1) missed = d->target[r];
        if (fast) CB_TRY(cb_consider_small(k, c, err));
    }
    /* the descent ran to its end; the caller did not stop it */
    bool ended = failed == 2 || (d->n_rung > 0 && k->climbed[d->n_rung - 1]);
    bool digs = ended && !d->modest && cb_is_tiny_search(&d->first.moves);
    if (!cb_has_best(k) || !digs) return consider_between(k, d, missed, most_ps, err);
    CB_TRY(cb_ladder_dig_down(d, err));
    for (uint32_t i = 0; i < d->n_dug; i++) {
        if ((double)d->dug[i].time_ps <= most_ps) CB_TRY(cb_consider_small(k, &d->dug[i], err));
    }
    return CB_OK;
}

static cb_status consider_all_small(cb_chooser *k, cb_ladder *d, cb_error *err) {
    CB_TRY(cb_consider_small_candidates(k, INFINITY, err));
    if (d) CB_TRY(cb_consider_small_of(k, d->drops, INFINITY, err));
    if (d && d->few) return consider_small_front(k, d, INFINITY, err);
    for (uint32_t r = d ? d->n_near : 0; d && r < d->n_rung; r++) {
        const cb_candidate *c;
        CB_TRY(cb_ladder_climb(d, r, &c, err));
        if (c) CB_TRY(cb_consider_small(k, c, err));
    }
    for (uint32_t i = 0; d && i < d->n_dug; i++) CB_TRY(cb_consider_small(k, &d->dug[i], err));
    return CB_OK;
}

/* Considers what the goal `min` considers with this share of extra time. */
static cb_status consider_as_min(cb_chooser *k, cb_ladder *d, double share, cb_error *err) {
    cb_trial *t = k->t;
    const cb_goal *asked = t->goal;
    cb_goal goal = *asked;
    goal.smallest = true;
    goal.share = share;
    if (!asked->smallest) goal.progress = NULL; /* these plans may not fit the budget */
    t->goal = &goal;
    double most_ps = cb_most_time(t->f, t->goal);
    k->best = (cb_candidate){0};
    cb_status status = cb_consider_small_candidates(k, most_ps, err);
    const cb_candidate *from = d->follows ? &d->rival->min[goal.measure] : NULL;
    if (status == CB_OK && from && from->size > 0) status = cb_consider_small(k, from, err);
    if (status == CB_OK) status = consider_small_rungs(k, d, most_ps, err);
    t->goal = asked;
    return status;
}

/* ---- what all budgets consider --------------------------------------------------------------- */

static cb_chooser empty_chooser(const cb_chooser *k, cb_arena *arena) {
    return (cb_chooser){k->t, k->memo, k->f, arena, .smallest = UINT64_MAX, .smallest_op = CB_NONE};
}

static cb_chooser *new_chooser(const cb_chooser *k) {
    cb_chooser *made = CB_NEW(k->memo->arena, cb_chooser, 1);
    if (made) *made = empty_chooser(k, k->memo->arena);
    return made;
}

/* Runs `consider` with `min` as the goal. */
static cb_status for_min(cb_chooser *k, cb_ladder *d,
                         cb_status (*consider)(cb_chooser *, cb_ladder *, cb_error *),
                         cb_error *err) {
    cb_trial *t = k->t;
    const cb_goal *asked = t->goal;
    cb_goal goal = *asked;
    goal.smallest = true;
    goal.share = CB_MIN_SHARE;
    goal.progress = NULL;
    t->goal = &goal;
    const cb_status status = consider(k, d, err);
    t->goal = asked;
    return status;
}

/* Finds the answer to position 0, once for each measure. */
static cb_status find_low(cb_chooser *k, cb_ladder *d, const cb_chooser **out, cb_error *err) {
    const uint32_t measure = k->t->goal->measure;
    cb_chooser **known = &k->memo->low[measure];
    if (!*known) {
        cb_chooser *low = new_chooser(k);
        if (!low) return cb_no_memory(err);
        CB_TRY(for_min(low, d, cb_consider_low, err));
        d->low[measure] = low->best;
        *known = low;
    }
    *out = *known;
    return CB_OK;
}

/* True if the best of `other` is smaller, or equally small and faster. */
static bool is_smaller(const cb_chooser *other, const cb_chooser *k) {
    if (!cb_has_best(other) || !cb_has_best(k)) return cb_has_best(other);
    if (other->best_bytes != k->best_bytes) return other->best_bytes < k->best_bytes;
    return other->best.time_ps < k->best.time_ps;
}

/* Takes the best of `other` if it is smaller, and notes the smallest plan that it measured. */
static void take_smaller(cb_chooser *k, const cb_chooser *other) {
    if (is_smaller(other, k)) {
        k->best = other->best;
        k->best_bytes = other->best_bytes;
        k->swept = other->swept;
    }
    if (other->smallest >= k->smallest) return;
    k->smallest = other->smallest;
    k->smallest_op = other->smallest_op;
}

/* Finds the answer to `min` without cb_consider_further, once for each measure. It is not larger
 * than the answer to position 0. */
static cb_status find_coarse(cb_chooser *k, cb_ladder *d, const cb_chooser **out, cb_error *err) {
    cb_chooser **known = &k->memo->coarse[k->t->goal->measure];
    if (!*known) {
        const cb_chooser *low;
        cb_chooser *coarse = new_chooser(k);
        if (!coarse) return cb_no_memory(err);
        CB_TRY(consider_as_min(coarse, d, CB_MIN_SHARE, err));
        if (cb_ladder_has_low(d)) {
            CB_TRY(find_low(k, d, &low, err));
            take_smaller(coarse, low);
        }
        *known = coarse;
    }
    *out = *known;
    return CB_OK;
}

/* The descent to the smallest plan skips rungs and stops at the first plan that is fast enough. So
 * with few ops, this considers what a budget of that plan's bytes considers: of equally small
 * plans, the fastest is the answer. */
static cb_status hasten_smallest(cb_chooser *k, cb_ladder *d, cb_error *err) {
    cb_trial *t = k->t;
    const cb_goal *asked = t->goal;
    if (!cb_has_best(k) || k->swept || d->follows || d->modest) return CB_OK;
    if (!cb_is_fine_search(&d->first.moves)) return CB_OK;
    cb_goal goal = *asked;
    goal.smallest = false;
    goal.bytes = k->best_bytes;
    goal.known_ps = 0;
    goal.progress = NULL;
    t->goal = &goal;
    cb_status status = cb_consider_candidates(k, err);
    if (status == CB_OK) status = consider_found(k, d, err);
    t->goal = asked;
    return status;
}

static cb_status descend(cb_chooser *k, cb_ladder *d, cb_error *err) {
    return cb_consider_further(k, d, CB_DESCENT_SHARE, err);
}

static cb_status descend_longer(cb_chooser *k, cb_ladder *d, cb_error *err) {
    return cb_consider_further(k, d, CB_FURTHER_DESCENT, err);
}

/* Finds the answer to `min` after one of the two descents below the coarse one, once for each
 * measure. It may be faster than the answer to `min`. */
static cb_status find_further(cb_chooser *k, cb_ladder *d, const cb_chooser **out, cb_error *err) {
    cb_chooser **known = &k->memo->further[k->t->goal->measure];
    if (!*known) {
        const cb_chooser *coarse;
        CB_TRY(find_coarse(k, d, &coarse, err));
        cb_chooser *further = new_chooser(k);
        if (!further) return cb_no_memory(err);
        take_smaller(further, coarse);
        CB_TRY(for_min(further, d, descend, err));
        *known = further;
    }
    *out = *known;
    return CB_OK;
}

/* Finds the answer to `min`, once for each measure. It is not larger than those above. */
static cb_status find_min(cb_chooser *k, cb_ladder *d, const cb_chooser **out, cb_error *err) {
    cb_chooser **known = &k->memo->min[k->t->goal->measure];
    if (!*known) {
        const cb_chooser *further;
        CB_TRY(find_further(k, d, &further, err));
        cb_chooser *min = new_chooser(k);
        if (!min) return cb_no_memory(err);
        take_smaller(min, further);
        CB_TRY(for_min(min, d, descend_longer, err));
        CB_TRY(hasten_smallest(min, d, err));
        if (!min->swept) d->min[k->t->goal->measure] = min->best;
        *known = min;
    }
    *out = *known;
    return CB_OK;
}

/* Finds the smallest plan of all for the error message; a budget of its size is met. A plan above
 * the budget does not become the best, because a search that ends here must not return it. The plan
 * that `min` finds between two rungs, or below a rung without a plan of the usual share of time,
 * may fit. */
static cb_status find_smallest(cb_chooser *k, cb_ladder *d, cb_error *err) {
    cb_chooser least = empty_chooser(k, k->arena);
    cb_status status = consider_all_small(&least, d, err);
    if (status == CB_OK && d && !d->few) {
        const cb_chooser *min = NULL;
        status = find_min(k, d, &min, err);
        if (min) take_smaller(&least, min);
    }
    if (status == CB_OK && d && !d->few) {
        cb_chooser any = least;
        status = consider_as_min(&any, d, CB_MOST_EXTRA, err);
        take_smaller(&least, &any);
    }
    bool solved = k->solved < least.smallest;
    k->smallest = solved ? k->solved : least.smallest;
    k->smallest_op = solved ? k->solved_op : least.smallest_op;
    if (!cb_has_best(&least) || least.best_bytes > k->t->goal->bytes) return status;
    k->best = least.best;
    k->swept = least.swept;
    k->best_bytes = least.best_bytes;
    return status;
}

/* ---- any goal -------------------------------------------------------------------------------- */

/* True if the answer to position 0 is known to take longer than another known plan: then it need
 * not be found. It is not larger than the smallest plan of the base, if that is fast enough. */
static bool is_low_slower(const cb_chooser *k, const cb_ladder *d) {
    const double once = (double)k->t->f->once_ps;
    if (k->t->goal->measure == CB_MEASURE_ARENA || d->base->n == 0) return false;
    if ((double)d->base->at[0].time_ps > once * (1 + CB_MIN_SHARE)) return false;
    const double bytes = (double)d->base->at[0].size;
    const double least = cb_tangents_bound(&d->first.prices.tangent, d->n_tangent, bytes);
    return once + least > cb_time_to_beat(k);
}

/* Considers the answers to `min` and to position 0, if they may be faster than the best so far. */
static cb_status consider_min(cb_chooser *k, cb_ladder *d, cb_error *err) {
    const double extra = cb_time_to_beat(k) / (double)k->t->f->once_ps - 1;
    const cb_chooser *other;
    if (d->few) return CB_OK;
    if (extra > CB_MIN_SHARE) {
        CB_TRY(find_min(k, d, &other, err));
        if (cb_has_best(other)) CB_TRY(cb_consider(k, &other->best, err));
        CB_TRY(find_further(k, d, &other, err));
        if (cb_has_best(other)) CB_TRY(cb_consider(k, &other->best, err));
    }
    if (!cb_ladder_has_low(d) || extra <= cb_ladder_little_extra(d)) return CB_OK;
    if (is_low_slower(k, d)) return CB_OK;
    CB_TRY(find_low(k, d, &other, err));
    return cb_has_best(other) ? cb_consider(k, &other->best, err) : CB_OK;
}

/* Picks the smallest plan. At any cost, it is not larger than the answer to `min`. */
static cb_status pick_smallest(cb_chooser *k, cb_ladder *d, cb_error *err) {
    const cb_goal *goal = k->t->goal;
    const double most_ps = cb_most_time(k->t->f, goal);
    const cb_chooser *min = NULL;
    const bool is_usual = goal->share == CB_MIN_SHARE, climbs = d && !d->few,
               takes_min = climbs && (is_usual || goal->share >= CB_MOST_EXTRA);
    if (climbs && goal->quick && cb_ladder_has_low(d)) {
        CB_TRY(find_low(k, d, &min, err));
        take_smaller(k, min);
        if (cb_has_best(k)) return CB_OK;
    }
    if (takes_min) {
        CB_TRY(find_coarse(k, d, &min, err));
        take_smaller(k, min);
    }
    if (!takes_min || !is_usual) {
        CB_TRY(cb_consider_small_candidates(k, most_ps, err));
        if (d && d->few) return consider_small_front(k, d, most_ps, err);
        if (d) CB_TRY(consider_small_rungs(k, d, most_ps, err));
        if (d) CB_TRY(hasten_smallest(k, d, err));
    }
    if (!takes_min) return CB_OK;
    CB_TRY(find_min(k, d, &min, err));
    take_smaller(k, min);
    return CB_OK;
}

cb_status cb_pick(cb_chooser *k, cb_ladder *d, cb_error *err) {
    cb_trial *t = k->t;
    if (t->goal->smallest) {
        CB_TRY(pick_smallest(k, d, err));
    } else {
        CB_TRY(cb_consider_candidates(k, err));
        CB_TRY(d ? consider_found(k, d, err) : CB_OK);
        CB_TRY(d ? consider_min(k, d, err) : CB_OK);
    }
    bool again = t->goal->exact && !t->goal->smallest && d && !k->swept;
    if (cb_has_best(k)) return again ? refine(k, d, err) : CB_OK;
    if (t->goal->known_ps > 0) return CB_OK;
    CB_TRY(find_smallest(k, d, err));
    return cb_has_best(k) ? CB_OK : cb_fail_budget(k, d, err);
}
