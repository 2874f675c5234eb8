/* backward.h: the walk from gradients of results to gradients of earlier values of a graph.
 *
 *     cb_backward b = {.g = g, .starts = (cb_op_id)g->ops.len};
 *     cb_arena_init(&b.scratch, alloc);
 *     ... cb_backward_cover, then b.active.at[x] = 1 for wanted values, cb_backward_add for results
 *     cb_backward_walk(&b, err);
 *     ... b.grad.at[x] */
#ifndef CB_AD_BACKWARD_H
#define CB_AD_BACKWARD_H

#include "slices.h"

typedef struct cb_backward {
    cb_graph *g;
    cb_arena scratch;
    CB_VEC(cb_value_id) grad;      /* [value] its gradient so far; CB_NONE: none */
    CB_VEC(uint8_t) active;        /* [value] 1 if its gradient may be needed */
    cb_slices slices;              /* gradients of slices that have not been added yet */
    cb_op_id starts;               /* ops before this one are differentiated */
    bool accumulates;              /* products are added in place to gradients that are products */
    cb_op_id rule_starts;          /* ops of the current rule start here */
    cb_op_id seen_begin, seen_end; /* the walk records the ops that it appends for ops in this
                                      range: */
    cb_op_id made_begin, made_end;
} cb_backward;

/* Extends `grad` and `active` to all values of the graph. */
CB_MUST_CHECK cb_status cb_backward_cover(cb_backward *b, cb_error *err);
/* Adds `gradient` to the gradient of `value`, which must have the same dtype and shape. */
CB_MUST_CHECK cb_status cb_backward_add(cb_backward *b, cb_value_id value, cb_value_id gradient,
                                        cb_error *err);
/* Differentiates the ops before `starts`, last op first. Wanted values are active already. */
CB_MUST_CHECK cb_status cb_backward_walk(cb_backward *b, cb_error *err);

#endif
