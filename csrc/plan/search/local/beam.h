/* beam.h: searches for a fast plan at a target op by op, in problems with few ops. Internal.
 *
 * A search among sets of pairs goes from plan to plan. If single values take much of the memory, a
 * faster plan may differ in many reruns at once, and that search does not find it. So this one
 * builds plans from their first op on, many at the same time. Of plans that have advanced equally
 * far, it continues the most promising ones: those with the least sum of the time so far and the
 * time they would still take without a limit of memory. */
#ifndef CB_PLAN_BEAM_H
#define CB_PLAN_BEAM_H

#include "moves.h"

/* Offers the fastest plan found to the candidates of the trial, if its time is below `below_ps`.
 * `effort` limits the number of beginnings of plans that are examined. Has no effect if states
 * cannot represent the problem: with insides, inlinings, preferences, updates or demands. */
CB_MUST_CHECK cb_status cb_beam(cb_moves *m, uint64_t target, int64_t below_ps, uint32_t effort,
                                cb_error *err);

#endif
