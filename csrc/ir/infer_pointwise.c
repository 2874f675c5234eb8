/* Shape rules: sources, pointwise ops, reductions. */
#include <inttypes.h>
#include <math.h>

#include "infer_rules.h"

cb_status cb_infer_source(cb_infer *x, cb_error *err) {
    const cb_attrs *a = x->attrs;
    if ((int)a->dtype < 0 || a->dtype >= CB_DTYPE_COUNT) {
        return cb_fail(err, CB_TYPE, "%s: unknown element type %d", cb_infer_name(x),
                       (int)a->dtype);
    }
    CB_TRY(cb_want_dims(x, err));
    switch (x->code) {
        case CB_OP_INPUT:
            CB_TRY(cb_want_range(x, 0, "role", CB_ROLE_DATA, CB_ROLE_STATE, err));
            break;
        case CB_OP_IOTA: CB_TRY(cb_want_axis(x, 0, &a->dims, err)); break;
        case CB_OP_UNIFORM:
            CB_TRY(cb_want_stream(x, err));
            if (!cb_dtype_is_float(a->dtype)) {
                return cb_fail(err, CB_TYPE, "uniform: needs a float dtype, not %s",
                               cb_dtype_name(a->dtype));
            }
            break;
        default: break;
    }
    cb_infer_set(x, 0, a->dtype, &a->dims);
    return CB_OK;
}

/* ---- pointwise: equal shapes; the builder has broadcast them --------------------------------- */

cb_status cb_infer_unary_any(cb_infer *x, cb_error *err) {
    (void)err;
    cb_infer_set(x, 0, x->in[0]->dtype, &x->in[0]->shape);
    return CB_OK;
}

cb_status cb_infer_unary(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_number(x, 0, err));
    return cb_infer_unary_any(x, err);
}

cb_status cb_infer_unary_float(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_float(x, 0, err));
    return cb_infer_unary_any(x, err);
}

cb_status cb_infer_cast(cb_infer *x, cb_error *err) {
    if ((int)x->attrs->dtype < 0 || x->attrs->dtype >= CB_DTYPE_COUNT) {
        return cb_fail(err, CB_TYPE, "cast: unknown element type %d", (int)x->attrs->dtype);
    }
    cb_infer_set(x, 0, x->attrs->dtype, &x->in[0]->shape);
    return CB_OK;
}

cb_status cb_infer_dropout(cb_infer *x, cb_error *err) {
    double p = x->attrs->f[0];
    CB_TRY(cb_want_stream(x, err));
    if (!(p >= 0 && p < 1))
        return cb_fail(err, CB_INVALID, "dropout: p is %g, must be in [0, 1)", p);
    return cb_infer_unary_float(x, err);
}

cb_status cb_infer_tril(cb_infer *x, cb_error *err) {
    const int64_t far = INT64_C(1) << 62;
    CB_TRY(cb_want_rank(x, 0, 2, CB_MAX_RANK, err));
    CB_TRY(cb_want_range(x, 0, "k", -far, far, err));
    return cb_infer_unary_any(x, err);
}

static cb_status same_pair(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_same_dtype(x, 0, 1, err));
    return cb_want_same_shape(x, 0, 1, err);
}

cb_status cb_infer_binary(cb_infer *x, cb_error *err) {
    CB_TRY(same_pair(x, err));
    return cb_infer_unary(x, err);
}

cb_status cb_infer_binary_float(cb_infer *x, cb_error *err) {
    CB_TRY(same_pair(x, err));
    return cb_infer_unary_float(x, err);
}

cb_status cb_infer_compare(cb_infer *x, cb_error *err) {
    CB_TRY(same_pair(x, err));
    cb_infer_set(x, 0, CB_BOOL, &x->in[0]->shape);
    return CB_OK;
}

cb_status cb_infer_logical(cb_infer *x, cb_error *err) {
    for (uint32_t i = 0; i < x->n_ins; i++) {
        CB_TRY(cb_want_dtype(x, i, CB_BOOL, err));
        CB_TRY(cb_want_same_shape(x, 0, i, err));
    }
    cb_infer_set(x, 0, CB_BOOL, &x->in[0]->shape);
    return CB_OK;
}

