/* decide.h: reads the decision for each value, and its reason, off a finished schedule. Internal.
 */
#ifndef CB_PLAN_DECIDE_H
#define CB_PLAN_DECIDE_H

#include "../model/facts.h"
#include "../schedule/plan.h"

/* `at_peak` [n_storage] gets what lives at the peak of a schedule. */
void cb_mark_peak(const cb_lives *lives, bool *at_peak);
/* Fills plan->decision and plan->reason from plan->schedule. `at_peak`, of the save-everything
 * schedule: what is recomputed of that is recomputed for the room. */
CB_MUST_CHECK cb_status cb_decide(const cb_facts *f, const bool *at_peak, cb_plan *plan,
                                  cb_error *err);

#endif
