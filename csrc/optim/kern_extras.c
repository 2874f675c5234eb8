/* The loops of extras.h, compiled for each instruction set (cmake/kernels.cmake). Sums have 16
 * lanes, in double, on all of them. */
#include <math.h>

#include "../base/kern_half.h"
#include "extras.h"

enum { LANES = CB_OPTIM_LANES, SOME = 512 };

/* Adds squares to the lanes; element i goes to lane i mod LANES. */
static void add_squares(const float *g, int64_t n, double *sum) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) sum[k] += (double)g[i + k] * (double)g[i + k];
    }
    for (int k = 0; i < n; i++, k++) sum[k] += (double)g[i] * (double)g[i];
}

/* Folds the lanes. Squares of f32 do not overflow in double, so if the sum is not finite, an
 * element is not finite; then it returns NaN. */
static double whole_sum(double *sum) {
    const double total = cb_fold_lanes(sum);
    return isfinite(total) ? total : NAN;
}

static double square_f32(const float *g, int64_t n) {
    double sum[LANES] = {0};
    add_squares(g, n, sum);
    return whole_sum(sum);
}

static double square_halves(cb_dtype dtype, const uint16_t *g, int64_t n) {
    double sum[LANES] = {0};
    float some[SOME];
    for (int64_t at = 0; at < n; at += SOME) {
        const int64_t k = n - at < SOME ? n - at : SOME;
        half_widen(dtype, g + at, some, k);
        add_squares(some, k, sum);
    }
    return whole_sum(sum);
}

/* x - x is NaN if x is not finite, otherwise 0. */
static double square_f64(const double *g, int64_t n) {
    double sum[LANES] = {0}, is_nan[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            sum[k] += g[i + k] * g[i + k];
            is_nan[k] += g[i + k] - g[i + k];
        }
    }
    for (int k = 0; i < n; i++, k++) sum[k] += g[i] * g[i], is_nan[k] += g[i] - g[i];
    return cb_fold_lanes(sum) + cb_fold_lanes(is_nan);
}

static double square(const cb_optim_row *row, int64_t at, int64_t n) {
    if (cb_optim_is_half(row->dtype))
        return square_halves(row->dtype, (const uint16_t *)row->grad + at, n);
    return row->dtype == CB_F32 ? square_f32((const float *)row->grad + at, n)
                                : square_f64((const double *)row->grad + at, n);
}

#define CB_AVERAGE_LOOP(type)                                           \
    {                                                                   \
        const type *restrict p = (const type *)row->param + at;         \
        type *restrict a = (type *)average + at, old = (type)keep;      \
        const type new = (type)(1 - keep);                              \
        for (int64_t i = 0; i < n; i++) a[i] = old * a[i] + new * p[i]; \
    }

static void average_of(const cb_optim_row *row, void *average, double keep, int64_t at, int64_t n) {
    if (row->dtype == CB_F32) CB_AVERAGE_LOOP(float)
    else CB_AVERAGE_LOOP(double)
}

#define CB_COPY_LOOP(type, to_bf16, to_f16)                        \
    {                                                              \
        const type *restrict p = (const type *)row->param + at;    \
        uint16_t *restrict to = (uint16_t *)extra->copy + at;      \
        if (extra->copy_dtype == CB_BF16) {                        \
            for (int64_t i = 0; i < n; i++) to[i] = to_bf16(p[i]); \
        } else {                                                   \
            for (int64_t i = 0; i < n; i++) to[i] = to_f16(p[i]);  \
        }                                                          \
    }

static void copy(const cb_optim_row *row, const cb_extra_row *extra, int64_t at, int64_t n) {
    if (row->dtype == CB_F32) CB_COPY_LOOP(float, half_store_bf16, half_store_f16)
    else CB_COPY_LOOP(double, cb_f64_to_bf16, cb_f64_to_f16)
}

#define CB_TABLE_PASTE(isa) cb_extra_fns_##isa
#define CB_TABLE_OF(isa) CB_TABLE_PASTE(isa)
extern const cb_extra_fns CB_TABLE_OF(CB_KERN_ISA);
const cb_extra_fns CB_TABLE_OF(CB_KERN_ISA) = {
    .square = square, .average = average_of, .copy = copy};
