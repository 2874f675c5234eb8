/* decide.h: derives the decision for each value, and its reason, from a finished schedule.
   Internal. */
#ifndef CB_PLAN_DECIDE_H
#define CB_PLAN_DECIDE_H

#include "../model/facts.h"
#include "../schedule/plan.h"

/* `at_peak` [n_storage] gets the storages alive at the peak of a schedule. */
void cb_mark_peak(const cb_lives *lives, bool *at_peak);
/* Fills plan->decision and plan->reason from plan->schedule. `at_peak` belongs to the
 * save-everything schedule: recomputed values among those are recomputed to save memory. */
CB_MUST_CHECK cb_status cb_decide(const cb_facts *f, const bool *at_peak, cb_plan *plan,
                                  cb_error *err);

#endif
