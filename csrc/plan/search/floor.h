/* floor.h: a lower bound on the bytes of plans that keep the base order and rerun only forward ops.
 * Internal. */
#ifndef CB_PLAN_FLOOR_H
#define CB_PLAN_FLOOR_H

#include "../model/facts.h"

typedef struct cb_ledger cb_ledger; /* local/ledger.h */

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
/* Computes a lower bound on the bytes of programs whose groups may fuse: the largest working set of
 * an op that is `separate` [n_op], with the gradients in memory by then, or all gradients. A fused
 * group begins no later than its first op, so a gradient is made no later than in the plan. Counts
 * no scratch. Takes a small part of the time of cb_find_floor. */
CB_MUST_CHECK cb_status cb_find_program_floor(const cb_problem *p, const cb_device *device,
                                              const bool *separate, cb_arena *scratch,
                                              uint64_t *bytes, cb_error *err);
/* Writes the largest working sets of all ops except views, at most `most`, to `out`, largest
   first. */
CB_MUST_CHECK cb_status cb_largest_working_sets(const cb_ledger *l, cb_arena *scratch,
                                                uint32_t most, cb_working_set *out, uint32_t *n,
                                                cb_error *err);

#endif
