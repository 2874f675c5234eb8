/* Shape rules: matrix products, convolution, pooling, softmax, norms, loss, attention. */
#include <inttypes.h>
#include <math.h>

#include "../base/alloc.h"
#include "infer_rules.h"

cb_status cb_infer_matmul(cb_infer *x, cb_error *err) {
    char left[CB_SHAPE_TEXT], right[CB_SHAPE_TEXT];
    const cb_shape *a = &x->in[0]->shape, *b = &x->in[1]->shape;
    CB_TRY(cb_want_same_dtype(x, 0, 1, err));
    CB_TRY(cb_want_float(x, 0, err));
    CB_TRY(cb_want_rank(x, 0, 2, CB_MAX_RANK, err));
    CB_TRY(cb_want_rank(x, 1, 2, CB_MAX_RANK, err));
    int32_t rank = a->rank;
    bool fits = b->rank == rank && b->dim[rank - 2] == a->dim[rank - 1];
    for (int32_t k = 0; fits && k < rank - 2; k++) fits = a->dim[k] == b->dim[k];
    if (!fits) {
        return cb_fail(err, CB_INVALID, "matmul: %s @ %s: inner sizes and batch axes must agree",
                       cb_shape_text(a, left), cb_shape_text(b, right));
    }
    cb_shape shape = *a;
    shape.dim[rank - 1] = b->dim[rank - 1];
    cb_infer_set(x, 0, x->in[0]->dtype, &shape);
    return CB_OK;
}

cb_status cb_infer_matmul_add(cb_infer *x, cb_error *err) {
    char base[CB_SHAPE_TEXT], product[CB_SHAPE_TEXT];
    CB_TRY(cb_infer_matmul(x, err));
    CB_TRY(cb_want_same_dtype(x, 0, 2, err));
    if (cb_shape_equal(&x->in[2]->shape, &x->out[0].shape)) return CB_OK;
    return cb_fail(err, CB_INVALID, "matmul_add: the base is %s, but the product is %s",
                   cb_shape_text(&x->in[2]->shape, base), cb_shape_text(&x->out[0].shape, product));
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Computes the number of window positions along one axis of size n; returns false if it does not
 * fit. Scalars are at most CB_ATTR_MAX. */
static bool window_count(int64_t n, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation,
                         int64_t *out) {
    int64_t reach, room;
    if (kernel < 1 || !cb_mul_i64(kernel - 1, dilation, &reach)) return false;
    room = n + 2 * pad - 1;
    if (room < reach) return false;
    *out = (room - reach) / stride + 1;
    return true;
}

/* Elements under one window of one group: a column of im2col, which must fit the kernel's scratch.
 */
#define WINDOW_MAX (INT64_C(1) << 19)

/* Computes the output shape of conv2d for x and w; both have four axes. */
static cb_status conv_shape(const cb_infer *x, const cb_shape *in, const cb_shape *w, cb_shape *out,
                            cb_error *err) {
    char left[CB_SHAPE_TEXT], right[CB_SHAPE_TEXT];
    const int64_t *a = x->attrs->i;
    static const char *const names[] = {"stride_h",   "stride_w",   "pad_h", "pad_w",
                                        "dilation_h", "dilation_w", "groups"};
    for (int k = 0; k < 7; k++)
        CB_TRY(cb_want_range(x, k, names[k], k == 2 || k == 3 ? 0 : 1, CB_ATTR_MAX, err));
    int64_t groups = a[6];
    if (in->dim[1] % groups || w->dim[0] % groups || w->dim[1] != in->dim[1] / groups) {
        return cb_fail(err, CB_INVALID,
                       "%s: weight %s does not fit x %s in %" PRId64
                       " groups; weight is [o, c/groups, kh, kw]",
                       cb_infer_name(x), cb_shape_text(w, right), cb_shape_text(in, left), groups);
    }
    *out = (cb_shape){.rank = 4, .dim = {in->dim[0], w->dim[0]}};
    if (!window_count(in->dim[2], w->dim[2], a[0], a[2], a[4], &out->dim[2]) ||
        !window_count(in->dim[3], w->dim[3], a[1], a[3], a[5], &out->dim[3])) {
        return cb_fail(err, CB_INVALID, "%s: the window of weight %s does not fit in padded x %s",
                       cb_infer_name(x), cb_shape_text(w, right), cb_shape_text(in, left));
    }
    if (w->dim[1] > WINDOW_MAX || w->dim[2] > WINDOW_MAX || w->dim[3] > WINDOW_MAX ||
        w->dim[1] * w->dim[2] > WINDOW_MAX || w->dim[1] * w->dim[2] * w->dim[3] > WINDOW_MAX) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s: weight %s has more than 2^19 elements for each output channel",
                       cb_infer_name(x), cb_shape_text(w, right));
    }
    return CB_OK;
}

