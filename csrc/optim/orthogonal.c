/* Newton-Schulz iteration with polynomials of degree five: using only matrix products, it takes x
 * approximately to U V^T of its singular value decomposition. Matrices of one shape are batched in
 * scratch, up to MOST_BYTES, and each product covers the whole batch. The coefficient a is added to
 * the diagonal of b (x x^T) + c (x x^T)^2, so an iteration is three products. For a tall matrix the
 * smaller x^T x is used, multiplied from the other side.
 *
 * All other work is divided into pieces that depend only on shapes, and their sums are added in
 * order. */
#include "orthogonal.h"

#include <math.h>
#include <string.h>

#include "../base/ints.h"
#include "extras.h"
#include "products.h"

#define MOST_BYTES ((size_t)64 << 20) /* limit for batches of more than one matrix */
#define CB_PIECE ((int64_t)1 << 14)   /* elements of a task */

#define CB_IMPL "orthogonal_impl.h"
#include "both_reals.h"

typedef struct batch { /* rows with the same shape, dtype and group */
    const cb_optim_table *table;
    cb_threads *pool;
    cb_orthogonal o;
    const uint32_t *row; /* [n] */
    int64_t n;
    cb_dtype dtype;
    int64_t height, width, side; /* side is the smaller of the two */
    int64_t pieces, lines;       /* per matrix: maximum number of partial sums, and tasks of
                                    rows_task */
    char *x, *y;                 /* [n][height][width] */
    char *gram, *square;         /* [n][side][side] */
    double *sum;                 /* [n][pieces] partial sums of squares */
    double *factor;              /* [n] */
} batch;

typedef struct layout { /* offsets in bytes from the beginning of scratch */
    size_t x, y, gram, square, sum, factor, end;
} layout;

static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

static int64_t pieces_of(const cb_optim_row *row) {
    const int64_t blocks = div_up(row->n, CB_PIECE);
    return blocks < row->height ? row->height : blocks; /* rows_task has at most `height` tasks */
}

/* Returns the layout of a batch of n matrices, which follows a list of n_rows rows. */
static layout layout_of(const cb_optim_row *row, size_t n, uint32_t n_rows) {
    const size_t size = cb_dtype_size(row->dtype);
    const size_t side = (size_t)min_i64(row->height, row->width);
    const size_t matrix = whole_lines(n * (size_t)row->n * size);
    const size_t square = whole_lines(n * side * side * size);
    layout l = {.x = whole_lines(n_rows * (sizeof(uint32_t) + 1))};
    l.y = l.x + matrix;
    l.gram = l.y + matrix;
    l.square = l.gram + square;
    l.sum = l.square + square;
    l.factor = l.sum + whole_lines(n * (size_t)pieces_of(row) * sizeof(double));
    l.end = l.factor + whole_lines(n * sizeof(double));
    return l;
}

static size_t most_of(const cb_optim_row *row) {
    const layout l = layout_of(row, 1, 0);
    const size_t n = MOST_BYTES / l.end;
    return n ? n : 1;
}

