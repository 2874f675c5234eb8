/* refusal.h: reports, as data, why a search has no plan. Internal. */
#ifndef CB_PLAN_REFUSAL_H
#define CB_PLAN_REFUSAL_H

#include "choose.h"

/* All of these return CB_INFEASIBLE and fill err->refusal. The planner adds the requested share and
 * the bytes of saving everything. */

/* For a goal `smallest`, whose plan may have any size: only its time is bounded. */
CB_MUST_CHECK cb_status cb_fail_time(const cb_goal *goal, uint64_t smallest, cb_error *err);
/* For any other goal, once the smallest plan is known. `d` is NULL if no ladder was searched. */
CB_MUST_CHECK cb_status cb_fail_budget(const cb_chooser *k, const cb_ladder *d, cb_error *err);
/* For a search that the caller ended before any plan fitted. */
CB_MUST_CHECK cb_status cb_fail_ended(const cb_goal *goal, cb_error *err);

#endif
