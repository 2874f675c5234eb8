/* The searches of a ladder: at near rungs, at deep rungs, and below the last rung. A deep target
 * below the floor is missed without a search, since no plan meets it. */
#include <math.h>

#include "ladder.h"
#include "local/beam.h"
#include "tuning.h"

/* Returns the worker's fastest plan that counts for rung `r`. */
static const cb_candidate *find_winner(const cb_ladder *d, const cb_worker *c, uint32_t r) {
    const cb_candidates *all = c->work;
    uint32_t i = cb_candidates_fitting(all, d->target[r]);
    if (i == CB_NONE) return NULL;
    while (i > 0 && !cb_ladder_may_take(d, r, all->at[i].time_ps)) i--;
    const cb_candidate *best = &all->at[i];
    const bool counts = best->size > d->target[r + 1] && cb_ladder_may_take(d, r, best->time_ps);
    return counts ? best : NULL;
}

/* Returns the initial prices for a target: those of the nearest share at or above it. */
static const cb_price_span *start_of(const cb_ladder *d, const cb_price_span *start,
                                     uint64_t target) {
    const double tenths = fmin(10 * (double)target / ((double)d->whole + 1), CB_LADDER_STARTS);
    int i = CB_LADDER_STARTS - (int)ceil(tenths - 1e-6);
    return &start[i < 0 ? 0 : i >= CB_LADDER_STARTS ? CB_LADDER_STARTS - 1 : i];
}

void cb_ladder_begin(const cb_ladder *d, cb_worker *c) {
    cb_candidates_free(c->work);
    cb_candidates_borrow(c->work, d->base);
    if (d->front) cb_candidates_borrow(c->work, d->front);
    c->prices.tangent.len = c->prices.guess.len = d->n_tangent;
    c->t->candidates = c->work;
    c->guessed = 0;
}

/* This is the first job of a search, so its result depends only on the base. If it was the worker's
 * last job (cb_ladder_screen), it is not done again. */
static cb_status guess_rung(cb_ladder *d, cb_worker *c, uint32_t r, cb_error *err) {
    uint64_t target = d->target[r];
    if (c->guessed == r + 1) return CB_OK;
    CB_TRY(cb_guess_rung(&c->prices, start_of(d, d->start, target), target, err));
    if (r < d->n_near)
        d->own_ps[r] =
            CB_SLACK * cb_prices_guess(&c->prices, (double)target, cb_ladder_known(d, target));
    return CB_OK;
}

static double paged_share(const cb_ladder *d) {
    return cb_is_small_search(&d->first.moves) ? CB_PAGED_SMALL_SHARE : CB_PAGED_SHARE;
}

/* True if only windows reach the rung and such rungs must be searched in order, like deep ones. */
static bool is_ordered_page(const cb_ladder *d, uint32_t r) {
    return d->orders_pages && r != CB_NONE && cb_ladder_is_paged(d, r);
}

static cb_status search_with_prices(cb_ladder *d, cb_worker *c, uint32_t r, cb_error *err) {
    const bool paged = is_ordered_page(d, r) || (r < d->n_near && cb_ladder_is_paged(d, r));
    const double share = paged ? paged_share(d) : 1;
    CB_TRY(guess_rung(d, c, r, err));
    c->guessed = 0;
    return cb_search_rung(&c->moves, &c->prices, d->target[r], share,
                          fmax(d->least_ps[r], d->own_ps[r]), err);
}

/* ---- a near rung ----------------------------------------------------------------------------- */

/* Offers the rival's plans, which also belong to this class. */
static cb_status offer_rivals(const cb_ladder *d, cb_worker *c, uint32_t r, cb_error *err) {
    const cb_candidate *from = d->follows && r != CB_NONE ? d->from_rival[r] : NULL;
    if (!from) return CB_OK;
    return cb_candidates_offer(c->work, from->size, from->time_ps, from->pair, from->n_pair, err);
}

static cb_status search_on(cb_ladder *d, cb_worker *c, uint32_t r, cb_error *err) {
    CB_TRY(offer_rivals(d, c, r, err));
    return cb_search_point(&c->moves, d->target[r], 0, 1, d->least_ps[r], err);
}

static cb_status search_near(cb_ladder *d, cb_worker *c, uint32_t r, cb_error *err) {
    CB_TRY(d->follows ? search_on(d, c, r, err) : search_with_prices(d, c, r, err));
    const cb_candidate *winner = find_winner(d, c, r);
    d->searched[r] = true;
    return winner ? cb_worker_keep(c, winner, &d->plan[r], err) : CB_OK;
}

