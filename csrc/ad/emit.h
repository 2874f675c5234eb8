/* emit.h: gradient formulas as expressions over values of a graph.
 *
 *     cb_emit e = {.graph = g, .err = err};
 *     cb_value_id dx = cb_emit2(&e, CB_OP_MUL, dy, cb_emit1(&e, CB_OP_COS, x));
 *     if (e.status != CB_OK) return e.status;
 *
 * After the first failure, later calls do nothing and return CB_NONE, so a formula is checked once,
 * at its end. Every call appends ordinary ops through ir/builder.h. The operands of a call must
 * have equal shapes and dtypes. */
#ifndef CB_AD_EMIT_H
#define CB_AD_EMIT_H

#include "../ir/builder.h"

typedef struct cb_emit {
    cb_graph *graph;
    cb_error *err;
    cb_status status;
} cb_emit;

/* Emits any op. `outs` receives its outputs, which are all CB_NONE after a failure. */
void cb_emit_op(cb_emit *e, cb_opcode code, uint32_t n_ins, const cb_value_id *ins,
                const cb_attrs *attrs, cb_value_id *outs);
cb_value_id cb_emit1(cb_emit *e, cb_opcode code, cb_value_id x);
cb_value_id cb_emit2(cb_emit *e, cb_opcode code, cb_value_id x, cb_value_id y);
cb_value_id cb_emit1_with(cb_emit *e, cb_opcode code, cb_value_id x, const cb_attrs *attrs);
cb_value_id cb_emit2_with(cb_emit *e, cb_opcode code, cb_value_id x, cb_value_id y,
                          const cb_attrs *attrs);
cb_value_id cb_emit_where(cb_emit *e, cb_value_id condition, cb_value_id x, cb_value_id y);

/* A constant: full_like is a view of one scalar, full allocates the whole tensor. */
cb_value_id cb_emit_full_like(cb_emit *e, cb_value_id like, double value);
cb_value_id cb_emit_full(cb_emit *e, const cb_shape *shape, cb_dtype dtype, double value);
cb_value_id cb_emit_scale(cb_emit *e, cb_value_id x, double factor); /* x * factor */
cb_value_id cb_emit_shift(cb_emit *e, cb_value_id x, double term);   /* x + term */

cb_value_id cb_emit_cast(cb_emit *e, cb_value_id x, cb_dtype dtype);
cb_value_id cb_emit_reshape(cb_emit *e, cb_value_id x, const cb_shape *shape);
cb_value_id cb_emit_expand(cb_emit *e, cb_value_id x, const cb_shape *shape);
cb_value_id cb_emit_transpose(cb_emit *e, cb_value_id x, const int64_t *axes);
cb_value_id cb_emit_swap_last(cb_emit *e, cb_value_id x);
cb_value_id cb_emit_sum_to(cb_emit *e, cb_value_id x, const cb_shape *shape);
/* Broadcasts a row statistic x[..] over its rows: reshaped to [.., 1], expanded to `shape`. */
cb_value_id cb_emit_spread_last(cb_emit *e, cb_value_id x, const cb_shape *shape);

#endif
