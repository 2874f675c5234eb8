/* The search for a budget. For peaks it is a ladder of targets (ladder.h), of which it climbs the
 * rungs that may hold the answer; for saved bytes, which have one moment only, a pool of plans.
 * Nothing that makes candidates depends on the budget asked for. */
#include "search.h"

#include <math.h>
#include <stdio.h>

#include "../schedule/plan.h"
#include "exact/exact.h"
#include "floor.h"
#include "front.h"
#include "improve.h"
#include "ladder.h"
#include "spare.h"

#define FEW_OPS 40     /* of fewer the front of plans is walked, with spare ops between them */
#define REFINED 4      /* searches at an exact budget, if offsets take more than it leaves */
#define AHEAD 2        /* rungs of a budget that are searched at once */
#define SAVED_RUNGS 19 /* targets 0.95, 0.90 ... 0.05 of save-everything's saved bytes */
#define SAVED_STEPS 24 /* price steps for a target */

/* ---- filling the pool ------------------------------------------------------------------------ */

cb_status cb_force_recompute(const cb_facts *f, cb_cut *cut, bool *forced, cb_error *err) {
    bool limited = false;
    for (uint32_t r = 0; r < f->p->n_region; r++) limited |= f->p->region_limit[r] != UINT64_MAX;
    for (uint32_t op = 0; op < f->p->n_op; op++) forced[op] = f->wish[op] == CB_MUST_RECOMPUTE;
    if (!limited) return CB_OK;
    CB_TRY(cb_cut_preset(cut, CB_PRESET_AUTOGRAD, err));
    for (uint32_t i = 0; i < cut->n_run; i++)
        forced[cut->run_op[i]] |= cut->recompute[cut->run_op[i]];
    return CB_OK;
}

static cb_status try_presets(cb_trial *t, cb_cut *cut, cb_error *err) {
    cb_pairs pairs = {.arena = t->scratch};
    for (cb_preset preset = CB_PRESET_AUTOGRAD; preset < CB_PRESET_COUNT; preset++) {
        CB_TRY(cb_cut_preset(cut, preset, err));
        CB_TRY(cb_recompute_lazily(t->f, cut->recompute, NULL, &pairs, err));
        CB_TRY(cb_try_pairs(t, pairs.list.at, pairs.list.len, err));
    }
    return CB_OK;
}

/* Saved bytes have one moment and one price: all targets are aimed at, and the budget picks. */
static cb_status fill_for_saved(cb_trial *t, cb_cut *cut, cb_error *err) {
    cb_prices prices;
    uint64_t whole = t->size;
    CB_TRY(cb_prices_init(&prices, t, cut, err));
    for (int rung = 1; rung <= SAVED_RUNGS; rung++) {
        uint64_t target = (uint64_t)((double)whole * (1 - rung / (SAVED_RUNGS + 1.0)));
        CB_TRY(cb_prices_aim(&prices, target, CB_PRICE_NEED, SAVED_STEPS, err));
    }
    for (int rung = 1; rung <= SAVED_RUNGS; rung++) {
        uint64_t target = (uint64_t)((double)whole * (1 - rung / (SAVED_RUNGS + 1.0)));
        CB_TRY(cb_improve_by_mixing(t, target, 1, err));
        CB_TRY(cb_improve_by_removal(t, target, err));
    }
    return CB_OK;
}

/* ---- picking from it ------------------------------------------------------------------------- */

typedef struct chooser {
    cb_trial *t;
    const cb_facts *f; /* of the problem itself: those of `t` may have spare ops */
    cb_arena *arena;
    cb_candidate best; /* pairs in `arena`; size 0: nothing fits so far */
    uint64_t best_bytes;
    int64_t weighed_ps; /* time of the last candidate weighed, preferences aside */
    uint64_t smallest;  /* least bytes measured, and the op at its peak */
    uint32_t smallest_op;
    uint64_t solved; /* the same of all plans, by the exact solver; UINT64_MAX: not known */
    uint32_t solved_op;
    bool climbed[CB_RUNGS_MOST]; /* rungs considered */
    double bound_ps;             /* beside theirs */
    bool settles;                /* the caller has ended the search: polled no more */
} chooser;

