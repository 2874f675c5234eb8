/* pack.h: finds offsets for lives within a given number of bytes.
 *
 *     CB_TRY(cb_pack_init(&z, life, n, arena, poll, &fits, err));
 *     if (fits) CB_TRY(cb_pack_within(&z, capacity, &found, err));    z.offset, if found
 *     if (fits) CB_TRY(cb_pack_loosely(&z, least, most, CB_PACK_AREA, &found, err));
 *
 * The search backtracks and restarts. For nearly all schedules of training steps, it reaches the
 * largest sum of live bytes; it takes a millisecond for hundreds of lives. */
#ifndef CB_PLAN_PACK_H
#define CB_PLAN_PACK_H

#include "pack_state.h"

#define CB_PACK_ORDERS 6         /* number of slower rules */
#define CB_PACK_EFFORT 24000000u /* work limit of a search: about ten milliseconds */

/* `fits` is false if there are too many lives for the work limit. Memory comes from `arena`. */
CB_MUST_CHECK cb_status cb_pack_init(cb_pack *z, const cb_pack_life *life, uint32_t n,
                                     cb_arena *arena, cb_poll poll, bool *fits, cb_error *err);
/* Returns CB_CANCELLED if the poll asks for it. */
CB_MUST_CHECK cb_status cb_pack_within(cb_pack *z, uint64_t capacity, bool *found, cb_error *err);
typedef enum cb_pack_rule { /* the order of lives */
                            CB_PACK_LENGTH,
                            CB_PACK_SIZE,
                            CB_PACK_AREA,
                            CB_PACK_LONG_AREA,
                            CB_PACK_CAREFUL, /* the first of CB_PACK_ORDERS slower rules */
                            CB_PACK_RULES = CB_PACK_CAREFUL + CB_PACK_ORDERS
} cb_pack_rule;

/* Runs one attempt that starts with the capacity `least` and raises it, up to `most`, whenever it
 * makes no progress. This is much faster than a search for each capacity, but proves nothing. */
CB_MUST_CHECK cb_status cb_pack_loosely(cb_pack *z, uint64_t least, uint64_t most,
                                        cb_pack_rule rule, bool *found, cb_error *err);

#endif
