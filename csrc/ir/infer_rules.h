/* infer_rules.h: what shape rules share. Included by infer*.c alone.
 *
 * A rule checks dtypes, shapes and attributes and fills dtype and shape of each output. Fresh
 * outputs are row-major; a view writes stride and offset itself. Errors start with the op's name.
 */
#ifndef CB_IR_INFER_RULES_H
#define CB_IR_INFER_RULES_H

#include "infer.h"

/* One declaration a row; rows that share a rule repeat it, which C allows. */
#define CB_OP(id, name, min_ins, max_ins, n_outs, flags, infer, vjp, attrs, doc) \
    cb_status cb_infer_##infer(cb_infer *x, cb_error *err);
#include "ops.def"
#undef CB_OP

/* Scalar attributes stay below this, so that sums and products with them are easy to bound. */
#define CB_ATTR_MAX INT32_MAX

static inline const char *cb_infer_name(const cb_infer *x) { return cb_op_def_of(x->code)->name; }

static inline void cb_infer_set(cb_infer *x, int out, cb_dtype dtype, const cb_shape *shape) {
    x->out[out].dtype = dtype;
    x->out[out].shape = *shape;
}

/* What statistics of a value of this dtype are kept in. */
static inline cb_dtype cb_stat_dtype(cb_dtype dtype) { return dtype == CB_F64 ? CB_F64 : CB_F32; }

CB_MUST_CHECK cb_status cb_want_float(const cb_infer *x, uint32_t input, cb_error *err);
CB_MUST_CHECK cb_status cb_want_number(const cb_infer *x, uint32_t input,
                                       cb_error *err); /* not bool */
CB_MUST_CHECK cb_status cb_want_index(const cb_infer *x, uint32_t input,
                                      cb_error *err); /* i32 or i64 */
CB_MUST_CHECK cb_status cb_want_dtype(const cb_infer *x, uint32_t input, cb_dtype dtype,
                                      cb_error *err);
CB_MUST_CHECK cb_status cb_want_same_dtype(const cb_infer *x, uint32_t a, uint32_t b,
                                           cb_error *err);
CB_MUST_CHECK cb_status cb_want_same_shape(const cb_infer *x, uint32_t a, uint32_t b,
                                           cb_error *err);
CB_MUST_CHECK cb_status cb_want_shape(const cb_infer *x, uint32_t input, const cb_shape *shape,
                                      cb_error *err);
CB_MUST_CHECK cb_status cb_want_rank(const cb_infer *x, uint32_t input, int32_t least, int32_t most,
                                     cb_error *err);
/* Attribute i[slot] is in low..high; `what` names it. */
CB_MUST_CHECK cb_status cb_want_range(const cb_infer *x, int slot, const char *what, int64_t low,
                                      int64_t high, cb_error *err);
CB_MUST_CHECK cb_status cb_want_axis(const cb_infer *x, int slot, const cb_shape *shape,
                                     cb_error *err);
CB_MUST_CHECK cb_status cb_want_stream(const cb_infer *x,
                                       cb_error *err); /* i0: number of a random stream */
CB_MUST_CHECK cb_status cb_want_eps(const cb_infer *x, cb_error *err); /* f0 */
/* The attribute `dims` is a shape. */
CB_MUST_CHECK cb_status cb_want_dims(const cb_infer *x, cb_error *err);

#endif
