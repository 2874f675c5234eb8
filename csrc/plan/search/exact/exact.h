/* exact.h: the fastest schedule of a small problem, proven. Internal.
 *
 * Class: base ops stay in order, or fall away where nobody needs them; forward ops that are free to
 * may run again before any of them, also those whose output the forward returns, but for ops of
 * which all that is read is kept to the end by a flag; what runs right before the first base op of
 * the backward is part of the backward. All sets of pairs (sim.h) of such ops are in the class, and
 * so is whatever the search finds. */
#ifndef CB_PLAN_EXACT_H
#define CB_PLAN_EXACT_H

#include "../../schedule/goal.h"

/* Is the problem small enough? Depends on nothing else, so that budgets compare. */
CB_MUST_CHECK cb_status cb_exact_suits(const cb_facts *f, bool *suits, cb_error *err);
/* The fastest schedule of at most `bytes` live bytes, and of those one with the smallest peak, into
 * `out`, which lies in `arena`; no steps: there is none. CB_CANCELLED as `goal` polls. */
CB_MUST_CHECK cb_status cb_exact_fastest(const cb_facts *f, const cb_goal *goal, uint64_t bytes,
                                         cb_arena *arena, cb_schedule *out, cb_error *err);
/* The smallest schedule of at most `most_ps`, and of those one of the fastest. */
CB_MUST_CHECK cb_status cb_exact_smallest(const cb_facts *f, const cb_goal *goal, int64_t most_ps,
                                          cb_arena *arena, cb_schedule *out, cb_error *err);

#endif
