/* The base of the ladder: prices at nine shares of the save-everything peak. They give plans for
 * every rung, a start for its prices, and tangents of the guess (guess.h) and of the bound.
 *
 * A rung's plans are held to the guess, with a little slack, so "this rung cannot win" is true of
 * the set by definition. If a plan of the base beats the guess, the bound replaces it. The
 * searches at rungs are in climb.c. */
#include "ladder.h"

#include <math.h>

#include "local/windows.h"
#include "tuning.h"

double cb_ladder_known(const cb_ladder *d, uint64_t target) {
    uint32_t at = cb_candidates_fitting(d->base, target);
    if (at == CB_NONE) return INFINITY;
    return (double)d->base->at[at].time_ps - (double)d->first.t->f->once_ps;
}

static void set_least(cb_ladder *d) {
    double least = 0;
    for (uint32_t r = 0; r < d->n_rung; r++) {
        double known = cb_ladder_known(d, d->target[r]);
        double guess = CB_SLACK * cb_prices_guess(&d->first.prices, (double)d->target[r], known);
        bool reached = known < INFINITY;
        if (reached && !(d->orders_pages && cb_ladder_is_paged(d, r))) d->n_near = r + 1;
        if (reached) least = fmax(least, guess);
        if (r > 0 && !d->orders_pages && cb_ladder_is_paged(d, r) &&
            cb_ladder_known(d, d->target[r - 1]) < INFINITY)
            least = fmax(least, cb_ladder_known(d, d->target[r - 1]));
        else least = fmin(fmax(least, guess), least * CB_GROWTH);
        d->least_ps[r] = least;
    }
}

static cb_status build_base(cb_ladder *d, cb_error *err) {
    cb_trial *t = d->first.t;
    cb_prices *prices = &d->first.prices;
    const cb_price_span *from = NULL;
    double once = (double)t->f->once_ps,
           scale = fmin(1, CB_START_EFFORT / (CB_NEXT_STEPS * (t->f->n_base + 1.0)));
    for (int i = 0; i < CB_LADDER_STARTS; i++) {
        uint64_t target = (uint64_t)((double)d->whole * ((CB_LADDER_STARTS - i) / 10.0));
        int steps = (int)fmax(t->f->n_base > CB_ALONE_OPS ? CB_LARGE_STEPS : CB_LEAST_STEPS,
                              scale * (i == 0 ? CB_START_STEPS : CB_NEXT_STEPS));
        double known = 1.02 * fmin(cb_ladder_known(d, target), once / 2);
        CB_TRY(cb_prices_polyak(prices, CB_PRICE_GUESS, target, from, known, steps, err));
        CB_TRY(cb_prices_keep(prices, &d->start[i], err));
        from = &d->start[i];
    }
    return CB_OK;
}

/* Takes steps on the bound. If the guess is about right, the plans found on the way are kept
 * separate from those that searches start from, because starting from them gives slower plans on
 * average. */
static cb_status bound_base(cb_ladder *d, cb_error *err) {
    cb_trial *t = d->first.t;
    cb_prices *prices = &d->first.prices;
    cb_status status = CB_OK;
    double once = (double)t->f->once_ps,
           scale = fmin(1, CB_START_EFFORT / (CB_NEXT_STEPS * (t->f->n_base + 1.0)));
    prices->tries_drops = true;
    t->candidates = d->drops;
    for (int i = 0; i < CB_LADDER_STARTS && status == CB_OK; i++) {
        uint64_t target = (uint64_t)((double)d->whole * ((CB_LADDER_STARTS - i) / 10.0));
        double known = cb_ladder_known(d, target);
        if (known == INFINITY) known = once / 2;
        status =
            cb_prices_polyak(prices, CB_PRICE_BOUND, target, i == 0 ? NULL : &d->proof_start[i - 1],
                             known, (int)fmax(3, scale * CB_BOUND_STEPS), err);
        if (status == CB_OK) status = cb_prices_keep(prices, &d->proof_start[i], err);
    }
    prices->tries_drops = false;
    t->candidates = d->base;
    if (status == CB_OK && cb_prices_misjudge(&d->first.prices, d->drops))
        cb_candidates_borrow(d->base, d->drops);
    d->n_tangent = prices->tangent.len;
    return status;
}

/* True if prices reach so few targets that windows are worth their time. */
static bool wants_windows(const cb_ladder *d) {
    const double reach = CB_PAGED_REACH * (double)d->whole;
    return !cb_is_tiny_search(&d->first.moves) && (double)d->base->at[0].size > reach;
}

/* At each target that prices do not reach, makes plans of windows.h and runs a short search from
 * them and from the plan at the target above, until two targets in a row are missed. */
static cb_status page_base(cb_ladder *d, cb_error *err) {
    cb_windows *w;
    int missed = 0;
    bool done = true;
    const double share =
        cb_is_small_search(&d->first.moves) ? CB_BRIEF_SMALL_SHARE : CB_BRIEF_SHARE;
    d->n_priced = CB_RUNGS_MOST;
    if (!wants_windows(d)) return CB_OK;
    d->orders_pages = cb_is_fine_search(&d->first.moves) &&
                      (double)d->base->at[0].size > CB_ORDERED_REACH * (double)d->whole;
    d->first.moves.delays_chains = d->orders_pages;
    d->first.prices.ignores_guess = d->orders_pages && d->first.t->f->all;
    d->n_rung = cb_rung_targets(d->whole, true, d->target);
    for (uint32_t r = d->n_rung; r-- > 0 && cb_ladder_known(d, d->target[r]) == INFINITY;)
        d->n_priced = r;
    CB_TRY(cb_windows_new(d->first.t, &d->first.ledger, d->may_rerun, &w, err));
    for (uint32_t r = d->n_priced; r < d->n_rung && missed < 2; r++) {
        CB_TRY(cb_windows_try_all(w, d->target[r], &done, err));
        CB_TRY(cb_search_briefly(&d->first.moves, d->target[r], share, err));
        missed = cb_ladder_known(d, d->target[r]) < INFINITY ? 0 : missed + 1;
    }
    return CB_OK;
}

