/* room.h: the bytes alive while groups run, of which the plan's peak is the bound.
 *
 * What joins a group is a unit: a group of the plan. Units may run before others that the plan has
 * first. What was left behind must still fit when it runs, so a group is taken only if all that it
 * leaves behind, one unit at a time and in the plan's order, fits after it. When nothing is left
 * behind, what is alive is what the plan has there: from there on the plan's own order fits. So
 * there is always a way on. */
#ifndef CB_FUSE_ROOM_H
#define CB_FUSE_ROOM_H

#include "expand.h"
#include "grow.h"
#include "steps.h"

typedef struct cb_room {
    const cb_steps *steps;
    const cb_groups *units; /* their lives are as planned */
    uint64_t limit;
    uint64_t before, made; /* bytes alive: made before the group at hand, and in it */
    uint32_t *unit_of;     /* [n_step] CB_NONE: in none */
    uint32_t *left;        /* [n_place] reads to come */
    uint32_t *group;       /* [units] in which a unit has run, CB_NONE: not yet */
    uint32_t current;      /* the group at hand */
} cb_room;

CB_MUST_CHECK cb_status cb_room_init(cb_room *r, const cb_steps *steps, const cb_groups *units,
                                     cb_arena *arena, cb_error *err);
void cb_room_reset(cb_room *r); /* nothing has run */
/* How many of these units, from the first on, fit as one group: at least 1. Their steps are those
 * of `joining`. The units of first .. end that have not run are left behind. */
uint32_t cb_room_for(cb_room *r, const cb_joining *joining, const uint32_t *unit, uint32_t n,
                     uint32_t first, uint32_t end);
/* Runs them as one group. */
void cb_room_take(cb_room *r, const uint32_t *unit, uint32_t n);

#endif
