/* pick.h: chooses the candidates that are made and measured for a goal. Internal. */
#ifndef CB_PLAN_PICK_H
#define CB_PLAN_PICK_H

#include "choose.h"

/* Finds the best plan for the goal of the trial, or its refusal. `d` is NULL for goals on saved
 * bytes, which choose only from the candidates of the trial. The candidates do not depend on the
 * requested budget. */
CB_MUST_CHECK cb_status cb_pick(cb_chooser *k, cb_ladder *d, cb_error *err);

#endif
