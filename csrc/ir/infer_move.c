/* Shape rules: views and data movement. A view defines which elements of the input's storage it
   shows. */
#include <inttypes.h>

#include "../base/alloc.h"
#include "infer_rules.h"

/* ---- views ----------------------------------------------------------------------------------- */

/* Makes output 0 start where the input does; the caller adjusts it. */
static cb_value *view_of(cb_infer *x, const cb_shape *shape) {
    cb_infer_set(x, 0, x->in[0]->dtype, shape);
    x->out[0].offset = x->in[0]->offset;
    return &x->out[0];
}

cb_status cb_infer_reshape(cb_infer *x, cb_error *err) {
    char from[CB_SHAPE_TEXT], to[CB_SHAPE_TEXT];
    const cb_value *in = x->in[0];
    const cb_shape *shape = &x->attrs->dims;
    CB_TRY(cb_want_dims(x, err));
    if (cb_numel(shape) != cb_numel(&in->shape)) {
        return cb_fail(err, CB_INVALID, "reshape: %s has %" PRId64 " elements, %s has %" PRId64,
                       cb_shape_text(&in->shape, from), cb_numel(&in->shape),
                       cb_shape_text(shape, to), cb_numel(shape));
    }
    cb_value *out = view_of(x, shape);
    if (cb_view_strides(&in->shape, in->stride, shape, out->stride)) return CB_OK;
    return cb_fail(err, CB_INVALID,
                   "reshape: a strided %s cannot be seen as %s; add `contiguous` first",
                   cb_shape_text(&in->shape, from), cb_shape_text(shape, to));
}

cb_status cb_infer_transpose(cb_infer *x, cb_error *err) {
    char text[CB_SHAPE_TEXT], have[CB_SHAPE_TEXT];
    const cb_value *in = x->in[0];
    const cb_shape *axes = &x->attrs->dims;
    unsigned seen = 0;
    bool permutation = axes->rank == in->shape.rank;
    for (int32_t k = 0; permutation && k < axes->rank; k++) {
        int64_t axis = axes->dim[k];
        permutation = axis >= 0 && axis < axes->rank && !(seen >> axis & 1);
        if (permutation) seen |= 1u << axis;
    }
    if (!permutation) {
        cb_shape shown = *axes; /* an absurd rank must not be iterated over */
        if (shown.rank < 0 || shown.rank > CB_MAX_RANK) shown.rank = 0;
        return cb_fail(err, CB_INVALID, "transpose: %s is not a permutation of the axes of %s",
                       cb_shape_text(&shown, text), cb_shape_text(&in->shape, have));
    }
    cb_value *out = view_of(x, axes);
    for (int32_t k = 0; k < axes->rank; k++) {
        out->shape.dim[k] = in->shape.dim[axes->dim[k]];
        out->stride[k] = in->stride[axes->dim[k]];
    }
    return CB_OK;
}

cb_status cb_infer_expand(cb_infer *x, cb_error *err) {
    char from[CB_SHAPE_TEXT], to[CB_SHAPE_TEXT];
    const cb_value *in = x->in[0];
    const cb_shape *shape = &x->attrs->dims;
    CB_TRY(cb_want_dims(x, err));
    int32_t fresh = shape->rank - in->shape.rank;
    bool fits = fresh >= 0;
    cb_value *out = view_of(x, shape);
    for (int32_t k = 0; fits && k < shape->rank; k++) {
        int64_t have = k < fresh ? 1 : in->shape.dim[k - fresh];
        bool repeat = have != shape->dim[k];
        fits = !repeat || have == 1;
        out->stride[k] = k < fresh || repeat ? 0 : in->stride[k - fresh];
    }
    if (fits) return CB_OK;
    return cb_fail(err, CB_INVALID, "expand: cannot broadcast %s to %s",
                   cb_shape_text(&in->shape, from), cb_shape_text(shape, to));
}

cb_status cb_infer_same_view(cb_infer *x, cb_error *err) {
    (void)err;
    const cb_value *in = x->in[0];
    cb_value *out = view_of(x, &in->shape);
    for (int32_t k = 0; k < in->shape.rank; k++) out->stride[k] = in->stride[k];
    return CB_OK;
}