/* ---- a deep rung ----------------------------------------------------------------------------- */

/* Attempts differ in their random numbers, and at the first deep rung in their start. */
typedef struct deep_search {
    const cb_candidate *from;     /* NULL: start from the candidates found so far */
    uint64_t target[CB_ATTEMPTS]; /* two for each rung, with equal contents */
    double descent, share, least_ps, most_ps;
    uint32_t r;                       /* CB_NONE: the target is not a rung */
    bool last;                        /* true: full effort, because the usual effort found no
                                         plan */
    bool full;                        /* see cb_dig_effort */
    cb_candidate out[CB_ATTEMPTS];    /* the fastest plan that fits; size 0: none */
    cb_candidate winner[CB_ATTEMPTS]; /* the fastest plan that counts for rung r */
} deep_search;

static cb_status attempt(cb_ladder *d, deep_search *s, cb_worker *c, uint32_t i, cb_error *err) {
    if (i == 0) CB_TRY(offer_rivals(d, c, s->r, err));
    const bool paged = is_ordered_page(d, s->r);
    if (paged && s->from && s->from->size > 0)
        CB_TRY(cb_candidates_offer(c->work, s->from->size, s->from->time_ps, s->from->pair,
                                   s->from->n_pair, err));
    if (i == 0 && (s->r == d->n_near || paged) && !s->last &&
        !d->follows) /* more steps of prices may reach what the base did not */
        CB_TRY(search_with_prices(d, c, s->r, err));
    const cb_deep_search own = {.from = s->from,
                                .target = s->target[i],
                                .attempt = i + (s->last ? CB_LAST_ATTEMPTS : 0),
                                .descent = s->descent,
                                .share = s->share / CB_ATTEMPTS,
                                .follows = d->follows,
                                .improves = d->follows || (s->r == CB_NONE && cb_ladder_pages(d)),
                                .least_ps = s->least_ps,
                                .most_ps = s->most_ps};
    const double pace = c->moves.pace;
    if (s->full) c->moves.pace = 1;
    const cb_status status = cb_search_deep_rung(&c->moves, &own, err);
    c->moves.pace = pace;
    CB_TRY(status);
    CB_TRY(cb_worker_keep_fastest(c, s->target[i], &s->out[i], err));
    const cb_candidate *winner = s->r == CB_NONE ? NULL : find_winner(d, c, s->r);
    return winner ? cb_worker_keep(c, winner, &s->winner[i], err) : CB_OK;
}

/* Returns the faster plan, or the smaller of two equally fast ones; size 0: none. */
static cb_candidate better_of(const cb_candidate *c) {
    const cb_candidate *best = &c[0];
    for (uint32_t i = 1; i < CB_ATTEMPTS; i++) {
        bool faster = c[i].time_ps < best->time_ps ||
                      (c[i].time_ps == best->time_ps && c[i].size < best->size);
        if (c[i].size > 0 && (best->size == 0 || faster)) best = &c[i];
    }
    return *best;
}

static deep_search plan_deep(const cb_ladder *d, uint32_t r) {
    double depth = 1.0 + r - d->n_near;
    return (deep_search){.from = r == d->n_near ? NULL : &d->last_deep,
                         .target = {d->target[r], d->target[r]},
                         .descent = CB_DESCENT_SHARE,
                         .share = is_ordered_page(d, r)
                                      ? CB_ORDERED_SHARE
                                      : fmax(CB_LEAST_SHARE, CB_FIRST_SHARE / depth),
                         .least_ps = cb_ladder_least(d, r, true),
                         .r = r};
}

static void note_deep(cb_ladder *d, const deep_search *s) {
    d->last_deep = better_of(s->out);
    d->plan[s->r] = better_of(s->winner);
    d->searched[s->r] = true;
    if (d->last_deep.size == 0) d->n_rung = s->r + 1;
    else d->deep_ps[s->r] = (double)(d->last_deep.time_ps - d->first.t->f->once_ps);
}

/* ---- several searches at once ---------------------------------------------------------------- */

/* Attempts at a deep rung come first because they take longest. */
typedef struct searches {
    cb_ladder *d;
    deep_search deep;
    uint32_t n_attempt; /* 0: no deep rung */
    uint32_t n_near, near[CB_RUNGS_MOST];
} searches;

