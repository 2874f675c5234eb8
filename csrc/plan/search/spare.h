/* spare.h: a problem of few ops with an op that does nothing before each op of its base order.
 * Internal.
 *
 * A set of pairs (sim.h) can run an op at most once before a base op. Some of the smallest plans
 * run an op twice there, the second time with values that the first run helped to make. The second
 * run can then come before a spare op. Schedules have no spare steps, so they are schedules of the
 * original problem. */
#ifndef CB_PLAN_SPARE_H
#define CB_PLAN_SPARE_H

#include "../model/facts.h"

/* Adds `count` [f->n_base] spare ops before each base op; NULL: one. Ids of ops, values and
 * storages do not change; spare ops have ids from f->p->n_op on. `out` has a separate problem in
 * `arena`, which shares everything except the arrays of ops with that of `f`. */
CB_MUST_CHECK cb_status cb_add_spares(const cb_facts *f, const uint32_t *count, cb_arena *arena,
                                      cb_facts *out, cb_error *err);
#endif