static bool same_type(const cb_value *a, const cb_value *b) {
    return a->dtype == b->dtype && cb_shape_equal(&a->shape, &b->shape);
}

/* Inputs are y, a placeholder for each of n_outs outputs, several x, and as many dx. */
cb_status cb_infer_custom_vjp(cb_infer *x, cb_error *err) {
    const int64_t index = x->attrs->i[0], n_outs = x->attrs->i[1];
    CB_TRY(cb_want_float(x, 0, err));
    if (n_outs < 1 || n_outs > UINT32_MAX || index < 0 || index >= n_outs) {
        return cb_fail(err, CB_INVALID,
                       "custom_vjp: output %" PRId64 " of %" PRId64 "; needs 0 <= index < n_outs",
                       index, n_outs);
    }
    CB_TRY(cb_infer_same_view(x, err));
    if (x->n_ins == 1) return CB_OK; /* autodiff has removed the other inputs */
    const int64_t pairs = (int64_t)x->n_ins - 1 - n_outs;
    if (pairs < 0 || pairs % 2) {
        return cb_fail(err, CB_INVALID,
                       "custom_vjp: %" PRIu32 " inputs; needs y, %" PRId64
                       " placeholders, some x and as many dx",
                       x->n_ins, n_outs);
    }
    if (!same_type(x->in[0], x->in[1 + index]))
        return cb_fail(err, CB_INVALID, "custom_vjp: y and its placeholder differ in type");
    const cb_value *const *of = x->in + 1 + n_outs, *const *dx = of + pairs / 2;
    for (int64_t i = 0; i < pairs / 2; i++) {
        if (same_type(of[i], dx[i]) && cb_dtype_is_float(of[i]->dtype)) continue;
        return cb_fail(
            err, CB_INVALID,
            "custom_vjp: x %" PRId64 " and its gradient must have the same floating type", i);
    }
    return CB_OK;
}

cb_status cb_infer_slice(cb_infer *x, cb_error *err) {
    char text[CB_SHAPE_TEXT];
    const cb_value *in = x->in[0];
    int64_t axis = x->attrs->i[0], start = x->attrs->i[1], stop = x->attrs->i[2],
            step = x->attrs->i[3];
    CB_TRY(cb_want_axis(x, 0, &in->shape, err));
    int64_t n = in->shape.dim[axis];
    if (start < 0 || stop < start || stop > n || step < 1) {
        return cb_fail(err, CB_INVALID,
                       "slice: %" PRId64 ":%" PRId64 ":%" PRId64 " of axis %" PRId64
                       " of %s; needs 0 <= start <= stop <= %" PRId64 " and step >= 1",
                       start, stop, step, axis, cb_shape_text(&in->shape, text), n);
    }
    cb_value *out = view_of(x, &in->shape);
    int64_t count = stop == start ? 0 : (stop - start - 1) / step + 1;
    out->shape.dim[axis] = count;
    for (int32_t k = 0; k < in->shape.rank; k++) out->stride[k] = in->stride[k];
    if (count > 1) out->stride[axis] *= step; /* otherwise `step` may be arbitrarily large */
    if (cb_numel(&out->shape) > 0) out->offset += start * in->stride[axis];
    return CB_OK;
}

/* ---- data movement --------------------------------------------------------------------------- */

/* True if the shapes are equal except along `axis`. */
static bool equal_but(const cb_shape *a, const cb_shape *b, int64_t axis) {
    bool equal = a->rank == b->rank;
    for (int32_t k = 0; equal && k < a->rank; k++) equal = k == axis || a->dim[k] == b->dim[k];
    return equal;
}

