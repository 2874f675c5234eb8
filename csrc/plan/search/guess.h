/* guess.h: the bytes that most plans keep in memory. Internal.
 *
 * The guess is the bound of prices.h over fewer plans: those that drop a forward value at most
 * once, between its last forward and its first backward read, and in which every op that the
 * forward needs runs at its position. Most fast plans are like that, so its prices lead to better
 * plans than those of the bound, and it estimates how much a search may still gain. It is not a
 * bound: a plan that runs an op again in the forward may beat it. Searches check for that. */
#ifndef CB_PLAN_GUESS_H
#define CB_PLAN_GUESS_H

#include "../model/facts.h"

typedef struct cb_guess_uses {
    const uint32_t *last_forward; /* [n_storage] last position in the forward that reads it */
    const uint32_t *direct;       /* [n_storage] first position in the backward that reads it, or
                                   CB_NONE */
    const bool *unused_forward;   /* [n_unit] true if the forward does not need its outputs */
} cb_guess_uses;

/* Computes the bytes in memory at each moment in all of these plans. `out` is [n_base]. */
CB_MUST_CHECK cb_status cb_guess_least(const cb_facts *f, const cb_guess_uses *uses, double *out,
                                       cb_error *err);

#endif
