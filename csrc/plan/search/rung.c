/* The methods are, in order of measured benefit on traced graphs: Polyak steps on the guess for
 * prices, crossover of plans on both sides of the target, removal, ruin and recreate. Work is
 * counted in moves, never in seconds, so that results repeat. */
#include "rung.h"

#include <math.h>

#include "improve.h"
#include "tuning.h"

/* Returns the share of the steps below that a large graph takes, since the cost of a step grows
 * with its size. */
static double pace_of(const cb_trial *t) {
    return fmin(1, CB_UNHURRIED_OPS / (t->f->n_base + 1.0));
}

static int paced(const cb_trial *t, int steps, int least) {
    return (int)fmax(least, pace_of(t) * steps);
}

/* Returns the step in thousandths. Near the top, little time but a large share of the extra time is
 * at stake; near the bottom, much of both. */
static int step_below(int share) { return share > 900 ? 5 : share > 120 ? 20 : 10; }

uint32_t cb_rung_targets(uint64_t whole, bool fine, uint64_t *target) {
    uint32_t n = 0;
    for (int share = 980; share >= 30; share -= step_below(share) / (fine && share > 400 ? 2 : 1)) {
        uint64_t bytes = (uint64_t)((double)whole * (share / 1000.0));
        if (n == 0 || bytes < target[n - 1]) target[n++] = bytes;
    }
    target[n] = 0;
    return n;
}

static int64_t fastest_fitting(const cb_candidates *all, uint64_t target) {
    uint32_t i = cb_candidates_fitting(all, target);
    return i == CB_NONE ? INT64_MAX : all->at[i].time_ps;
}

static cb_status load(cb_moves *m, const cb_candidate *c, uint64_t target, cb_error *err) {
    return cb_ledger_load(m->l, c->pair, c->n_pair, (double)target, err);
}

/* Runs removal on the fastest few plans that fit. They are copied first, because the set of
 * candidates changes meanwhile. */
static cb_status trim_fastest(cb_moves *m, uint64_t target, double least_ps, cb_error *err) {
    cb_candidates *all = m->trial->candidates;
    cb_pairs copy[CB_TRIMMED_PLANS];
    cb_arena scratch;
    cb_status status = CB_OK;
    uint32_t n = 0, most = (uint32_t)paced(m->trial, CB_TRIMMED_PLANS, 1);
    cb_arena_init(&scratch, m->scratch->alloc);
    uint32_t at = cb_candidates_fitting(all, target);
    for (uint32_t i = at == CB_NONE ? 0 : at + 1; i-- > 0 && n < most; n++) {
        copy[n] = (cb_pairs){.arena = &scratch};
        if (!CB_RESERVE(&scratch, copy[n].list, all->at[i].n_pair)) {
            status = cb_no_memory(err);
            goto done;
        }
        copy[n].list.len = all->at[i].n_pair;
        if (copy[n].list.len > 0)
            memcpy(copy[n].list.at, all->at[i].pair, copy[n].list.len * sizeof(cb_pair));
    }
    for (uint32_t i = 0; i < n; i++) {
        CB_TRY_DONE(cb_ledger_load(m->l, copy[i].list.at, copy[i].list.len, (double)target, err));
        if (m->l->peak <= m->l->target) CB_TRY_DONE(cb_trim(m, least_ps, err));
    }
done:
    cb_arena_free(&scratch);
    return status;
}

/* Returns the most promising start of a walk: a fast plan near the target. */
static const cb_candidate *find_start(const cb_moves *m, uint64_t target) {
    const cb_candidates *all = m->trial->candidates;
    const cb_candidate *best = NULL;
    double least = INFINITY;
    for (uint32_t i = 0; i < all->n; i++) {
        const cb_candidate *c = &all->at[i];
        double over = c->size > target ? (double)(c->size - target) : 0;
        double score = (double)c->time_ps / m->once + 3 * over / m->whole;
        if (score >= least) continue;
        least = score;
        best = c;
    }
    return best;
}

static cb_status mix(cb_trial *t, uint64_t target, cb_error *err) {
    int64_t before = INT64_MAX;
    for (int i = 0; i < CB_CROSS_ROUNDS && fastest_fitting(t->candidates, target) < before; i++) {
        before = fastest_fitting(t->candidates, target);
        CB_TRY(cb_improve_by_mixing(t, target, pace_of(t), err));
    }
    return CB_OK;
}

