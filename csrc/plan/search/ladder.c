/* The base of the ladder: prices at nine shares of the save-everything peak. They give plans for
 * every rung, a start for its prices, and tangents of the guess (guess.h) and of the bound.
 *
 * A rung's plans are held to the guess, with a little slack, so "this rung cannot win" is true of
 * the set by definition. Where a plan of the base beats the guess, the bound takes its place. */
#include "ladder.h"

#include <math.h>

#include "floor.h"
#include "local/windows.h"
#include "tuning.h"

/* Returns the extra time of the fastest plan of the base that fits, or infinity. */
static double known_at(const cb_ladder *d, uint64_t target) {
    uint32_t at = cb_candidates_fitting(d->base, target);
    if (at == CB_NONE) return INFINITY;
    return (double)d->base->at[at].time_ps - (double)d->first.t->f->once_ps;
}

static void set_least(cb_ladder *d) {
    double least = 0;
    for (uint32_t r = 0; r < d->n_rung; r++) {
        double known = known_at(d, d->target[r]);
        double guess = CB_SLACK * cb_prices_guess(&d->first.prices, (double)d->target[r], known);
        bool reached = known < INFINITY;
        if (reached) d->n_near = r + 1;
        if (reached) least = fmax(least, guess);
        if (r > 0 && cb_ladder_is_paged(d, r) && known_at(d, d->target[r - 1]) < INFINITY)
            least = fmax(least, known_at(d, d->target[r - 1]));
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
        double known = 1.02 * fmin(known_at(d, target), once / 2);
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
        double known = known_at(d, target);
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
    d->n_rung = cb_rung_targets(d->whole, true, d->target);
    for (uint32_t r = d->n_rung; r-- > 0 && known_at(d, d->target[r]) == INFINITY;) d->n_priced = r;
    CB_TRY(cb_windows_new(d->first.t, &d->first.ledger, d->may_rerun, &w, err));
    for (uint32_t r = d->n_priced; r < d->n_rung && missed < 2; r++) {
        CB_TRY(cb_windows_try_all(w, d->target[r], &done, err));
        CB_TRY(cb_search_briefly(&d->first.moves, d->target[r], share, err));
        missed = known_at(d, d->target[r]) < INFINITY ? 0 : missed + 1;
    }
    return CB_OK;
}

/* True if plans of the other ladder reach the target and cost so little that this ladder has no
 * plans there. */
static bool costs_little(const cb_ladder *d, uint64_t target) {
    return known_at(d, target) < cb_ladder_little_extra(d->rival) * (double)d->first.t->f->once_ps;
}

/* From the first target at which they cost more, runs a short search from them and from the plan at
 * the target above, until two targets in a row are missed. */
static cb_status follow(cb_ladder *d, cb_error *err) {
    const double share =
        cb_is_small_search(&d->first.moves) ? CB_FOLLOW_SMALL_SHARE : CB_FOLLOW_SHARE;
    int missed = 0;
    d->n_priced = 0;
    while (d->n_priced < d->n_rung && costs_little(d, d->target[d->n_priced])) d->n_priced++;
    for (uint32_t r = d->n_priced; r < d->n_rung && missed < 2; r++) {
        CB_TRY(cb_search_briefly(&d->first.moves, d->target[r], share, err));
        missed = known_at(d, d->target[r]) < INFINITY ? 0 : missed + 1;
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

/* Everything except the base. */
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

static double least_of(const cb_ladder *d, uint32_t r) {
    return (double)d->first.t->f->once_ps + fmax(cb_ladder_least(d, r, true), d->own_ps[r]);
}

bool cb_ladder_may_take(const cb_ladder *d, uint32_t r, int64_t time_ps) {
    return (double)time_ps >= least_of(d, r);
}

/* Returns the worker's fastest plan that counts for rung `r`. */
static const cb_candidate *find_winner(const cb_ladder *d, const cb_worker *c, uint32_t r) {
    const cb_candidates *all = c->work;
    double least = least_of(d, r);
    uint32_t i = cb_candidates_fitting(all, d->target[r]);
    if (i == CB_NONE) return NULL;
    while (i > 0 && (double)all->at[i].time_ps < least) i--;
    const cb_candidate *best = &all->at[i];
    return best->size > d->target[r + 1] && (double)best->time_ps >= least ? best : NULL;
}

/* The nearest share at or above the target has prices to start from. */
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
}

/* The first job of a search, so that it depends only on the base. */
static cb_status guess_rung(cb_ladder *d, cb_worker *c, uint32_t r, cb_error *err) {
    uint64_t target = d->target[r];
    CB_TRY(cb_guess_rung(&c->prices, start_of(d, d->start, target), target, err));
    if (r < d->n_near)
        d->own_ps[r] = CB_SLACK * cb_prices_guess(&c->prices, (double)target, known_at(d, target));
    return CB_OK;
}

static double paged_share(const cb_ladder *d) {
    return cb_is_small_search(&d->first.moves) ? CB_PAGED_SMALL_SHARE : CB_PAGED_SHARE;
}

static cb_status search_with_prices(cb_ladder *d, cb_worker *c, uint32_t r, cb_error *err) {
    const double share = r < d->n_near && cb_ladder_is_paged(d, r) ? paged_share(d) : 1;
    CB_TRY(guess_rung(d, c, r, err));
    return cb_search_rung(&c->moves, &c->prices, d->target[r], share,
                          fmax(d->least_ps[r], d->own_ps[r]), err);
}

/* ---- a near rung ----------------------------------------------------------------------------- */

/* The rival's plan also belongs to this class. */
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
    bool last;                        /* full effort: usual effort found none */
    cb_candidate out[CB_ATTEMPTS];    /* the fastest; size 0: none that fits */
    cb_candidate winner[CB_ATTEMPTS]; /* the fastest that counts for rung r */
} deep_search;

static cb_status attempt(cb_ladder *d, deep_search *s, cb_worker *c, uint32_t i, cb_error *err) {
    if (i == 0) CB_TRY(offer_rivals(d, c, s->r, err));
    if (i == 0 && s->r == d->n_near && !s->last &&
        !d->follows) /* more steps of prices may reach what the base did not */
        CB_TRY(search_with_prices(d, c, s->r, err));
    const cb_deep_search own = {.from = s->from,
                                .target = s->target[i],
                                .attempt = i + (s->last ? CB_LAST_ATTEMPTS : 0),
                                .descent = s->descent,
                                .share = s->share / CB_ATTEMPTS,
                                .improves = d->follows || (s->r == CB_NONE && cb_ladder_pages(d)),
                                .least_ps = s->least_ps,
                                .most_ps = s->most_ps};
    CB_TRY(cb_search_deep_rung(&c->moves, &own, err));
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
                         .share = fmax(CB_LEAST_SHARE, CB_FIRST_SHARE / depth),
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

/* True if an attempt on the same thread, at a smaller target, found a plan that is fast enough. */
static bool is_decided(const searches *s, uint32_t job) {
    const deep_search *deep = &s->deep;
    if (deep->most_ps <= 0 || job == 0 || job >= s->n_attempt) return false;
    if (cb_workers_at_once(s->d->workers) > 1) return false; /* the other has not ended */
    const cb_candidate *found = &deep->out[job - 1];
    const double once = (double)s->d->first.t->f->once_ps;
    return deep->target[job - 1] < deep->target[job] && found->size > 0 &&
           (double)found->time_ps <= once + deep->most_ps;
}

static cb_status search_one(cb_worker *c, uint32_t job, void *user, cb_error *err) {
    searches *s = user;
    if (is_decided(s, job)) return CB_OK;
    cb_candidates *before = c->t->candidates;
    cb_ladder_begin(s->d, c);
    cb_status status = job < s->n_attempt ? attempt(s->d, &s->deep, c, job, err)
                                          : search_near(s->d, c, s->near[job - s->n_attempt], err);
    c->t->candidates = before;
    return status;
}

/* True if the full effort takes only milliseconds and the floor does not rule the target out. */
static cb_status is_worth_more(cb_ladder *d, const deep_search *s, bool *worth, cb_error *err) {
    cb_floor floor;
    *worth = false;
    if (d->follows || better_of(s->out).size > 0 || !cb_is_small_search(&d->first.moves))
        return CB_OK;
    CB_TRY(cb_find_floor(&d->first.ledger, d->first.t->scratch, &floor, err));
    *worth = s->target[0] >= floor.bytes;
    return CB_OK;
}

/* The ladder ends at the first missed deep target, so a target counts as missed only after this. */
static cb_status search_all(searches *s, cb_error *err) {
    CB_TRY(cb_workers_run(s->d->workers, s->n_attempt + s->n_near, search_one, s, err));
    if (s->n_attempt == 0 || s->deep.r == CB_NONE) return CB_OK;
    CB_TRY(is_worth_more(s->d, &s->deep, &s->deep.last, err));
    if (s->deep.last) CB_TRY(cb_workers_run(s->d->workers, s->n_attempt, search_one, s, err));
    note_deep(s->d, &s->deep);
    return CB_OK;
}

/* A following ladder starts from the rival's plan of the same target. */
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
    for (uint32_t i = d->n_near; i <= r && i < d->n_rung; i++) { /* until one has no plan */
        if (!d->searched[i]) CB_TRY(climb_deep(d, i, err));
    }
    *best = d->plan[r].size > 0 ? &d->plan[r] : NULL;
    return CB_OK;
}

bool cb_ladder_passes(const cb_ladder *d, uint32_t r) {
    if (r >= d->n_near) return d->deep_ps[r] > 0 && d->target[r + 1] > 0;
    return cb_candidates_fitting(d->base, d->target[r + 1]) != CB_NONE;
}

/* The last near rung: the plans of those before it are larger than its target. */
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
    cb_floor floor;
    CB_TRY(cb_find_floor(&d->first.ledger, d->first.t->scratch, &floor, err));
    uint64_t low = floor.bytes, step = (uint64_t)(CB_DUG_SHARE * (double)d->whole);
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
                           .r = CB_NONE};
    memcpy(s.deep.target, target, sizeof s.deep.target);
    CB_TRY(search_all(&s, err));
    memcpy(out, s.deep.out, sizeof s.deep.out);
    return CB_OK;
}