cb_status cb_infer_concat(cb_infer *x, cb_error *err) {
    char first[CB_SHAPE_TEXT], other[CB_SHAPE_TEXT];
    cb_shape shape = x->in[0]->shape;
    int64_t axis = x->attrs->i[0];
    CB_TRY(cb_want_axis(x, 0, &shape, err));
    for (uint32_t i = 1; i < x->n_ins; i++) {
        const cb_shape *in = &x->in[i]->shape;
        CB_TRY(cb_want_same_dtype(x, 0, i, err));
        if (!equal_but(&shape, in, axis)) {
            return cb_fail(err, CB_INVALID, "concat: %s and %s differ outside axis %" PRId64,
                           cb_shape_text(&x->in[0]->shape, first), cb_shape_text(in, other), axis);
        }
        /* Dims are at most 2^62, so one sum of two cannot wrap; the limit is checked each time. */
        shape.dim[axis] += in->dim[axis];
        if (shape.dim[axis] > INT64_C(1) << 62) {
            return cb_fail(err, CB_INVALID, "concat: axis %" PRId64 " grows past 2^62 elements",
                           axis);
        }
    }
    cb_infer_set(x, 0, x->in[0]->dtype, &shape);
    return CB_OK;
}

cb_status cb_infer_pad(cb_infer *x, cb_error *err) {
    const int64_t most = INT64_C(1) << 60;
    cb_shape shape = x->in[0]->shape;
    CB_TRY(cb_want_axis(x, 0, &shape, err));
    CB_TRY(cb_want_range(x, 1, "low", 0, most, err));
    CB_TRY(cb_want_range(x, 2, "high", 0, most, err));
    CB_TRY(cb_want_range(x, 3, "interior", 0, most, err));
    int64_t *n = &shape.dim[x->attrs->i[0]], between = 0;
    if (*n > most ||
        (*n > 1 && (!cb_mul_i64(*n - 1, x->attrs->i[3], &between) || between > most))) {
        return cb_fail(err, CB_INVALID, "pad: axis %" PRId64 " grows past 2^60 elements",
                       x->attrs->i[0]);
    }
    *n += x->attrs->i[1] + between + x->attrs->i[2];
    cb_infer_set(x, 0, x->in[0]->dtype, &shape);
    return CB_OK;
}

/* Checks that x (or base) and index have equal shapes except along the axis. */
static cb_status check_index(const cb_infer *x, cb_error *err) {
    char left[CB_SHAPE_TEXT], right[CB_SHAPE_TEXT];
    const cb_shape *a = &x->in[0]->shape, *index = &x->in[1]->shape;
    CB_TRY(cb_want_index(x, 1, err));
    CB_TRY(cb_want_axis(x, 0, a, err));
    if (equal_but(a, index, x->attrs->i[0])) return CB_OK;
    return cb_fail(
        err, CB_INVALID, "%s: %s and index %s differ outside axis %" PRId64 "; slice or expand one",
        cb_infer_name(x), cb_shape_text(a, left), cb_shape_text(index, right), x->attrs->i[0]);
}

cb_status cb_infer_gather(cb_infer *x, cb_error *err) {
    CB_TRY(check_index(x, err));
    cb_infer_set(x, 0, x->in[0]->dtype, &x->in[1]->shape);
    return CB_OK;
}

cb_status cb_infer_scatter_add(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_number(x, 0, err));
    CB_TRY(cb_want_same_dtype(x, 0, 2, err));
    CB_TRY(check_index(x, err));
    CB_TRY(cb_want_same_shape(x, 1, 2, err));
    cb_infer_set(x, 0, x->in[0]->dtype, &x->in[0]->shape);
    return CB_OK;
}

cb_status cb_infer_embedding(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_rank(x, 0, 2, 2, err));
    CB_TRY(cb_want_index(x, 1, err));
    CB_TRY(cb_want_rank(x, 1, 0, CB_MAX_RANK - 1, err));
    cb_shape shape = x->in[1]->shape;
    shape.dim[shape.rank++] = x->in[0]->shape.dim[1];
    cb_infer_set(x, 0, x->in[0]->dtype, &shape);
    return CB_OK;
}

cb_status cb_infer_embedding_bwd(cb_infer *x, cb_error *err) {
    const cb_shape *g = &x->in[0]->shape;
    CB_TRY(cb_want_float(x, 0, err));
    CB_TRY(cb_want_rank(x, 0, 1, CB_MAX_RANK, err));
    CB_TRY(cb_want_index(x, 1, err));
    CB_TRY(cb_want_range(x, 0, "rows", 0, INT64_C(1) << 62, err));
    cb_shape index = *g;
    index.rank--;
    CB_TRY(cb_want_shape(x, 1, &index, err));
    cb_shape shape = {.rank = 2, .dim = {x->attrs->i[0], g->dim[g->rank - 1]}};
    cb_infer_set(x, 0, x->in[0]->dtype, &shape);
    return CB_OK;
}

