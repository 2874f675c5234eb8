/* pack.h: offsets for lives within so many bytes. Internal to the folder.
 *
 *     CB_TRY(cb_pack_init(&z, life, n, arena, poll, &fits, err));
 *     if (fits) CB_TRY(cb_pack_within(&z, capacity, &found, err));    z.offset, where found
 *
 * A search that backtracks. Where it is given what lives at the fullest moment, it finds offsets
 * without a gap there for nearly all schedules of training steps, in a millisecond for hundreds of
 * lives; it says no more than that it found none where it gives up. */
#ifndef CB_PLAN_PACK_H
#define CB_PLAN_PACK_H

#include "schedule.h"

typedef struct cb_pack_life { /* bytes are no 0; it is alive while moments made..last last */
    uint64_t bytes;
    uint32_t made, last;
} cb_pack_life;

typedef struct cb_pack_level { /* a life that is placed, or the next to be */
    uint32_t choice, n_choice; /* of `choice`: the first not tried so far, the end of those */
    size_t floor;              /* first of `before` */
} cb_pack_level;

typedef struct cb_pack_rank {
    double rank; /* of lives that would lie equally low the larger goes first */
    uint32_t id;
} cb_pack_rank;

typedef struct cb_pack {
    const cb_pack_life *life; /* [n] */
    uint32_t n, n_section;
    uint64_t capacity;
    cb_arena *arena;
    cb_poll poll;
    uint64_t looks, most_looks; /* at a life or a section: the measure of work */
    uint64_t polled, chance;
    uint32_t dead_ends;     /* since the search began with these ranks */
    uint32_t *first, *last; /* [n] sections */
    uint64_t *floor;        /* [n_section] where the next life would lie */
    uint64_t *rest;         /* [n_section] bytes of lives that are not placed */
    uint64_t *least; /* [n_section] of those, the lowest `offset`; UINT64_MAX: there are none */
    uint32_t stale_first;  /* sections whose `least` is out of date, to stale_last; */
    uint32_t stale_last;   /* less than the first: none */
    uint64_t *offset;      /* [n] of lives; of those not placed, where they would lie */
    cb_pack_rank *rank;    /* [n] falling */
    uint32_t *next, *prev; /* [n + 1] those not placed, by rank: a ring through n */
    cb_pack_level *level;  /* [n + 1] */
    CB_VEC(uint32_t) choice;
    CB_VEC(uint64_t) before; /* floors under what was placed */
} cb_pack;

/* `fits` is false where there are so many lives that a search would take longer than it is given.
 * Memory is of `arena`. */
CB_MUST_CHECK cb_status cb_pack_init(cb_pack *z, const cb_pack_life *life, uint32_t n,
                                     cb_arena *arena, cb_poll poll, bool *fits, cb_error *err);
/* CB_CANCELLED where the poll says so. */
CB_MUST_CHECK cb_status cb_pack_within(cb_pack *z, uint64_t capacity, bool *found, cb_error *err);

#endif
