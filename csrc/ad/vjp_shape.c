/* vjp_shape.c: gradients of reductions, views and data movement. */
#include "vjp.h"

/* ---- reductions ------------------------------------------------------------------------------ */

/* Returns the input's shape with every reduced axis set to 1; `count` is the number of elements per
 * sum. */
static cb_shape kept_shape(const cb_vjp *x, int64_t *count) {
    cb_shape kept = cb_vjp_in(x, 0).shape;
    *count = 1;
    for (int32_t i = 0; i < x->attrs.dims.rank; i++) {
        *count *= kept.dim[x->attrs.dims.dim[i]];
        kept.dim[x->attrs.dims.dim[i]] = 1;
    }
    return kept;
}

void cb_vjp_sum(cb_vjp *x) {
    int64_t count;
    const cb_shape kept = kept_shape(x, &count), full = cb_vjp_in(x, 0).shape;
    x->din[0] = cb_emit_expand(&x->e, cb_emit_reshape(&x->e, x->dout[0], &kept), &full);
}

void cb_vjp_mean(cb_vjp *x) { /* divides before the expansion, while the tensor is small */
    int64_t count;
    const cb_shape kept = kept_shape(x, &count), full = cb_vjp_in(x, 0).shape;
    cb_value_id share = cb_emit_scale(&x->e, x->dout[0], 1.0 / (double)count);
    x->din[0] = cb_emit_expand(&x->e, cb_emit_reshape(&x->e, share, &kept), &full);
}

/* amax and amin: the elements equal to the extreme share its gradient evenly. If the extreme is
 * NaN, no element is equal to it, so dividing by a count of 0 makes the gradient of every element
 * NaN, as in PyTorch. */
void cb_vjp_amax(cb_vjp *x) {
    int64_t count;
    const cb_shape kept = kept_shape(x, &count), full = cb_vjp_in(x, 0).shape;
    const cb_dtype dtype = cb_vjp_in(x, 0).dtype;
    cb_value_id extreme = cb_emit_expand(&x->e, cb_emit_reshape(&x->e, x->out[0], &kept), &full);
    cb_value_id hit = cb_emit2(&x->e, CB_OP_EQ, x->in[0], extreme);
    cb_value_id hits = cb_emit_sum_to(&x->e, cb_emit_cast(&x->e, hit, dtype), &kept);
    cb_value_id g = cb_emit2(&x->e, CB_OP_DIV, cb_emit_reshape(&x->e, x->dout[0], &kept), hits);
    cb_value_id rest = cb_emit2(&x->e, CB_OP_DIV, cb_emit_full_like(&x->e, hits, 0.0), hits);
    x->din[0] = cb_emit_where(&x->e, hit, cb_emit_expand(&x->e, g, &full),
                              cb_emit_expand(&x->e, rest, &full));
}

/* ---- views ----------------------------------------------------------------------------------- */

void cb_vjp_reshape(cb_vjp *x) {
    const cb_shape shape = cb_vjp_in(x, 0).shape;
    x->din[0] = cb_emit_reshape(&x->e, x->dout[0], &shape);
}

void cb_vjp_transpose(cb_vjp *x) {
    int64_t inverse[CB_MAX_RANK] = {0};
    for (int32_t i = 0; i < x->attrs.dims.rank; i++) inverse[x->attrs.dims.dim[i]] = i;
    x->din[0] = cb_emit_transpose(&x->e, x->dout[0], inverse);
}

/* If both the last axes and axes before a kept one are summed, returns the shape between two sums:
 * `whole` with its last axes summed. The first sum then reduces rows, so it fuses with the op that
 * made them. Returns rank 0 if a single sum is enough. */
static cb_shape summed_last(const cb_shape *whole, const cb_shape *to) {
    cb_shape between = *whole;
    const int32_t missing = whole->rank - to->rank;
    bool before = false, kept = false;
    int32_t k = whole->rank - 1;
    for (; k >= missing && to->dim[k - missing] == 1; k--) between.dim[k] = 1;
    const bool last = k < whole->rank - 1 && cb_numel(&between) < cb_numel(whole);
    for (; k >= 0; k--) {
        const bool sums = k < missing || to->dim[k - missing] != whole->dim[k];
        if (whole->dim[k] == 1) continue;
        before |= kept && sums;
        kept |= !sums;
    }
    return last && before ? between : (cb_shape){0};
}

void cb_vjp_sum_to(cb_vjp *x) { /* rule of the op expand: sums the repeated elements */
    const cb_shape shape = cb_vjp_in(x, 0).shape, whole = cb_vjp_out(x, 0).shape;
    const cb_shape between = summed_last(&whole, &shape);
    const bool is_half = cb_dtype_size(cb_vjp_in(x, 0).dtype) < 4; /* two sums would round twice */
    cb_value_id sum = x->dout[0];
    if (between.rank && !is_half) sum = cb_emit_sum_to(&x->e, sum, &between);
    x->din[0] = cb_emit_sum_to(&x->e, sum, &shape);
}

