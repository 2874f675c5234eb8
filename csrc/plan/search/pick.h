/* pick.h: which candidates a goal has made and weighed. Internal. */
#ifndef CB_PLAN_PICK_H
#define CB_PLAN_PICK_H

#include "choose.h"

/* The best for the goal of the trial, or its refusal. `d` is NULL for goals on saved bytes, which
 * choose from the candidates of the trial alone. Nothing that makes candidates depends on the
 * budget asked for. */
CB_MUST_CHECK cb_status cb_pick(cb_chooser *k, cb_ladder *d, cb_error *err);

#endif
