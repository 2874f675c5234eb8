/* whatif.h: computes what changing one decision would change in a plan. Internal.
 *
 *     CB_TRY(cb_whatif_init(&w, f, &plan->schedule, alloc, err));
 *     CB_TRY(cb_whatif_flip(&w, storage, &change, err));      if (change.known) ...
 *     cb_whatif_free(&w);
 *
 * The simulator evaluates the other decision, so the change is exact. A saved value is recomputed
 * right before the first op of the backward that reads it, together with its inputs that are no
 * longer alive and may run again; a value that is recomputed is kept from the forward. All other
 * decisions stay the same. Lives are not placed again, so bytes are those of the measures `live`
 * and `saved`. */
#ifndef CB_PLAN_WHATIF_H
#define CB_PLAN_WHATIF_H

#include "../schedule/sim.h"

typedef struct cb_change { /* the other plan minus this one */
    bool known;            /* true if there is another choice and it was tried */
    int64_t peak_bytes, saved_bytes, time_ps;
} cb_change;

typedef struct cb_whatif {
    const cb_facts *f;
    cb_arena arena;
    bool exact; /* decisions can produce this schedule; otherwise nothing is known */
    cb_sim sim;
    cb_schedule schedule;     /* borrowed */
    bool *base;               /* [n_step] see decisions.h */
    cb_pairs pairs, other;    /* decisions of the plan; of the alternative */
    bool *again;              /* [n_unit] runs, or is inlined, more than once or in the backward */
    uint32_t *start;          /* [n_base] first step that runs for the base op */
    uint32_t *need;           /* [n_storage] first base op that reads it in the backward */
    uint32_t *life_begin;     /* [n_storage + 1] into `life` */
    cb_sim_life *life;        /* lives of the plan, by storage */
    uint32_t *asked_in, asks; /* [n_unit] stamps */
    CB_VEC(uint32_t) stack;   /* units, and ops that are views */
    uint64_t peak_bytes, saved_bytes;
    int64_t time_ps;
} cb_whatif;

CB_MUST_CHECK cb_status cb_whatif_init(cb_whatif *w, const cb_facts *f, const cb_schedule *s,
                                       cb_alloc *alloc, cb_error *err);
void cb_whatif_free(cb_whatif *w);
/* The change is unknown if the storage has no other choice (run-once op, output) or if its op is in
   the backward. */
CB_MUST_CHECK cb_status cb_whatif_flip(cb_whatif *w, uint32_t storage, cb_change *out,
                                       cb_error *err);

#endif
