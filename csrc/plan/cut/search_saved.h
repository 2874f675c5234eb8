/* search_saved.h: answers budgets on saved bytes from the frontier. Internal. */
#ifndef CB_PLAN_SEARCH_SAVED_H
#define CB_PLAN_SEARCH_SAVED_H

#include "../schedule/goal.h"
#include "mincut.h"

/* Answers a goal about saved bytes with a point of the frontier. The points do not depend on the
 * budget, so a smaller budget never saves more and a larger one is never slower. `preset`
 * determines which ops may run again; CB_PRESET_AUTOGRAD, the default of planning, does not
 * restrict them. Fails as cb_search does. */
CB_MUST_CHECK cb_status cb_search_saved(const cb_facts *f, const cb_cut *cut, cb_preset preset,
                                        const cb_goal *goal, cb_found *out, cb_error *err);

#endif
