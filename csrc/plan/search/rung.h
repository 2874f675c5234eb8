/* rung.h: the search at one target. Internal. */
#ifndef CB_PLAN_RUNG_H
#define CB_PLAN_RUNG_H

#include "local/moves.h"
#include "prices.h"

/* A guess at `target` (guess.h), and plans on the way. */
CB_MUST_CHECK cb_status cb_guess_rung(cb_prices *prices, const cb_price_span *start,
                                      uint64_t target, cb_error *err);
/* Then: prices, crossover, removal, and ruin and recreate at `target`. All plans end up in the
 * trial's candidates. `share` is of the usual effort of ruin and recreate. No search goes below
 * `least_ps` of extra time. */
CB_MUST_CHECK cb_status cb_search_rung(cb_moves *m, cb_prices *prices, uint64_t target,
                                       double share, double least_ps, cb_error *err);
/* A bound at `target`, where a plan of `known_ps` of extra time is known. */
CB_MUST_CHECK cb_status cb_prove_bound(cb_prices *prices, const cb_price_span *start,
                                       uint64_t target, double known_ps, cb_error *err);
#define CB_LAST_ATTEMPTS 16
/* The targets of a ladder, falling, with a 0 behind the last; `fine`: twice as close above 40 %.
 * How many. */
uint32_t cb_rung_targets(uint64_t whole, bool fine, uint64_t *target);
typedef struct cb_deep_search {
    const cb_candidate *from; /* NULL: the most promising candidate */
    uint64_t target;
    uint32_t attempt; /* each has its own chance. CB_LAST_ATTEMPTS and later ones are the last at a
                         target: all the effort goes into the walk; from twice that on, where there
                         are few ops, several times */
    double descent;   /* of the usual effort, to get under the target where the walk ends above */
    double share;     /* of it, for ruin and recreate */
    double least_ps;
    bool improves; /* a candidate that fits is improved; else it ends the search */
} cb_deep_search;
/* Where prices reach no plan: by a penalty walk, then ruin and recreate. */
CB_MUST_CHECK cb_status cb_search_deep_rung(cb_moves *m, const cb_deep_search *s, cb_error *err);
/* From the fastest plan that fits: faster ones, or ones that are as fast and smaller. */
CB_MUST_CHECK cb_status cb_search_point(cb_moves *m, uint64_t target, uint32_t attempt,
                                        double share, double least_ps, cb_error *err);
/* A short walk from the smallest plan over the target, then a short search from the fastest that
 * fits. */
CB_MUST_CHECK cb_status cb_search_briefly(cb_moves *m, uint64_t target, double share,
                                          cb_error *err);

#endif
