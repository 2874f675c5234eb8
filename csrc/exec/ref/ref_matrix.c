/* ref_matrix.c: matrix products, convolution and pooling, computed from their defining sums. */
#include "ref_ops.h"

#include <math.h>

void cb_ref_matmul(const cb_ref_call *c) {
    const cb_shape *sa = &c->in[0].shape, *sb = &c->in[1].shape, *sy = &c->out[0].shape;
    const int32_t row = sy->rank - 2, column = sy->rank - 1;
    const int64_t n = cb_numel(sy), inner = sa->dim[column];
    for (int64_t i = 0; i < n; i++) {
        int64_t at_a[CB_MAX_RANK], at_b[CB_MAX_RANK];
        double sum = c->code == CB_OP_MATMUL_ADD ? cb_ref_get(&c->in[2], i) : 0.0;
        cb_ref_index(sy, i, at_a);
        cb_ref_index(sy, i, at_b);
        for (int64_t k = 0; k < inner; k++) {
            at_a[column] = at_b[row] = k;
            sum += cb_ref_get(&c->in[0], cb_ref_number(sa, at_a)) *
                   cb_ref_get(&c->in[1], cb_ref_number(sb, at_b));
        }
        cb_ref_put(&c->out[0], i, sum);
    }
}

/* ---- convolution ----------------------------------------------------------------------------- */

/* conv2d pairs image pixels, filter taps and output pixels:
 *
 *     y[n, o, p, q] += x[n, first_channel(o) + c, p * stride + i * dilation - pad, ...] * w[o, c,
 * i, j]
 *
 * Each of the three ops (conv2d and its two gradients) computes one member of this triple: it sums
 * products of the other two over all index combinations in which its element occurs.
 */
typedef struct conv {
    const int64_t *a; /* attributes: strides, pads, dilations, groups */
    cb_shape x, w, y;
} conv;

static conv conv_of(const cb_ref_call *c) {
    switch (c->code) {
        case CB_OP_CONV2D:
            return (conv){c->attrs->i, c->in[0].shape, c->in[1].shape, c->out[0].shape};
        case CB_OP_CONV2D_DGRAD:
            return (conv){c->attrs->i, c->out[0].shape, c->in[1].shape, c->in[0].shape};
        default:
            return (conv){c->attrs->i, c->in[1].shape, c->out[0].shape, c->in[0].shape}; /* wgrad */
    }
}

/* Finds the image element under tap (c, i, j) of output channel o at output pixel (p, q). Returns
 * false if it is in the padding. */
static bool pixel(const conv *v, const int64_t *y, const int64_t *w, int64_t *x) {
    const int64_t channels_of_group = v->y.dim[1] / v->a[6];
    x[0] = y[0];
    x[1] = y[1] / channels_of_group * v->w.dim[1] + w[1];
    x[2] = y[2] * v->a[0] + w[2] * v->a[4] - v->a[2];
    x[3] = y[3] * v->a[1] + w[3] * v->a[5] - v->a[3];
    return x[2] >= 0 && x[2] < v->x.dim[2] && x[3] >= 0 && x[3] < v->x.dim[3];
}

static double conv_output(const cb_ref_call *c, const conv *v, int64_t element) {
    int64_t y[4], w[4], x[4];
    double sum = 0.0;
    cb_ref_index(&v->y, element, y);
    const int64_t taps = v->w.dim[1] * v->w.dim[2] * v->w.dim[3];
    for (int64_t t = 0; t < taps; t++) {
        cb_ref_index(&v->w, y[1] * taps + t, w);
        if (!pixel(v, y, w, x)) continue;
        sum += cb_ref_get(&c->in[0], cb_ref_number(&v->x, x)) *
               cb_ref_get(&c->in[1], cb_ref_number(&v->w, w));
    }
    return sum;
}

/* Visits every (output pixel, tap) pair that reads this image pixel. The tap determines the output
 * pixel, if there is one. */
static double conv_dgrad(const cb_ref_call *c, const conv *v, int64_t element) {
    int64_t x[4], w[4], y[4], hit[4];
    double sum = 0.0;
    const int64_t n = cb_numel(&v->w);
    cb_ref_index(&v->x, element, x);
    for (int64_t t = 0; t < n; t++) {
        cb_ref_index(&v->w, t, w);
        const int64_t p = x[2] + v->a[2] - w[2] * v->a[4], q = x[3] + v->a[3] - w[3] * v->a[5];
        if (p < 0 || q < 0 || p % v->a[0] || q % v->a[1]) continue;
        y[0] = x[0];
        y[1] = w[0];
        y[2] = p / v->a[0];
        y[3] = q / v->a[1];
        if (y[2] >= v->y.dim[2] || y[3] >= v->y.dim[3]) continue;
        if (!pixel(v, y, w, hit) || hit[1] != x[1]) continue; /* a tap of another group */
        sum += cb_ref_get(&c->in[0], cb_ref_number(&v->y, y)) * cb_ref_get(&c->in[1], t);
    }
    return sum;
}

