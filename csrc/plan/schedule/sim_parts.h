/* sim_parts.h: declarations shared by the two files of the simulator. sim_measure.c uses
 * sim_build.c. */
#ifndef CB_PLAN_SIM_PARTS_H
#define CB_PLAN_SIM_PARTS_H

#include "sim.h"

/* Most problems have neither insides nor inlinings, so the hottest code has a separate version for
 * them (`plain`). */
#define CB_SIM_INLINE static inline __attribute__((always_inline))
static inline bool cb_sim_is_plain(const cb_sim *sim) { return sim->reached == NULL; }

static inline void cb_sim_fill_none(uint32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) ids[i] = CB_NONE;
}

/* Returns the output of a life, as a set; 0 if its op has no inside. */
static inline uint32_t cb_sim_made_of_life(const cb_sim *sim, uint32_t life) {
    if (cb_sim_is_plain(sim)) return 0;
    uint32_t unit = sim->f->unit[sim->life.at[life].storage];
    return unit >= sim->f->p->n_op ? cb_unit_made(sim->f, unit) : 0;
}

/* Builds the steps, reads, lives and held values of these pairs; the first `n_forward_hold` values
 * are held when the backward starts. Returns false if out of memory. */
CB_MUST_CHECK bool cb_sim_build(cb_sim *sim, const cb_pair *pair, size_t n_pair,
                                size_t *n_forward_hold);

#endif
