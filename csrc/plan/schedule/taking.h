/* taking.h: chooses the values inlined into the runs of one anchor. Internal.
 *
 * A pair may request that a unit be inlined (pair.h). It is inlined if exactly one run of that
 * anchor reads it and the problem lists that inlining; otherwise it runs separately. A run is an op
 * that runs for one query: the needs of an early unit, or of the base op, which comes last. If an
 * inlined unit reads another unit, the run into which the first is inlined reads the second.
 *
 *     cb_taking_begin(&t);
 *     cb_taking_wish(&t, unit);                   for each unit to be inlined
 *     CB_PUSH(t.arena, t.list, (cb_reached){..})  for each op that runs at the anchor, or may run
 *     cb_taking_choose(&t);
 *     cb_is_taken(&t, unit)                       until the next anchor begins */
#ifndef CB_PLAN_TAKING_H
#define CB_PLAN_TAKING_H

#include "../model/facts.h"

typedef struct cb_reached {
    uint32_t op, id; /* an op, or a unit of it */
    uint32_t top;    /* the query that visited it first */
} cb_reached;

typedef struct cb_taking {
    const cb_facts *f;
    CB_VEC(cb_reached) list;
    uint32_t round, n_wish;
    uint32_t *wished; /* [n_unit] round; NULL: no inlinings */
    uint32_t *taken;  /* [n_unit] round */
    uint32_t *read;   /* [n_unit] last round in which a run reads it */
    uint64_t *host;   /* [n_unit] the run that reads it (top << 32 | op), or a mark for several runs
                         */
} cb_taking;

CB_MUST_CHECK bool cb_taking_init(cb_taking *t, const cb_facts *f, cb_arena *arena);
static inline void cb_taking_begin(cb_taking *t) {
    t->round++;
    t->n_wish = 0;
    t->list.len = 0;
}
/* Requests that the unit be inlined, or that it run separately; the latter overrides earlier
 * requests. */
void cb_taking_wish(cb_taking *t, uint32_t unit, bool inlines);
void cb_taking_choose(cb_taking *t);
static inline bool cb_is_taken(const cb_taking *t, uint32_t unit) {
    return t->wished && t->taken[unit] == t->round;
}
/* Returns the inlinings of a run of the op that makes these outputs. */
uint64_t cb_taken_now(const cb_taking *t, uint32_t op, uint32_t made);

#endif
