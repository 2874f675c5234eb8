/* offload.h: the search for a budget with moves of values to the host. Internal. */
#ifndef CB_PLAN_OFFLOAD_H
#define CB_PLAN_OFFLOAD_H

#include "../cut/mincut.h"
#include "../search/search.h"

typedef struct cb_offloaded {
    cb_schedule schedule;
    double least_extra_ps; /* lower bound for plans of the bound's class (docs/planner.md) that fit;
                              < 0: unknown */
} cb_offloaded;

/* Writes the answer to `arena`. It is never slower than the answer of `searcher`, which finds plans
 * without offload, nor than that of CB_OFFLOAD_ONLY for the same goal. Fails like cb_searcher_ask,
 * and with CB_UNSUPPORTED if there is no link. */
CB_MUST_CHECK cb_status cb_search_offload(const cb_search_tools *tools, cb_searcher *searcher,
                                          const cb_goal *goal, cb_arena *arena, cb_offloaded *out,
                                          cb_error *err);

#endif
