/* room.h: the bytes alive while groups run, of which the plan's peak is the bound.
 *
 * Steps may run before others that the plan has first. What was left behind must still fit when it
 * runs, so a group is taken only if all that it leaves behind, one step at a time and in the plan's
 * order, fits after it. When nothing is left behind, what is alive is what the plan has there: from
 * there on the plan's own order fits. So there is always a way on. */
#ifndef CB_FUSE_ROOM_H
#define CB_FUSE_ROOM_H

#include "steps.h"

typedef struct cb_room {
    const cb_steps *steps;
    uint64_t limit;
    uint64_t before, made; /* bytes alive: made before the group at hand, and in it */
    uint32_t *left;        /* [n_place] reads to come */
    uint32_t *group;       /* [n_step] in which a step has run, CB_NONE: not yet */
    uint32_t current;      /* the group at hand */
} cb_room;

CB_MUST_CHECK cb_status cb_room_init(cb_room *r, const cb_steps *steps, cb_arena *arena,
                                     cb_error *err);
/* How many of these steps, from the first on, fit as one group: at least 1. `real` [n_real]: the
 * steps from the first that has not run to the last of the group or before it. */
uint32_t cb_room_for(cb_room *r, const uint32_t *step, uint32_t n, const uint32_t *real,
                     uint32_t n_real);
/* Runs them as one group. */
void cb_room_take(cb_room *r, const uint32_t *step, uint32_t n);

#endif
