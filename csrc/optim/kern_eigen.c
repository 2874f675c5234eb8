/* The loops of eigen_loops.h, compiled for each instruction set (cmake/kernels.cmake). Sums have 16
 * lanes on all of them. */
#include "eigen_loops.h"
#include "optimizer.h"

enum { LANES = CB_OPTIM_LANES };

static double dot(const double *x, const double *y, int64_t n) {
    double sum[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) sum[k] += x[i + k] * y[i + k];
    }
    for (int k = 0; i < n; i++, k++) sum[k] += x[i] * y[i];
    return cb_fold_lanes(sum);
}

static void add(double *restrict x, double by, const double *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += by * y[i];
}

static double reduce(double *restrict x, double a, const double *restrict y, double b,
                     const double *restrict z, const double *restrict next, int64_t n) {
    double sum[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            x[i + k] = x[i + k] - a * y[i + k] - b * z[i + k];
            sum[k] += x[i + k] * next[i + k];
        }
    }
    for (int k = 0; i < n; i++, k++) {
        x[i] = x[i] - a * y[i] - b * z[i];
        sum[k] += x[i] * next[i];
    }
    return cb_fold_lanes(sum);
}

static inline void turn(double *restrict low, double *restrict high, const cb_rotation *r,
                        int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const double h = high[i];
        high[i] = r->s * low[i] + r->c * h;
        low[i] = r->c * low[i] - r->s * h;
    }
}

/* Applies two consecutive rotations of a sweep, which share the middle row. */
static inline void turn_two(double *restrict low, double *restrict middle, double *restrict high,
                            const cb_rotation *r, int64_t n) {
    const double c = r[0].c, s = r[0].s, c1 = r[1].c, s1 = r[1].s;
    for (int64_t i = 0; i < n; i++) {
        const double h = high[i], m = c * middle[i] - s * h, l = low[i];
        high[i] = s * middle[i] + c * h;
        middle[i] = s1 * l + c1 * m;
        low[i] = c1 * l - s1 * m;
    }
}

static void rotate(const cb_rotation *rotations, int64_t n_rotations, double *vectors,
                   int64_t stride, int64_t n) {
    for (int64_t k = 0; k < n_rotations; k++) {
        const cb_rotation *r = &rotations[k];
        double *low = vectors + r->i * stride, *high = low + stride;
        if (n == CB_ROTATED && k + 1 < n_rotations && r[1].i == r->i - 1) {
            turn_two(low - stride, low, high, r, CB_ROTATED);
            k++;
        } else {
            turn(low, high, r, n);
        }
    }
}

#define CB_TABLE_PASTE(isa) cb_eigen_fns_##isa
#define CB_TABLE_OF(isa) CB_TABLE_PASTE(isa)
extern const cb_eigen_fns CB_TABLE_OF(CB_KERN_ISA);
const cb_eigen_fns CB_TABLE_OF(CB_KERN_ISA) = {
    .dot = dot, .add = add, .reduce = reduce, .rotate = rotate};
