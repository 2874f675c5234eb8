/* plan_json.h: plans as JSON (docs/problem.md). Internal. */
#ifndef CB_PLAN_PLAN_JSON_H
#define CB_PLAN_PLAN_JSON_H

#include "../../base/json.h"
#include "../schedule/plan.h"

CB_MUST_CHECK cb_status cb_plan_to_json(const cb_problem *p, const cb_plan *plan, cb_str *out,
                                        cb_error *err);
/* Reads a plan for `p` (fingerprints must agree), checks it and places it again. `device` NULL: the
 * plan's device. */
CB_MUST_CHECK cb_status cb_plan_from_json(const cb_problem *p, const cb_device *device,
                                          cb_alloc *alloc, const char *text, size_t length,
                                          cb_plan **out, cb_error *err);
/* Computes bytes and times of any document with `steps` and `backward_starts`. `device` NULL: the
 * document's device, or "cpu". */
CB_MUST_CHECK cb_status cb_evaluate_to_json(const cb_problem *p, const cb_device *device,
                                            cb_alloc *alloc, const char *text, size_t length,
                                            cb_str *out, cb_error *err);

/* Write the keys "fingerprint", ..., "budget_bytes", and the object "numbers". */
void cb_plan_put_question(cb_json_writer *w, const cb_plan *plan);
void cb_plan_put_numbers(cb_json_writer *w, const cb_plan *plan);

#endif
