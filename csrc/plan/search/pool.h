/* pool.h: the schedules seen in a search that no other beats in both size and time. Internal. */
#ifndef CB_PLAN_POOL_H
#define CB_PLAN_POOL_H

#include "../schedule/sim.h"

typedef struct cb_candidate {
    uint64_t size;   /* bytes under the measure of the search: peak or saved */
    int64_t time_ps; /* with preferences, see facts.h: cost_ps */
    cb_arena arena;  /* owns `pair` */
    cb_pair *pair;
    size_t n_pair;
} cb_candidate;

#define CB_POOL_MOST 640

typedef struct cb_pool_of_plans {
    cb_alloc *alloc;
    cb_candidate at[CB_POOL_MOST + 1]; /* sizes rise, times fall */
    uint32_t n;
} cb_pool_of_plans;

void cb_pool_of_plans_free(cb_pool_of_plans *pool);
/* Keeps a copy if nothing in the pool is as small and as fast; throws out what it beats. */
CB_MUST_CHECK cb_status cb_pool_offer(cb_pool_of_plans *pool, uint64_t size, int64_t time_ps,
                                      const cb_pair *pair, size_t n_pair, cb_error *err);
/* Adds what `from` has. The pairs stay those of `from`, which must outlive this pool. */
void cb_pool_borrow(cb_pool_of_plans *pool, const cb_pool_of_plans *from);
/* Index of the fastest candidate of at most `size` bytes, CB_NONE: none. */
uint32_t cb_pool_fitting(const cb_pool_of_plans *pool, uint64_t size);

#endif
