/* pair.h: a decision of a plan that runs ops again. Internal.
 *
 * A decision is a pair (anchor, unit): "the unit runs again right before the base op at position
 * `anchor`, which needs it, directly or through other units of that anchor". A unit is an op, or
 * one output of an op with an inside (facts.h): those of one op that are needed together are made
 * by one run. Below, and wherever pairs are spoken of, an op is either.
 *
 * A pair may say "early": the op runs again there for who reads it later, before the anchor's other
 * ops. So a value can be made while what it is made from is there. Where spare ops (spare.h) stand
 * between the others, an early pair of the first of the backward runs even if nobody reads it: what
 * is held until the backward has begun need not be beside its first op. */
#ifndef CB_PLAN_PAIR_H
#define CB_PLAN_PAIR_H

#include "../../base/vec.h"

/* A pair may say "taken in": what reads the unit there makes it inside its own run (inlining.h),
 * where one run alone does, and may; where several do, the unit runs by itself.
 */
typedef uint64_t cb_pair; /* anchor << 32 | op: sorting sorts by anchor */
static inline cb_pair cb_pair_make(uint32_t anchor, uint32_t op) {
    return (cb_pair)anchor << 32 | op;
}
static inline uint32_t cb_pair_anchor(cb_pair pair) { return (uint32_t)(pair >> 32); }
/* Plans that move values (offload_sim.h) have pairs of a second kind: brought back, not run again.
 */
#define CB_PAIR_FETCH ((cb_pair)1 << 31)
static inline bool cb_pair_fetches(cb_pair pair) { return pair & CB_PAIR_FETCH; }
/* Early pairs. The bit is part of the op that cb_pair_make gets and cb_pair_id gives back. */
#define CB_EARLY (UINT32_C(1) << 30)
static inline bool cb_pair_is_early(cb_pair pair) { return pair & CB_EARLY; }
static inline uint32_t cb_pair_id(cb_pair pair) { return (uint32_t)(pair & ~CB_PAIR_FETCH); }
/* To be taken in; a bit likewise. Not of early pairs. */
#define CB_INLINE (UINT32_C(1) << 28)
static inline bool cb_pair_inlines(cb_pair pair) { return pair & CB_INLINE; }
static inline uint32_t cb_pair_op(cb_pair pair) {
    return cb_pair_id(pair) & ~(CB_EARLY | CB_INLINE);
}

typedef struct cb_pairs {
    cb_arena *arena;
    CB_VEC(cb_pair) list;
} cb_pairs;

/* Rising: by anchor, then by op. */
void cb_sort_pairs(cb_pair *pair, size_t n);

#endif
