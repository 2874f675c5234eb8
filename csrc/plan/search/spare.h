/* spare.h: a problem of few ops with an op that does nothing before each op of its base order.
 * Internal.
 *
 * A set of pairs (sim.h) says of each op whether it runs again before a base op, so once at most.
 * Some of the smallest plans run one twice there, the second time from what the first helped to
 * make. Before a spare op it has its second run. Schedules have no spare steps, so they are
 * those of the problem itself. */
#ifndef CB_PLAN_SPARE_H
#define CB_PLAN_SPARE_H

#include "../model/facts.h"

/* So many spare ops as `count` [f->n_base] says before each base op; NULL: one. Ids of ops, values
 * and storages stay; spare ops have ids from f->p->n_op on. `out` has a problem of its own in
 * `arena`, which shares all but the arrays of ops with that of `f`. */
CB_MUST_CHECK cb_status cb_add_spares(const cb_facts *f, const uint32_t *count, cb_arena *arena,
                                      cb_facts *out, cb_error *err);
#endif
