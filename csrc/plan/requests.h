/* requests.h: checks of requests to the planner. Internal. */
#ifndef CB_PLAN_REQUESTS_H
#define CB_PLAN_REQUESTS_H

#include "model/facts.h"

static inline bool cb_is_smallest(const cb_budget *b) {
    return b->kind == CB_BUDGET_MIN || b->kind == CB_BUDGET_SMALLEST;
}

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