static double conv_wgrad(const cb_ref_call *c, const conv *v, int64_t element) {
    int64_t w[4], y[4], x[4];
    double sum = 0.0;
    const int64_t pixels = v->y.dim[2] * v->y.dim[3];
    cb_ref_index(&v->w, element, w);
    for (int64_t i = 0; i < v->y.dim[0] * pixels; i++) {
        y[0] = i / pixels;
        y[1] = w[0];
        y[2] = i % pixels / v->y.dim[3];
        y[3] = i % v->y.dim[3];
        if (!pixel(v, y, w, x)) continue;
        sum += cb_ref_get(&c->in[0], cb_ref_number(&v->y, y)) *
               cb_ref_get(&c->in[1], cb_ref_number(&v->x, x));
    }
    return sum;
}

void cb_ref_conv2d(const cb_ref_call *c) {
    const conv v = conv_of(c);
    const int64_t n = cb_numel(&c->out[0].shape);
    for (int64_t i = 0; i < n; i++) {
        cb_ref_put(&c->out[0], i,
                   c->code == CB_OP_CONV2D         ? conv_output(c, &v, i)
                   : c->code == CB_OP_CONV2D_DGRAD ? conv_dgrad(c, &v, i)
                                                   : conv_wgrad(c, &v, i));
    }
}

/* ---- pooling: kernel i0 i1, stride i2 i3, pad i4 i5 -------------------------------------------
 */

/* Returns the number of the element of plane (n, c) at tap (i, j) of window (p, q); -1 in the
 * padding. */
static int64_t under_window(const cb_ref_call *c, const cb_shape *image, const int64_t *y,
                            int64_t i, int64_t j) {
    const int64_t *a = c->attrs->i;
    const int64_t h = y[2] * a[2] + i - a[4], w = y[3] * a[3] + j - a[5];
    if (h < 0 || h >= image->dim[2] || w < 0 || w >= image->dim[3]) return -1;
    return cb_ref_number(image, (const int64_t[]){y[0], y[1], h, w});
}

void cb_ref_max_pool2d(const cb_ref_call *c) {
    const cb_shape *image = &c->in[0].shape, *out = &c->out[0].shape;
    const int64_t n = cb_numel(out), plane = image->dim[2] * image->dim[3];
    for (int64_t k = 0; k < n; k++) {
        int64_t y[4], best = -1;
        double largest = 0.0;
        cb_ref_index(out, k, y);
        for (int64_t t = 0; t < c->attrs->i[0] * c->attrs->i[1]; t++) {
            const int64_t at = under_window(c, image, y, t / c->attrs->i[1], t % c->attrs->i[1]);
            if (at < 0) continue;
            const double x = cb_ref_get(&c->in[0], at);
            if (best >= 0 && !(x > largest) && !(isnan(x) && !isnan(largest))) continue;
            best = at;
            largest = x;
        }
        cb_ref_put(&c->out[0], k, largest);
        cb_ref_put_int(&c->out[1], k, best % plane);
    }
}

void cb_ref_avg_pool2d(const cb_ref_call *c) {
    const int64_t n = cb_numel(&c->out[0].shape), taps = c->attrs->i[0] * c->attrs->i[1];
    for (int64_t k = 0; k < n; k++) {
        int64_t y[4];
        double sum = 0.0;
        cb_ref_index(&c->out[0].shape, k, y);
        for (int64_t t = 0; t < taps; t++) {
            const int64_t at =
                under_window(c, &c->in[0].shape, y, t / c->attrs->i[1], t % c->attrs->i[1]);
            if (at >= 0) sum += cb_ref_get(&c->in[0], at);
        }
        cb_ref_put(&c->out[0], k, sum / (double)taps);
    }
}

/* Returns the gradient of one image element: a sum over all windows of its plane that contain
 * it. */
static double avg_pool2d_grad(const cb_ref_call *c, int64_t element) {
    const cb_shape *image = &c->out[0].shape, *windows = &c->in[0].shape;
    const int64_t taps = c->attrs->i[0] * c->attrs->i[1],
                  per_plane = windows->dim[2] * windows->dim[3];
    int64_t x[4];
    double sum = 0.0;
    cb_ref_index(image, element, x);
    for (int64_t k = 0; k < per_plane; k++) {
        const int64_t y[4] = {x[0], x[1], k / windows->dim[3], k % windows->dim[3]};
        const int64_t i = x[2] + c->attrs->i[4] - y[2] * c->attrs->i[2];
        const int64_t j = x[3] + c->attrs->i[5] - y[3] * c->attrs->i[3];
        if (i < 0 || i >= c->attrs->i[0] || j < 0 || j >= c->attrs->i[1]) continue;
        sum += cb_ref_get(&c->in[0], cb_ref_number(windows, y));
    }
    return sum / (double)taps;
}

void cb_ref_avg_pool2d_bwd(const cb_ref_call *c) {
    const int64_t n = cb_numel(&c->out[0].shape);
    for (int64_t i = 0; i < n; i++) cb_ref_put(&c->out[0], i, avg_pool2d_grad(c, i));
}
