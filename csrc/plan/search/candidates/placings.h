/* placings.h: remembers the offsets of plans that were placed. Internal.
 *
 * Searches and requests of one planner often place the same lives again, and a placement that does
 * not reach the peak of live bytes takes long (place.c). Lives with equal bytes and moments have
 * equal offsets, so the answer is the same. */
#ifndef CB_PLAN_PLACINGS_H
#define CB_PLAN_PLACINGS_H

#include "../../schedule/schedule.h"

#define CB_PLACINGS_MOST 32     /* number of placements kept; the oldest is replaced */
#define CB_PLACINGS_LIVES 16000 /* placements of more lives are not kept */

typedef struct cb_placing {
    cb_arena arena;
    uint32_t n;     /* lives; 0: none so far */
    uint64_t *word; /* [3 n] what the offsets follow from */
    uint64_t *offset;
    uint64_t arena_bytes;
} cb_placing;

typedef struct cb_placings {
    const cb_problem *p;
    uint32_t next; /* the placement that is replaced next */
    cb_placing at[CB_PLACINGS_MOST];
} cb_placings;

void cb_placings_init(cb_placings *known, const cb_problem *p, cb_alloc *alloc);
void cb_placings_free(cb_placings *known);
/* Like cb_place of the problem, with equal results. */
CB_MUST_CHECK cb_status cb_place_again(cb_placings *known, cb_lives *lives, cb_arena *scratch,
                                       cb_poll poll, uint64_t *arena_bytes, cb_error *err);

#endif
