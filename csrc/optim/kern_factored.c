/* The loops of factored.h, compiled once for each instruction set (cmake/kernels.cmake). Sums have
 * as many lanes, in double, on all of them, so all give the same bits. */
#include "factored.h"

#include <math.h>

#define INLINE static inline __attribute__((always_inline))
enum { LANES = CB_FACTORED_LANES };

static double fold(double *sum) {
    for (int half = LANES / 2; half; half /= 2) {
        for (int k = 0; k < half; k++) sum[k] += sum[k + half];
    }
    return sum[0];
}

#define CB_IMPL "factored_impl.h"
#include "both_reals.h"

static double squares(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                      double *column, double *weights) {
    return OF_TYPE(row->dtype, squares, f, row, at, n, column, weights);
}

static void move(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                 double *weights) {
    OF_TYPE(row->dtype, move, f, row, at, n, weights);
}

static void measure(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                    double line, const void *column, double *sum) {
    OF_TYPE(row->dtype, measure, f, row, at, n, line, column, sum);
}

static void apply(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n, double line,
                  const void *column) {
    OF_TYPE(row->dtype, apply, f, row, at, n, line, column);
}

#define PASTE(isa) cb_factored_fns_##isa
#define TABLE_OF(isa) PASTE(isa)
extern const cb_factored_fns TABLE_OF(CB_KERN_ISA);
const cb_factored_fns TABLE_OF(CB_KERN_ISA) = {
    .squares = squares, .move = move, .measure = measure, .apply = apply};
