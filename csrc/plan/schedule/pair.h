/* pair.h: the decision to run an op again. Internal.
 *
 * A decision is a pair (anchor, unit): "the unit runs again right before the base op at position
 * `anchor`, which needs it, directly or through other units of that anchor". A unit is an op, or
 * one output of an op with an inside (facts.h): one run makes the outputs of an op that are needed
 * together. In this context "op" means either.
 *
 * A pair may be "early": the op runs again there for a later reader, before the anchor's other ops.
 * So an op can run while its inputs are alive. With spare ops (spare.h), an early pair of the
 * first spare op of the backward runs even if nothing reads it, so that memory held until the
 * backward has begun need not overlap its first op. */
#ifndef CB_PLAN_PAIR_H
#define CB_PLAN_PAIR_H

#include "../../base/vec.h"

/* A pair may be "inlined": the reader of the unit there makes it inside its own run (inlining.h),
   if it is the only reader and the problem allows it; with several readers, the unit runs
   separately. */
typedef uint64_t cb_pair; /* anchor << 32 | op: sorting sorts by anchor */
static inline cb_pair cb_pair_make(uint32_t anchor, uint32_t op) {
    return (cb_pair)anchor << 32 | op;
}
static inline uint32_t cb_pair_anchor(cb_pair pair) { return (uint32_t)(pair >> 32); }
/* Plans that move values (offload_sim.h) have a second kind of pair: the value is brought back, not
   recomputed. */
#define CB_PAIR_FETCH ((cb_pair)1 << 31)
static inline bool cb_pair_fetches(cb_pair pair) { return pair & CB_PAIR_FETCH; }
/* Marks early pairs. The bit is part of the op that cb_pair_make takes and cb_pair_id returns. */
#define CB_EARLY (UINT32_C(1) << 30)
static inline bool cb_pair_is_early(cb_pair pair) { return pair & CB_EARLY; }
static inline uint32_t cb_pair_id(cb_pair pair) { return (uint32_t)(pair & ~CB_PAIR_FETCH); }
/* Requests inlining: another bit of the op. Early pairs cannot have it. */
#define CB_INLINE (UINT32_C(1) << 28)
static inline bool cb_pair_inlines(cb_pair pair) { return pair & CB_INLINE; }
static inline uint32_t cb_pair_op(cb_pair pair) {
    return cb_pair_id(pair) & ~(CB_EARLY | CB_INLINE);
}

typedef struct cb_pairs {
    cb_arena *arena;
    CB_VEC(cb_pair) list;
} cb_pairs;

/* Sorts pairs by anchor, then by op. */
void cb_sort_pairs(cb_pair *pair, size_t n);

#endif
