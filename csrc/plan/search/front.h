/* front.h: where there are few ops, the plans that budgets choose from, all at once. Internal.
 *
 * A ladder's targets lie shares of the memory apart. Of a few ops every value is such a share, and
 * the plan that a budget wants lies between two rungs. So for them a search walks down the front of
 * plans itself: from save-everything, each target is one byte below the plan just found, until no
 * search finds one. The walk depends on the problem alone, and so do the promises for smaller and
 * larger budgets (ladder.h). Its ops have spare ones between them (spare.h). */
#ifndef CB_PLAN_FRONT_H
#define CB_PLAN_FRONT_H

#include "ladder.h"

/* Fills the ladder's `front`, once. */
CB_MUST_CHECK cb_status cb_front_walk(cb_ladder *d, cb_error *err);

#endif