cb_status cb_ladder_refine(cb_ladder *d, const cb_candidate *from, uint64_t target,
                           cb_candidate *out, cb_error *err) {
    cb_worker *c = &d->first;
    *out = (cb_candidate){0};
    cb_ladder_begin(d, c);
    cb_status status =
        cb_candidates_offer(c->work, from->size, from->time_ps, from->pair, from->n_pair, err);
    if (status == CB_OK)
        status = cb_guess_rung(&c->prices, start_of(d, d->start, target), target, err);
    if (status == CB_OK)
        status = cb_search_rung(&c->moves, &c->prices, target,
                                cb_ladder_pages(d) ? paged_share(d) : 1, 0, err);
    if (status == CB_OK) status = cb_worker_keep_fastest(c, target, out, err);
    c->t->candidates = d->base;
    return status;
}

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

cb_status cb_ladder_spares(cb_ladder *d, uint32_t r, bool *out, cb_error *err) {
    cb_ladder *rival = d->rival;
    *out = d->follows && r < d->n_priced;
    if (d->follows || !rival || r >= d->n_near || r >= rival->n_near ||
        d->target[r] != rival->target[r])
        return CB_OK;
    if (!d->judged[r]) {
        const cb_candidate *c;
        CB_TRY(cb_ladder_climb(rival, r, &c, err));
        if (c) {
            double once = (double)d->first.t->f->once_ps, time = (double)c->time_ps, bound;
            CB_TRY(cb_ladder_prove(d, d->target[r], time - once, &bound, err));
            d->spared[r] = time <= CB_ENOUGH * (once + bound);
        }
        d->judged[r] = true;
    }
    *out = d->spared[r];
    return CB_OK;
}
