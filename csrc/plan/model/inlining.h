/* inlining.h: values that are inlined into runs. Internal.
 *
 * A recomputed value may be computed inside the run that reads it: it then takes no bytes, and that
 * run reads its inputs. The problem lists which values may be inlined into which ops, and what each
 * adds to the time and scratch of a run; both add up, so any of an op's inlinings can be combined.
 *
 *     x --> v = cast(x) --> g = f(v)      g with v inlined reads x, and v has no bytes
 *
 * The inlined values of a run are a set, with one bit for each of the op's inlinings, which are
 * sorted by value. */
#ifndef CB_PLAN_INLINING_H
#define CB_PLAN_INLINING_H

#include "inside.h"

#define CB_MOST_INLININGS 64 /* maximum number of inlinings of one op */

/* Returns the index of the inlining of `value` into `op` among all inlinings, or CB_NONE. */
uint32_t cb_find_inlining(const cb_problem *p, uint32_t op, uint32_t value);
/* Returns it as a set of the op's inlinings, with one bit; 0 if there is none. */
static inline uint64_t cb_inlining_bit(const cb_problem *p, uint32_t op, uint32_t value) {
    uint32_t at = cb_find_inlining(p, op, value);
    return at == CB_NONE ? 0 : UINT64_C(1) << (at - p->inline_begin[op]);
}
/* Returns the value as a set of its op's outputs. */
static inline uint32_t cb_made_value(const cb_problem *p, uint32_t value) {
    uint32_t op = p->value_op[value];
    return cb_has_inside(p, op) ? UINT32_C(1) << (value - p->out_begin[op]) : CB_ALL_OUTPUTS;
}
/* Returns the inlinings of `taken` that a run with these outputs reads, directly or through other
 * inlined values. */
uint64_t cb_taken_read(const cb_problem *p, uint32_t op, uint32_t made, uint64_t taken);
/* Returns the scratch of all values inlined into a run. */
uint64_t cb_taken_workspace(const cb_problem *p, uint32_t op, uint64_t taken);

/* Iterates over what a run reads: inputs of the op, then those of each inlined value, in order. It
 * returns all entries of those lists, so that they can be counted; `value` is CB_NONE for entries
 * that are not read: outside the slice, or inlined.
 *
 *     cb_reading r = cb_read_run(p, op, made, taken);
 *     for (uint32_t v; cb_read_next(&r, &v);) if (v != CB_NONE) ... */
typedef struct cb_reading {
    const cb_problem *p;
    uint32_t op;   /* the op that runs */
    uint32_t from; /* the op of the current list: this op, or the op of an inlined value */
    uint32_t j;    /* next entry of that list */
    uint32_t at;   /* index of the next inlining among the op's */
    uint64_t taken;
    cb_slice slice; /* slice of `from` */
} cb_reading;
cb_reading cb_read_run(const cb_problem *p, uint32_t op, uint32_t made, uint64_t taken);
bool cb_read_next(cb_reading *r, uint32_t *value);
/* Returns the number of entries that an iteration returns. */
uint32_t cb_count_reads(const cb_problem *p, uint32_t op, uint64_t taken);

/* Sorts the `n` inlinings of a problem that is being filled, and finds where each op's begin. */
CB_MUST_CHECK cb_status cb_inlinings_index(cb_problem *p, uint32_t n, cb_error *err);
/* Checks all inlinings; `root` [n_storage] is the op that allocates each storage. */
CB_MUST_CHECK cb_status cb_verify_inlinings(const cb_problem *p, const uint32_t *root,
                                            cb_error *err);

#endif
