/* The base of the ladder: prices at nine shares of the save-everything peak. They give plans for
 * every rung's pool, a start for its prices, and tangents that bound its plans' times from below.
 *
 * The bound holds for a class of plans only, and a search may leave the class. So a rung's plans
 * are held to it, with a little slack: that way "this rung cannot win" is true of the set by
 * definition, at the price of a better plan missed now and then. */
#include "ladder.h"

#include <math.h>

#define FIRST_STEPS 60 /* of Polyak at the first share, then fewer: prices carry over */
#define NEXT_STEPS 30
#define EFFORT 250000.0  /* steps times base ops: large graphs take fewer */
#define SLACK 0.97       /* of the bound */
#define FIRST_SHARE 2.0  /* of the usual effort, for the first deep rung: it starts from no plan */
#define LEAST_SHARE 0.25 /* and for those far behind it */
#define DIG_SHARE 0.3
#define GROWTH 1.03 /* of the least time, a rung, where the class has no plan */

/* In thousandths. Near the top little time is at stake, but in shares a lot; near the bottom as
 * well. */
static int step_below(int share) { return share > 900 ? 5 : share > 120 ? 20 : 10; }

static void set_targets(cb_ladder *d) {
    for (int share = 980; share >= 30; share -= step_below(share)) {
        uint64_t target = (uint64_t)((double)d->whole * (share / 1000.0));
        if (d->n_rung > 0 && target >= d->target[d->n_rung - 1]) continue;
        d->target[d->n_rung++] = target;
    }
    d->target[d->n_rung] = 0;
}

static void set_least(cb_ladder *d) {
    double least = 0;
    for (uint32_t r = 0; r < d->n_rung; r++) {
        bool reached = cb_pool_fitting(d->base, d->target[r]) != CB_NONE;
        double bound = SLACK * cb_prices_bound(&d->prices, (double)d->target[r]);
        if (reached) d->n_near = r + 1;
        if (reached) least = fmax(least, bound);
        else least = fmin(fmax(least, bound), least * GROWTH);
        d->least_ps[r] = least;
    }
}

static cb_status build_base(cb_ladder *d, cb_error *err) {
    cb_trial *t = d->t;
    const double *from = NULL;
    double once = (double)t->f->once_ps,
           scale = fmin(1, EFFORT / (NEXT_STEPS * (t->f->n_base + 1.0)));
    for (int i = 0; i < CB_LADDER_STARTS; i++) {
        uint64_t target = (uint64_t)((double)d->whole * ((CB_LADDER_STARTS - i) / 10.0));
        int steps = (int)fmax(6, scale * (i == 0 ? FIRST_STEPS : NEXT_STEPS));
        uint32_t at = cb_pool_fitting(t->pool, target);
        double known = at == CB_NONE ? once / 2 : (double)t->pool->at[at].time_ps - once;
        CB_TRY(
            cb_prices_polyak(&d->prices, target, from, 1.02 * fmin(known, once / 2), steps, err));
        memcpy(d->start[i], d->prices.best, t->f->n_base * sizeof **d->start);
        from = d->start[i];
    }
    d->n_tangent = d->prices.tangent.len;
    return CB_OK;
}

cb_status cb_ladder_init(cb_ladder *d, cb_trial *t, cb_cut *cut, cb_error *err) {
    const cb_facts *f = t->f;
    cb_arena *a = t->scratch;
    *d = (cb_ladder){.t = t, .base = t->pool, .whole = t->size};
    d->work = CB_NEW(a, cb_pool_of_plans, 1);
    d->may_rerun = CB_NEW(a, bool, f->p->n_op);
    if (!d->work || !d->may_rerun) return cb_no_memory(err);
    d->work->alloc = a->alloc;
    for (int i = 0; i < CB_LADDER_STARTS; i++) {
        d->start[i] = CB_NEW(a, double, f->n_base);
        if (!d->start[i]) return cb_no_memory(err);
    }
    cb_facts_mark_free(f, d->may_rerun);
    set_targets(d);
    CB_TRY(cb_prices_init(&d->prices, t, cut, err));
    t->prices = &d->prices;
    CB_TRY(cb_ledger_init(&d->ledger, f, d->may_rerun, a->alloc, err));
    CB_TRY(cb_moves_init(&d->moves, t, &d->ledger, a, d->whole, err));
    CB_TRY(build_base(d, err));
    set_least(d);
    return CB_OK;
}

void cb_ladder_free(cb_ladder *d) {
    cb_ledger_free(&d->ledger);
    if (d->work) cb_pool_of_plans_free(d->work);
}

uint32_t cb_ladder_first(const cb_ladder *d, uint64_t bytes) {
    uint32_t r = 0;
    while (r < d->n_rung && d->target[r + 1] >= bytes) r++;
    return r;
}

double cb_ladder_least(const cb_ladder *d, uint32_t r, bool deep) {
    double least = d->least_ps[r];
    for (uint32_t i = d->n_near; deep && i < r; i++) least = fmax(least, d->deep_ps[i]);
    return least;
}

/* The fastest plan of the pool in use that counts for rung `r`. */
static const cb_candidate *find_winner(const cb_ladder *d, uint32_t r) {
    const cb_pool_of_plans *pool = d->t->pool;
    double least = (double)d->t->f->once_ps + cb_ladder_least(d, r, true);
    uint32_t i = cb_pool_fitting(pool, d->target[r]);
    if (i == CB_NONE) return NULL;
    while (i > 0 && (double)pool->at[i].time_ps < least) i--;
    const cb_candidate *c = &pool->at[i];
    return c->size > d->target[r + 1] && (double)c->time_ps >= least ? c : NULL;
}

