/* Before the step, one pass computes a sum of squares for each piece of the gradients. Pieces
 * depend only on shapes, and their sums are added in order. The total is NaN if an element is not
 * finite, so one pass gives both the norm and that check. Extras that follow an update are done
 * while its elements are in the cache. */
#include "extras.h"

#include <math.h>
#include <string.h>

#include "../base/cpu.h"
#include "split.h"

#define CB_PIECE ((int64_t)1 << 14) /* number of elements of a piece */

extern const cb_extra_fns cb_extra_fns_baseline;
#if defined(__x86_64__)
extern const cb_extra_fns cb_extra_fns_avx2, cb_extra_fns_avx512;
static const cb_extra_fns *const tables[CB_ISA_COUNT] = {&cb_extra_fns_baseline, &cb_extra_fns_avx2,
                                                         &cb_extra_fns_avx512};
#else
static const cb_extra_fns *const tables[CB_ISA_COUNT] = {&cb_extra_fns_baseline};
#endif

const cb_extra_fns *cb_extras_functions(void) { return tables[cb_cpu_kernel_isa()]; }

static bool is_number(double x, double most) { return x >= 0 && x <= most; }

cb_status cb_extras_check(const cb_optimizer *o, const cb_optim_extras *extras, uint32_t n,
                          cb_error *err) {
    if (!is_number(extras->grad_factor, CB_HYPER_MOST)) {
        return cb_fail(err, CB_INVALID, "%s: grad_factor is %g; it must be between 0 and %g",
                       o->name, extras->grad_factor, CB_HYPER_MOST);
    }
    if (!(extras->max_norm >= 0)) {
        return cb_fail(err, CB_INVALID, "%s: max_norm is %g; it must be 0 or above", o->name,
                       extras->max_norm);
    }
    if (!is_number(extras->average_keep, 1)) {
        return cb_fail(err, CB_INVALID, "%s: average_keep is %g; it must be between 0 and 1",
                       o->name, extras->average_keep);
    }
    for (uint32_t i = 0; extras->rows && i < n; i++) {
        const cb_extra_row *row = &extras->rows[i];
        if (!row->copy || row->copy_dtype == CB_F16 || row->copy_dtype == CB_BF16) continue;
        return cb_fail(err, CB_UNSUPPORTED, "%s: the copy of row %u is %s; copies are f16 or bf16",
                       o->name, i, cb_dtype_name(row->copy_dtype));
    }
    return CB_OK;
}

static void clear(const cb_optim_row *row, int64_t at, int64_t n) {
    const size_t size = cb_dtype_size(row->dtype);
    memset((char *)(uintptr_t)row->grad + (size_t)at * size, 0, (size_t)n * size);
}

void cb_extras_of(const cb_extra_fns *f, const cb_optim_table *table, uint32_t at_row,
                  const cb_optim_row *row, int64_t at, int64_t n) {
    const cb_extra_row *extra = table->extras->rows ? &table->extras->rows[at_row] : NULL;
    if (extra && extra->average)
        f->average(row, extra->average, table->extras->average_keep, at, n);
    if (extra && extra->copy) f->copy(row, extra, at, n);
    if (table->extras->zeroes) clear(&table->rows[at_row], at, n);
}

/* ---- all gradients --------------------------------------------------------------------------- */

typedef struct region {
    cb_split split;
    const cb_extra_fns *f;
    int64_t *first_piece; /* [n_rows] */
    double *piece;
} region;

static int64_t pieces_of(const cb_optim_row *row) { return (row->n + CB_PIECE - 1) / CB_PIECE; }

static int64_t count_pieces(const cb_optim_table *table) {
    int64_t n = 0;
    for (uint32_t i = 0; i < table->n_rows; i++) n += pieces_of(&table->rows[i]);
    return n;
}

static bool looks_at_all(const cb_optim_extras *extras) {
    return extras->skips || extras->max_norm > 0;
}

size_t cb_gradients_scratch(const cb_optim_table *table, const cb_optim_extras *extras) {
    if (!looks_at_all(extras)) return 0;
    return table->n_rows * sizeof(int64_t) + (size_t)count_pieces(table) * sizeof(double);
}

static void square_task(void *user, int64_t task, int thread) {
    const region *r = user;
    cb_stretches parts = cb_stretches_of(&r->split, task);
    (void)thread;
    for (cb_stretch part; cb_next_stretch(&parts, &part);) {
        const cb_optim_row *row = &r->split.table->rows[part.row];
        for (int64_t at = part.from; at < part.from + part.n; at += CB_PIECE) {
            int64_t n = part.from + part.n - at;
            if (n > CB_PIECE) n = CB_PIECE;
            r->piece[r->first_piece[part.row] + at / CB_PIECE] = r->f->square(row, at, n);
        }
    }
}

/* Returns the sum of squares of all gradients; NaN if an element is not finite. */
static double square_of(const cb_optim_table *table, cb_threads *pool, void *scratch) {
    region r = {.split = cb_split_of(table, pool, CB_PIECE), .f = cb_extras_functions()};
    int64_t pieces = 0;
    r.first_piece = scratch;
    r.piece = (double *)(void *)(r.first_piece + table->n_rows);
    for (uint32_t i = 0; i < table->n_rows; i++) {
        r.first_piece[i] = pieces;
        pieces += pieces_of(&table->rows[i]);
    }
    cb_parallel(pool, r.split.n_tasks, square_task, &r);
    double total = 0;
    for (int64_t k = 0; k < pieces; k++) total += r.piece[k];
    return total;
}

cb_optim_outcome cb_gradients_measure(cb_optim_table *table, const cb_optim_extras *extras,
                                      cb_threads *pool, void *scratch) {
    cb_optim_outcome out = {.norm = -1};
    table->extras = extras;
    table->grad_factor = extras->grad_factor;
    if (!looks_at_all(extras)) return out;
    const double square = square_of(table, pool, scratch);
    out.norm = sqrt(square) * extras->grad_factor;
    out.skipped = isnan(square);
    if (extras->max_norm > 0) {
        const double shorter = extras->max_norm / (out.norm + 1e-6);
        if (shorter < 1) table->grad_factor *= shorter;
    }
    return out;
}

static void clear_task(void *user, int64_t task, int thread) {
    const region *r = user;
    cb_stretches parts = cb_stretches_of(&r->split, task);
    (void)thread;
    for (cb_stretch part; cb_next_stretch(&parts, &part);)
        clear(&r->split.table->rows[part.row], part.from, part.n);
}

void cb_gradients_clear(const cb_optim_table *table, cb_threads *pool) {
    region r = {.split = cb_split_of(table, pool, 1)};
    cb_parallel(pool, r.split.n_tasks, clear_task, &r);
}
