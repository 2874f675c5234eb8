/* frontier_json.h: the frontier of a problem as a document, with the presets beside it. */
#ifndef CB_PLAN_FRONTIER_JSON_H
#define CB_PLAN_FRONTIER_JSON_H

#include "../schedule/plan.h"

typedef struct cb_frontier_request {
    cb_preset preset; /* what may run again, see frontier.h; CB_PRESET_AUTOGRAD leaves it open */
    const cb_device *device; /* NULL: "cpu" */
    cb_poll poll;
} cb_frontier_request;

/* Columns of equal length, one entry a point, saved bytes rising: `saved_bytes`, `time_ps`,
 * `bound_ps`, `kind` ("hull", "step" or "fill"); and `baselines`, what each preset saves and takes.
 * docs/planner.md states the schema. CB_CANCELLED where `poll` says CB_POLL_CANCEL. */
CB_MUST_CHECK cb_status cb_frontier_to_json(const cb_problem *p, const cb_frontier_request *request,
                                            cb_alloc *alloc, cb_str *out, cb_error *err);

#endif
