/* emit.c: wraps the functions of ir/builder.h with one sticky status.
 *
 * After a failure `status` keeps the error and later calls append nothing. So a formula of ten ops
 * needs one check instead of ten. */
#include "emit.h"

/* Runs a builder call unless the formula has already failed; on failure the result is CB_NONE. */
#define EMIT(call)                                  \
    do {                                            \
        cb_value_id out = CB_NONE;                  \
        if (e->status == CB_OK) e->status = (call); \
        return e->status == CB_OK ? out : CB_NONE;  \
    } while (0)

void cb_emit_op(cb_emit *e, cb_opcode code, uint32_t n_ins, const cb_value_id *ins,
                const cb_attrs *attrs, cb_value_id *outs) {
    if (e->status == CB_OK) e->status = cb_build(e->graph, code, n_ins, ins, attrs, outs, e->err);
    if (e->status == CB_OK) return;
    for (int i = 0; i < cb_op_def_of(code)->n_outs; i++) outs[i] = CB_NONE;
}

cb_value_id cb_emit1(cb_emit *e, cb_opcode code, cb_value_id x) {
    EMIT(cb_build1(e->graph, code, x, &out, e->err));
}

cb_value_id cb_emit2(cb_emit *e, cb_opcode code, cb_value_id x, cb_value_id y) {
    EMIT(cb_build2(e->graph, code, x, y, &out, e->err));
}

cb_value_id cb_emit1_with(cb_emit *e, cb_opcode code, cb_value_id x, const cb_attrs *attrs) {
    EMIT(cb_build(e->graph, code, 1, &x, attrs, &out, e->err));
}

cb_value_id cb_emit2_with(cb_emit *e, cb_opcode code, cb_value_id x, cb_value_id y,
                          const cb_attrs *attrs) {
    const cb_value_id ins[] = {x, y};
    EMIT(cb_build(e->graph, code, 2, ins, attrs, &out, e->err));
}

cb_value_id cb_emit_where(cb_emit *e, cb_value_id condition, cb_value_id x, cb_value_id y) {
    const cb_value_id ins[] = {condition, x, y};
    EMIT(cb_build(e->graph, CB_OP_WHERE, 3, ins, NULL, &out, e->err));
}

cb_value_id cb_emit_full_like(cb_emit *e, cb_value_id like, double value) {
    if (e->status != CB_OK) return CB_NONE;
    const cb_value v = e->graph->values.at[like];
    EMIT(cb_build_full(e->graph, &v.shape, v.dtype, value, &out, e->err));
}

cb_value_id cb_emit_full(cb_emit *e, const cb_shape *shape, cb_dtype dtype, double value) {
    const cb_attrs attrs = {.f = {value}, .dims = *shape, .dtype = dtype};
    EMIT(cb_build(e->graph, CB_OP_FULL, 0, NULL, &attrs, &out, e->err));
}

cb_value_id cb_emit_scale(cb_emit *e, cb_value_id x, double factor) {
    return cb_emit2(e, CB_OP_MUL, x, cb_emit_full_like(e, x, factor));
}

cb_value_id cb_emit_shift(cb_emit *e, cb_value_id x, double term) {
    return cb_emit2(e, CB_OP_ADD, x, cb_emit_full_like(e, x, term));
}

cb_value_id cb_emit_cast(cb_emit *e, cb_value_id x, cb_dtype dtype) {
    EMIT(cb_build_cast(e->graph, x, dtype, &out, e->err));
}

cb_value_id cb_emit_reshape(cb_emit *e, cb_value_id x, const cb_shape *shape) {
    EMIT(cb_build_reshape(e->graph, x, shape, &out, e->err));
}

cb_value_id cb_emit_expand(cb_emit *e, cb_value_id x, const cb_shape *shape) {
    EMIT(cb_build_expand(e->graph, x, shape, &out, e->err));
}

cb_value_id cb_emit_transpose(cb_emit *e, cb_value_id x, const int64_t *axes) {
    EMIT(cb_build_transpose(e->graph, x, axes, &out, e->err));
}

cb_value_id cb_emit_swap_last(cb_emit *e, cb_value_id x) {
    EMIT(cb_build_swap_last(e->graph, x, &out, e->err));
}

cb_value_id cb_emit_sum_to(cb_emit *e, cb_value_id x, const cb_shape *shape) {
    EMIT(cb_build_sum_to(e->graph, x, shape, &out, e->err));
}

cb_value_id cb_emit_spread_last(cb_emit *e, cb_value_id x, const cb_shape *shape) {
    cb_shape column = *shape;
    column.dim[column.rank - 1] = 1;
    return cb_emit_expand(e, cb_emit_reshape(e, x, &column), shape);
}