/* ---- bits ------------------------------------------------------------------------------------ */

static cb_shape bytes_of_bits(const cb_shape *shape) {
    const int64_t n = cb_numel(shape);
    return (cb_shape){.rank = 1, .dim = {n / 8 + (n % 8 != 0)}};
}

cb_status cb_infer_pack_bits(cb_infer *x, cb_error *err) {
    const cb_dtype dtype = x->in[0]->dtype;
    if (dtype != CB_BOOL && !cb_dtype_is_float(dtype)) {
        return cb_fail(err, CB_TYPE, "pack_bits: input 0 must be bool or float, not %s; cast it",
                       cb_dtype_name(dtype));
    }
    const cb_shape packed = bytes_of_bits(&x->in[0]->shape);
    cb_infer_set(x, 0, CB_U8, &packed);
    return CB_OK;
}

cb_status cb_infer_unpack_bits(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_dtype(x, 0, CB_U8, err));
    CB_TRY(cb_want_dims(x, err));
    const cb_shape packed = bytes_of_bits(&x->attrs->dims);
    CB_TRY(cb_want_shape(x, 0, &packed, err));
    cb_infer_set(x, 0, CB_BOOL, &x->attrs->dims);
    return CB_OK;
}

/* ---- indices --------------------------------------------------------------------------------- */

/* Checks the attributes of a packed index, whose indices have this shape. */
static cb_status check_packed_index(const cb_infer *x, const cb_shape *shape, cb_error *err) {
    static const char *const names[] = {"kernel_h", "kernel_w", "stride_h", "stride_w",
                                        "pad_h",    "pad_w",    "plane_w",  "limit"};
    const int64_t *a = x->attrs->i;
    CB_TRY(cb_want_range(x, 7, names[7], 1, INT64_C(1) << 32, err));
    if (cb_numel(shape) > INT64_C(1) << 60)
        return cb_fail(err, CB_INVALID, "%s: too many indices", cb_infer_name(x));
    CB_TRY(cb_want_range(x, 0, names[0], 0, CB_ATTR_MAX, err));
    if (a[0] == 0) return CB_OK;
    for (int k = 1; k < 4; k++) CB_TRY(cb_want_range(x, k, names[k], 1, CB_ATTR_MAX, err));
    for (int k = 4; k < 6; k++) CB_TRY(cb_want_range(x, k, names[k], 0, a[k - 4] / 2, err));
    CB_TRY(cb_want_range(x, 6, names[6], 1, a[7], err));
    if (shape->rank == 4) return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: indices of windows have 4 axes, not %d", cb_infer_name(x),
                   (int)shape->rank);
}

static cb_shape bytes_of_indices(const cb_infer *x, const cb_shape *shape) {
    return (cb_shape){.rank = 1, .dim = {cb_numel(shape) * cb_packed_index_bytes(x->attrs)}};
}

cb_status cb_infer_pack_index(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_index(x, 0, err));
    CB_TRY(check_packed_index(x, &x->in[0]->shape, err));
    const cb_shape packed = bytes_of_indices(x, &x->in[0]->shape);
    cb_infer_set(x, 0, CB_U8, &packed);
    return CB_OK;
}

cb_status cb_infer_unpack_index(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_dtype(x, 0, CB_U8, err));
    CB_TRY(cb_want_dims(x, err));
    CB_TRY(check_packed_index(x, &x->attrs->dims, err));
    const cb_shape packed = bytes_of_indices(x, &x->attrs->dims);
    CB_TRY(cb_want_shape(x, 0, &packed, err));
    if (x->attrs->dtype != CB_I32 && x->attrs->dtype != CB_I64) {
        return cb_fail(err, CB_TYPE, "unpack_index: dtype must be i32 or i64, not %s",
                       cb_dtype_name(x->attrs->dtype));
    }
    cb_infer_set(x, 0, x->attrs->dtype, &x->attrs->dims);
    return CB_OK;
}
