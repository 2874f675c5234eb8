/* carry.h: which op moves a storage. Internal.
 *
 * A schedule moves what an op made, not a storage. The op that allocates a storage carries it, all
 * of them if it has several; or, where every reader of such an op picks one output of it (a view),
 * each storage goes through the op that picks it. */
#ifndef CB_PLAN_CARRY_H
#define CB_PLAN_CARRY_H

#include "../model/facts.h"

typedef struct cb_carriers {
    uint32_t *carrier; /* [n_storage] the op that moves it, CB_NONE: it stays */
    int64_t *copy_ps;  /* [n_op] a carrier's copy in one direction */
    bool *must;        /* [n_op] carriers that leave whatever a plan says */
} cb_carriers;

/* Into `arena`. What must be offloaded must leave; if `firm`, what should be likewise.
 * CB_UNSUPPORTED: there is no link. CB_INVALID: what must leave cannot; the text names it. */
CB_MUST_CHECK cb_status cb_find_carriers(const cb_facts *f, bool firm, cb_arena *arena,
                                         cb_carriers *out, cb_error *err);

#endif
