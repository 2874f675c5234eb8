/* within.h: finds the plan and the program for a budget that the program must keep. The planner
 * counts single ops; if ops run in groups, a program takes fewer bytes than its plan. So if the
 * program that saves everything keeps a budget, no other plan is needed, and if no plan of single
 * ops keeps it, the program of the smallest plan still may. A position is between the bytes of two
 * programs: that of the plan at position 0, and the one without a budget. */
#ifndef CB_LOWER_WITHIN_H
#define CB_LOWER_WITHIN_H

#include "../plan/planner.h"
#include "program.h"

/* CB_INFEASIBLE: err->refusal has the bytes of the smallest program. Budgets on measures other than
 * live and arena are left to the planner. `err` must not be NULL. */
CB_MUST_CHECK cb_status cb_plan_within(const cb_lowered *of, const cb_plan_options *options,
                                       cb_alloc *alloc, cb_plan **plan, cb_program **program,
                                       cb_error *err);
/* Returns what a measure counts for a plan that runs as this program. */
uint64_t cb_bytes_within(const cb_problem *p, cb_measure measure, const cb_plan *plan,
                         const cb_program *program);
/* Computes the ends of positions if groups are planned, or of single ops if groups have no plan.
 * Both ends are programs of the same problem: a budget that single ops meet at little extra time
 * may cost groups much more. */
CB_MUST_CHECK cb_status cb_ends_within(const cb_lowered *groups, const cb_lowered *single,
                                       const cb_plan_options *options, cb_alloc *alloc,
                                       cb_ends *out, cb_error *err);

#endif
