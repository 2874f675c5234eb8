/* within.h: the plan and the program for a budget that the program keeps. The planner counts each
 * op by itself; where ops run in groups, a program takes less than its plan says. So a budget that
 * the program of saving everything keeps needs no other plan, and one that no plan keeps op by op
 * may be kept by the program of the smallest. */
#ifndef CB_LOWER_WITHIN_H
#define CB_LOWER_WITHIN_H

#include "../fuse/expand.h"
#include "../plan/planner.h"
#include "program.h"

typedef struct cb_within {
    const cb_graph *joint;
    const cb_problem *p;
    cb_fuses_fn fuses;
    const cb_problem *single; /* where `p` is of groups that may be merged: op by op. Else NULL, */
    const cb_grouping *grouping; /* and so is this */
} cb_within;

/* CB_INFEASIBLE: the text says what the smallest takes, as planned and as a program. Budgets on
 * other measures than live and arena are the planner's alone. */
CB_MUST_CHECK cb_status cb_plan_within(const cb_within *of, const cb_plan_options *options,
                                       cb_alloc *alloc, cb_plan **plan, cb_program **program,
                                       cb_error *err);
/* The program of a plan of such a problem. `expanded`: what is handed out lies in `arena`. */
CB_MUST_CHECK cb_status cb_lower_merged(const cb_within *of, const cb_plan *plan, bool merges,
                                        cb_arena *arena, cb_expanded *expanded, cb_program **out,
                                        cb_error *err);

#endif