static cb_status want_conv_pair(const cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_same_dtype(x, 0, 1, err));
    CB_TRY(cb_want_float(x, 0, err));
    CB_TRY(cb_want_rank(x, 0, 4, 4, err));
    return cb_want_rank(x, 1, 4, 4, err);
}

/* Checks the attribute `shape` of a gradient op: the shape of the tensor that the gradient is
 * for. */
static cb_status want_dims4(const cb_infer *x, cb_error *err) {
    char text[CB_SHAPE_TEXT];
    CB_TRY(cb_want_dims(x, err));
    if (x->attrs->dims.rank == 4) return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: shape %s must have 4 axes", cb_infer_name(x),
                   cb_shape_text(&x->attrs->dims, text));
}

cb_status cb_infer_conv2d(cb_infer *x, cb_error *err) {
    cb_shape shape;
    CB_TRY(want_conv_pair(x, err));
    CB_TRY(conv_shape(x, &x->in[0]->shape, &x->in[1]->shape, &shape, err));
    cb_infer_set(x, 0, x->in[0]->dtype, &shape);
    return CB_OK;
}

/* Both gradients apply the forward's rule: g must have the shape of the forward's output. */
cb_status cb_infer_conv2d_dgrad(cb_infer *x, cb_error *err) {
    cb_shape shape;
    CB_TRY(want_conv_pair(x, err));
    CB_TRY(want_dims4(x, err));
    CB_TRY(conv_shape(x, &x->attrs->dims, &x->in[1]->shape, &shape, err));
    CB_TRY(cb_want_shape(x, 0, &shape, err));
    cb_infer_set(x, 0, x->in[0]->dtype, &x->attrs->dims);
    return CB_OK;
}

cb_status cb_infer_conv2d_wgrad(cb_infer *x, cb_error *err) {
    cb_shape shape;
    CB_TRY(want_conv_pair(x, err));
    CB_TRY(want_dims4(x, err));
    CB_TRY(conv_shape(x, &x->in[1]->shape, &x->attrs->dims, &shape, err));
    CB_TRY(cb_want_shape(x, 0, &shape, err));
    cb_infer_set(x, 0, x->in[0]->dtype, &x->attrs->dims);
    return CB_OK;
}

/* Padding is at most half a window, so that with h, w >= 1 every window sees an element. */
static cb_status pool_shape(const cb_infer *x, const cb_shape *in, cb_shape *out, cb_error *err) {
    char text[CB_SHAPE_TEXT];
    const int64_t *a = x->attrs->i;
    static const char *const names[] = {"kernel_h", "kernel_w", "stride_h",
                                        "stride_w", "pad_h",    "pad_w"};
    for (int k = 0; k < 4; k++) CB_TRY(cb_want_range(x, k, names[k], 1, CB_ATTR_MAX, err));
    for (int k = 4; k < 6; k++) CB_TRY(cb_want_range(x, k, names[k], 0, a[k - 4] / 2, err));
    *out = *in;
    if (in->dim[2] < 1 || in->dim[3] < 1 ||
        !window_count(in->dim[2], a[0], a[2], a[4], 1, &out->dim[2]) ||
        !window_count(in->dim[3], a[1], a[3], a[5], 1, &out->dim[3])) {
        return cb_fail(err, CB_INVALID,
                       "%s: a window of (%" PRId64 ",%" PRId64 ") does not fit in padded x %s",
                       cb_infer_name(x), a[0], a[1], cb_shape_text(in, text));
    }
    return CB_OK;
}