cb_status cb_infer_where(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_dtype(x, 0, CB_BOOL, err));
    CB_TRY(cb_want_same_dtype(x, 1, 2, err));
    CB_TRY(cb_want_same_shape(x, 0, 1, err));
    CB_TRY(cb_want_same_shape(x, 1, 2, err));
    cb_infer_set(x, 0, x->in[1]->dtype, &x->in[0]->shape);
    return CB_OK;
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* Checks that the axes are in range and in ascending order. The list is empty only for a scalar
 * (the builder lists all axes). */
static cb_status check_axes(const cb_infer *x, cb_error *err) {
    char text[CB_SHAPE_TEXT];
    const cb_shape *axes = &x->attrs->dims, *in = &x->in[0]->shape;
    if (axes->rank < 0 || axes->rank > in->rank || (axes->rank == 0 && in->rank > 0)) {
        return cb_fail(err, CB_INVALID, "%s: names %d axes of shape %s", cb_infer_name(x),
                       (int)axes->rank, cb_shape_text(in, text));
    }
    for (int32_t i = 0; i < axes->rank; i++) {
        if (axes->dim[i] < 0 || axes->dim[i] >= in->rank) {
            return cb_fail(err, CB_INVALID, "%s: shape %s has no axis %" PRId64, cb_infer_name(x),
                           cb_shape_text(in, text), axes->dim[i]);
        }
        if (i > 0 && axes->dim[i] <= axes->dim[i - 1]) {
            return cb_fail(err, CB_INVALID,
                           "%s: axes must be in ascending order, but %" PRId64 " follows %" PRId64,
                           cb_infer_name(x), axes->dim[i], axes->dim[i - 1]);
        }
    }
    return CB_OK;
}

/* Computes the remaining shape; `count` receives the number of elements that are reduced to one. */
static cb_shape reduced_shape(const cb_shape *in, const cb_shape *axes, bool keepdims,
                              int64_t *count) {
    cb_shape out = {0};
    int32_t next = 0;
    *count = 1;
    for (int32_t i = 0; i < in->rank; i++) {
        bool gone = next < axes->rank && axes->dim[next] == i;
        if (!gone) {
            out.dim[out.rank++] = in->dim[i];
            continue;
        }
        next++;
        *count *= in->dim[i];
        if (keepdims) out.dim[out.rank++] = 1;
    }
    return out;
}

cb_status cb_infer_reduce(cb_infer *x, cb_error *err) {
    char text[CB_SHAPE_TEXT];
    cb_dtype dtype = x->in[0]->dtype;
    int64_t count;
    CB_TRY(check_axes(x, err));
    CB_TRY(cb_want_range(x, 0, "keepdims", 0, 1, err));
    cb_shape shape = reduced_shape(&x->in[0]->shape, &x->attrs->dims, x->attrs->i[0], &count);
    if (x->code == CB_OP_SUM) {
        if (!cb_dtype_is_float(dtype)) dtype = CB_I64;
    } else if (x->code != CB_OP_MEAN) {
        CB_TRY(cb_want_number(x, 0, err));
        if (count == 0) {
            return cb_fail(err, CB_INVALID,
                           "%s: needs at least one element along each reduced axis of %s",
                           cb_infer_name(x), cb_shape_text(&x->in[0]->shape, text));
        }
    }
    cb_infer_set(x, 0, dtype, &shape);
    return CB_OK;
}

cb_status cb_infer_reduce_float(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_float(x, 0, err));
    return cb_infer_reduce(x, err);
}

cb_status cb_infer_argmax(cb_infer *x, cb_error *err) {
    char text[CB_SHAPE_TEXT];
    const cb_shape *in = &x->in[0]->shape;
    CB_TRY(cb_want_number(x, 0, err));
    CB_TRY(cb_want_axis(x, 0, in, err));
    CB_TRY(cb_want_range(x, 1, "keepdims", 0, 1, err));
    int64_t count;
    cb_shape axis = {.rank = 1, .dim = {x->attrs->i[0]}};
    cb_shape shape = reduced_shape(in, &axis, x->attrs->i[1], &count);
    if (count == 0) {
        return cb_fail(err, CB_INVALID,
                       "argmax: needs at least one element along axis %" PRId64 " of %s",
                       x->attrs->i[0], cb_shape_text(in, text));
    }
    cb_infer_set(x, 0, CB_I64, &shape);
    return CB_OK;
}