/* The measure of a candidate, offsets and all. */
static cb_status weigh(chooser *k, const cb_candidate *c, uint64_t *bytes, cb_error *err) {
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
        CB_TRY_DONE(
            cb_place(p, &lives, &scratch, t->goal->poll, t->goal->poll_user, &arena_bytes, err));
    *bytes = cb_measured(p, t->goal->measure, &lives, arena_bytes);
    k->weighed_ps = lives.time_ps;
    if (*bytes >= k->smallest) goto done;
    k->smallest = *bytes;
    k->smallest_op = schedule.n_step > 0 ? schedule.step[lives.peak_step] : CB_NONE;
done:
    cb_arena_free(&scratch);
    return status;
}

static uint64_t beside_size(const cb_trial *t) {
    return t->goal->measure == CB_MEASURE_TOTAL ? t->f->p->static_bytes : 0;
}

/* Its own size is a floor for what a candidate measures in the end. */
static bool may_fit(const cb_trial *t, const cb_candidate *c, uint64_t bytes) {
    return c->size + beside_size(t) <= bytes;
}

static cb_status take(chooser *k, const cb_candidate *c, uint64_t bytes, cb_error *err) {
    k->best = *c;
    k->best_bytes = bytes;
    k->best.pair = CB_NEW(k->arena, cb_pair, c->n_pair);
    if (!k->best.pair) return cb_no_memory(err);
    if (c->n_pair > 0) memcpy(k->best.pair, c->pair, c->n_pair * sizeof *c->pair);
    return CB_OK;
}

static bool has_best(const chooser *k) { return k->best.pair != NULL; }

/* Takes the candidate if it fits the budget and is faster, or as fast and smaller. */
static cb_status consider(chooser *k, const cb_candidate *c, cb_error *err) {
    uint64_t bytes;
    if (!may_fit(k->t, c, k->t->goal->bytes)) return CB_OK;
    if (has_best(k) && c->time_ps > k->best.time_ps) return CB_OK;
    CB_TRY(weigh(k, c, &bytes, err));
    if (bytes > k->t->goal->bytes) return CB_OK;
    if (has_best(k) && c->time_ps == k->best.time_ps && bytes >= k->best_bytes) return CB_OK;
    return take(k, c, bytes, err);
}

/* Fastest first: sizes fall from the end of the pool. */
static cb_status consider_pool(chooser *k, cb_error *err) {
    const cb_candidates *pool = k->t->pool;
    for (uint32_t i = pool->n; i-- > 0;) {
        if (has_best(k) && pool->at[i].time_ps > k->best.time_ps) return CB_OK;
        CB_TRY(consider(k, &pool->at[i], err));
    }
    return CB_OK;
}

/* Of few ops, instead of rungs. */
static cb_status consider_front(chooser *k, cb_ladder *d, cb_error *err) {
    CB_TRY(cb_front_walk(d, err));
    for (uint32_t i = d->front->n; i-- > 0;) CB_TRY(consider(k, &d->front->at[i], err));
    return CB_OK;
}

/* The rungs that may hold the answer: from the first that may fit, until no later one can be faster
 * than what we have. */
static cb_status consider_rungs(chooser *k, cb_ladder *d, cb_error *err) {
    uint64_t bytes = k->t->goal->bytes, beside = beside_size(k->t);
    double once = (double)k->t->f->once_ps;
    bytes = bytes > beside ? bytes - beside : 0;
    uint32_t first = cb_ladder_first(d, bytes);
    for (uint32_t r = first; r < d->n_rung; r++) {
        const cb_candidate *c;
        double least = cb_ladder_least(d, r, r > first && r > d->n_near);
        if (has_best(k) && once + least >= (double)k->best.time_ps) return CB_OK;
        if (has_best(k) && r < d->n_near) CB_TRY(cb_ladder_screen(d, r, &least, err));
        if (has_best(k) && once + least >= (double)k->best.time_ps) continue;
        CB_TRY(cb_ladder_climb(d, r, &c, err));
        k->climbed[r] = true;
        if (c) CB_TRY(consider(k, c, err));
    }
    return CB_OK;
}

/* Another search, at just the budget. Where offsets take more than it leaves, at less: an arena is
 * larger than what lives in it. */
