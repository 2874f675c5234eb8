/* front.h: the set of plans from which budgets choose if there are few ops. Internal.
 *
 * The targets of a ladder differ by shares of the memory. With few ops every value is such a share,
 * and the best plan for a budget is often between two rungs. So a search walks down the front of
 * plans instead: it starts from save-everything, and each target is below the plan just found,
 * until no search finds a plan. The walk depends only on the problem, so the promises for smaller
 * and larger budgets hold (ladder.h). The problem has spare ops between its ops (spare.h). */
#ifndef CB_PLAN_FRONT_H
#define CB_PLAN_FRONT_H

#include "ladder.h"

/* Fills the ladder's `front`, once. */
CB_MUST_CHECK cb_status cb_front_walk(cb_ladder *d, cb_error *err);

#endif