cb_status cb_ladder_find_floor(cb_ladder *d, cb_error *err) {
    if (d->has_floor) return CB_OK;
    CB_TRY(cb_find_floor(&d->first.ledger, d->first.t->scratch, &d->floor, err));
    d->has_floor = true;
    return CB_OK;
}

/* True if an attempt on the same thread, at a smaller target, found a plan that is fast enough. */
static bool is_decided(const searches *s, uint32_t job) {
    const deep_search *deep = &s->deep;
    if (deep->most_ps <= 0 || job == 0 || job >= s->n_attempt) return false;
    if (cb_workers_at_once(s->d->workers) > 1) return false; /* the other attempt has not ended */
    const cb_candidate *found = &deep->out[job - 1];
    const double once = (double)s->d->first.t->f->once_ps;
    return deep->target[job - 1] < deep->target[job] && found->size > 0 &&
           (double)found->time_ps <= once + deep->most_ps;
}

static cb_status search_one(cb_worker *c, uint32_t job, void *user, cb_error *err) {
    searches *s = user;
    const bool deep = job < s->n_attempt;
    if (is_decided(s, job) || (deep && s->deep.target[job] < s->d->floor.bytes)) return CB_OK;
    cb_candidates *before = c->t->candidates;
    if (!deep && c->guessed == s->near[job - s->n_attempt] + 1) c->t->candidates = c->work;
    else cb_ladder_begin(s->d, c);
    cb_status status = deep ? attempt(s->d, &s->deep, c, job, err)
                            : search_near(s->d, c, s->near[job - s->n_attempt], err);
    c->t->candidates = before;
    return status;
}

/* True if the full effort takes only milliseconds and the floor does not rule the target out. */
static bool is_worth_more(const cb_ladder *d, const deep_search *s) {
    if (d->follows || better_of(s->out).size > 0) return false;
    return cb_is_small_search(&d->first.moves) && s->target[0] >= d->floor.bytes;
}

/* Runs the searches. The ladder ends at the first deep target that is missed, so a missed target is
 * tried again with full effort if that is cheap. */
static cb_status search_all(searches *s, cb_error *err) {
    if (s->n_attempt > 0) CB_TRY(cb_ladder_find_floor(s->d, err));
    CB_TRY(cb_workers_run(s->d->workers, s->n_attempt + s->n_near, search_one, s, err));
    if (s->n_attempt == 0 || s->deep.r == CB_NONE) return CB_OK;
    s->deep.last = is_worth_more(s->d, &s->deep);
    if (s->deep.last) CB_TRY(cb_workers_run(s->d->workers, s->n_attempt, search_one, s, err));
    note_deep(s->d, &s->deep);
    return CB_OK;
}

/* Gets the rival's plan of the same target, from which a following ladder starts. */
static cb_status ask_rival(cb_ladder *d, uint32_t r, cb_error *err) {
    if (!d->follows || r >= d->rival->n_rung || d->target[r] != d->rival->target[r]) return CB_OK;
    return cb_ladder_climb(d->rival, r, &d->from_rival[r], err);
}

cb_status cb_ladder_climb_many(cb_ladder *d, const bool *wanted, cb_error *err) {
    searches s = {.d = d};
    bool deep = false;
    for (uint32_t r = 0; r < d->n_near; r++)
        if (wanted[r] && !d->searched[r]) CB_TRY(ask_rival(d, r, err));
    for (uint32_t r = 0; r < d->n_rung; r++) {
        if (r >= d->n_near) deep |= wanted[r];
        else if (wanted[r] && !d->searched[r]) s.near[s.n_near++] = r;
    }
    if (deep && !d->searched[d->n_near]) {
        CB_TRY(ask_rival(d, d->n_near, err));
        s.deep = plan_deep(d, d->n_near);
        s.n_attempt = CB_ATTEMPTS;
    }
    return search_all(&s, err);
}

static cb_status climb_deep(cb_ladder *d, uint32_t r, cb_error *err) {
    CB_TRY(ask_rival(d, r, err));
    searches s = {.d = d, .deep = plan_deep(d, r), .n_attempt = CB_ATTEMPTS};
    if (r > d->n_near && d->last_deep.size == 0) s.n_attempt = 0;
    CB_TRY(search_all(&s, err));
    if (s.n_attempt == 0) note_deep(d, &s.deep);
    return CB_OK;
}

cb_status cb_ladder_screen(cb_ladder *d, uint32_t r, double *least_ps, cb_error *err) {
    cb_worker *c = &d->first;
    cb_status status = CB_OK;
    if (d->own_ps[r] == 0 && !d->follows) {
        cb_ladder_begin(d, c);
        status = guess_rung(d, c, r, err);
        c->guessed = status == CB_OK ? r + 1 : 0;
        c->t->candidates = d->base;
    }
    *least_ps = fmax(d->least_ps[r], d->own_ps[r]);
    return status;
}

