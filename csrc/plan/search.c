/* The search for a budget. It fills a pool of schedules, none of which another beats in both bytes
 * and time, by aiming at a fixed ladder of targets; then the budget picks from the pool.
 *
 * Nothing that fills the pool depends on the budget asked for. So a smaller budget never gives a
 * larger schedule and a larger one never a slower, in one process or in several: the answer is the
 * fastest of a fixed set that fits. */
#include "improve.h"
#include "prices.h"
#include <math.h>

#define RUNGS 19     /* targets 0.95, 0.90 ... 0.05 of save-everything's bytes */
#define STEPS 24     /* price steps for a target */
#define DEEPER 4     /* bisections between the smallest schedule and the largest target missed */
#define HOPELESS 0.8 /* a target this far below the smallest schedule ends the ladder */

/* ---- filling the pool ------------------------------------------------------------------------ */

/* Inside regions with limits the search starts from what their own cut recomputes. */
static cb_status force_recompute(const cb_facts *f, cb_cut *cut, bool *forced, cb_error *err) {
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

/* Schedules around one target, from prices; deeper ones where prices do not get there. */
static cb_status aim(cb_trial *t, cb_prices *prices, uint64_t target, cb_error *err) {
    CB_TRY(cb_prices_aim(prices, target, STEPS, err));
    return cb_pool_fitting(t->pool, target) == CB_NONE ? cb_improve_at_peak(t, target, err) : CB_OK;
}

static cb_status improve(cb_trial *t, uint64_t target, cb_error *err) {
    CB_TRY(cb_improve_by_mixing(t, target, err));
    return cb_improve_by_removal(t, target, err);
}

static bool is_missed(const cb_pool_of_plans *pool, uint64_t target) {
    return pool->n > 0 && pool->at[0].size > target;
}

static uint64_t rung_target(uint64_t whole, int rung) {
    return (uint64_t)((double)whole * (1 - rung / (double)(RUNGS + 1)));
}

/* First all targets are aimed at, so that a crossover finds partners on both sides of its own. */
static cb_status fill_pool(cb_trial *t, cb_cut *cut, cb_error *err) {
    cb_prices prices;
    const cb_pool_of_plans *pool = t->pool;
    CB_TRY(cb_try_pairs(t, NULL, 0, err));
    uint64_t whole = t->size, missed = 0;
    int last = 0;
    CB_TRY(cb_prices_init(&prices, t, cut, err));
    CB_TRY(try_presets(t, cut, err));
    for (bool hopeless = false; last < RUNGS && !hopeless;) {
        uint64_t target = rung_target(whole, ++last);
        CB_TRY(aim(t, &prices, target, err));
        if (is_missed(pool, target) && missed == 0) missed = target;
        hopeless = pool->n > 0 && (double)target < HOPELESS * (double)pool->at[0].size;
    }
    for (int rung = 1; rung <= last; rung++) CB_TRY(improve(t, rung_target(whole, rung), err));
    for (int i = 0; i < DEEPER && is_missed(pool, missed); i++) {
        uint64_t target = missed + (pool->at[0].size - missed) / 2;
        CB_TRY(aim(t, &prices, target, err));
        CB_TRY(improve(t, target, err));
        if (is_missed(pool, target)) missed = target;
    }
    return CB_OK;
}

/* ---- picking from it ------------------------------------------------------------------------- */

typedef struct picker {
    cb_trial *t;
    uint32_t best; /* CB_NONE: nothing fits */
    uint64_t best_bytes;
    uint64_t smallest; /* least bytes measured, and the op at its peak */
    uint32_t smallest_op;
} picker;

/* The measure of candidate `i`, offsets and all. */
static cb_status weigh(picker *k, uint32_t i, uint64_t *bytes, cb_error *err) {
    cb_trial *t = k->t;
    const cb_candidate *c = &t->pool->at[i];
    cb_arena scratch;
    cb_arena_init(&scratch, t->scratch->alloc);
    cb_schedule schedule;
    cb_lives lives;
    uint64_t arena_bytes = 0;
    cb_status status;
    CB_TRY_DONE(cb_sim_run(t->sim, c->pair, c->n_pair, err));
    CB_TRY_DONE(cb_sim_schedule(t->sim, &scratch, &schedule, err));
    CB_TRY_DONE(cb_schedule_walk(t->f->p, &schedule, t->f->device, &scratch, &lives, err));
    if (t->goal->measure == CB_MEASURE_ARENA)
        CB_TRY_DONE(cb_place(t->f->p, &lives, &scratch, &arena_bytes, err));
    *bytes = cb_measured(t->f->p, t->goal->measure, &lives, arena_bytes);
    if (*bytes >= k->smallest) goto done;
    k->smallest = *bytes;
    k->smallest_op = schedule.n_step > 0 ? schedule.step[lives.peak_step] : CB_NONE;
done:
    cb_arena_free(&scratch);
    return status;
}

/* Could candidate `i` fit `bytes`? Its own size is a floor for what it measures in the end. */
static bool may_fit(const cb_trial *t, uint32_t i, uint64_t bytes) {
    uint64_t floor =
        t->pool->at[i].size + (t->goal->measure == CB_MEASURE_TOTAL ? t->f->p->static_bytes : 0);
    return floor <= bytes;
}

/* Fastest first: sizes fall from the end of the pool. */
static cb_status pick_fastest(picker *k, cb_error *err) {
    const cb_trial *t = k->t;
    for (uint32_t i = t->pool->n; i-- > 0;) {
        if (!may_fit(t, i, t->goal->bytes)) continue;
        CB_TRY(weigh(k, i, &k->best_bytes, err));
        if (k->best_bytes > t->goal->bytes) continue;
        k->best = i;
        return CB_OK;
    }
    return CB_OK;
}

/* The smallest among those fast enough. */
static cb_status pick_smallest(picker *k, double most_ps, cb_error *err) {
    const cb_trial *t = k->t;
    for (uint32_t i = 0; i < t->pool->n; i++) {
        uint64_t bytes;
        if ((double)t->pool->at[i].time_ps > most_ps || !may_fit(t, i, k->best_bytes)) continue;
        CB_TRY(weigh(k, i, &bytes, err));
        if (k->best != CB_NONE && bytes >= k->best_bytes) continue;
        k->best = i;
        k->best_bytes = bytes;
    }
    return CB_OK;
}

static cb_status fail_budget(picker *k, cb_error *err) {
    const cb_trial *t = k->t;
    static const char *const measure[CB_MEASURE_COUNT] = {"arena", "live", "saved", "total"};
    char op[CB_OP_TEXT];
    if (t->pool->n == 0) {
        return cb_fail(err, CB_INFEASIBLE,
                       "no plan found that keeps all constraints: free some values of their "
                       "MUST_RECOMPUTE or widen a region's limit");
    }
    k->best_bytes = UINT64_MAX;
    CB_TRY(pick_smallest(k, INFINITY, err));
    return cb_fail(err, CB_INFEASIBLE,
                   "no plan fits %llu bytes (%s): the smallest found needs %llu bytes, at op %s; "
                   "raise the budget, "
                   "use a smaller batch, or relax MUST_SAVE constraints",
                   (unsigned long long)t->goal->bytes, measure[t->goal->measure],
                   (unsigned long long)k->smallest,
                   k->smallest_op == CB_NONE ? "none" : cb_op_text(t->f->p, k->smallest_op, op));
}

static cb_status pick(cb_trial *t, cb_pairs *out, cb_error *err) {
    picker k = {.t = t,
                .best = CB_NONE,
                .best_bytes = UINT64_MAX,
                .smallest = UINT64_MAX,
                .smallest_op = CB_NONE};
    if (t->goal->smallest)
        CB_TRY(pick_smallest(&k, (double)t->f->once_ps * (1 + t->goal->share), err));
    else CB_TRY(pick_fastest(&k, err));
    if (k.best == CB_NONE) return fail_budget(&k, err);
    const cb_candidate *c = &t->pool->at[k.best];
    if (!CB_RESERVE(out->arena, out->list, c->n_pair)) return cb_no_memory(err);
    for (size_t i = 0; i < c->n_pair; i++) out->list.at[i] = c->pair[i];
    out->list.len = c->n_pair;
    return CB_OK;
}

cb_status cb_search(const cb_facts *f, cb_cut *cut, cb_sim *sim, const cb_goal *goal, cb_pairs *out,
                    cb_error *err) {
    cb_alloc *alloc = out->arena->alloc;
    cb_pool_of_plans *pool = CB_NEW(out->arena, cb_pool_of_plans, 1);
    bool *forced = CB_NEW(out->arena, bool, f->p->n_op);
    if (!pool || !forced) return cb_no_memory(err);
    pool->alloc = alloc;
    cb_trial t = {
        .f = f, .goal = goal, .sim = sim, .pool = pool, .scratch = out->arena, .forced = forced};
    cb_status status = force_recompute(f, cut, forced, err);
    for (uint32_t op = 0; op < f->p->n_op; op++) t.has_demands |= forced[op];
    if (status == CB_OK) status = fill_pool(&t, cut, err);
    if (status == CB_OK) status = pick(&t, out, err);
    cb_pool_of_plans_free(pool);
    return status;
}