static cb_status refine(chooser *k, cb_ladder *d, cb_error *err) {
    uint64_t bytes = k->t->goal->bytes, target = bytes - beside_size(k->t);
    for (int i = 0; i < REFINED; i++) {
        cb_candidate c;
        double bound_ps;
        uint64_t measured;
        CB_TRY(cb_ladder_refine(d, &k->best, target, &c, &bound_ps, err));
        if (i == 0) k->bound_ps = bound_ps;
        if (c.size == 0) return CB_OK;
        CB_TRY(consider(k, &c, err));
        CB_TRY(weigh(k, &c, &measured, err));
        if (measured <= bytes || target <= measured - bytes) return CB_OK;
        target -= measured - bytes;
    }
    return CB_OK;
}

/* ---- the smallest ---------------------------------------------------------------------------- */

/* Picoseconds that the goal `min` allows. */
static double most_time(const cb_trial *t) { return (double)t->f->once_ps * (1 + t->goal->share); }

/* Takes the candidate if it is smaller than the best. */
static cb_status consider_small(chooser *k, const cb_candidate *c, cb_error *err) {
    uint64_t bytes;
    if (has_best(k) && !may_fit(k->t, c, k->best_bytes)) return CB_OK;
    CB_TRY(weigh(k, c, &bytes, err));
    if (has_best(k) && bytes >= k->best_bytes) return CB_OK;
    if (k->t->goal->smallest && (double)k->weighed_ps > most_time(k->t)) return CB_OK;
    return take(k, c, bytes, err);
}

static cb_status consider_small_of(chooser *k, const cb_candidates *pool, double most_ps,
                                   cb_error *err) {
    for (uint32_t i = 0; i < pool->n; i++) {
        if ((double)pool->at[i].time_ps <= most_ps) CB_TRY(consider_small(k, &pool->at[i], err));
    }
    return CB_OK;
}

static cb_status consider_small_pool(chooser *k, double most_ps, cb_error *err) {
    return consider_small_of(k, k->t->pool, most_ps, err);
}

static cb_status consider_small_front(chooser *k, cb_ladder *d, double most_ps, cb_error *err) {
    CB_TRY(cb_front_walk(d, err));
    return consider_small_of(k, d->front, most_ps, err);
}

/* Between the smallest plan so far and the first target missed: at thirds. */
static cb_status consider_between(chooser *k, cb_ladder *d, uint64_t missed, double most_ps,
                                  cb_error *err) {
    if (!has_best(k) || k->best.size <= missed + 1) return CB_OK;
    uint64_t part = (k->best.size - missed) / (CB_ATTEMPTS + 1), target[CB_ATTEMPTS];
    cb_candidate found[CB_ATTEMPTS];
    for (uint32_t i = 0; i < CB_ATTEMPTS; i++) target[i] = missed + (i + 1) * part;
    CB_TRY(cb_ladder_dig(d, &k->best, target, found, err));
    for (uint32_t i = 0; i < CB_ATTEMPTS; i++) {
        bool fast = found[i].size > 0 && (double)found[i].time_ps <= most_ps;
        if (fast) CB_TRY(consider_small(k, &found[i], err));
    }
    return CB_OK;
}

/* Near rungs from `first` on are worth a search only where the first deep one has no plan that is
 * fast enough: then all that may have one at once. `first` gets the rung to go on from. */
static cb_status skip_near(const chooser *k, cb_ladder *d, double most_ps, uint32_t *first,
                           cb_error *err) {
    double once = (double)k->t->f->once_ps;
    bool wanted[CB_RUNGS_MOST] = {false};
    const cb_candidate *c = NULL;
    if (*first >= d->n_near) return CB_OK;
    if (d->n_near < d->n_rung && once + cb_ladder_least(d, d->n_near, false) <= most_ps)
        CB_TRY(cb_ladder_climb(d, d->n_near, &c, err));
    if (c && (double)c->time_ps <= most_ps) {
        *first = d->n_near;
        return CB_OK;
    }
    for (uint32_t r = *first; r < d->n_near; r++)
        wanted[r] = once + cb_ladder_least(d, r, false) <= most_ps;
    return cb_ladder_climb_many(d, wanted, err);
}

