/* infer_checks.h: the input and output of shape rules, and their shared checks. */
#ifndef CB_IR_INFER_CHECKS_H
#define CB_IR_INFER_CHECKS_H

#include "value.h"

#define CB_MAX_OUTS 4

/* The input and output of a rule. Rules write dtype, shape, and for views also stride and
 * offset. */
typedef struct cb_infer {
    cb_opcode code;
    const cb_attrs *attrs;
    uint32_t n_ins;
    const cb_value *const *in; /* [n_ins] */
    cb_value out[CB_MAX_OUTS];
} cb_infer;

/* Scalar attributes stay below this, so that sums and products with them are easy to bound. */
#define CB_ATTR_MAX INT32_MAX

static inline const char *cb_infer_name(const cb_infer *x) { return cb_op_def_of(x->code)->name; }

static inline void cb_infer_set(cb_infer *x, int out, cb_dtype dtype, const cb_shape *shape) {
    x->out[out].dtype = dtype;
    x->out[out].shape = *shape;
}

/* Returns the dtype of statistics of a value of this dtype. */
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
/* Checks that attribute i[slot] is in low..high; `what` names it. */
CB_MUST_CHECK cb_status cb_want_range(const cb_infer *x, int slot, const char *what, int64_t low,
                                      int64_t high, cb_error *err);
CB_MUST_CHECK cb_status cb_want_axis(const cb_infer *x, int slot, const cb_shape *shape,
                                     cb_error *err);
CB_MUST_CHECK cb_status cb_want_stream(const cb_infer *x,
                                       cb_error *err); /* checks i0, the number of a random
                                                          stream */
CB_MUST_CHECK cb_status cb_want_eps(const cb_infer *x, cb_error *err); /* f0 */
/* Checks that the attribute `dims` is a shape. */
CB_MUST_CHECK cb_status cb_want_dims(const cb_infer *x, cb_error *err);

#endif
