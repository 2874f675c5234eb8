/* floor.h: bytes that no plan can be below which keeps the base order and runs only forward ops
 * again. Internal. */
#ifndef CB_PLAN_FLOOR_H
#define CB_PLAN_FLOOR_H

#include "local/ledger.h"

typedef struct cb_floor {
    uint64_t bytes;
    uint32_t op; /* that sets it, CB_NONE: no ops */
} cb_floor;

/* Bytes that are there while an op of the base order runs, whatever the plan: its inputs, outputs
 * and scratch. */
typedef struct cb_working_set {
    uint64_t bytes;
    uint32_t at; /* position */
} cb_working_set;

/* `l` for its tables of reads. */
CB_MUST_CHECK cb_status cb_find_floor(const cb_ledger *l, cb_arena *scratch, cb_floor *out,
                                      cb_error *err);
/* The largest working sets of all ops that are no views, at most `most` into `out`, largest first.
 */
CB_MUST_CHECK cb_status cb_largest_working_sets(const cb_ledger *l, cb_arena *scratch,
                                                uint32_t most, cb_working_set *out, uint32_t *n,
                                                cb_error *err);

#endif
