/* sim.h: from decisions to a schedule, and what that schedule needs. Internal: the search's
 * evaluator, in buffers that are used again and again. It agrees with cb_schedule_walk to the byte.
 *
 * Decisions are pairs (pair.h). Any sorted set of pairs is a valid plan: what no pair makes afresh
 * is read from its latest run, which then lives that long; pairs nobody needs have no effect; a
 * first run nobody reads falls out of the schedule. */
#ifndef CB_PLAN_SIM_H
#define CB_PLAN_SIM_H

#include "../model/facts.h"
#include "pair.h"
#include "schedule.h"
#include "taking.h"

typedef struct cb_sim_life { /* one life of a storage */
    uint32_t storage;
    uint32_t made, last; /* steps; last == n_step: to the end */
} cb_sim_life;

typedef struct cb_sim_step {
    uint32_t op, anchor;
    uint32_t reads; /* first entry in `read` */
    uint32_t made;  /* outputs, of an op with an inside; at last those that somebody reads */
} cb_sim_step;

typedef struct cb_sim_read {
    uint32_t step; /* that made the value, CB_NONE: a placeholder */
    uint32_t life; /* CB_NONE: static */
} cb_sim_read;

typedef struct cb_sim_forward { /* as it is built where nothing runs again in it */
    bool known;
    uint32_t n_base; /* so many base ops; cb_facts_hoist may add some later */
    size_t n_step, n_read, n_life;
    cb_sim_step *step;
    cb_sim_read *read;
    cb_sim_life *life;
    uint32_t *value_step, *value_life, *latest, *base_step, *first_life;
} cb_sim_forward;

typedef struct cb_sim {
    const cb_facts *f;
    cb_arena arena;           /* grows with the longest schedule */
    CB_VEC(cb_sim_step) step; /* as built; dropped steps are marked in `keep` */
    CB_VEC(cb_sim_read) read;
    CB_VEC(cb_sim_life) life; /* as built; made and last count kept steps after cb_sim_run */
    CB_VEC(cb_sim_read)
    hold; /* what must exist when the backward starts, then what must at the end */
    CB_VEC(uint32_t) hold_made; /* which outputs of its step each is, as in a step */
    CB_VEC(uint32_t) stack;
    CB_VEC(uint32_t) new_index;        /* [step.len + 1] index among the kept steps */
    CB_VEC(bool) keep;                 /* [step.len] */
    CB_VEC(uint64_t) live;             /* [n_step + 1] */
    uint32_t *value_step, *value_life; /* [n_value] latest run */
    uint32_t *latest;                  /* [n_storage] newest life */
    uint32_t *base_step;               /* [n_base] step as built: an op's first */
    uint32_t *first_life;              /* [n_storage] what is held of it */
    uint32_t *marked, *done;  /* [n_unit] last anchor that wants it again; that ran it again */
    uint32_t *reached, reach; /* [n_unit] the last question of what an op needs that it came up in;
                                 NULL: no op has an inside, and none takes anything in */
    cb_taking taking;         /* what the anchor at hand takes in */
    CB_VEC(uint64_t) taken;   /* [step.len] what each takes in; nothing where no op may */
    bool records;             /* what is asked about is noted in `taking` */
    uint32_t crossing;        /* steps as built before the backward */
    uint32_t *held_forward, *held_end; /* storages with these flags */
    uint32_t n_held_forward, n_held_end;
    cb_sim_forward forward;

    /* results */
    uint32_t n_step, backward_starts;
    uint64_t peak, saved;
    int64_t time_ps;
    int64_t cost_ps;  /* the same with f->cost_ps for runs after the first: what searches compare */
    uint64_t *moment; /* [n_base] most bytes alive while a base op and its anchored reruns run */
} cb_sim;

CB_MUST_CHECK cb_status cb_sim_init(cb_sim *sim, const cb_facts *f, cb_alloc *alloc, cb_error *err);
void cb_sim_free(cb_sim *sim);
CB_MUST_CHECK cb_status cb_sim_run(cb_sim *sim, const cb_pair *pair, size_t n_pair, cb_error *err);
/* Copies the schedule of the last run. */
CB_MUST_CHECK cb_status cb_sim_schedule(const cb_sim *sim, cb_arena *arena, cb_schedule *out,
                                        cb_error *err);

/* Is the storage alive when the backward starts? Lives of steps that fell away are not. */
static inline bool cb_is_saved(const cb_sim_life *life, uint32_t backward_starts) {
    return life->made != CB_NONE && life->made < backward_starts && life->last != CB_NONE &&
           life->last >= backward_starts;
}
/* Does each region save at most its limit in a schedule with these lives? */
bool cb_within_region_limits(const cb_facts *f, const cb_sim_life *life, size_t n,
                             uint32_t backward_starts);

/* Every unit in `recompute` [n_unit] that the backward needs, at the first base op that needs it:
 * as late as possible, and kept until its last use. `need` [n_storage] (may be NULL) gets the
 * position of the first such need, CB_NONE: none. Without `need`, forward values that are outputs
 * of the backward (cb_may_remake_at_end) count as read by its last op. */
CB_MUST_CHECK cb_status cb_recompute_lazily(const cb_facts *f, const bool *recompute,
                                            uint32_t *need, cb_pairs *out, cb_error *err);

#endif
