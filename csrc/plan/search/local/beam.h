/* beam.h: searches for a fast plan at a target op by op, in problems with few ops. Internal.
 *
 * A search among sets of pairs goes from plan to plan. Where single values take much of the memory,
 * a faster plan may differ in many reruns at once, and it is not found. So plans are built from
 * their first op on, many at once. Of those that have advanced equally far, the most promising are
 * continued: their time so far, and what they would still take without a limit of memory, is the
 * least. */
#ifndef CB_PLAN_BEAM_H
#define CB_PLAN_BEAM_H

#include "moves.h"

/* Offers the fastest plan found to the candidates of the trial, if its time is below `below_ps`.
 * `effort` limits the number of beginnings of plans that are examined. Has no effect if states
 * cannot represent the problem: with insides, inlinings, preferences, updates or demands. */
CB_MUST_CHECK cb_status cb_beam(cb_moves *m, uint64_t target, int64_t below_ps, uint32_t effort,
                                cb_error *err);

#endif
