/* refusal.h: why there is no plan, in words. Internal. */
#ifndef CB_PLAN_REFUSAL_H
#define CB_PLAN_REFUSAL_H

#include "choose.h"

/* The refusal of a goal `smallest`, whose plan may be of any size: what it may not take is time. */
CB_MUST_CHECK cb_status cb_fail_time(const cb_goal *goal, uint64_t smallest, cb_error *err);
/* Of any other, once the smallest plan is known. `d` is NULL where no ladder was climbed. */
CB_MUST_CHECK cb_status cb_fail_budget(const cb_chooser *k, const cb_ladder *d, cb_error *err);
/* The caller has ended the search before anything fitted. */
CB_MUST_CHECK cb_status cb_fail_ended(const cb_goal *goal, cb_error *err);

#endif
