/* carry.h: finds the op that moves a storage. Internal.
 *
 * A schedule moves the outputs of an op, not a storage. The op that allocates a storage carries it;
 * an op with several carries all of them. If every reader of such an op picks one output of it (a
 * view), the op that picks a storage carries it instead. */
#ifndef CB_PLAN_CARRY_H
#define CB_PLAN_CARRY_H

#include "../model/facts.h"

typedef struct cb_carriers {
    uint32_t *carrier; /* [n_storage] the op that moves it; CB_NONE: it stays */
    int64_t *copy_ps;  /* [n_op] a carrier's copy in one direction */
    bool *must;        /* [n_op] carriers whose storages are offloaded in every plan */
} cb_carriers;

/* Allocates in `arena`. Values that must be offloaded are; if `firm`, so are those with a
 * preference for it. Returns CB_UNSUPPORTED if there is no link, and CB_INVALID if a value must be
 * offloaded but cannot be; the text names it. */
CB_MUST_CHECK cb_status cb_find_carriers(const cb_facts *f, bool firm, cb_arena *arena,
                                         cb_carriers *out, cb_error *err);

#endif
