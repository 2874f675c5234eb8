/* within.h: the plan and the program for a budget that the program keeps. The planner counts each
 * op by itself; where ops run in groups, a program takes less than its plan says. So a budget that
 * the program of saving everything keeps needs no other plan, and one that no plan keeps op by op
 * may be kept by the program of the smallest. A position lies between the bytes of programs: of the
 * plan at position 0, and without a budget. */
#ifndef CB_LOWER_WITHIN_H
#define CB_LOWER_WITHIN_H

#include "../plan/planner.h"
#include "program.h"

/* CB_INFEASIBLE: err->refusal has what the smallest program takes. Budgets on measures other than
 * live and arena are left to the planner. `err` must not be NULL. */
CB_MUST_CHECK cb_status cb_plan_within(const cb_lowered *of, const cb_plan_options *options,
                                       cb_alloc *alloc, cb_plan **plan, cb_program **program,
                                       cb_error *err);
/* What a measure counts of a plan that runs as this program. */
uint64_t cb_bytes_within(const cb_problem *p, cb_measure measure, const cb_plan *plan,
                         const cb_program *program);
/* The ends of positions where groups are planned, or single ops if groups have no plan. Both ends
 * are programs of the same problem: a budget that single ops meet at little extra time may cost
 * groups much more. */
CB_MUST_CHECK cb_status cb_ends_within(const cb_lowered *groups, const cb_lowered *single,
                                       const cb_plan_options *options, cb_alloc *alloc,
                                       cb_ends *out, cb_error *err);

#endif