/* Down the rungs, until two in a row have no plan that is fast enough. */
static cb_status consider_small_rungs(chooser *k, cb_ladder *d, double most_ps, cb_error *err) {
    double once = (double)k->t->f->once_ps;
    uint64_t from = has_best(k) ? k->best.size : d->whole, missed = 0;
    int failed = 0;
    uint32_t first = cb_ladder_first(d, from);
    CB_TRY(skip_near(k, d, most_ps, &first, err));
    for (uint32_t r = first; r < d->n_rung && failed < 2; r++) {
        const cb_candidate *c;
        if (once + cb_ladder_least(d, r, r > first && r > d->n_near) > most_ps) break;
        CB_TRY(cb_ladder_climb(d, r, &c, err));
        k->climbed[r] = true;
        if (!c && cb_ladder_passes(d, r)) continue;
        bool fast = c && (double)c->time_ps <= most_ps;
        failed = fast ? 0 : failed + 1;
        if (failed == 1) missed = d->target[r];
        if (fast) CB_TRY(consider_small(k, c, err));
    }
    bool ended = d->n_rung > 0 && k->climbed[d->n_rung - 1]; /* by us: others do not count */
    bool digs = ended && !d->modest && cb_is_tiny_search(&d->first.moves);
    if (!has_best(k) || !digs) return consider_between(k, d, missed, most_ps, err);
    CB_TRY(cb_ladder_dig_down(d, err));
    for (uint32_t i = 0; i < d->n_dug; i++) {
        if ((double)d->dug[i].time_ps <= most_ps) CB_TRY(consider_small(k, &d->dug[i], err));
    }
    return CB_OK;
}

/* ---- answer ---------------------------------------------------------------------------------- */

/* "; no plan of this order of ops is below ..." */
static cb_status put_floor(const chooser *k, const cb_ladder *d, char *text, size_t room,
                           cb_error *err) {
    const cb_trial *t = k->t;
    char op[CB_OP_TEXT];
    cb_floor floor;
    text[0] = 0;
    if (!d) return CB_OK;
    CB_TRY(cb_find_floor(&d->first.ledger, t->scratch, &floor, err));
    if (floor.op == CB_NONE) return CB_OK;
    (void)snprintf(text, room,
                   "; in this order of ops, and running only forward ops again, none is below %llu "
                   "bytes, set by op %s",
                   (unsigned long long)(floor.bytes + beside_size(t)),
                   cb_op_text(t->f->p, floor.op, op));
    return CB_OK;
}

/* Is a value there that must be saved, so that relaxing that may help? */
static bool demands_saving(const cb_facts *f) {
    for (uint32_t i = 0; i < f->p->n_op; i++)
        if (f->wish[i] == CB_MUST_SAVE) return true;
    return false;
}

/* "; the smallest share is 0.21x of ..., of which ... are held to the end" */
static void put_shares(const chooser *k, const cb_ladder *d, char *text, size_t room) {
    const cb_trial *t = k->t;
    uint64_t held = cb_held_bytes(t->f);
    text[0] = 0;
    if (!d || t->goal->measure == CB_MEASURE_ARENA || k->smallest == UINT64_MAX) return;
    double whole = (double)(d->whole + beside_size(t)) + 1e-9;
    double least = ceil(1000 * (double)k->smallest / whole) / 1000; /* who asks for it gets it */
    (void)snprintf(text, room,
                   "; saving everything takes %llu bytes, so the smallest share is %.3fx (results "
                   "and gradients that every plan holds in the end are %.3fx)",
                   (unsigned long long)(d->whole + beside_size(t)), least,
                   (double)(held + beside_size(t)) / whole);
}

cb_status cb_fail_time(const cb_goal *goal, uint64_t smallest, cb_error *err) {
    return cb_fail(err, CB_INFEASIBLE,
                   "no plan was found that takes at most %.6g %% more time than running each op "
                   "once: the constraints make ops run again, or move values; the smallest found "
                   "at any price needs %llu bytes; allow more time (max_extra), or free some "
                   "values of their MUST_RECOMPUTE or MUST_OFFLOAD",
                   100 * goal->share, (unsigned long long)smallest);
}

