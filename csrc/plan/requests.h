/* requests.h: checks of requests to the planner, and what refusals say about them. Internal. */
#ifndef CB_PLAN_REQUESTS_H
#define CB_PLAN_REQUESTS_H

#include "model/facts.h"
#include "reference.h"

static inline bool cb_is_smallest(const cb_budget *b) {
    return b->kind == CB_BUDGET_MIN || b->kind == CB_BUDGET_SMALLEST;
}

/* Returns the budget at position 0 of the measure of `b`. Its plan moves only what constraints send
 * to the host, so positions are the same bytes with and without offload. */
cb_budget cb_lowest_of(const cb_budget *b);
/* Adds the request to a refusal: the measure, the share, and the bytes that the share refers to. */
void cb_refusal_add_request(const cb_facts *f, const cb_reference *save_all, const cb_budget *b,
                            cb_refusal *out);
/* Checks presets and budgets independently of a problem. */
CB_MUST_CHECK cb_status cb_check_request(cb_preset preset, const cb_budget *budget, uint32_t n,
                                         cb_error *err);
/* Refuses offload and torch-compat for a problem whose ops have insides. */
CB_MUST_CHECK cb_status cb_check_insides(const cb_problem *p, cb_preset preset, const cb_facts *f,
                                         const cb_budget *b, cb_error *err);
/* Refuses torch-compat for a problem whose regions have limits. */
CB_MUST_CHECK cb_status cb_check_regions(const cb_problem *p, cb_preset preset, const cb_budget *b,
                                         cb_error *err);
/* Returns the error for offload with the measure `saved`. */
CB_MUST_CHECK cb_status cb_refuse_saved(cb_error *err);

#endif