/* The nearest share at or above the target has prices to start from. */
static const double *start_of(const cb_ladder *d, uint64_t target) {
    double tenths = 10 * (double)target / ((double)d->whole + 1);
    int i = CB_LADDER_STARTS - (int)ceil(tenths - 1e-6);
    return d->start[i < 0 ? 0 : i >= CB_LADDER_STARTS ? CB_LADDER_STARTS - 1 : i];
}

static cb_status keep(const cb_ladder *d, const cb_candidate *c, cb_candidate *out, cb_error *err) {
    *out = *c;
    out->pair = CB_NEW(d->t->scratch, cb_pair, c->n_pair);
    if (!out->pair) return cb_no_memory(err);
    if (c->n_pair > 0) memcpy(out->pair, c->pair, c->n_pair * sizeof *c->pair);
    return CB_OK;
}

static cb_status search_near(cb_ladder *d, uint32_t r, cb_error *err) {
    d->prices.tangent.len = d->n_tangent; /* what other rungs proved is no part of this one */
    CB_TRY(cb_search_rung(&d->moves, &d->prices, start_of(d, d->target[r]), d->target[r],
                          d->least_ps[r], err));
    d->has_seen[r] = d->prices.tangent.len > d->n_tangent;
    if (d->has_seen[r]) d->seen[r] = d->prices.tangent.at[d->n_tangent];
    return CB_OK;
}

static cb_status search_deep(cb_ladder *d, uint32_t r, cb_error *err) {
    const cb_pool_of_plans *pool = d->t->pool;
    bool first = r == d->n_near;
    if (!first && d->last_deep.size == 0) return CB_OK;
    if (first) CB_TRY(search_near(d, r, err)); /* more steps may reach what the base did not */
    double depth = 1.0 + r - d->n_near;
    double share = fmax(LEAST_SHARE, FIRST_SHARE / depth);
    CB_TRY(cb_search_deep_rung(&d->moves, first ? NULL : &d->last_deep, d->target[r], share,
                               cb_ladder_least(d, r, true), err));
    uint32_t at = cb_pool_fitting(pool, d->target[r]);
    d->last_deep = (cb_candidate){0};
    if (at == CB_NONE) return CB_OK;
    d->deep_ps[r] = (double)(pool->at[at].time_ps - d->t->f->once_ps);
    return keep(d, &pool->at[at], &d->last_deep, err);
}

static cb_status climb_one(cb_ladder *d, uint32_t r, cb_error *err) {
    cb_trial *t = d->t;
    cb_pool_of_plans_free(d->work);
    cb_pool_borrow(d->work, d->base);
    t->pool = d->work;
    cb_status status = r < d->n_near ? search_near(d, r, err) : search_deep(d, r, err);
    const cb_candidate *winner = status == CB_OK ? find_winner(d, r) : NULL;
    if (winner) status = keep(d, winner, &d->plan[r], err);
    t->pool = d->base;
    d->searched[r] = true;
    if (d->last_deep.size == 0 && r >= d->n_near) d->n_rung = r + 1;
    return status;
}

cb_status cb_ladder_climb(cb_ladder *d, uint32_t r, const cb_candidate **best, cb_error *err) {
    for (uint32_t i = r < d->n_near ? r : d->n_near; i <= r; i++) {
        if (!d->searched[i]) CB_TRY(climb_one(d, i, err));
    }
    *best = d->plan[r].size > 0 ? &d->plan[r] : NULL;
    return CB_OK;
}

cb_status cb_ladder_dig(cb_ladder *d, const cb_candidate *from, uint64_t target, cb_candidate *out,
                        cb_error *err) {
    cb_trial *t = d->t;
    *out = (cb_candidate){0};
    cb_pool_of_plans_free(d->work);
    cb_pool_borrow(d->work, d->base);
    t->pool = d->work;
    cb_status status = cb_search_deep_rung(&d->moves, from, target, DIG_SHARE, 0, err);
    uint32_t at = status == CB_OK ? cb_pool_fitting(t->pool, target) : CB_NONE;
    if (at != CB_NONE) status = keep(d, &t->pool->at[at], out, err);
    t->pool = d->base;
    return status;
}

cb_status cb_ladder_refine(cb_ladder *d, const cb_candidate *from, uint64_t target,
                           cb_candidate *out, double *bound_ps, cb_error *err) {
    cb_trial *t = d->t;
    *out = (cb_candidate){0};
    cb_pool_of_plans_free(d->work);
    cb_pool_borrow(d->work, d->base);
    d->prices.tangent.len = d->n_tangent;
    t->pool = d->work;
    cb_status status =
        cb_pool_offer(d->work, from->size, from->time_ps, from->pair, from->n_pair, err);
    if (status == CB_OK)
        status = cb_search_rung(&d->moves, &d->prices, start_of(d, target), target, 0, err);
    uint32_t at = status == CB_OK ? cb_pool_fitting(t->pool, target) : CB_NONE;
    if (at != CB_NONE) status = keep(d, &t->pool->at[at], out, err);
    *bound_ps = cb_prices_bound(&d->prices, (double)target);
    t->pool = d->base;
    return status;
}

double cb_ladder_bound(const cb_ladder *d, double bytes, uint32_t from, uint32_t to) {
    double best = 0;
    for (size_t i = 0; i < d->n_tangent; i++)
        best = fmax(best, d->prices.tangent.at[i].constant - d->prices.tangent.at[i].slope * bytes);
    if (to > d->n_near && from > d->n_near) from = d->n_near; /* the first deep one has prices */
    for (uint32_t r = from; r < to; r++) {
        if (d->has_seen[r]) best = fmax(best, d->seen[r].constant - d->seen[r].slope * bytes);
    }
    return best;
}