static cb_status fail_budget(const chooser *k, const cb_ladder *d, cb_error *err) {
    const cb_trial *t = k->t;
    static const char *const measure[CB_MEASURE_COUNT] = {"arena", "live", "saved", "total"};
    char op[CB_OP_TEXT], floor[CB_OP_TEXT + 160], shares[200];
    if (t->pool->n == 0) {
        return cb_fail(err, CB_INFEASIBLE,
                       "no plan found that keeps all constraints: free some values of their "
                       "MUST_RECOMPUTE or widen a region's limit");
    }
    CB_TRY(put_floor(k, d, floor, sizeof floor, err));
    if (t->goal->smallest) return cb_fail_time(t->goal, k->smallest, err);
    put_shares(k, d, shares, sizeof shares);
    return cb_fail(err, CB_INFEASIBLE,
                   "no plan fits %llu bytes (%s): the smallest found needs %llu bytes, at op "
                   "%s%s%s; raise the budget%s",
                   (unsigned long long)t->goal->bytes, measure[t->goal->measure],
                   (unsigned long long)k->smallest,
                   k->smallest_op == CB_NONE ? "none" : cb_op_text(t->f->p, k->smallest_op, op),
                   floor, shares,
                   demands_saving(t->f) ? ", use a smaller batch, or relax MUST_SAVE constraints"
                                        : " or use a smaller batch");
}

/* Plans below the last rung, for who gets none of the rungs'. */
static cb_status consider_dug(chooser *k, cb_ladder *d, cb_error *err) {
    CB_TRY(cb_ladder_dig_down(d, err));
    for (uint32_t i = 0; i < d->n_dug; i++) CB_TRY(consider(k, &d->dug[i], err));
    return CB_OK;
}

static cb_status consider_all_small(chooser *k, cb_ladder *d, cb_error *err) {
    CB_TRY(consider_small_pool(k, INFINITY, err));
    if (d && d->few) return consider_small_front(k, d, INFINITY, err);
    for (uint32_t r = d ? d->n_near : 0; d && r < d->n_rung; r++) {
        const cb_candidate *c;
        CB_TRY(cb_ladder_climb(d, r, &c, err));
        if (c) CB_TRY(consider_small(k, c, err));
    }
    for (uint32_t i = 0; d && i < d->n_dug; i++) CB_TRY(consider_small(k, &d->dug[i], err));
    return CB_OK;
}

/* What the goal `min` would answer that allows this share of more time. */
static cb_status consider_as_min(chooser *k, cb_ladder *d, double share, cb_error *err) {
    cb_trial *t = k->t;
    const cb_goal *asked = t->goal;
    cb_goal goal = *asked;
    goal.smallest = true;
    goal.share = share;
    t->goal = &goal;
    double most_ps = most_time(t);
    k->best = (cb_candidate){0};
    cb_status status = consider_small_pool(k, most_ps, err);
    if (status == CB_OK) status = consider_small_rungs(k, d, most_ps, err);
    t->goal = asked;
    return status;
}

/* The smallest of all, for the error: whoever asks for that much gets it. Above the budget it does
 * not become the best: a search that is ended here must not answer with it. What `min` finds
 * between two rungs may fit. */
static cb_status find_smallest(chooser *k, cb_ladder *d, cb_error *err) {
    chooser least = {
        .t = k->t, .f = k->f, .arena = k->arena, .smallest = UINT64_MAX, .smallest_op = CB_NONE};
    cb_status status = consider_all_small(&least, d, err);
    const double share[] = {CB_MIN_SHARE, CB_ANY_SHARE};
    uint32_t n_share = !d || d->few ? 0 : cb_is_tiny_search(&d->first.moves) ? 2 : 1;
    for (uint32_t i = 0; i < n_share && status == CB_OK; i++) {
        chooser min = least;
        status = consider_as_min(&min, d, share[i], err);
        if (has_best(&min) && (!has_best(&least) || min.best_bytes < least.best_bytes)) least = min;
        least.smallest = min.smallest;
        least.smallest_op = min.smallest_op;
    }
    bool solved = k->solved < least.smallest;
    k->smallest = solved ? k->solved : least.smallest;
    k->smallest_op = solved ? k->solved_op : least.smallest_op;
    if (!has_best(&least) || least.best_bytes > k->t->goal->bytes) return status;
    k->best = least.best;
    k->best_bytes = least.best_bytes;
    return status;
}

static cb_status consider_found(chooser *k, cb_ladder *d, cb_error *err) {
    if (d->few) return consider_front(k, d, err);
    CB_TRY(consider_rungs(k, d, err));
    bool digs = !has_best(k) && cb_is_tiny_search(&d->first.moves);
    return digs ? consider_dug(k, d, err) : CB_OK;
}

