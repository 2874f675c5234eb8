/* vjp_matrix.c: gradients of bilinear ops, matrix products and convolutions. The three convolution
 * ops are each other's gradients: dgrad is the derivative of <conv2d(x, w), g> with respect to x,
 * wgrad with respect to w. */
#include "vjp.h"

static bool is_column_major(const cb_value *v) {
    return v->stride[v->shape.rank - 2] == 1 && v->stride[v->shape.rank - 1] > 1;
}

/* Computes a b in the layout of `like`, whose gradient it is. For the transposed weight of a linear
 * layer this is (b^T a^T)^T, so that the weight's gradient is in row-major order. All transposes
 * are views. */
static cb_value_id product(cb_vjp *x, const cb_value *like, cb_value_id a, cb_value_id b) {
    cb_emit *e = &x->e;
    if (!is_column_major(like)) return cb_emit2(e, CB_OP_MATMUL, a, b);
    return cb_emit_swap_last(
        e, cb_emit2(e, CB_OP_MATMUL, cb_emit_swap_last(e, b), cb_emit_swap_last(e, a)));
}

/* y = a b: da = dy b^T, db = a^T dy */
void cb_vjp_matmul(cb_vjp *x) {
    const cb_value a = cb_vjp_in(x, 0), b = cb_vjp_in(x, 1);
    if (x->needs[0]) x->din[0] = product(x, &a, x->dout[0], cb_emit_swap_last(&x->e, x->in[1]));
    if (x->needs[1]) x->din[1] = product(x, &b, cb_emit_swap_last(&x->e, x->in[0]), x->dout[0]);
}

/* y = base + a b */
void cb_vjp_matmul_add(cb_vjp *x) {
    cb_vjp_matmul(x);
    x->din[2] = x->dout[0];
}

/* Emits a convolution op with the window of `x`. `shape` is the result shape of a gradient op; NULL
 * for conv2d. */
static cb_value_id convolve(cb_vjp *x, cb_opcode code, cb_value_id a, cb_value_id b,
                            const cb_shape *shape) {
    cb_attrs attrs = x->attrs;
    attrs.dims = shape ? *shape : (cb_shape){0};
    return cb_emit2_with(&x->e, code, a, b, &attrs);
}

void cb_vjp_conv2d(cb_vjp *x) {
    const cb_shape image = cb_vjp_in(x, 0).shape, filter = cb_vjp_in(x, 1).shape;
    if (x->needs[0]) x->din[0] = convolve(x, CB_OP_CONV2D_DGRAD, x->dout[0], x->in[1], &image);
    if (x->needs[1]) x->din[1] = convolve(x, CB_OP_CONV2D_WGRAD, x->dout[0], x->in[0], &filter);
}

void cb_vjp_conv2d_dgrad(cb_vjp *x) { /* inputs (g, w) */
    const cb_shape filter = cb_vjp_in(x, 1).shape;
    if (x->needs[0]) x->din[0] = convolve(x, CB_OP_CONV2D, x->dout[0], x->in[1], NULL);
    if (x->needs[1]) x->din[1] = convolve(x, CB_OP_CONV2D_WGRAD, x->in[0], x->dout[0], &filter);
}

void cb_vjp_conv2d_wgrad(cb_vjp *x) { /* inputs (g, x) */
    const cb_shape image = cb_vjp_in(x, 1).shape;
    if (x->needs[0]) x->din[0] = convolve(x, CB_OP_CONV2D, x->in[1], x->dout[0], NULL);
    if (x->needs[1]) x->din[1] = convolve(x, CB_OP_CONV2D_DGRAD, x->in[0], x->dout[0], &image);
}
