/* The loops of factored.h, compiled for each instruction set (cmake/kernels.cmake). Sums have the
 * same number of lanes, in double, on all of them, so results are bitwise equal. */
#include "factored.h"

#include <math.h>
#include <string.h>

#define CB_INLINE static inline __attribute__((always_inline))
enum { LANES = CB_OPTIM_LANES, WIDE = CB_FACTORED_WIDE, SMALL = CB_FACTORED_SMALL };

#define CB_IMPL "factored_impl.h"
#include "both_reals.h"

#define CB_IMPL "factored_small_impl.h"
#include "both_reals.h"

static void squares(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                    double *line, double *column, double *weights) {
    if (cb_factored_is_narrow(row))
        CB_OF_TYPE(row->dtype, sum_lines, f, row, at, n, line, column, weights);
    else *line += CB_OF_TYPE(row->dtype, squares, f, row, at, n, column, weights);
}

static void move(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                 double *weights) {
    CB_OF_TYPE(row->dtype, move, f, row, at, n, weights);
}

static void measure(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                    const double *line, const void *column, double *sum) {
    if (cb_factored_is_narrow(row))
        CB_OF_TYPE(row->dtype, measure_lines, f, row, at, n, line, column, sum);
    else CB_OF_TYPE(row->dtype, measure, f, row, at, n, *line, column, sum);
}

static void apply(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                  const double *line, const void *column) {
    if (cb_factored_is_narrow(row))
        CB_OF_TYPE(row->dtype, apply_lines, f, row, at, n, line, column);
    else CB_OF_TYPE(row->dtype, apply, f, row, at, n, *line, column);
}

static void begin_small(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                        double *weights, double *size) {
    CB_OF_TYPE(row->dtype, begin_small, f, row, at, n, weights, size);
}

static void apply_small(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n) {
    CB_OF_TYPE(row->dtype, apply_small, f, row, at, n);
}

#define CB_TABLE_PASTE(isa) cb_factored_fns_##isa
#define CB_TABLE_OF(isa) CB_TABLE_PASTE(isa)
extern const cb_factored_fns CB_TABLE_OF(CB_KERN_ISA);
const cb_factored_fns CB_TABLE_OF(CB_KERN_ISA) = {.squares = squares,
                                                  .move = move,
                                                  .measure = measure,
                                                  .apply = apply,
                                                  .begin_small = begin_small,
                                                  .apply_small = apply_small};
