/* improve.h: improves the trial's candidates; all results become candidates. Internal. */
#ifndef CB_PLAN_IMPROVE_H
#define CB_PLAN_IMPROVE_H

#include "candidates/trial.h"

/* Crossover: combines a fast plan over `target` bytes in one part of the graph with a small plan
 * under it in the rest. `pace`, up to 1, is the share of the usual partners that is tried. */
CB_MUST_CHECK cb_status cb_improve_by_mixing(cb_trial *t, uint64_t target, double pace,
                                             cb_error *err);
/* Removes reruns that the fastest plans under `target` can do without. */
CB_MUST_CHECK cb_status cb_improve_by_removal(cb_trial *t, uint64_t target, cb_error *err);

#endif
