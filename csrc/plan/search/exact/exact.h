/* exact.h: finds the provably fastest schedule of a small problem. Internal.
 *
 * In the class of its schedules, base ops stay in order, or are dropped if nothing needs them.
 * Forward ops that may run again may do so before any of them, even if the forward returns their
 * output, except ops whose read outputs are all kept to the end by a flag. Runs right before the
 * first base op of the backward are part of the backward. All sets of pairs (sim.h) of such ops are
 * in the class, and so are all results of the search. */
#ifndef CB_PLAN_EXACT_H
#define CB_PLAN_EXACT_H

#include "../../schedule/goal.h"

/* Sets `suits` to true if the problem is small enough. Depends only on the problem, so the answer
 * is the same for every budget. */
CB_MUST_CHECK cb_status cb_exact_suits(const cb_facts *f, bool *suits, cb_error *err);
/* Finds the fastest schedule of at most `bytes` live bytes, and among those one with the smallest
 * peak; `out` is allocated in `arena`, and has no steps if there is none. Returns CB_CANCELLED if
 * the goal's poll asks for it. */
CB_MUST_CHECK cb_status cb_exact_fastest(const cb_facts *f, const cb_goal *goal, uint64_t bytes,
                                         cb_arena *arena, cb_schedule *out, cb_error *err);
/* Finds the smallest schedule of at most `most_ps`, and among those one of the fastest. */
CB_MUST_CHECK cb_status cb_exact_smallest(const cb_facts *f, const cb_goal *goal, int64_t most_ps,
                                          cb_arena *arena, cb_schedule *out, cb_error *err);

#endif