static cb_status pick(chooser *k, cb_ladder *d, cb_error *err) {
    cb_trial *t = k->t;
    if (t->goal->smallest) {
        double most_ps = most_time(t);
        CB_TRY(consider_small_pool(k, most_ps, err));
        if (d && d->few) CB_TRY(consider_small_front(k, d, most_ps, err));
        else if (d) CB_TRY(consider_small_rungs(k, d, most_ps, err));
    } else {
        CB_TRY(consider_pool(k, err));
        CB_TRY(d ? consider_found(k, d, err) : CB_OK);
    }
    bool again = t->goal->exact && !t->goal->smallest && d;
    if (has_best(k)) return again ? refine(k, d, err) : CB_OK;
    CB_TRY(find_smallest(k, d, err));
    return has_best(k) ? CB_OK : fail_budget(k, d, err);
}

struct cb_searcher {
    const cb_facts *f;
    cb_cut *cut;
    cb_arena *arena;
    cb_candidates pool;
    cb_trial t;
    cb_facts spared; /* with spare ops, which `t`, `spared_sim` and `spared_cut` are about then */
    cb_sim spared_sim;
    cb_cut spared_cut;
    cb_goal goal; /* the one at hand */
    cb_ladder d;
    bool ready; /* what all goals share has been searched */
    cb_threads *threads;
    const cb_goal *expected; /* goals to come, this one included; none once they were climbed for */
    uint32_t n_expected;
};

/* Rungs that a goal will most likely have searched: the first that may hold its answer, and one
 * more, unless a plan of the base is as fast as theirs can be. */
static void want_rungs(const cb_searcher *s, const cb_goal *goal, bool *wanted) {
    const cb_ladder *d = &s->d;
    uint64_t beside = goal->measure == CB_MEASURE_TOTAL ? s->f->p->static_bytes : 0;
    uint64_t bytes = goal->bytes > beside ? goal->bytes - beside : 0;
    uint32_t at = cb_candidates_fitting(d->base, bytes), first = cb_ladder_first(d, bytes);
    double once = (double)s->f->once_ps,
           known = at == CB_NONE ? INFINITY : (double)d->base->at[at].time_ps;
    for (uint32_t r = first; r < d->n_rung && r < first + AHEAD; r++) {
        if (once + cb_ladder_least(d, r, false) >= known || (r > first && r >= d->n_near)) return;
        wanted[r] = true;
    }
}

static cb_status climb_ahead(cb_searcher *s, cb_error *err) {
    bool wanted[CB_RUNGS_MOST] = {false};
    const cb_goal *goal = s->n_expected > 0 ? s->expected : &s->goal;
    uint32_t n = s->n_expected > 0 ? s->n_expected : 1;
    s->n_expected = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (goal[i].measure != CB_MEASURE_SAVED && !goal[i].smallest)
            want_rungs(s, &goal[i], wanted);
    }
    return cb_ladder_climb_many(&s->d, wanted, err);
}

/* [n_op of `f`] into the trial. */
static cb_status set_forced(cb_searcher *s, const cb_facts *f, cb_cut *cut, cb_error *err) {
    bool *forced = CB_NEW(s->arena, bool, f->p->n_op);
    if (!forced) return cb_no_memory(err);
    CB_TRY(cb_force_recompute(f, cut, forced, err));
    for (uint32_t op = 0; op < f->p->n_op; op++) s->t.has_demands |= forced[op];
    s->t.forced = forced;
    return CB_OK;
}

/* From here on the search is about the problem with spare ops. */
static cb_status use_spares(cb_searcher *s, cb_error *err) {
    if (s->t.f != s->f) return CB_OK;
    CB_TRY(cb_add_spares(s->f, s->arena, &s->spared, err));
    CB_TRY(cb_cut_init(&s->spared_cut, &s->spared, s->arena, err));
    s->spared_cut.poll = s->cut->poll;
    s->spared_cut.poll_user = s->cut->poll_user;
    CB_TRY(set_forced(s, &s->spared, &s->spared_cut, err));
    CB_TRY(cb_sim_init(&s->spared_sim, &s->spared, s->arena->alloc, err));
    s->cut = &s->spared_cut;
    s->t.f = &s->spared;
    s->t.sim = &s->spared_sim;
    return CB_OK;
}

