/* floor.h: a lower bound on the bytes of plans that keep the base order and rerun only forward ops.
 * Internal. */
#ifndef CB_PLAN_FLOOR_H
#define CB_PLAN_FLOOR_H

#include "local/ledger.h"

typedef struct cb_floor {
    uint64_t bytes;
    uint32_t op;    /* op that sets it; CB_NONE: no ops */
    uint64_t apart; /* a smaller floor, without the gradients that late ops meet; searches divide
                       the range above it, and pass targets below `bytes` */
} cb_floor;

/* The bytes alive while an op of the base order runs, in every plan: its inputs, outputs and
 * scratch. */
typedef struct cb_working_set {
    uint64_t bytes;
    uint32_t at; /* position */
} cb_working_set;

/* `l` provides the tables of reads. */
CB_MUST_CHECK cb_status cb_find_floor(const cb_ledger *l, cb_arena *scratch, cb_floor *out,
                                      cb_error *err);
/* Writes the largest working sets of all ops except views, at most `most`, to `out`, largest
   first. */
CB_MUST_CHECK cb_status cb_largest_working_sets(const cb_ledger *l, cb_arena *scratch,
                                                uint32_t most, cb_working_set *out, uint32_t *n,
                                                cb_error *err);

#endif
