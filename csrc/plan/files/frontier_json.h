/* frontier_json.h: writes the frontier of a problem as a document, together with the presets. */
#ifndef CB_PLAN_FRONTIER_JSON_H
#define CB_PLAN_FRONTIER_JSON_H

#include "../schedule/plan.h"

typedef struct cb_frontier_request {
    cb_preset preset; /* determines which ops may run again (frontier.h); CB_PRESET_AUTOGRAD does
                         not restrict them */
    const cb_device *device; /* NULL: "cpu" */
    cb_poll poll;
} cb_frontier_request;

/* Writes columns of equal length, with one entry per point, by rising saved bytes: `saved_bytes`,
 * `time_ps`, `bound_ps`, `kind` ("hull", "step" or "fill"); and `baselines`, the saved bytes and
 * time of each preset. docs/planner.md states the schema. Returns CB_CANCELLED if `poll` returns
 * CB_POLL_CANCEL. */
CB_MUST_CHECK cb_status cb_frontier_to_json(const cb_problem *p, const cb_frontier_request *request,
                                            cb_alloc *alloc, cb_str *out, cb_error *err);

#endif
