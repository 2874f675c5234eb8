/* sim.h: converts decisions to a schedule and evaluates it. Internal: the search's evaluator, with
 * reusable buffers. It agrees with cb_schedule_walk to the byte.
 *
 * Decisions are pairs (pair.h). Any sorted set of pairs is a valid plan: a value that no pair
 * recomputes is read from its latest run, which then lives that long; unneeded pairs have no
 * effect; a first run without readers is dropped from the schedule. */
#ifndef CB_PLAN_SIM_H
#define CB_PLAN_SIM_H

#include "../model/facts.h"
#include "pair.h"
#include "schedule.h"
#include "taking.h"

typedef struct cb_sim_life { /* one life of a storage */
    uint32_t storage;
    uint32_t made, last; /* steps; last == n_step: alive to the end */
} cb_sim_life;

typedef struct cb_sim_step {
    uint32_t op, anchor;
    uint32_t reads; /* first entry in `read` */
    uint32_t made;  /* outputs of an op with an inside; in the end those that are read */
} cb_sim_step;

typedef struct cb_sim_read {
    uint32_t step; /* step that made the value; CB_NONE: a placeholder */
    uint32_t life; /* its life; CB_NONE: static */
} cb_sim_read;

typedef struct cb_sim_forward { /* the forward as built if nothing runs again in it */
    bool known;
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
    hold; /* values that must exist when the backward starts, then those that must exist at the end
             */
    CB_VEC(uint32_t) hold_made; /* [hold.len] outputs that the step of the value must make */
    CB_VEC(uint32_t) stack;
    CB_VEC(uint32_t) new_index;        /* [step.len + 1] index among the kept steps */
    CB_VEC(bool) keep;                 /* [step.len] */
    CB_VEC(uint64_t) live;             /* [n_step + 1] */
    uint32_t *value_step, *value_life; /* [n_value] latest run */
    uint32_t *latest;                  /* [n_storage] newest life */
    uint32_t *base_step;               /* [n_base] the op's first step, as built */
    uint32_t *first_life;              /* [n_storage] its held instance */
    uint32_t *marked, *done;  /* [n_unit] last anchor that needs it again; last anchor that ran it
                                 again */
    uint32_t *reached, reach; /* [n_unit] the last query that visited it; NULL: no insides and no
                                 inlinings */
    cb_taking taking;         /* values inlined at the current anchor */
    CB_VEC(uint64_t) taken;   /* [step.len] values inlined into each; empty without inlinings */
    bool records;             /* visited units are recorded in `taking` */
    uint32_t crossing;        /* steps as built before the backward */
    uint32_t *held_forward, *held_end; /* storages with these flags */
    uint32_t *updating;                /* gradients that updates consume */
    uint32_t *acting;                  /* ops whose first run always stays */
    uint32_t n_held_forward, n_held_end, n_updating, n_acting;
    bool *reads_views; /* [n_op] true if it reads a storage that another op has allocated than the
                          one that makes the value */
    cb_sim_forward forward;

    /* results */
    uint32_t n_step, backward_starts;
    uint64_t peak, saved;
    int64_t time_ps;
    int64_t cost_ps;  /* the same with f->cost_ps for reruns; searches compare this one */
    uint64_t *moment; /* [n_base] peak of bytes while a base op and its anchored reruns run */
} cb_sim;

CB_MUST_CHECK cb_status cb_sim_init(cb_sim *sim, const cb_facts *f, cb_alloc *alloc, cb_error *err);
void cb_sim_free(cb_sim *sim);
CB_MUST_CHECK cb_status cb_sim_run(cb_sim *sim, const cb_pair *pair, size_t n_pair, cb_error *err);
/* Copies the schedule of the last run. */
CB_MUST_CHECK cb_status cb_sim_schedule(const cb_sim *sim, cb_arena *arena, cb_schedule *out,
                                        cb_error *err);

/* True if the storage is alive when the backward starts. Lives of dropped steps do not count. */
static inline bool cb_is_saved(const cb_sim_life *life, uint32_t backward_starts) {
    return life->made != CB_NONE && life->made < backward_starts && life->last != CB_NONE &&
           life->last >= backward_starts;
}
/* True if each region saves at most its limit in a schedule with these lives. */
bool cb_within_region_limits(const cb_facts *f, const cb_sim_life *life, size_t n,
                             uint32_t backward_starts);

/* Adds every unit in `recompute` [n_unit] that the backward needs, at the first base op that needs
 * it: as late as possible, and kept until its last use. `need` [n_storage] (may be NULL) gets the
 * position of the first such need, CB_NONE: none. Without `need`, forward values that are outputs
 * of the backward (cb_may_remake_at_end) count as read by its last op. */
CB_MUST_CHECK cb_status cb_recompute_lazily(const cb_facts *f, const bool *recompute,
                                            uint32_t *need, cb_pairs *out, cb_error *err);

#endif
