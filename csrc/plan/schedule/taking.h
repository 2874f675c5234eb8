/* taking.h: what the runs of one anchor take in. Internal.
 *
 * A pair may say that a unit is to be taken in (pair.h). It is, where one run alone of that anchor
 * reads it, and the problem lists that inlining; otherwise it runs by itself. A run is an op that
 * runs for one question: what an early unit needs, or the base op, which is asked last. Where a
 * unit is taken in that reads another, the run that takes in the one reads the other.
 *
 *     cb_taking_begin(&t);
 *     cb_taking_wish(&t, unit);                   for each that is to be taken in
 *     CB_PUSH(t.arena, t.list, (cb_reached){..})  for all that runs at the anchor, or may
 *     cb_taking_choose(&t);
 *     cb_is_taken(&t, unit)                       until the next anchor begins */
#ifndef CB_PLAN_TAKING_H
#define CB_PLAN_TAKING_H

#include "../model/facts.h"

typedef struct cb_reached {
    uint32_t op, id; /* an op, or a unit of it */
    uint32_t top;    /* the question that it came up for first */
} cb_reached;

typedef struct cb_taking {
    const cb_facts *f;
    CB_VEC(cb_reached) list;
    uint32_t round, n_wish;
    uint32_t *wished; /* [n_unit] round; NULL: no op may take in anything */
    uint32_t *taken;  /* [n_unit] round */
    uint32_t *read;   /* [n_unit] round in which a run reads it, */
    uint64_t *host;   /* [n_unit] which: top << 32 | op, or several */
} cb_taking;

CB_MUST_CHECK bool cb_taking_init(cb_taking *t, const cb_facts *f, cb_arena *arena);
static inline void cb_taking_begin(cb_taking *t) {
    t->round++;
    t->n_wish = 0;
    t->list.len = 0;
}
/* Or that it is to run by itself whatever was said before. */
void cb_taking_wish(cb_taking *t, uint32_t unit, bool inlines);
void cb_taking_choose(cb_taking *t);
static inline bool cb_is_taken(const cb_taking *t, uint32_t unit) {
    return t->wished && t->taken[unit] == t->round;
}
/* What a run of the op that makes these outputs takes in, of the op's inlinings. */
uint64_t cb_taken_now(const cb_taking *t, uint32_t op, uint32_t made);

#endif