cb_status cb_infer_avg_pool2d(cb_infer *x, cb_error *err) {
    cb_shape shape;
    CB_TRY(cb_want_float(x, 0, err));
    CB_TRY(cb_want_rank(x, 0, 4, 4, err));
    CB_TRY(pool_shape(x, &x->in[0]->shape, &shape, err));
    cb_infer_set(x, 0, x->in[0]->dtype, &shape);
    return CB_OK;
}

cb_status cb_infer_max_pool2d(cb_infer *x, cb_error *err) {
    char text[CB_SHAPE_TEXT];
    CB_TRY(cb_infer_avg_pool2d(x, err));
    const cb_shape *in = &x->in[0]->shape;
    if (in->dim[2] > INT32_MAX / in->dim[3]) {
        return cb_fail(err, CB_INVALID, "max_pool2d: a plane of %s has more than 2^31 - 1 elements",
                       cb_shape_text(in, text));
    }
    cb_shape shape = x->out[0].shape;
    cb_infer_set(x, 1, CB_I32, &shape);
    return CB_OK;
}

cb_status cb_infer_avg_pool2d_bwd(cb_infer *x, cb_error *err) {
    cb_shape shape;
    CB_TRY(cb_want_float(x, 0, err));
    CB_TRY(cb_want_rank(x, 0, 4, 4, err));
    CB_TRY(want_dims4(x, err));
    CB_TRY(pool_shape(x, &x->attrs->dims, &shape, err));
    CB_TRY(cb_want_shape(x, 0, &shape, err));
    cb_infer_set(x, 0, x->in[0]->dtype, &x->attrs->dims);
    return CB_OK;
}

/* ---- over the last axis ---------------------------------------------------------------------- */

static cb_status want_rows(const cb_infer *x, uint32_t input, cb_error *err) {
    CB_TRY(cb_want_float(x, input, err));
    return cb_want_rank(x, input, 1, CB_MAX_RANK, err);
}

/* Return the shape with one number per row, and the one with one number per column. */
static cb_shape rows_of(const cb_shape *s) {
    cb_shape rows = *s;
    rows.dim[--rows.rank] = 0;
    return rows;
}

static cb_shape column_of(const cb_shape *s, int32_t axis) {
    return (cb_shape){.rank = 1, .dim = {s->dim[axis]}};
}

/* Checks that input `input` is a statistic of a value of dtype `of`: f32 (f64 for f64), with the
   given shape. */
static cb_status want_stat(const cb_infer *x, uint32_t input, cb_dtype of, const cb_shape *shape,
                           cb_error *err) {
    CB_TRY(cb_want_dtype(x, input, cb_stat_dtype(of), err));
    return cb_want_shape(x, input, shape, err);
}

/* Checks that input `input` is a parameter with one element per channel, of the dtype of input
 * `like`. */
static cb_status want_channel(const cb_infer *x, uint32_t input, uint32_t like,
                              const cb_shape *shape, cb_error *err) {
    CB_TRY(cb_want_same_dtype(x, like, input, err));
    return cb_want_shape(x, input, shape, err);
}

cb_status cb_infer_rows(cb_infer *x, cb_error *err) {
    CB_TRY(want_rows(x, 0, err));
    cb_infer_set(x, 0, x->in[0]->dtype, &x->in[0]->shape);
    return CB_OK;
}

cb_status cb_infer_rows_bwd(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_same_dtype(x, 0, 1, err));
    CB_TRY(cb_want_same_shape(x, 0, 1, err));
    return cb_infer_rows(x, err);
}

