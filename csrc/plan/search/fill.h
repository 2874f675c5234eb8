/* fill.h: candidates that every search starts with. Internal. */
#ifndef CB_PLAN_FILL_H
#define CB_PLAN_FILL_H

#include "../cut/mincut.h"
#include "candidates/trial.h"

/* [n_op] what runs again in all plans: by wish, and inside regions with limits what their own cut
 * recomputes. */
CB_MUST_CHECK cb_status cb_force_recompute(const cb_facts *f, cb_cut *cut, bool *forced,
                                           cb_error *err);
/* The plans of all presets. */
CB_MUST_CHECK cb_status cb_try_presets(cb_trial *t, cb_cut *cut, cb_error *err);
/* Plans for budgets on saved bytes, which have one moment and one price: all targets are aimed at,
 * and the budget picks. After a trial of the save-everything plan. */
CB_MUST_CHECK cb_status cb_try_for_saved(cb_trial *t, cb_cut *cut, cb_error *err);

#endif
