/* sim_parts.h: what the files of the simulator share: sim_build.c, and above it sim_measure.c. */
#ifndef CB_PLAN_SIM_PARTS_H
#define CB_PLAN_SIM_PARTS_H

#include "sim.h"

/* Most problems have neither insides nor inlinings: what runs millions of times is compiled for
 * these apart (`plain`). */
#define CB_SIM_INLINE static inline __attribute__((always_inline))
static inline bool cb_sim_is_plain(const cb_sim *sim) { return sim->reached == NULL; }

static inline void cb_sim_fill_none(uint32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) ids[i] = CB_NONE;
}

/* The output of its step, as a set, that a life is of; 0: its op has no inside. */
static inline uint32_t cb_sim_made_of_life(const cb_sim *sim, uint32_t life) {
    if (cb_sim_is_plain(sim)) return 0;
    uint32_t unit = sim->f->unit[sim->life.at[life].storage];
    return unit >= sim->f->p->n_op ? cb_unit_made(sim->f, unit) : 0;
}

/* Steps, reads, lives and what is held, of these pairs; of the last the first `n_forward_hold` are
 * held when the backward starts. False: out of memory. */
CB_MUST_CHECK bool cb_sim_build(cb_sim *sim, const cb_pair *pair, size_t n_pair,
                                size_t *n_forward_hold);

#endif
