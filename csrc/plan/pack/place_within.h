/* place_within.h: finds offsets within a given capacity, for any set of lives. */
#ifndef CB_PLAN_PLACE_WITHIN_H
#define CB_PLAN_PLACE_WITHIN_H

#include "pack.h"

/* Work limit of a search: about ten seconds. */
#define CB_PLACE_EFFORT UINT64_C(4000000000)

typedef enum cb_fit {
    CB_FIT_FOUND,
    CB_FIT_NONE,   /* proven that no offsets fit */
    CB_FIT_UNKNOWN /* none found with this effort */
} cb_fit;

typedef struct cb_placed {
    cb_fit fit;
    uint64_t live_bytes;  /* largest sum of live bytes, a lower bound on the capacity */
    uint32_t moment;      /* the first such moment */
    uint64_t arena_bytes; /* CB_FIT_FOUND: the largest end of a life */
} cb_placed;

/* Fills `offset` [n] if it finds any. CB_INVALID if the lives' bytes add up to more than 63 bits,
 * CB_UNSUPPORTED if there are too many lives to search, CB_CANCELLED if the poll asks for it. */
CB_MUST_CHECK cb_status cb_place_within(const cb_pack_life *life, uint32_t n, uint64_t capacity,
                                        uint64_t effort, cb_arena *scratch, cb_poll poll,
                                        uint64_t *offset, cb_placed *out, cb_error *err);

#endif
