/* builder.h: the convenient way to add ops: NumPy broadcasting (explicit `expand` views),
 * contiguous copies where an op needs them, reshapes that fall back to a copy, and matmul's 1-D and
 * batch rules. */
#ifndef CB_IR_BUILDER_H
#define CB_IR_BUILDER_H

#include "graph.h"

/* Adds any op; `outs` has room for the op's outputs. Dtypes must already agree, because promotion
 * is up to the caller. */
CB_MUST_CHECK cb_status cb_build(cb_graph *g, cb_opcode code, uint32_t n_ins,
                                 const cb_value_id *ins, const cb_attrs *attrs, cb_value_id *outs,
                                 cb_error *err);

/* Build ops of one or two inputs that have one output. */
CB_MUST_CHECK cb_status cb_build1(cb_graph *g, cb_opcode code, cb_value_id x, cb_value_id *out,
                                  cb_error *err);
CB_MUST_CHECK cb_status cb_build2(cb_graph *g, cb_opcode code, cb_value_id x, cb_value_id y,
                                  cb_value_id *out, cb_error *err);
/* Builds a scalar and an expand view of it. */
CB_MUST_CHECK cb_status cb_build_full(cb_graph *g, const cb_shape *shape, cb_dtype dtype,
                                      double value, cb_value_id *out, cb_error *err);
/* These four return x itself if nothing changes. One dim of a reshape may be -1. */
CB_MUST_CHECK cb_status cb_build_cast(cb_graph *g, cb_value_id x, cb_dtype dtype, cb_value_id *out,
                                      cb_error *err);
CB_MUST_CHECK cb_status cb_build_contiguous(cb_graph *g, cb_value_id x, cb_value_id *out,
                                            cb_error *err);
CB_MUST_CHECK cb_status cb_build_reshape(cb_graph *g, cb_value_id x, const cb_shape *shape,
                                         cb_value_id *out, cb_error *err);
CB_MUST_CHECK cb_status cb_build_expand(cb_graph *g, cb_value_id x, const cb_shape *shape,
                                        cb_value_id *out, cb_error *err);
/* `axes` has one entry for each axis of x; negative ones count from the end. */
CB_MUST_CHECK cb_status cb_build_transpose(cb_graph *g, cb_value_id x, const int64_t *axes,
                                           cb_value_id *out, cb_error *err);
CB_MUST_CHECK cb_status cb_build_swap_last(cb_graph *g, cb_value_id x, cb_value_id *out,
                                           cb_error *err);
/* If n_axes is 0, sums over all axes. */
CB_MUST_CHECK cb_status cb_build_sum(cb_graph *g, cb_value_id x, int32_t n_axes,
                                     const int64_t *axes, bool keepdims, cb_value_id *out,
                                     cb_error *err);
/* Sums over the axes that broadcasting added, so that the result has `shape`: the gradient of
 * `expand`. */
CB_MUST_CHECK cb_status cb_build_sum_to(cb_graph *g, cb_value_id x, const cb_shape *shape,
                                        cb_value_id *out, cb_error *err);
/* Builds NumPy's matmul, with 1-D operands and broadcast batches; x[..,k] @ w[k,m] becomes one
 * large 2-D product. */
CB_MUST_CHECK cb_status cb_build_matmul(cb_graph *g, cb_value_id x, cb_value_id y, cb_value_id *out,
                                        cb_error *err);

#endif