/* Layer norm has a bias and returns the mean; RMS norm has neither. */
static cb_status infer_norm(cb_infer *x, bool is_centred, cb_error *err) {
    CB_TRY(want_rows(x, 0, err));
    CB_TRY(cb_want_eps(x, err));
    const cb_shape *in = &x->in[0]->shape;
    cb_dtype dtype = x->in[0]->dtype;
    cb_shape rows = rows_of(in), columns = column_of(in, in->rank - 1);
    CB_TRY(want_channel(x, 1, 0, &columns, err));
    if (is_centred) CB_TRY(want_channel(x, 2, 0, &columns, err));
    cb_infer_set(x, 0, dtype, in);
    cb_infer_set(x, 1, cb_stat_dtype(dtype), &rows);
    if (is_centred) cb_infer_set(x, 2, cb_stat_dtype(dtype), &rows);
    return CB_OK;
}

cb_status cb_infer_layer_norm(cb_infer *x, cb_error *err) { return infer_norm(x, true, err); }
cb_status cb_infer_rms_norm(cb_infer *x, cb_error *err) { return infer_norm(x, false, err); }

/* Checks inputs g, x and weight, which the backwards of all norms share. */
static cb_status want_norm_bwd(const cb_infer *x, const cb_shape *columns, cb_error *err) {
    CB_TRY(cb_want_same_dtype(x, 0, 1, err));
    CB_TRY(cb_want_same_shape(x, 0, 1, err));
    return want_channel(x, 2, 1, columns, err);
}

static cb_status infer_norm_bwd(cb_infer *x, bool is_centred, cb_error *err) {
    CB_TRY(want_rows(x, 1, err));
    const cb_shape *in = &x->in[1]->shape;
    cb_dtype dtype = x->in[1]->dtype;
    cb_shape rows = rows_of(in), columns = column_of(in, in->rank - 1);
    CB_TRY(want_norm_bwd(x, &columns, err));
    CB_TRY(want_stat(x, 3, dtype, &rows, err));
    if (is_centred) CB_TRY(want_stat(x, 4, dtype, &rows, err));
    cb_infer_set(x, 0, dtype, in);
    cb_infer_set(x, 1, dtype, &columns);
    if (is_centred) cb_infer_set(x, 2, dtype, &columns);
    return CB_OK;
}

cb_status cb_infer_layer_norm_bwd(cb_infer *x, cb_error *err) {
    return infer_norm_bwd(x, true, err);
}
cb_status cb_infer_rms_norm_bwd(cb_infer *x, cb_error *err) {
    return infer_norm_bwd(x, false, err);
}

/* ---- batch norm: axis 1 is the channel; loss ------------------------------------------------- */

cb_status cb_infer_batch_norm(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_float(x, 0, err));
    CB_TRY(cb_want_rank(x, 0, 2, CB_MAX_RANK, err));
    CB_TRY(cb_want_eps(x, err));
    cb_dtype dtype = x->in[0]->dtype;
    cb_shape channels = column_of(&x->in[0]->shape, 1);
    CB_TRY(want_channel(x, 1, 0, &channels, err));
    CB_TRY(want_channel(x, 2, 0, &channels, err));
    cb_infer_set(x, 0, dtype, &x->in[0]->shape);
    for (int k = 1; k < 4; k++) cb_infer_set(x, k, cb_stat_dtype(dtype), &channels);
    return CB_OK;
}

cb_status cb_infer_batch_norm_stats(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_float(x, 0, err));
    CB_TRY(cb_want_rank(x, 0, 2, CB_MAX_RANK, err));
    CB_TRY(cb_want_eps(x, err));
    cb_shape channels = column_of(&x->in[0]->shape, 1);
    for (int k = 0; k < 3; k++) cb_infer_set(x, k, cb_stat_dtype(x->in[0]->dtype), &channels);
    return CB_OK;
}

