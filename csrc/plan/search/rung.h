/* rung.h: the search at one target. Internal. */
#ifndef CB_PLAN_RUNG_H
#define CB_PLAN_RUNG_H

#include "local/moves.h"
#include "prices.h"

/* Computes a guess at `target` (guess.h), and tries plans on the way. */
CB_MUST_CHECK cb_status cb_guess_rung(cb_prices *prices, const cb_price_span *start,
                                      uint64_t target, cb_error *err);
/* Must be called after cb_guess_rung. Runs prices, crossover, removal, and ruin and recreate at
 * `target`. All plans become candidates of the trial. `share` is relative to the usual effort of
 * ruin and recreate. No search goes below `least_ps` of extra time. */
CB_MUST_CHECK cb_status cb_search_rung(cb_moves *m, cb_prices *prices, uint64_t target,
                                       double share, double least_ps, cb_error *err);
/* Computes a bound at `target`, given a known plan with `known_ps` of extra time. */
CB_MUST_CHECK cb_status cb_prove_bound(cb_prices *prices, const cb_price_span *start,
                                       uint64_t target, double known_ps, cb_error *err);
#define CB_LAST_ATTEMPTS 16
/* Fills the targets of a ladder, in falling order, with a 0 after the last; `fine`: twice as dense
 * above 40 % of `whole`. Returns their number. */
uint32_t cb_rung_targets(uint64_t whole, bool fine, uint64_t *target);
typedef struct cb_deep_search {
    const cb_candidate *from; /* NULL: the most promising candidate */
    uint64_t target;
    uint32_t attempt; /* each attempt has its own random numbers. From CB_LAST_ATTEMPTS on, the walk
                         gets the full effort; from twice that on, it gets it several times if there
                         are few ops */
    double descent;   /* share of the usual effort to get under the target if the walk ends above it
                         */
    double share;     /* share of the usual effort for ruin and recreate */
    double least_ps;
    double most_ps; /* the extra time allowed: descents that exceed it are given up; 0: any */
    bool follows;   /* another search has tried the target: this one gives up if the peak does not
                       fall soon */
    bool improves;  /* a candidate that fits is improved; otherwise it ends the search */
} cb_deep_search;
/* Searches a target at which prices find no plan: a penalty walk, then ruin and recreate. */
CB_MUST_CHECK cb_status cb_search_deep_rung(cb_moves *m, const cb_deep_search *s, cb_error *err);
/* Searches from the fastest plan that fits for faster ones, or equally fast and smaller ones. */
CB_MUST_CHECK cb_status cb_search_point(cb_moves *m, uint64_t target, uint32_t attempt,
                                        double share, double least_ps, cb_error *err);
/* Runs a short walk from the smallest plan over the target, then a short search from the fastest
 * that fits. */
CB_MUST_CHECK cb_status cb_search_briefly(cb_moves *m, uint64_t target, double share,
                                          cb_error *err);

#endif