size_t cb_orthogonal_scratch(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                             uint32_t n_rows) {
    size_t wanted = 64;
    (void)o;
    (void)hyper;
    for (uint32_t i = 0; i < n_rows; i++) {
        if (rows[i].n == 0) continue;
        const size_t most = most_of(&rows[i]);
        const layout l = layout_of(&rows[i], most < n_rows ? most : n_rows, n_rows);
        if (l.end > wanted) wanted = l.end;
    }
    return wanted;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static const cb_optim_row *row_of(const batch *b, int64_t matrix) {
    return &b->table->rows[b->row[matrix]];
}

static char *matrix_of(const batch *b, char *data, int64_t matrix) {
    return data + (size_t)(matrix * b->height * b->width) * cb_dtype_size(b->dtype);
}

typedef struct span { /* elements at .. at + n of a matrix */
    int64_t matrix, at, n;
} span;

static span span_of(const batch *b, int64_t task) {
    const int64_t blocks = div_up(b->height * b->width, CB_PIECE), at = task % blocks * CB_PIECE;
    return (span){task / blocks, at, min_i64(CB_PIECE, b->height * b->width - at)};
}

static void begin_task(void *user, int64_t task, int thread) {
    const batch *b = user;
    const span s = span_of(b, task);
    const cb_optim_row *row = row_of(b, s.matrix);
    char *x = matrix_of(b, b->x, s.matrix);
    (void)thread;
    b->sum[s.matrix * b->pieces + s.at / CB_PIECE] =
        CB_OF_TYPE(b->dtype, begin, &b->o, row, b->table->grad_factor, s.at, s.n, x);
}

static void scale_task(void *user, int64_t task, int thread) {
    const batch *b = user;
    const span s = span_of(b, task);
    (void)thread;
    CB_OF_TYPE(b->dtype, scale, matrix_of(b, b->x, s.matrix), s.at, s.n, b->factor[s.matrix]);
}

static void mix_task(void *user, int64_t task, int thread) {
    const batch *b = user;
    const int64_t lines = div_up(CB_PIECE, b->side), tasks = div_up(b->side, lines);
    const int64_t matrix = task / tasks, from = task % tasks * lines;
    const size_t at = (size_t)(matrix * b->side * b->side) * cb_dtype_size(b->dtype);
    (void)thread;
    CB_OF_TYPE(b->dtype, mix, &b->o, b->gram + at, b->square + at, b->side, from,
               min_i64(from + lines, b->side));
}

static void rows_task(void *user, int64_t task, int thread) {
    const batch *b = user;
    const int64_t matrix = task / b->lines, r = task % b->lines;
    const int64_t each = div_up(CB_PIECE, b->width), from = r * each;
    (void)thread;
    b->sum[matrix * b->pieces + r] =
        CB_OF_TYPE(b->dtype, rows, &b->o, row_of(b, matrix), matrix_of(b, b->x, matrix), from,
                   min_i64(from + each, b->height));
}

static void apply_task(void *user, int64_t task, int thread) {
    const batch *b = user;
    const span s = span_of(b, task);
    const cb_optim_row *row = row_of(b, s.matrix);
    (void)thread;
    CB_OF_TYPE(b->dtype, apply, &b->o, row, b->factor[s.matrix], s.at, s.n,
               matrix_of(b, b->x, s.matrix));
    if (b->table->extras)
        cb_extras_of(cb_extras_functions(), b->table, b->row[s.matrix], row, s.at, s.n);
}

/* ---- a batch --------------------------------------------------------------------------------- */

static double add_up(const batch *b, int64_t matrix, int64_t n) {
    double sum = 0;
    for (int64_t k = 0; k < n; k++) sum += b->sum[matrix * b->pieces + k];
    return sum;
}

static void multiply(const batch *b, const cb_optim_product *product) {
    b->table->products->multiply(b->table->products, b->pool, product);
}

static void turn(batch *b) {
    const bool is_tall = b->height > b->width;
    const cb_optim_product gram = {.x = b->x,
                                   .y = b->x,
                                   .out = b->gram,
                                   .batch = b->n,
                                   .n = b->side,
                                   .k = is_tall ? b->height : b->width,
                                   .m = b->side,
                                   .dtype = b->dtype,
                                   .x_transposed = is_tall,
                                   .y_transposed = !is_tall};
    const cb_optim_product square = {b->gram, b->gram, b->square, b->n,  b->side,
                                     b->side, b->side, b->dtype,  false, false};
    const cb_optim_product next = {.x = is_tall ? b->x : b->square,
                                   .y = is_tall ? b->square : b->x,
                                   .out = b->y,
                                   .batch = b->n,
                                   .n = b->height,
                                   .k = b->side,
                                   .m = b->width,
                                   .dtype = b->dtype};
    char *const x = b->x;
    multiply(b, &gram);
    multiply(b, &square);
    cb_parallel(b->pool, b->n * div_up(b->side, div_up(CB_PIECE, b->side)), mix_task, b);
    multiply(b, &next);
    b->x = b->y;
    b->y = x;
}

static void run(batch *b) {
    const int64_t blocks = div_up(b->height * b->width, CB_PIECE);
    cb_parallel(b->pool, b->n * blocks, begin_task, b);
    for (int64_t k = 0; k < b->n; k++) {
        const double norm = sqrt(add_up(b, k, blocks));
        b->factor[k] = 1 / (norm < b->o.least ? b->o.least : norm); /* NaN stays */
    }
    cb_parallel(b->pool, b->n * blocks, scale_task, b);
    for (int k = 0; k < b->o.turns; k++) turn(b);
    if (b->o.has_rows) cb_parallel(b->pool, b->n * b->lines, rows_task, b);
    for (int64_t k = 0; k < b->n; k++) {
        b->factor[k] = b->o.rate;
        const double square = b->o.has_rows ? add_up(b, k, b->lines) : 0;
        if (square != 0) b->factor[k] *= b->o.size / sqrt(square); /* NaN stays */
    }
    cb_parallel(b->pool, b->n * blocks, apply_task, b);
}

static bool are_alike(const cb_optim_row *a, const cb_optim_row *b) {
    return b->n == a->n && a->dtype == b->dtype && a->group == b->group && a->height == b->height &&
           a->width == b->width;
}

void cb_step_orthogonal(const cb_optim_table *table, cb_threads *pool, cb_orthogonal_fn of) {
    uint32_t *list = table->scratch;
    uint8_t *is_done = (uint8_t *)(list + table->n_rows);
    memset(is_done, 0, table->n_rows);
    for (uint32_t i = 0; i < table->n_rows; i++) {
        const cb_optim_row *row = &table->rows[i];
        if (is_done[i] || row->n == 0) continue;
        const size_t most = most_of(row);
        size_t n = 0;
        for (uint32_t j = i; j < table->n_rows && n < most; j++) {
            if (is_done[j] || !are_alike(row, &table->rows[j])) continue;
            is_done[j] = 1;
            list[n++] = j;
        }
        const layout l = layout_of(row, n, table->n_rows);
        char *base = table->scratch;
        batch b = {.table = table,
                   .pool = pool,
                   .o = of(table->hyper + (size_t)row->group * table->n_hyper, row),
                   .row = list,
                   .n = (int64_t)n,
                   .dtype = row->dtype,
                   .height = row->height,
                   .width = row->width,
                   .side = min_i64(row->height, row->width),
                   .pieces = pieces_of(row),
                   .lines = div_up(row->height, div_up(CB_PIECE, row->width)),
                   .x = base + l.x,
                   .y = base + l.y,
                   .gram = base + l.gram,
                   .square = base + l.square,
                   .sum = (double *)(void *)(base + l.sum),
                   .factor = (double *)(void *)(base + l.factor)};
        run(&b);
    }
}