/* Pointwise: statistics and parameters are expanded to the shape of x. */
cb_status cb_infer_batch_norm_apply(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_float(x, 0, err));
    const cb_dtype dtype = x->in[0]->dtype;
    const cb_shape *shape = &x->in[0]->shape;
    CB_TRY(want_stat(x, 1, dtype, shape, err));
    CB_TRY(want_stat(x, 2, dtype, shape, err));
    CB_TRY(want_channel(x, 3, 0, shape, err));
    CB_TRY(want_channel(x, 4, 0, shape, err));
    cb_infer_set(x, 0, dtype, shape);
    return CB_OK;
}

cb_status cb_infer_batch_norm_bwd(cb_infer *x, cb_error *err) {
    CB_TRY(cb_want_float(x, 1, err));
    CB_TRY(cb_want_rank(x, 1, 2, CB_MAX_RANK, err));
    cb_dtype dtype = x->in[1]->dtype;
    cb_shape channels = column_of(&x->in[1]->shape, 1);
    CB_TRY(want_norm_bwd(x, &channels, err));
    CB_TRY(want_stat(x, 3, dtype, &channels, err));
    CB_TRY(want_stat(x, 4, dtype, &channels, err));
    cb_infer_set(x, 0, dtype, &x->in[1]->shape);
    cb_infer_set(x, 1, dtype, &channels);
    cb_infer_set(x, 2, dtype, &channels);
    return CB_OK;
}

cb_status cb_infer_cross_entropy(cb_infer *x, cb_error *err) {
    CB_TRY(want_rows(x, 0, err));
    CB_TRY(cb_want_index(x, 1, err));
    cb_shape rows = rows_of(&x->in[0]->shape);
    CB_TRY(cb_want_shape(x, 1, &rows, err));
    cb_infer_set(x, 0, cb_stat_dtype(x->in[0]->dtype), &rows);
    cb_infer_set(x, 1, cb_stat_dtype(x->in[0]->dtype), &rows);
    return CB_OK;
}

