/* improve.h: better schedules from the trial's candidates, among which all results end up.
 * Internal. */
#ifndef CB_PLAN_IMPROVE_H
#define CB_PLAN_IMPROVE_H

#include "candidates/trial.h"

/* Crossover: a fast plan over `target` bytes in one part of the graph, a small one under it in the
 * rest. `pace`, up to 1, is the share of the usual partners tried. */
CB_MUST_CHECK cb_status cb_improve_by_mixing(cb_trial *t, uint64_t target, double pace,
                                             cb_error *err);
/* Reruns that the fastest plan under `target` can do without. */
CB_MUST_CHECK cb_status cb_improve_by_removal(cb_trial *t, uint64_t target, cb_error *err);

#endif
