/* room.h: tracks the bytes alive while groups run, which must not exceed the plan's peak.
 *
 * Groups of the plan, called units, join a group. Units may run before others that precede them in
 * the plan. The units left behind must still fit when they run, so a group is accepted only if all
 * of them, one at a time and in the plan's order, fit after it. When nothing is left behind, the
 * same values are alive as in the plan, so the rest of the plan's order fits. So the search never
 * gets stuck. */
#ifndef CB_FUSE_ROOM_H
#define CB_FUSE_ROOM_H

#include "expand.h"
#include "grow.h"
#include "steps.h"

typedef struct cb_room {
    const cb_steps *steps;
    const cb_groups *units; /* their lives are as planned */
    uint64_t limit;
    uint64_t before, made; /* bytes alive that were made before the current group; bytes made in
                              it */
    uint32_t *unit_of;     /* [n_step] the unit of a step; CB_NONE: none */
    uint32_t *left;        /* [n_place] remaining reads */
    uint32_t *group;       /* [units] the group in which a unit has run; CB_NONE: not yet */
    uint32_t current;      /* the current group */
} cb_room;

CB_MUST_CHECK cb_status cb_room_init(cb_room *r, const cb_steps *steps, const cb_groups *units,
                                     cb_arena *arena, cb_error *err);
void cb_room_reset(cb_room *r); /* resets to the state in which no unit has run */
/* Returns how many of these units, from the first on, fit as one group: at least 1. Their steps are
 * those of `joining`. The units of first .. end that have not run are left behind. */
uint32_t cb_room_for(cb_room *r, const cb_joining *joining, const uint32_t *unit, uint32_t n,
                     uint32_t first, uint32_t end);
/* Runs them as one group. */
void cb_room_take(cb_room *r, const uint32_t *unit, uint32_t n);

#endif
