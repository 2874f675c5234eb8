/* candidates.h: the schedules of a search that no other one beats in both size and time.
   Internal. */
#ifndef CB_PLAN_CANDIDATES_H
#define CB_PLAN_CANDIDATES_H

#include "../../schedule/sim.h"
#include "../tuning.h"

typedef struct cb_candidate {
    uint64_t size;   /* bytes under the measure of the search: peak or saved */
    int64_t time_ps; /* time with preferences (cost_ps in facts.h) */
    cb_arena arena;  /* owns `pair` */
    cb_pair *pair;
    size_t n_pair;
} cb_candidate;

typedef struct cb_candidates {
    cb_alloc *alloc;
    cb_candidate at[CB_CANDIDATES_MOST + 1]; /* sizes rise, times fall */
    uint32_t n;
} cb_candidates;

void cb_candidates_free(cb_candidates *set);
/* Keeps a copy if no candidate is as small and as fast; removes candidates that it beats. */
CB_MUST_CHECK cb_status cb_candidates_offer(cb_candidates *set, uint64_t size, int64_t time_ps,
                                            const cb_pair *pair, size_t n_pair, cb_error *err);
/* Adds the candidates of `from`. The pairs belong to `from`, which must outlive this set. */
void cb_candidates_borrow(cb_candidates *set, const cb_candidates *from);
/* Returns the index of the fastest candidate of at most `size` bytes, or CB_NONE. */
uint32_t cb_candidates_fitting(const cb_candidates *set, uint64_t size);

#endif