static uint32_t effort(const cb_moves *m, double share) {
    const uint32_t n_op = m->l->f->spared ? m->l->n / 2 : m->l->n; /* spare ops are not choices */
    double n = n_op + 1.0, most = CB_MOST_EFFORT * n;
    double least = cb_is_bare_search(m) ? CB_BARE_EFFORT : CB_LEAST_EFFORT;
    if (cb_is_small_search(m))
        most = fmax(most, fmin(least, CB_TINY_EFFORT * n * n + CB_TINY_LEAST));
    return (uint32_t)(m->pace * share * fmin(CB_EFFORT / n, most));
}

/* Runs ruin and recreate from the fastest plan that fits. In tiny problems chance decides a lot, so
 * they get several starts. In small problems a single rerun takes a large part of the time, and the
 * path from one good plan to the next leads through much slower ones, so some rounds accept
 * those. */
static cb_status ruin(cb_moves *m, uint64_t target, double share, double patience, double least_ps,
                      cb_error *err) {
    uint32_t at = cb_candidates_fitting(m->trial->candidates, target);
    bool small = cb_is_small_search(m),
         turns = small && !cb_is_tiny_search(m) && !cb_is_bare_search(m);
    int starts = turns ? CB_SMALL_TURNS : small ? CB_STARTS : 1;
    if (at == CB_NONE) return CB_OK;
    CB_TRY(load(m, &m->trial->candidates->at[at], target, err));
    if (m->l->peak > m->l->target) return CB_OK;
    cb_arena scratch;
    cb_arena_init(&scratch, m->scratch->alloc);
    cb_pairs from = {.arena = &scratch}; /* the set of candidates changes while we work */
    cb_status status = cb_ledger_pairs(m->l, &from) ? CB_OK : cb_no_memory(err);
    for (int i = 0; i < starts && status == CB_OK; i++) {
        double part = starts > 1 ? CB_START_SHARE * share : share;
        if (i > 0 && !turns)
            CB_TRY_DONE(cb_ledger_load(m->l, from.list.at, from.list.len, (double)target, err));
        m->heated = turns && i % 2 == 1;
        const cb_ruin_limits limits = {effort(m, part), patience, least_ps, 0, INFINITY};
        CB_TRY_DONE(cb_ruin_and_recreate(m, &limits, err));
        CB_TRY_DONE(cb_trim(m, least_ps, err));
    }
done:
    m->heated = false;
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_guess_rung(cb_prices *prices, const cb_price_span *start, uint64_t target,
                        cb_error *err) {
    const cb_trial *t = prices->trial;
    double once = (double)t->f->once_ps,
           known = (double)fastest_fitting(t->candidates, target) - once;
    return cb_prices_polyak(prices, CB_PRICE_GUESS, target, start, fmin(known, once / 2) * 1.02,
                            paced(t, CB_POLYAK_STEPS, 8), err);
}

cb_status cb_search_rung(cb_moves *m, cb_prices *prices, uint64_t target, double share,
                         double least_ps, cb_error *err) {
    cb_trial *t = m->trial;
    double once = (double)t->f->once_ps;
    m->chance = target;
    CB_TRY(cb_prices_aim(prices, target, CB_PRICE_NEED, paced(t, CB_AIM_STEPS, 3), err));
    CB_TRY(mix(t, target, err));
    CB_TRY(trim_fastest(m, target, least_ps, err));
    double known = (double)fastest_fitting(t->candidates, target) - once;
    double least = cb_prices_guess(prices, (double)target, known);
    if (known <= CB_NEAR * least) return CB_OK;
    const cb_price_span best = {.to = t->f->n_base, .at = prices->best};
    if (known > CB_CLOSE * least && known < once)
        CB_TRY(cb_prices_polyak(prices, CB_PRICE_GUESS, target, &best, known,
                                paced(t, CB_MORE_POLYAK_STEPS, 8), err));
    if (known <= CB_FAR * least) share *= CB_NEAR_SHARE;
    return ruin(m, target, share, CB_PATIENCE, least_ps, err);
}

cb_status cb_prove_bound(cb_prices *prices, const cb_price_span *start, uint64_t target,
                         double known_ps, cb_error *err) {
    return cb_prices_polyak(prices, CB_PRICE_BOUND, target, start, known_ps,
                            paced(prices->trial, CB_PROOF_STEPS, 8), err);
}

static cb_status search_deep(cb_moves *m, const cb_deep_search *s, const cb_candidate *from,
                             cb_error *err) {
    bool last = s->attempt >= CB_LAST_ATTEMPTS;
    cb_ruin_limits limits = {
        .settlings = effort(m, last ? 1 : s->descent),
        .patience = CB_DEEP_PATIENCE,
        .least_ps = s->least_ps,
        .enough_ps = CB_LOW_ENOUGH * s->most_ps,
        .most_ps = s->most_ps > 0 ? CB_LOW_SLACK * s->most_ps : INFINITY,
    };
    double rounds = s->attempt >= 2 * CB_LAST_ATTEMPTS
                        ? fmin(CB_ROUNDS_MOST, CB_ROUNDS_OPS / (m->l->n + 1.0))
                        : 1;
    for (int i = 0; i < fmax(1, rounds) && (i == 0 || m->l->peak > m->l->target); i++) {
        CB_TRY(i % 2 == 0 ? load(m, from, s->target, err)
                          : cb_ledger_load(m->l, NULL, 0, (double)s->target, err));
        const double above = m->l->peak;
        CB_TRY(cb_walk_down(m, effort(m, last ? 1 : CB_WALK_SHARE),
                            s->follows ? CB_FOLLOW_WALK_PATIENCE : 1, err));
        if (s->follows && m->l->peak >= above) limits.patience = CB_FOLLOW_PATIENCE;
        if (m->l->peak > m->l->target) CB_TRY(cb_ruin_and_recreate(m, &limits, err));
    }
    if (m->l->peak > m->l->target) return CB_OK;
    CB_TRY(cb_trim(m, s->least_ps, err));
    return ruin(m, s->target, s->share, CB_DEEP_PATIENCE, s->least_ps, err);
}

/* Works on a copy of the start, because a result may replace the start among the candidates. */
cb_status cb_search_deep_rung(cb_moves *m, const cb_deep_search *s, cb_error *err) {
    cb_trial *t = m->trial;
    m->chance = s->target ^ (uint64_t)(s->attempt + 1) << 32;
    const cb_candidate *found = s->from ? s->from : find_start(m, s->target);
    if (!found) return CB_OK;
    if (cb_candidates_fitting(t->candidates, s->target) != CB_NONE)
        return s->improves ? ruin(m, s->target, s->share, CB_DEEP_PATIENCE, s->least_ps, err)
                           : CB_OK;
    cb_arena kept;
    cb_arena_init(&kept, t->scratch->alloc);
    cb_candidate from = *found;
    from.pair = CB_NEW(&kept, cb_pair, found->n_pair);
    if (from.pair && found->n_pair > 0)
        memcpy(from.pair, found->pair, found->n_pair * sizeof *from.pair);
    cb_status status = from.pair ? search_deep(m, s, &from, err) : cb_no_memory(err);
    cb_arena_free(&kept);
    return status;
}

cb_status cb_search_point(cb_moves *m, uint64_t target, uint32_t attempt, double share,
                          double least_ps, cb_error *err) {
    m->chance = target ^ (uint64_t)(attempt + 1) << 32;
    return ruin(m, target, share, CB_PATIENCE, least_ps, err);
}

cb_status cb_search_briefly(cb_moves *m, uint64_t target, double share, cb_error *err) {
    const cb_candidates *all = m->trial->candidates;
    const uint32_t at = cb_candidates_fitting(all, target), above = at == CB_NONE ? 0 : at + 1;
    m->chance = target;
    if (above < all->n) {
        CB_TRY(load(m, &all->at[above], target, err));
        CB_TRY(cb_walk_down(m, effort(m, share), 1, err));
        if (m->l->peak <= m->l->target) CB_TRY(cb_trim(m, 0, err));
    }
    return ruin(m, target, share, CB_PATIENCE, 0, err);
}