cb_status cb_ladder_climb(cb_ladder *d, uint32_t r, const cb_candidate **best, cb_error *err) {
    searches s = {.d = d, .near = {r}, .n_near = 1};
    if (r < d->n_near && !d->searched[r]) {
        CB_TRY(ask_rival(d, r, err));
        CB_TRY(search_all(&s, err));
    }
    for (uint32_t i = d->n_near; i <= r && i < d->n_rung; i++) { /* until a rung has no plan */
        if (!d->searched[i]) CB_TRY(climb_deep(d, i, err));
    }
    *best = d->plan[r].size > 0 ? &d->plan[r] : NULL;
    return CB_OK;
}

bool cb_ladder_passes(const cb_ladder *d, uint32_t r) {
    if (r >= d->n_near) return d->searched[r] && r + 1 < d->n_rung; /* a missed one is the last */
    return cb_candidates_fitting(d->base, d->target[r + 1]) != CB_NONE;
}

/* Returns the last near rung. The plans of the rungs before it are larger than its target. */
static uint32_t last_near(const cb_ladder *d) { return d->n_near > 0 ? d->n_near - 1 : 0; }

/* Returns the smallest plan of the base and of the rungs that are always searched, so that the
 * result does not depend on other requests. */
static cb_candidate lowest(const cb_ladder *d) {
    cb_candidate best = d->base->n > 0 ? d->base->at[0] : (cb_candidate){0};
    for (uint32_t r = last_near(d); r < d->n_rung; r++) {
        bool smaller = d->plan[r].size > 0 && (best.size == 0 || d->plan[r].size < best.size);
        if (smaller) best = d->plan[r];
    }
    if (d->last_deep.size > 0 && d->last_deep.size < best.size) best = d->last_deep;
    return best;
}

/* Searches at these targets from `high`, which becomes the smallest plan. Faster plans do not
 * count: a budget that has room for `high` gets `high`, and must not be slower than a smaller
 * budget. */
static cb_status dig_at(cb_ladder *d, const uint64_t target[CB_ATTEMPTS], cb_candidate *high,
                        cb_error *err) {
    searches s = {.d = d, .n_attempt = CB_ATTEMPTS};
    s.deep = (deep_search){
        .from = high, .descent = CB_DESCENT_SHARE, .share = CB_DIG_SHARE, .r = CB_NONE};
    s.deep.least_ps = (double)(high->time_ps - d->first.t->f->once_ps);
    memcpy(s.deep.target, target, sizeof s.deep.target);
    CB_TRY(search_all(&s, err));
    cb_candidate from = *high;
    for (uint32_t i = 0; i < CB_ATTEMPTS; i++) {
        const cb_candidate *c = &s.deep.out[i];
        bool counts = c->size > 0 && c->size < from.size && c->time_ps >= from.time_ps;
        if (!counts) continue;
        d->dug[d->n_dug++] = *c;
        if (c->size < high->size) *high = *c;
    }
    return CB_OK;
}

/* Tries thirds of the range between the smallest plan and the missed target. */
static cb_status dig_above_missed(cb_ladder *d, cb_candidate *high, cb_error *err) {
    uint64_t missed = d->target[d->n_rung - 1], target[CB_ATTEMPTS];
    if (high->size <= missed + 1) return CB_OK;
    for (uint32_t i = 0; i < CB_ATTEMPTS; i++)
        target[i] = missed + (i + 1) * ((high->size - missed) / (CB_ATTEMPTS + 1));
    return dig_at(d, target, high, err);
}

/* Tries the middle between the smallest plan and the floor. */
static cb_status dig_to_floor(cb_ladder *d, cb_candidate *high, cb_error *err) {
    CB_TRY(cb_ladder_find_floor(d, err));
    uint64_t low = d->floor.apart, step = (uint64_t)(CB_DUG_SHARE * (double)d->whole);
    if (high->size <= low + step) return CB_OK;
    uint64_t to = low + (high->size - 1 - low) / 2;
    const uint64_t target[CB_ATTEMPTS] = {to, to};
    return dig_at(d, target, high, err);
}