cb_status cb_infer_cross_entropy_bwd(cb_infer *x, cb_error *err) {
    CB_TRY(want_rows(x, 1, err));
    CB_TRY(cb_want_index(x, 2, err));
    cb_dtype dtype = x->in[1]->dtype;
    cb_shape rows = rows_of(&x->in[1]->shape);
    CB_TRY(want_stat(x, 0, dtype, &rows, err));
    CB_TRY(cb_want_shape(x, 2, &rows, err));
    cb_infer_set(x, 0, dtype, &x->in[1]->shape);
    return CB_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

#define LARGEST_HEAD 256           /* the kernels' tiles hold heads of at most this size */
#define RANK_MAX (CB_MAX_RANK - 1) /* gradients of primitives split the heads, which adds an axis */

static cb_status want_attention(const cb_infer *x, cb_error *err) {
    const double scale = x->attrs->f[0], p = x->attrs->f[1];
    CB_TRY(cb_want_stream(x, err));
    CB_TRY(cb_want_range(x, 1, "causal", 0, 1, err));
    if (!isfinite(scale))
        return cb_fail(err, CB_INVALID, "%s: scale is %g, must be finite", cb_infer_name(x), scale);
    if (p >= 0 && p < 1) return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: p is %g, must be in [0, 1)", cb_infer_name(x), p);
}

/* True if the leading axes are those of q, with one head for each n heads of q. */
static bool heads_fit(const cb_shape *q, const cb_shape *k) {
    const int32_t r = q->rank;
    for (int32_t i = 0; i < r - 3; i++)
        if (k->dim[i] != q->dim[i]) return false;
    if (r == 2 || k->dim[r - 3] == q->dim[r - 3]) return true;
    return k->dim[r - 3] > 0 && q->dim[r - 3] % k->dim[r - 3] == 0;
}

/* Checks q, k and v, which are inputs `at`, `at` + 1 and `at` + 2. */
static cb_status want_heads(const cb_infer *x, uint32_t at, cb_error *err) {
    char queries[CB_SHAPE_TEXT], keys[CB_SHAPE_TEXT], values[CB_SHAPE_TEXT];
    const cb_shape *q = &x->in[at]->shape, *k = &x->in[at + 1]->shape, *v = &x->in[at + 2]->shape;
    const int32_t r = q->rank;
    CB_TRY(cb_want_float(x, at, err));
    CB_TRY(cb_want_rank(x, at, 2, RANK_MAX, err));
    for (uint32_t i = at + 1; i < at + 3; i++) {
        CB_TRY(cb_want_same_dtype(x, at, i, err));
        CB_TRY(cb_want_rank(x, i, r, r, err));
    }
    bool fits = heads_fit(q, k) && k->dim[r - 1] == q->dim[r - 1] && v->dim[r - 2] == k->dim[r - 2];
    for (int32_t i = 0; i < r - 2; i++) fits = fits && v->dim[i] == k->dim[i];
    if (!fits) {
        return cb_fail(err, CB_INVALID,
                       "%s: q %s, k %s, v %s do not fit [..,h,l,e], [..,h/n,s,e] and [..,h/n,s,d]",
                       cb_infer_name(x), cb_shape_text(q, queries), cb_shape_text(k, keys),
                       cb_shape_text(v, values));
    }
    if (q->dim[r - 1] <= LARGEST_HEAD && v->dim[r - 1] <= LARGEST_HEAD) return CB_OK;
    return cb_fail(err, CB_UNSUPPORTED, "%s: heads of q %s and v %s are larger than %d",
                   cb_infer_name(x), cb_shape_text(q, queries), cb_shape_text(v, values),
                   LARGEST_HEAD);
}

static cb_status want_mask(const cb_infer *x, uint32_t input, uint32_t q, cb_error *err) {
    const cb_shape *keys = &x->in[q + 1]->shape;
    cb_shape scores = x->in[q]->shape;
    if (x->n_ins <= input) return CB_OK;
    scores.dim[scores.rank - 1] = keys->dim[keys->rank - 2];
    if (x->in[input]->dtype != CB_BOOL) CB_TRY(cb_want_same_dtype(x, q, input, err));
    return cb_want_shape(x, input, &scores, err);
}

static cb_shape result_shape(const cb_infer *x, uint32_t q) {
    const cb_shape *values = &x->in[q + 2]->shape;
    cb_shape shape = x->in[q]->shape;
    shape.dim[shape.rank - 1] = values->dim[values->rank - 1];
    return shape;
}

cb_status cb_infer_attention(cb_infer *x, cb_error *err) {
    CB_TRY(want_attention(x, err));
    CB_TRY(want_heads(x, 0, err));
    CB_TRY(want_mask(x, 3, 0, err));
    const cb_dtype dtype = x->in[0]->dtype;
    const cb_shape y = result_shape(x, 0), rows = rows_of(&x->in[0]->shape);
    cb_infer_set(x, 0, dtype, &y);
    cb_infer_set(x, 1, cb_stat_dtype(dtype), &rows);
    return CB_OK;
}

cb_status cb_infer_attention_bwd(cb_infer *x, cb_error *err) {
    CB_TRY(want_attention(x, err));
    CB_TRY(want_heads(x, 1, err));
    CB_TRY(want_mask(x, 6, 1, err));
    const cb_dtype dtype = x->in[1]->dtype;
    const cb_shape y = result_shape(x, 1), rows = rows_of(&x->in[1]->shape);
    CB_TRY(cb_want_same_dtype(x, 1, 0, err));
    CB_TRY(cb_want_shape(x, 0, &y, err));
    CB_TRY(cb_want_same_dtype(x, 1, 4, err));
    CB_TRY(cb_want_shape(x, 4, &y, err));
    CB_TRY(cb_want_dtype(x, 5, cb_stat_dtype(dtype), err));
    CB_TRY(cb_want_shape(x, 5, &rows, err));
    for (uint32_t i = 0; i < 3; i++) cb_infer_set(x, (int)i, dtype, &x->in[i + 1]->shape);
    return CB_OK;
}