/* What all goals share. */
static cb_status get_ready(cb_searcher *s, bool saved, cb_error *err) {
    cb_trial *t = &s->t;
    bool modest;
    cb_ladder_free(&s->d); /* of a search that was ended early */
    t->proven = NULL;
    s->d = (cb_ladder){0};
    CB_TRY(cb_exact_suits(s->f, &modest, err));
    bool few = !saved && !modest && s->f->n_base < FEW_OPS;
    if (few) CB_TRY(use_spares(s, err));
    CB_TRY(cb_try_pairs(t, NULL, 0, err));
    if (saved) CB_TRY(fill_for_saved(t, s->cut, err));
    else CB_TRY(cb_ladder_init(&s->d, t, s->cut, s->threads, err));
    s->d.modest = modest;
    s->d.few = few;
    CB_TRY(try_presets(t, s->cut, err));
    s->ready = true;
    return CB_OK;
}

static cb_status search_all(cb_searcher *s, chooser *k, cb_error *err) {
    bool saved = s->t.goal->measure == CB_MEASURE_SAVED;
    if (!s->ready) CB_TRY(get_ready(s, saved, err));
    if (!saved && !s->d.few) CB_TRY(climb_ahead(s, err));
    return pick(k, saved ? NULL : &s->d, err);
}

/* The caller has ended the search: the best of all plans seen so far, rungs or not. */
static cb_status settle(chooser *k, const cb_ladder *d, cb_error *err) {
    cb_trial *t = k->t;
    cb_candidates *own[] = {t->pool, d->base, d->first.work, d->front};
    uint32_t n_own = sizeof own / sizeof *own;
    double most_ps = most_time(t);
    k->settles = true;
    for (uint32_t i = 0; i < n_own + cb_workers_count(d->workers); i++) {
        cb_candidates *pool = i < n_own ? own[i] : cb_workers_candidates(d->workers, i - n_own);
        if (!pool) continue;
        t->pool = pool;
        if (t->goal->smallest) CB_TRY(consider_small_pool(k, most_ps, err));
        else CB_TRY(consider_pool(k, err));
    }
    for (uint32_t r = 0; r < d->n_rung; r++) {
        if (d->plan[r].size == 0) continue;
        bool fast = (double)d->plan[r].time_ps <= most_ps;
        if (!t->goal->smallest) CB_TRY(consider(k, &d->plan[r], err));
        else if (fast) CB_TRY(consider_small(k, &d->plan[r], err));
    }
    if (has_best(k)) return CB_OK;
    if (t->goal->smallest)
        return cb_fail(err, CB_INFEASIBLE,
                       "the search was ended before it had a plan; give it more time");
    return cb_fail(err, CB_INFEASIBLE,
                   "the search was ended before a plan fitted %llu bytes; give it more time or "
                   "raise the budget",
                   (unsigned long long)t->goal->bytes);
}

/* Nothing fits: what would, at any price, for the error. */
static cb_status note_smallest(const cb_searcher *s, chooser *least, cb_error *err) {
    cb_arena scratch;
    cb_schedule best = {0};
    cb_lives lives;
    cb_arena_init(&scratch, s->f->alloc);
    cb_status status = cb_exact_smallest(s->f, &s->goal, INT64_MAX, &scratch, &best, err);
    if (status == CB_OK && best.n_step > 0) {
        CB_TRY_DONE(cb_schedule_walk(s->f->p, &best, s->f->device, &scratch, &lives, err));
        least->smallest = lives.peak_bytes + beside_size(&s->t);
        least->smallest_op = best.step[lives.peak_step];
    }
done:
    cb_arena_free(&scratch);
    return status;
}

/* Small problems are solved to the end, unless offsets count. False: search. `least` gets the
 * smallest schedule where none fits. */
static cb_status solve_exactly(const cb_searcher *s, cb_found *out, bool *solved, chooser *least,
                               cb_error *err) {
    const cb_facts *f = s->f;
    const cb_goal *goal = &s->goal;
    bool on_peaks = goal->measure == CB_MEASURE_LIVE || goal->measure == CB_MEASURE_TOTAL;
    bool suits = false;
    *solved = false;
    if (on_peaks) CB_TRY(cb_exact_suits(f, &suits, err));
    if (!suits) return CB_OK;
    uint64_t beside = beside_size(&s->t);
    cb_arena *arena = out->pairs.arena;
    cb_schedule best = {0};
    cb_lives lives;
    if (goal->smallest) {
        int64_t most_ps = (int64_t)((double)f->once_ps * (1 + goal->share));
        CB_TRY(cb_exact_smallest(f, goal, most_ps, arena, &best, err));
    } else if (goal->bytes >= beside) {
        CB_TRY(cb_exact_fastest(f, goal, goal->bytes - beside, arena, &best, err));
    }
    if (best.n_step == 0) return goal->smallest ? CB_OK : note_smallest(s, least, err);
    CB_TRY(cb_schedule_walk(f->p, &best, f->device, arena, &lives, err));
    *solved = goal->smallest || lives.peak_bytes + beside <= goal->bytes;
    out->schedule = best;
    out->least_extra_ps = (double)(lives.time_ps - f->once_ps);
    return CB_OK;
}