cb_status cb_ladder_dig_down(cb_ladder *d, cb_error *err) {
    const cb_candidate *none;
    if (d->has_dug || d->n_rung == 0 || d->modest) return CB_OK;
    for (uint32_t r = last_near(d); r < d->n_rung; r++) CB_TRY(cb_ladder_climb(d, r, &none, err));
    cb_candidate high = lowest(d);
    d->n_dug = 0;
    CB_TRY(dig_above_missed(d, &high, err));
    CB_TRY(dig_to_floor(d, &high, err));
    d->has_dug = true;
    return CB_OK;
}

cb_status cb_ladder_dig(cb_ladder *d, const cb_candidate *from, cb_dig_effort effort,
                        const uint64_t target[CB_ATTEMPTS], cb_candidate out[CB_ATTEMPTS],
                        cb_error *err) {
    searches s = {.d = d, .n_attempt = CB_ATTEMPTS};
    s.deep = (deep_search){.from = from,
                           .descent = effort.descent,
                           .share = effort.share,
                           .most_ps = effort.most_ps,
                           .full = effort.full,
                           .r = CB_NONE};
    memcpy(s.deep.target, target, sizeof s.deep.target);
    CB_TRY(search_all(&s, err));
    memcpy(out, s.deep.out, sizeof s.deep.out);
    return CB_OK;
}

typedef struct refinement {
    uint64_t target;
    double share;                /* share of the usual effort */
    double least_ps;             /* no search goes below this extra time */
    const cb_candidate *from[2]; /* plans to start from; or NULL */
} refinement;

static cb_status refine(cb_ladder *d, const refinement *s, cb_candidate *out, cb_error *err) {
    cb_worker *c = &d->first;
    const double share = s->share * (cb_ladder_pages(d) ? paged_share(d) : 1);
    cb_status status = CB_OK;
    *out = (cb_candidate){0};
    cb_ladder_begin(d, c);
    for (int i = 0; i < 2 && status == CB_OK; i++) {
        const cb_candidate *from = s->from[i];
        if (from)
            status = cb_candidates_offer(c->work, from->size, from->time_ps, from->pair,
                                         from->n_pair, err);
    }
    if (status == CB_OK)
        status = cb_guess_rung(&c->prices, start_of(d, d->start, s->target), s->target, err);
    if (status == CB_OK)
        status = cb_search_rung(&c->moves, &c->prices, s->target, share, s->least_ps, err);
    if (status == CB_OK) status = cb_worker_keep_fastest(c, s->target, out, err);
    c->t->candidates = d->base;
    return status;
}

cb_status cb_ladder_refine(cb_ladder *d, const cb_candidate *from, uint64_t target,
                           cb_candidate *out, cb_error *err) {
    const refinement s = {.target = target, .share = 1, .from = {from}};
    return refine(d, &s, out, err);
}

/* ---- between two rungs ----------------------------------------------------------------------- */

/* Searches downwards from the rung's plan, until the next target or a plan that is no faster than
 * that of the next rung. */
static cb_status search_stairs(cb_ladder *d, uint32_t r, cb_stairs *out, cb_error *err) {
    const double once = (double)d->first.t->f->once_ps;
    const uint64_t low = d->target[r + 1];
    const uint64_t step = (d->target[r] - low) / CB_STAIRS_MOST + 1; /* so that targets decrease */
    const cb_candidate *last = &d->plan[r], *next = NULL;
    uint64_t target = d->target[r];
    if (r + 1 < d->n_rung) CB_TRY(cb_ladder_climb(d, r + 1, &next, err));
    while (out->n < CB_STAIRS_MOST) {
        const uint64_t below = target > step ? target - step : 0;
        target = last->size - 1 < below ? last->size - 1 : below;
        if (target <= low || (next && next->time_ps <= last->time_ps)) break;
        cb_candidate *found = &out->at[out->n];
        const refinement s = {target, CB_STAIRS_SHARE, (double)last->time_ps - once, {last, next}};
        CB_TRY(refine(d, &s, found, err));
        if (found->size <= low || (next && found->time_ps >= next->time_ps)) break;
        if (found->time_ps < last->time_ps) continue;
        last = found;
        out->n++;
    }
    out->searched = true;
    return CB_OK;
}

cb_status cb_ladder_climb_stairs(cb_ladder *d, uint32_t r, const cb_stairs **stairs,
                                 cb_error *err) {
    *stairs = NULL;
    if (!cb_is_fine_search(&d->first.moves) || d->follows || d->modest) return CB_OK;
    if (!d->stairs) CB_TRY_NEW(d->stairs, d->first.t->scratch, CB_RUNGS_MOST, err);
    cb_stairs *own = &d->stairs[r];
    if (!own->searched) {
        own->n = 0;
        CB_TRY(search_stairs(d, r, own, err));
    }
    *stairs = own;
    return CB_OK;
}

