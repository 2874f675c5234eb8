/* floor.h: bytes that no plan can be below which keeps the base order and runs only forward ops
 * again. Internal. */
#ifndef CB_PLAN_FLOOR_H
#define CB_PLAN_FLOOR_H

#include "ledger.h"

typedef struct cb_floor {
    uint64_t bytes;
    uint32_t op; /* that sets it, CB_NONE: no ops */
} cb_floor;

/* `l` for its tables of reads. */
CB_MUST_CHECK cb_status cb_find_floor(const cb_ledger *l, cb_arena *scratch, cb_floor *out,
                                      cb_error *err);

#endif
