/* low.h: searches for plans below the smallest one that the rungs hold. Internal. */
#ifndef CB_PLAN_LOW_H
#define CB_PLAN_LOW_H

#include "choose.h"

/* A following ladder takes less than the usual effort. If it has found plans smaller than those of
 * its base, this searches for still smaller ones, with `descent` as the share of the effort to get
 * under a target. They are no faster, so that smaller budgets are not faster than larger ones. In
 * small searches they are rare. */
CB_MUST_CHECK cb_status cb_consider_further(cb_chooser *k, cb_ladder *d, double descent,
                                            cb_error *err);
/* If prices reach the smallest plans of the base, searches for smaller plans, and for larger ones
 * if those are too slow. */
CB_MUST_CHECK cb_status cb_consider_low(cb_chooser *k, cb_ladder *d, cb_error *err);

#endif