/* ---- op by op -------------------------------------------------------------------------------- */

/* True if this ladder builds plans op by op: of two searchers, the one with the larger class does.
 */
static bool may_build(const cb_ladder *d) {
    const cb_facts *f = d->first.t->f;
    if (!f->all && f->p->reruns == CB_RERUNS_ALL) return false;
    return cb_is_fine_search(&d->first.moves) && !d->follows && !d->modest;
}

static cb_status build(cb_ladder *d, uint32_t r, cb_error *err) {
    cb_worker *c = &d->first;
    const int64_t below_ps = d->plan[r].time_ps;
    cb_candidates_free(c->work);
    c->t->candidates = c->work;
    c->guessed = 0;
    cb_status status = cb_beam(&c->moves, d->target[r], below_ps, CB_BEAM_EFFORT, err);
    const cb_candidate *winner = status == CB_OK ? find_winner(d, c, r) : NULL;
    if (winner && winner->time_ps < below_ps) status = cb_worker_keep(c, winner, &d->built[r], err);
    c->t->candidates = d->base;
    return status;
}

cb_status cb_ladder_build(cb_ladder *d, uint32_t r, const cb_candidate **found, cb_error *err) {
    *found = NULL;
    if (d->plan[r].size == 0 || !may_build(d)) return CB_OK;
    if (!d->built) CB_TRY_NEW(d->built, d->first.t->scratch, CB_RUNGS_MOST, err);
    if (!d->has_built[r]) CB_TRY(build(d, r, err));
    d->has_built[r] = true;
    if (d->built[r].size > 0) *found = &d->built[r];
    return CB_OK;
}

/* ---- the bound ------------------------------------------------------------------------------- */

cb_status cb_ladder_prove(cb_ladder *d, uint64_t bytes, double known_ps, double *bound_ps,
                          cb_error *err) {
    cb_worker *c = &d->first;
    cb_ladder_begin(d, c);
    cb_status status =
        cb_prove_bound(&c->prices, start_of(d, d->proof_start, bytes), bytes, known_ps, err);
    *bound_ps = cb_prices_bound(&c->prices, (double)bytes);
    c->t->candidates = d->base;
    return status;
}

/* The steps aim a little above the time, so that they end when they reach it. For a target near the
 * top the base's prices may be far off, so steps without them are tried as well. */
cb_status cb_ladder_excludes(cb_ladder *d, uint32_t r, double time_ps, bool *out, cb_error *err) {
    const double once = (double)d->first.t->f->once_ps, extra = time_ps - once;
    const uint64_t target = d->target[r];
    const cb_price_span *from[] = {start_of(d, d->proof_start, target), NULL};
    cb_worker *c = &d->first;
    cb_status status = CB_OK;
    *out = false;
    if (!(extra < INFINITY) || r >= d->n_near || c->t->f->bent) return CB_OK;
    if (!cb_is_small_search(&c->moves)) return CB_OK; /* the steps take longer than they save */
    cb_ladder_begin(d, c);
    for (int i = 0; i < 2 && status == CB_OK && !*out; i++) {
        status = cb_prove_bound(&c->prices, from[i], target, extra + 2 * CB_PROVED * once, err);
        *out = cb_prices_bound(&c->prices, (double)target) >= extra;
    }
    c->t->candidates = d->base;
    return status;
}

cb_status cb_ladder_spares(cb_ladder *d, uint32_t r, bool *out, cb_error *err) {
    cb_ladder *rival = d->rival;
    *out = d->follows && r < d->n_priced;
    if (d->follows || !rival || r >= d->n_near || r >= rival->n_near ||
        d->target[r] != rival->target[r])
        return CB_OK;
    if (!d->judged[r]) {
        const cb_candidate *c;
        const double enough = cb_is_fine_search(&d->first.moves) ? CB_FINE_ENOUGH : CB_ENOUGH;
        CB_TRY(cb_ladder_climb(rival, r, &c, err));
        if (c) {
            double once = (double)d->first.t->f->once_ps, time = (double)c->time_ps, bound;
            CB_TRY(cb_ladder_prove(d, d->target[r], time - once, &bound, err));
            d->spared[r] = time <= enough * (once + bound);
        }
        d->judged[r] = true;
    }
    *out = d->spared[r];
    return CB_OK;
}