/* When the caller ends the search here, the plan stands, without a bound. */
static cb_status bound_answer(cb_searcher *s, const chooser *k, double *least_ps, cb_error *err) {
    const cb_goal *goal = &s->goal;
    uint64_t bytes = goal->smallest ? k->best.size : goal->bytes - beside_size(&s->t);
    double known = (double)(k->best.time_ps - s->f->once_ps), proved;
    cb_status status = cb_ladder_prove(&s->d, bytes, known, &proved, err);
    if (status == CB_CANCELLED && goal->poll(goal->poll_user) == CB_POLL_FINISH) return CB_OK;
    if (status != CB_OK) return status;
    proved = fmax(proved, k->bound_ps);
    *least_ps = fmax(proved, cb_ladder_bound(&s->d, (double)bytes, k->climbed));
    return CB_OK;
}

/* As a schedule, where a set of pairs of the problem itself does not say it. */
static cb_status answer(const chooser *k, cb_found *out, cb_error *err) {
    out->pairs.list.at = k->best.pair;
    out->pairs.list.len = out->pairs.list.cap = k->best.n_pair;
    out->least_extra_ps = -1;
    if (k->t->f == k->f) return CB_OK;
    CB_TRY(cb_sim_run(k->t->sim, k->best.pair, k->best.n_pair, err));
    return cb_sim_schedule(k->t->sim, k->arena, &out->schedule, err);
}

cb_status cb_searcher_ask(cb_searcher *s, const cb_goal *goal, cb_found *out, cb_error *err) {
    bool solved;
    s->goal = *goal;
    chooser least = {.smallest = UINT64_MAX};
    cb_status exact = solve_exactly(s, out, &solved, &least, err);
    if (exact == CB_OK && solved) return CB_OK;
    out->schedule = (cb_schedule){0};
    if (exact != CB_OK && exact != CB_CANCELLED) return exact; /* the search knows how to end */
    cb_trial *t = &s->t;
    chooser k = {.t = t,
                 .f = s->f,
                 .arena = out->pairs.arena,
                 .smallest = UINT64_MAX,
                 .smallest_op = CB_NONE,
                 .solved = least.smallest,
                 .solved_op = least.smallest_op};
    cb_status status = search_all(s, &k, err);
    bool early = status == CB_CANCELLED && goal->poll(goal->poll_user) == CB_POLL_FINISH;
    if (early) status = settle(&k, &s->d, err);
    t->pool = &s->pool;
    out->smallest = k.smallest;
    if (status != CB_OK) return status;
    CB_TRY(answer(&k, out, err));
    if (early || goal->measure == CB_MEASURE_SAVED) return CB_OK;
    return bound_answer(s, &k, &out->least_extra_ps, err);
}

void cb_searcher_expect(cb_searcher *s, const cb_goal *goal, uint32_t n) {
    s->expected = goal;
    s->n_expected = n;
}

cb_status cb_searcher_new(const cb_facts *f, cb_cut *cut, cb_sim *sim, cb_arena *arena,
                          cb_threads *threads, cb_searcher **out, cb_error *err) {
    cb_searcher *s = CB_NEW(arena, cb_searcher, 1);
    if (!s) return cb_no_memory(err);
    *s = (cb_searcher){.f = f, .cut = cut, .arena = arena, .threads = threads};
    s->pool.alloc = arena->alloc;
    s->t = (cb_trial){.f = f, .goal = &s->goal, .sim = sim, .pool = &s->pool, .scratch = arena};
    CB_TRY(set_forced(s, f, cut, err));
    *out = s;
    return CB_OK;
}

void cb_searcher_free(cb_searcher *s) {
    if (!s) return;
    cb_ladder_free(&s->d);
    if (s->t.f != s->f) cb_sim_free(&s->spared_sim);
    cb_candidates_free(&s->pool);
}
