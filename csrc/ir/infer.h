/* infer.h: infers the outputs of an op with its rule from ops.def (infer_rules.h). Used by
 * cb_graph_append and by code that needs the result earlier.
 *
 * value <- infer_checks <- infer_move, infer_nn, infer_pointwise <- infer <- graph */
#ifndef CB_IR_INFER_H
#define CB_IR_INFER_H

#include "infer_checks.h"

CB_MUST_CHECK cb_status cb_infer_outputs(cb_infer *x, cb_error *err);

/* The requirement of CB_OPF_MATRIX on inputs: the last two axes are row-major (stride 1 and at
 * least a row) or column-major. Other axes, and axes of size 1, may have any stride. Empty shapes
 * always qualify. */
bool cb_is_matrix(const cb_shape *shape, const int64_t *stride);

#endif
