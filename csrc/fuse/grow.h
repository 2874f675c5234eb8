/* grow.h: grows one group: decides from what the steps compute which of them may run in it, and
 * which of the next steps join. room.h handles memory. */
#ifndef CB_FUSE_GROW_H
#define CB_FUSE_GROW_H

#include "fuses.h"
#include "reads.h"
#include "steps.h"

#define CB_GROUP_MOST 64 /* maximum number of instructions of a group */

typedef struct cb_joining {
    const cb_steps *steps;
    cb_fuses_fn fuses;
    cb_domain domain;
    cb_domain start; /* domain of the group when it is empty */
    uint32_t n, step[CB_GROUP_MOST];
    cb_part part[CB_GROUP_MOST];
    cb_parts parts;
    uint8_t *made; /* [n_place] cb_made for values of members, otherwise OUTSIDE */
} cb_joining;

CB_MUST_CHECK cb_status cb_joining_init(cb_joining *x, const cb_steps *steps, cb_fuses_fn fuses,
                                        cb_arena *arena, cb_error *err);
/* Adds a step and returns CB_END_NONE; or leaves the group unchanged and returns the reason. */
cb_group_end cb_join(cb_joining *x, uint32_t step);
/* True if a step could be in any group at all. */
bool cb_can_join(const cb_joining *x, uint32_t step);
/* Returns the domain of a step whose rows are longer than the group's, over the same number of
 * elements: a group that starts with these rows may hold both. {0, 0}: its rows are not longer. */
cb_domain cb_longer_rows(const cb_joining *x, uint32_t step);
/* Keeps the first `n` members, as if no other had joined. */
void cb_joining_cut(cb_joining *x, uint32_t n);
/* Empties the group, which then starts with this domain. */
void cb_joining_start(cb_joining *x, cb_domain domain);

/* Growth is list scheduling with a small lookahead over units, which are steps or groups of steps:
 * a group opens with a unit and takes the next units that belong to it; a few others may be
 * deferred. */
typedef struct cb_growing {
    cb_joining *joining;
    uint32_t n_unit;
    uint32_t deferred; /* maximum number of units passed over */
    uint32_t members;  /* maximum number of steps of a group */
    void *user;
    void (*begin)(void *user);              /* called when the group is empty */
    bool (*passes)(void *user, uint32_t u); /* true for a unit that is neither taken nor deferred */
    /* Adds a unit to `joining` and to the state of `user`, and returns CB_END_NONE; or leaves both
     * unchanged and returns the reason. If longer rows might admit the unit, sets *longer to
     * them. */
    cb_group_end (*take)(void *user, uint32_t u, cb_domain *longer);
    /* Results: the reason why the group ends, and the unit at which it ends; CB_NONE: there is
     * none. */
    cb_group_end end;
    uint32_t end_unit;
} cb_growing;

/* Fills `joining` from unit `first` on; returns the end of the examined units. */
uint32_t cb_grow(cb_growing *g, uint32_t first);

#endif
