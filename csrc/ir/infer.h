/* infer.h: shape rules. One function a rule of ops.def; used by cb_graph_append alone. */
#ifndef CB_IR_INFER_H
#define CB_IR_INFER_H

#include "graph.h"

#define CB_MAX_OUTS 4

/* What a rule sees and fills. Rules write dtype, shape, and for views also stride and offset. */
typedef struct cb_infer {
    cb_opcode code;
    const cb_attrs *attrs;
    uint32_t n_ins;
    const cb_value *const *in; /* [n_ins] */
    cb_value out[CB_MAX_OUTS];
} cb_infer;

CB_MUST_CHECK cb_status cb_infer_outputs(cb_infer *x, cb_error *err);

/* What CB_OPF_MATRIX asks of inputs: the last two axes are row-major (stride 1 and at least a row)
 * or column-major. Other axes may have any stride; dims of size 1 are free; empty is fine. */
bool cb_is_matrix(const cb_shape *shape, const int64_t *stride);

#endif
