/* inlining.h: values that a run takes in. Internal.
 *
 * A value that is to be made again may be made inside the run that reads it: it then has no bytes,
 * and what it is made from is read by that run. The problem lists which ops may take in which
 * values, and what each adds to the time and to the scratch of a run; both add up, so that any of
 * an op's inlinings go together.
 *
 *     x --> v = cast(x) --> g = f(v)      g with v taken in reads x, and v has no bytes
 *
 * What a run takes in is a set, a bit each by their place among the op's inlinings, which rise by
 * value: an op reads, directly or through others taken in, what stands before it. */
#ifndef CB_PLAN_INLINING_H
#define CB_PLAN_INLINING_H

#include "inside.h"

#define CB_MOST_INLININGS 64 /* of one op */

/* The place of the inlining of `value` into `op` among all; CB_NONE: there is none. */
uint32_t cb_find_inlining(const cb_problem *p, uint32_t op, uint32_t value);
/* The same among the op's, as a set; 0: there is none. */
static inline uint64_t cb_inlining_bit(const cb_problem *p, uint32_t op, uint32_t value) {
    uint32_t at = cb_find_inlining(p, op, value);
    return at == CB_NONE ? 0 : UINT64_C(1) << (at - p->inline_begin[op]);
}
/* The outputs of its op that a value is. */
static inline uint32_t cb_made_value(const cb_problem *p, uint32_t value) {
    uint32_t op = p->value_op[value];
    return cb_has_inside(p, op) ? UINT32_C(1) << (value - p->out_begin[op]) : CB_ALL_OUTPUTS;
}
/* Of `taken` those that a run of the op that makes these outputs reads, directly or through others
 * of them. */
uint64_t cb_taken_read(const cb_problem *p, uint32_t op, uint32_t made, uint64_t taken);
/* Scratch of all that a run takes in. */
uint64_t cb_taken_workspace(const cb_problem *p, uint32_t op, uint64_t taken);

/* What a run reads: inputs of the op, then those of each value that it takes in, by place. All
 * entries of those lists come up, so that they can be counted; `value` is CB_NONE for those that
 * are not read: beyond a slice, or taken in.
 *
 *     cb_reading r = cb_read_run(p, op, made, taken);
 *     for (uint32_t v; cb_read_next(&r, &v);) if (v != CB_NONE) ... */
typedef struct cb_reading {
    const cb_problem *p;
    uint32_t op;   /* that runs */
    uint32_t from; /* whose list it is: the same, or of a value taken in */
    uint32_t j;    /* next entry of that list */
    uint32_t at;   /* next inlining, by its place among the op's */
    uint64_t taken;
    cb_slice slice; /* of `from` */
} cb_reading;
cb_reading cb_read_run(const cb_problem *p, uint32_t op, uint32_t made, uint64_t taken);
bool cb_read_next(cb_reading *r, uint32_t *value);
/* How many entries that is. */
uint32_t cb_count_reads(const cb_problem *p, uint32_t op, uint64_t taken);

/* Sorts the `n` inlinings of a problem that is being filled, and finds where each op's begin. */
CB_MUST_CHECK cb_status cb_inlinings_index(cb_problem *p, uint32_t n, cb_error *err);
/* The rules for all of them; `root` [n_storage] says which op allocates each storage. */
CB_MUST_CHECK cb_status cb_verify_inlinings(const cb_problem *p, const uint32_t *root,
                                            cb_error *err);

#endif