/* True if plans of the other ladder reach the target and cost so little that this ladder has no
 * plans there. */
static bool costs_little(const cb_ladder *d, uint64_t target) {
    return cb_ladder_known(d, target) <
           cb_ladder_little_extra(d->rival) * (double)d->first.t->f->once_ps;
}

/* From the first target at which plans of the other ladder cost more than that, runs a short search
 * from them and from the plan at the target above, until two targets in a row are missed. */
static cb_status follow(cb_ladder *d, cb_error *err) {
    const double share =
        cb_is_small_search(&d->first.moves) ? CB_FOLLOW_SMALL_SHARE : CB_FOLLOW_SHARE;
    int missed = 0;
    d->n_priced = 0;
    while (d->n_priced < d->n_rung && costs_little(d, d->target[d->n_priced])) d->n_priced++;
    for (uint32_t r = d->n_priced; r < d->n_rung && missed < 2; r++) {
        CB_TRY(cb_search_briefly(&d->first.moves, d->target[r], share, err));
        missed = cb_ladder_known(d, d->target[r]) < INFINITY ? 0 : missed + 1;
    }
    return CB_OK;
}

static cb_status build_all(cb_ladder *d, cb_error *err) {
    CB_TRY(build_base(d, err));
    CB_TRY(bound_base(d, err));
    CB_TRY(page_base(d, err));
    set_least(d);
    return CB_OK;
}

cb_status cb_ladder_follow_base(cb_ladder *d, cb_error *err) {
    if (!d->follows || d->has_followed) return CB_OK;
    cb_candidates_borrow(d->base, d->rival->base);
    CB_TRY(follow(d, err));
    set_least(d);
    d->has_followed = true;
    return CB_OK;
}

/* Initializes everything except the base. */
static cb_status init(cb_ladder *d, cb_trial *t, cb_cut *cut, cb_error *err) {
    const cb_facts *f = t->f;
    cb_arena *a = t->scratch;
    *d = (cb_ladder){.base = t->candidates, .whole = t->size};
    CB_TRY_NEW(d->may_rerun, a, f->n_unit, err);
    CB_TRY_NEW(d->drops, a, 1, err);
    d->drops->alloc = a->alloc;
    cb_facts_mark_free(f, d->may_rerun);
    d->n_rung = cb_rung_targets(d->whole, false, d->target);
    CB_TRY(cb_worker_init(&d->first, t, cut, d->may_rerun, d->whole, err));
    t->proven = &d->first.prices.tangent;
    return CB_OK;
}

cb_status cb_ladder_init(cb_ladder *d, cb_trial *t, cb_cut *cut, cb_threads *threads,
                         cb_ladder *rival, cb_error *err) {
    CB_TRY(init(d, t, cut, err));
    d->rival = rival;
    if (rival) d->first.moves.pace = CB_FOLLOW_PACE;
    CB_TRY(build_all(d, err));
    return cb_workers_new(&d->first, d->n_tangent, threads, &d->workers, err);
}

cb_status cb_ladder_follow(cb_ladder *d, cb_trial *t, cb_cut *cut, cb_threads *threads,
                           cb_ladder *rival, cb_error *err) {
    CB_TRY(init(d, t, cut, err));
    d->n_rung = cb_rung_targets(d->whole, cb_ladder_pages(rival), d->target);
    d->rival = rival;
    d->follows = true;
    d->first.moves.pace = CB_FOLLOW_PACE;
    memcpy(d->start, rival->start, sizeof d->start);
    memcpy(d->proof_start, rival->proof_start, sizeof d->proof_start);
    return cb_workers_new(&d->first, d->n_tangent, threads, &d->workers, err);
}

void cb_ladder_free(cb_ladder *d) {
    cb_workers_free(d->workers);
    if (d->front) cb_candidates_free(d->front);
    if (d->drops) cb_candidates_free(d->drops);
    cb_worker_free(&d->first);
}

bool cb_ladder_has_low(const cb_ladder *d) {
    return !d->modest && !cb_is_tiny_search(&d->first.moves);
}

double cb_ladder_little_extra(const cb_ladder *d) {
    const double once = (double)d->first.t->f->once_ps;
    if (!cb_ladder_has_low(d)) return 0;
    if (d->base->n == 0) return CB_LITTLE_EXTRA;
    const double most = (double)d->base->at[0].time_ps / once - 1;
    return d->follows ? most : fmin(CB_LITTLE_EXTRA, most);
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

bool cb_ladder_may_take(const cb_ladder *d, uint32_t r, int64_t time_ps) {
    const double once = (double)d->first.t->f->once_ps;
    return (double)time_ps >= once + fmax(cb_ladder_least(d, r, true), d->own_ps[r]);
}