/* dx[start : stop : step] = dy, zeros elsewhere, which is a pad. */
void cb_vjp_slice(cb_vjp *x) {
    const int64_t axis = x->attrs.i[0];
    const int64_t whole = cb_vjp_in(x, 0).shape.dim[axis], taken = cb_vjp_out(x, 0).shape.dim[axis];
    const int64_t start = x->attrs.i[1], step = x->attrs.i[3];
    const int64_t span = taken == 0 ? 0 : (taken - 1) * step + 1;
    const cb_attrs pad = {.i = {axis, start, whole - start - span, step - 1}};
    x->din[0] = cb_emit1_with(&x->e, CB_OP_PAD, x->dout[0], &pad);
}

/* ---- data movement --------------------------------------------------------------------------- */

static cb_value_id slice_of(cb_vjp *x, cb_value_id g, int64_t axis, int64_t start, int64_t stop,
                            int64_t step) {
    const cb_attrs slice = {.i = {axis, start, stop, step}};
    return cb_emit1_with(&x->e, CB_OP_SLICE, g, &slice);
}

void cb_vjp_concat(cb_vjp *x) {
    const int64_t axis = x->attrs.i[0];
    int64_t start = 0;
    for (uint32_t i = 0; i < x->n_in; i++) {
        const int64_t stop = start + cb_vjp_in(x, i).shape.dim[axis];
        if (x->needs[i]) x->din[i] = slice_of(x, x->dout[0], axis, start, stop, 1);
        start = stop;
    }
}

void cb_vjp_pad(cb_vjp *x) {
    const int64_t axis = x->attrs.i[0];
    const int64_t n = cb_vjp_in(x, 0).shape.dim[axis], low = x->attrs.i[1],
                  step = x->attrs.i[3] + 1;
    const int64_t stop = low + (n == 0 ? 0 : (n - 1) * step + 1);
    x->din[0] = slice_of(x, x->dout[0], axis, low, stop, step);
}

static cb_value_id scatter_into_zeros(cb_vjp *x, const cb_shape *shape, cb_value_id index,
                                      cb_value_id src, int64_t axis) {
    const cb_attrs attrs = {.i = {axis}};
    const cb_dtype dtype = cb_vjp_in(x, 0).dtype;
    const cb_value_id ins[] = {cb_emit_full(&x->e, shape, dtype, 0.0), index, src};
    cb_value_id out;
    cb_emit_op(&x->e, CB_OP_SCATTER_ADD, 3, ins, &attrs, &out);
    return out;
}

void cb_vjp_gather(cb_vjp *x) {
    const cb_shape shape = cb_vjp_in(x, 0).shape;
    x->din[0] = scatter_into_zeros(x, &shape, x->in[1], x->dout[0], x->attrs.i[0]);
}

void cb_vjp_scatter_add(cb_vjp *x) {
    x->din[0] = x->dout[0];
    if (x->needs[2])
        x->din[2] = cb_emit2_with(&x->e, CB_OP_GATHER, x->dout[0], x->in[1], &x->attrs);
}

void cb_vjp_embedding(cb_vjp *x) {
    const cb_attrs attrs = {.i = {cb_vjp_in(x, 0).shape.dim[0]}};
    x->din[0] = cb_emit2_with(&x->e, CB_OP_EMBEDDING_BWD, x->dout[0], x->in[1], &attrs);
}

void cb_vjp_embedding_bwd(cb_vjp *x) {
    x->din[0] = cb_emit2(&x->e, CB_OP_EMBEDDING, x->dout[0], x->in[1]);
}

/* y[n,c,i] = x[n,c,index[n,c,i]] over the flattened plane is a gather, so its gradient is a
 * scatter. */
void cb_vjp_max_pool2d(cb_vjp *x) {
    const cb_shape in = cb_vjp_in(x, 0).shape, out = cb_vjp_out(x, 0).shape;
    if (x->dout[0] == CB_NONE) return; /* the index has no gradient */
    const cb_shape plane =
        cb_shape_make(3, (const int64_t[]){in.dim[0], in.dim[1], in.dim[2] * in.dim[3]});
    const cb_shape taken =
        cb_shape_make(3, (const int64_t[]){out.dim[0], out.dim[1], out.dim[2] * out.dim[3]});
    cb_value_id index = cb_emit_reshape(&x->e, x->out[1], &taken),
                g = cb_emit_reshape(&x->e, x->dout[0], &taken);
    x->din[0] = cb_emit_reshape(&x->e, scatter_into_zeros(x, &plane, index, g, 2), &in);
}

void cb_vjp_avg_pool2d(cb_vjp *x) {
    cb_attrs attrs = x->attrs;
    attrs.dims = cb_vjp_in(x, 0).shape;
    x->din[0] = cb_emit1_with(&x->e, CB_OP_AVG_POOL2D_BWD, x->dout[0], &attrs);
}

void cb_vjp_avg_pool2d_bwd(cb_vjp *x) {
    cb_attrs attrs = x->attrs;
    attrs.dims = (cb_shape){0};
    x->din[0] = cb_emit1_with(&x->e, CB_OP_AVG_POOL2D, x->dout[0], &attrs);
}
