#include "infer_checks.h"

#include <inttypes.h>
#include <math.h>

cb_status cb_want_float(const cb_infer *x, uint32_t input, cb_error *err) {
    cb_dtype dtype = x->in[input]->dtype;
    if (cb_dtype_is_float(dtype)) return CB_OK;
    return cb_fail(err, CB_TYPE, "%s: needs a float dtype, input %" PRIu32 " is %s; cast it",
                   cb_infer_name(x), input, cb_dtype_name(dtype));
}

cb_status cb_want_number(const cb_infer *x, uint32_t input, cb_error *err) {
    if (x->in[input]->dtype != CB_BOOL) return CB_OK;
    return cb_fail(err, CB_TYPE, "%s: input %" PRIu32 " is bool, which has no arithmetic; cast it",
                   cb_infer_name(x), input);
}

cb_status cb_want_index(const cb_infer *x, uint32_t input, cb_error *err) {
    cb_dtype dtype = x->in[input]->dtype;
    if (dtype == CB_I32 || dtype == CB_I64) return CB_OK;
    return cb_fail(err, CB_TYPE,
                   "%s: indices (input %" PRIu32 ") must be i32 or i64, not %s; cast them",
                   cb_infer_name(x), input, cb_dtype_name(dtype));
}

cb_status cb_want_dtype(const cb_infer *x, uint32_t input, cb_dtype dtype, cb_error *err) {
    if (x->in[input]->dtype == dtype) return CB_OK;
    return cb_fail(err, CB_TYPE, "%s: input %" PRIu32 " must be %s, not %s; cast it",
                   cb_infer_name(x), input, cb_dtype_name(dtype),
                   cb_dtype_name(x->in[input]->dtype));
}

cb_status cb_want_same_dtype(const cb_infer *x, uint32_t a, uint32_t b, cb_error *err) {
    if (x->in[a]->dtype == x->in[b]->dtype) return CB_OK;
    return cb_fail(err, CB_TYPE, "%s: dtypes differ: %s and %s; cast one", cb_infer_name(x),
                   cb_dtype_name(x->in[a]->dtype), cb_dtype_name(x->in[b]->dtype));
}

cb_status cb_want_same_shape(const cb_infer *x, uint32_t a, uint32_t b, cb_error *err) {
    char left[CB_SHAPE_TEXT], right[CB_SHAPE_TEXT];
    if (cb_shape_equal(&x->in[a]->shape, &x->in[b]->shape)) return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: shapes differ: %s and %s", cb_infer_name(x),
                   cb_shape_text(&x->in[a]->shape, left), cb_shape_text(&x->in[b]->shape, right));
}

cb_status cb_want_shape(const cb_infer *x, uint32_t input, const cb_shape *shape, cb_error *err) {
    char have[CB_SHAPE_TEXT], want[CB_SHAPE_TEXT];
    if (cb_shape_equal(&x->in[input]->shape, shape)) return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: input %" PRIu32 " has shape %s, must have %s",
                   cb_infer_name(x), input, cb_shape_text(&x->in[input]->shape, have),
                   cb_shape_text(shape, want));
}

cb_status cb_want_rank(const cb_infer *x, uint32_t input, int32_t least, int32_t most,
                       cb_error *err) {
    char text[CB_SHAPE_TEXT];
    const cb_shape *s = &x->in[input]->shape;
    if (s->rank >= least && s->rank <= most) return CB_OK;
    if (least == most) {
        return cb_fail(err, CB_INVALID, "%s: input %" PRIu32 " must have %d axes, shape %s has %d",
                       cb_infer_name(x), input, (int)least, cb_shape_text(s, text), (int)s->rank);
    }
    return cb_fail(
        err, CB_INVALID, "%s: input %" PRIu32 " must have %d to %d axes, shape %s has %d",
        cb_infer_name(x), input, (int)least, (int)most, cb_shape_text(s, text), (int)s->rank);
}

cb_status cb_want_range(const cb_infer *x, int slot, const char *what, int64_t low, int64_t high,
                        cb_error *err) {
    int64_t value = x->attrs->i[slot];
    if (value >= low && value <= high) return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: %s is %" PRId64 ", must be in %" PRId64 "..%" PRId64,
                   cb_infer_name(x), what, value, low, high);
}

cb_status cb_want_axis(const cb_infer *x, int slot, const cb_shape *shape, cb_error *err) {
    char text[CB_SHAPE_TEXT];
    int64_t axis = x->attrs->i[slot];
    if (axis >= 0 && axis < shape->rank) return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: shape %s has no axis %" PRId64, cb_infer_name(x),
                   cb_shape_text(shape, text), axis);
}

cb_status cb_want_stream(const cb_infer *x, cb_error *err) {
    return cb_want_range(x, 0, "stream", 0, UINT32_MAX, err);
}

cb_status cb_want_eps(const cb_infer *x, cb_error *err) {
    double eps = x->attrs->f[0];
    if (isfinite(eps) && eps >= 0) return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: eps is %g, must be finite and not negative",
                   cb_infer_name(x), eps);
}

cb_status cb_want_dims(const cb_infer *x, cb_error *err) {
    cb_error why = {0};
    int64_t numel;
    cb_status status = cb_shape_numel(&x->attrs->dims, &numel, &why);
    if (status == CB_OK) return CB_OK;
    return cb_fail(err, status, "%s: %s", cb_infer_name(x), why.text);
}
