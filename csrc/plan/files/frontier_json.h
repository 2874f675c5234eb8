/* frontier_json.h: the frontier of a problem as a document, with the presets beside it. */
#ifndef CB_PLAN_FRONTIER_JSON_H
#define CB_PLAN_FRONTIER_JSON_H

#include "../schedule/plan.h"

/* Columns of equal length, one entry a point, saved bytes rising: `saved_bytes`, `time_ps`,
 * `bound_ps`, `kind` ("hull", "step" or "fill"); and `baselines`, what each preset saves and takes.
 * docs/planner.md states the schema. `preset` says what may run again, see frontier.h;
 * CB_PRESET_AUTOGRAD leaves it open. CB_CANCELLED where `poll` (may be NULL) says
 * CB_POLL_CANCEL. */
CB_MUST_CHECK cb_status cb_frontier_to_json(const cb_problem *p, cb_preset preset,
                                            const cb_device *device, cb_poll_fn poll,
                                            void *poll_user, cb_alloc *alloc, cb_str *out,
                                            cb_error *err);

#endif
