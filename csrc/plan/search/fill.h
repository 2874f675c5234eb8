/* fill.h: candidates that every search starts with. Internal. */
#ifndef CB_PLAN_FILL_H
#define CB_PLAN_FILL_H

#include "../cut/mincut.h"
#include "candidates/trial.h"

/* Marks [n_op] the ops that run again in all plans: by constraint, and, inside regions with limits,
 * those that the region's cut recomputes. */
CB_MUST_CHECK cb_status cb_force_recompute(const cb_facts *f, cb_cut *cut, bool *forced,
                                           cb_error *err);
/* Tries the plans of all presets. */
CB_MUST_CHECK cb_status cb_try_presets(cb_trial *t, cb_cut *cut, cb_error *err);
/* Makes plans for budgets on saved bytes, which are measured at one moment with one price: it tries
 * all targets, and the budget selects. Call after a trial of the save-everything plan. */
CB_MUST_CHECK cb_status cb_try_for_saved(cb_trial *t, cb_cut *cut, cb_error *err);

#endif
