/* join.h: one group while it grows: which steps may run in it, by what they compute. Bytes are
 * no matter here (room.h). */
#ifndef CB_FUSE_JOIN_H
#define CB_FUSE_JOIN_H

#include "fuses.h"
#include "reads.h"
#include "steps.h"

#define CB_GROUP_MOST 64 /* instructions */

typedef struct cb_joining {
    const cb_steps *steps;
    cb_fuses_fn fuses;
    cb_domain domain;
    cb_domain start; /* that of the group when it is empty */
    uint32_t n, step[CB_GROUP_MOST];
    cb_part part[CB_GROUP_MOST];
    cb_parts parts;
    uint8_t *made; /* [n_place] cb_made, for what members make; OUTSIDE elsewhere */
} cb_joining;

CB_MUST_CHECK cb_status cb_joining_init(cb_joining *x, const cb_steps *steps, cb_fuses_fn fuses,
                                        cb_arena *arena, cb_error *err);
/* Adds a step: CB_END_NONE; or leaves the group as it was: what keeps it out. */
cb_group_end cb_join(cb_joining *x, uint32_t step);
/* Whether a step could be in any group at all. */
bool cb_can_join(const cb_joining *x, uint32_t step);
/* After this step was kept out by CB_END_DOMAIN: are its rows longer than the group's, over as many
 * elements? Then it might join where the group starts with them. */
bool cb_joining_is_narrow(const cb_joining *x, uint32_t step);
/* Empties the group, which then starts with the rows of this step. */
void cb_joining_widen(cb_joining *x, uint32_t step);
/* Leaves the first `n` members, as if no other had joined. */
void cb_joining_cut(cb_joining *x, uint32_t n);

#endif
