/* decide.h: reads the decision for each value, and its reason, off a finished schedule. Internal.
 */
#ifndef CB_PLAN_DECIDE_H
#define CB_PLAN_DECIDE_H

#include "../model/facts.h"
#include "../schedule/plan.h"

/* Fills plan->decision and plan->reason from plan->schedule. `save_all` are the lives of the
 * save-everything schedule: what is alive at its peak is recomputed for the room. */
CB_MUST_CHECK cb_status cb_decide(const cb_facts *f, const cb_lives *save_all, cb_plan *plan,
                                  cb_error *err);

#endif
