/* offload.h: the search for a budget where values may move to the host. Internal. */
#ifndef CB_PLAN_OFFLOAD_H
#define CB_PLAN_OFFLOAD_H

#include "../cut/mincut.h"
#include "../search/search.h"

typedef struct cb_offloaded {
    cb_schedule schedule;
    double least_extra_ps; /* no plan of the bound's class (docs/planner.md) that fits takes less;
                              < 0: not known */
} cb_offloaded;

/* The answer into `arena`. Never slower than what `searcher`, which asks for plans without offload,
 * answers, nor than that of CB_OFFLOAD_ONLY to the same goal. Fails as cb_searcher_ask does, and
 * with CB_UNSUPPORTED where there is no link. */
CB_MUST_CHECK cb_status cb_search_offload(const cb_search_tools *tools, cb_searcher *searcher,
                                          const cb_goal *goal, cb_arena *arena, cb_offloaded *out,
                                          cb_error *err);

#endif
