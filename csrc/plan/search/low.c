#include "low.h"

#include "tuning.h"

typedef struct low_search {
    cb_candidate from; /* the smallest plan so far, which may be too fast to be the answer */
    uint64_t high;     /* the size of `from`, or that of a smaller plan of the base */
    uint64_t low;      /* the largest missed target; initially the size at which the search ends */
    double least_ps;   /* minimum time of an answer */
    cb_dig_effort effort;
} low_search;

/* Tries two targets, at thirds between `low` and `high`. A plan faster than `least_ps` only serves
 * to find smaller ones. */
static cb_status dig_at_thirds(cb_chooser *k, cb_ladder *d, low_search *s, cb_error *err) {
    const double most_ps = cb_most_time(k->t->f, k->t->goal);
    cb_dig_effort effort = s->effort;
    effort.most_ps = most_ps - (double)k->t->f->once_ps;
    const uint64_t part = (s->high - s->low) / (CB_ATTEMPTS + 1);
    uint64_t target[CB_ATTEMPTS];
    cb_candidate found[CB_ATTEMPTS];
    for (uint32_t i = 0; i < CB_ATTEMPTS; i++) target[i] = s->low + (i + 1) * part;
    CB_TRY(cb_ladder_dig(d, &s->from, effort, target, found, err));
    for (uint32_t i = 0; i < CB_ATTEMPTS; i++) {
        const double time_ps = (double)found[i].time_ps;
        if (found[i].size > 0 && time_ps <= most_ps) {
            s->from = found[i];
            s->high = found[i].size;
            return time_ps >= s->least_ps ? cb_consider_small(k, &found[i], err) : CB_OK;
        }
        s->low = target[i];
    }
    return CB_OK;
}

/* Searches below the smallest plan. `descent` is a share of the effort, as in cb_dig_effort. */
static cb_status dig_further(cb_chooser *k, cb_ladder *d, double descent, cb_error *err) {
    const uint64_t near = (uint64_t)(CB_FURTHER_GAP * (double)d->whole) + CB_ATTEMPTS,
                   depth = (uint64_t)(CB_FURTHER_DEPTH * (double)d->whole);
    low_search s = {
        .from = k->best,
        .high = k->best.size,
        .low = k->best.size > depth ? k->best.size - depth : 0,
        .least_ps = (double)k->best.time_ps,
        .effort = {.descent = descent, .share = CB_FURTHER_SHARE, .full = true},
    };
    for (int round = 0; round < CB_FURTHER_ROUNDS && s.high > s.low + near; round++)
        CB_TRY(dig_at_thirds(k, d, &s, err));
    return CB_OK;
}

cb_status cb_consider_further(cb_chooser *k, cb_ladder *d, double descent, cb_error *err) {
    if (!d->follows || cb_is_small_search(&d->first.moves)) return CB_OK;
    if (!cb_has_best(k) || k->swept) return CB_OK;
    if (d->base->n > 0 && k->best.size >= d->base->at[0].size) return CB_OK;
    return dig_further(k, d, descent, err);
}

/* ---- position 0 ------------------------------------------------------------------------------ */

/* Searches below the smallest plan, including those of the base, until little is left above the
   largest missed target. */
static cb_status dig_low(cb_chooser *k, cb_ladder *d, cb_error *err) {
    const uint64_t near = (uint64_t)(CB_LOW_GAP * (double)d->whole) + CB_ATTEMPTS;
    const uint64_t base = d->base->at[0].size;
    CB_TRY(cb_ladder_find_floor(d, err));
    low_search s = {.from = k->best,
                    .high = k->best.size < base ? k->best.size : base,
                    .low = d->floor.apart,
                    .least_ps = (double)k->t->f->once_ps * (1 + cb_ladder_little_extra(d)),
                    .effort = {.descent = CB_LOW_DESCENT, .share = CB_LOW_SHARE}};
    for (int round = 0; round < CB_LOW_ROUNDS && s.high > s.low + near; round++)
        CB_TRY(dig_at_thirds(k, d, &s, err));
    return CB_OK;
}

/* Finds the last near rung whose plan is fast enough, by bisection. */
static cb_status probe_near(cb_chooser *k, cb_ladder *d, double most_ps, cb_error *err) {
    uint32_t first = cb_ladder_first(d, cb_has_best(k) ? k->best.size : d->whole), last = d->n_near;
    for (int probe = 0; probe < CB_LOW_PROBES && first < last; probe++) {
        const uint32_t r = first + (last - first) / 2;
        const cb_candidate *c;
        CB_TRY(cb_ladder_climb(d, r, &c, err));
        const bool fast = c && (double)c->time_ps <= most_ps;
        if (fast) CB_TRY(cb_consider_small(k, c, err));
        if (fast || (!c && cb_ladder_passes(d, r))) first = r + 1;
        else last = r;
    }
    return CB_OK;
}

/* Searches the first rungs below the best, until one has no plan that is fast enough. */
static cb_status climb_low(cb_chooser *k, cb_ladder *d, double most_ps, cb_error *err) {
    const double once = (double)k->t->f->once_ps;
    for (uint32_t r = cb_ladder_first(d, k->best.size); r < d->n_near; r++) {
        const cb_candidate *c;
        if (once + cb_ladder_least(d, r, false) > most_ps) return CB_OK;
        CB_TRY(cb_ladder_climb(d, r, &c, err));
        if (!c && cb_ladder_passes(d, r)) continue;
        if (!c || (double)c->time_ps > most_ps) return CB_OK;
        CB_TRY(cb_consider_small(k, c, err));
    }
    return CB_OK;
}

cb_status cb_consider_low(cb_chooser *k, cb_ladder *d, cb_error *err) {
    const double most_ps = cb_most_time(k->t->f, k->t->goal);
    const cb_candidates *base = d->base;
    CB_TRY(cb_consider_small_candidates(k, most_ps, err));
    if (base->n == 0) return CB_OK;
    if (d->follows) {
        const cb_candidate *from = &d->rival->low[k->t->goal->measure];
        if (from->size > 0) CB_TRY(cb_consider_small(k, from, err));
        return cb_has_best(k) ? dig_low(k, d, err) : CB_OK;
    }
    if (cb_ladder_pages(d)) return cb_has_best(k) ? climb_low(k, d, most_ps, err) : CB_OK;
    if ((double)base->at[0].time_ps > most_ps) CB_TRY(probe_near(k, d, most_ps, err));
    return cb_has_best(k) ? dig_low(k, d, err) : CB_OK;
}
