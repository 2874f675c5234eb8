/* adopt.h: a plan whose schedule comes from elsewhere. Internal. */
#ifndef CB_PLAN_ADOPT_H
#define CB_PLAN_ADOPT_H

#include "plan.h"

CB_MUST_CHECK cb_status cb_plan_new(cb_alloc *alloc, cb_plan **out,
                                    cb_error *err); /* empty, no budget */
/* Walks and places plan->schedule and fills everything that follows from it. */
CB_MUST_CHECK cb_status cb_plan_adopt(const cb_problem *p, const cb_device *device, cb_plan *plan,
                                      cb_error *err);

#endif
