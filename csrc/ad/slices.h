/* slices.h: gradients of values that are read in slices. The gradient of one slice is padded with
 * zeros to the size of the value. Gradients of slices that do not overlap are concatenated instead:
 * adding n padded ones would take n times the size of the value. */
#ifndef CB_AD_SLICES_H
#define CB_AD_SLICES_H

#include "../base/vec.h"
#include "emit.h"

typedef struct cb_slice_gradient {
    cb_value_id of; /* the value that is sliced; CB_NONE: taken */
    int64_t axis, start, stop;
    cb_value_id gradient; /* gradient of the slice */
    uint32_t next;        /* the next slice of the same value, or CB_NONE */
} cb_slice_gradient;

typedef struct cb_slices {
    CB_VEC(cb_slice_gradient) known;
    CB_VEC(uint32_t) first; /* [value] the slice added last, or CB_NONE */
} cb_slices;

/* Stores the gradient of value[start:stop] along an axis. */
CB_MUST_CHECK cb_status cb_slices_add(cb_slices *s, cb_arena *memory, cb_slice_gradient part,
                                      cb_error *err);
/* Emits the gradient of `value` from some of its stored slices, and removes those. `out` gets
 * CB_NONE if no slice is left. */
CB_MUST_CHECK cb_status cb_slices_take(cb_slices *s, cb_arena *memory, cb_graph *g,
                                       cb_value_id value, cb_value_id *out, cb_error *err);

#endif
