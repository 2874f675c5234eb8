/* explanation.h: writes the explanation of a plan, as text and as JSON. Internal. */
#ifndef CB_PLAN_EXPLANATION_H
#define CB_PLAN_EXPLANATION_H

#include "../schedule/plan.h"

/* Writes text: totals, then one line per saved, recomputed or offloaded value, with the reason and
 * the effect of the other choice. */
CB_MUST_CHECK cb_status cb_plan_explanation_to_text(const cb_problem *p, const cb_plan *plan,
                                                    cb_str *out, cb_error *err);
/* Writes the same as JSON (docs/problem.md, "Explanation"). */
CB_MUST_CHECK cb_status cb_plan_explanation_to_json(const cb_problem *p, const cb_plan *plan,
                                                    cb_str *out, cb_error *err);

#endif
