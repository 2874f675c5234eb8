/* fuses.h: determines which ops run in groups of several, and why a group ends. */
#ifndef CB_FUSE_FUSES_H
#define CB_FUSE_FUSES_H

#include "domain.h"

/* Tells whether a backend can run an op as this part of a group of several instructions over
 * `domain`. */
typedef bool (*cb_fuses_fn)(cb_opcode code, cb_part part, const cb_domain *domain,
                            const cb_dtype *in, uint32_t n_in, const cb_dtype *out, uint32_t n_out);

#define CB_PART_OPERANDS 8 /* no op with more inputs and outputs has a part */

/* True if the backend runs the op and it computes in one width of floats. `dtype` has the dtypes of
 * inputs, then of outputs; it is not used if there are too many. */
bool cb_part_fuses(cb_fuses_fn fuses, cb_opcode code, cb_part part, const cb_domain *domain,
                   const cb_dtype *dtype, uint32_t n_in, uint32_t n_out);

/* The cb_fuses_fn of backends that run the executor's microcode. They fuse pointwise ops,
 * reductions and row-wise ops on floats, also with bools (comparisons and selections) and with
 * integer indices. Fused and unfused execution give bitwise identical results. */
bool cb_kernels_fuse(cb_opcode code, cb_part part, const cb_domain *domain, const cb_dtype *in,
                     uint32_t n_in, const cb_dtype *out, uint32_t n_out);

/* The reason why a group ends: why the first step passed over after the last member did not join.
 */
typedef enum cb_group_end {
    CB_END_NONE = 0, /* not known */
    CB_END_PROGRAM,  /* no step was left */
    CB_END_BACKEND,  /* this backend runs each op separately */
    CB_END_OP,       /* the step does not fuse */
    CB_END_DOMAIN,   /* it runs over another domain */
    CB_END_CUT,      /* its rows would cut a unit that is summed or drawn at a time */
    CB_END_DTYPE,    /* it computes in f64 and the group in narrower floats, or the reverse */
    CB_END_READ,     /* it reads a value of the group in another order, or before it is complete */
    CB_END_WAIT,     /* it reads an output of a step that was passed over */
    CB_END_ROOM,     /* merging would exceed the planned memory */
    CB_END_LIMIT,    /* the group has the maximum number of steps */
    CB_END_PLAN      /* the plan ends it here */
} cb_group_end;

#endif
