/* An element's update depends on all elements of its tensor, so there are three passes over the
 * gradients, each a parallel region over all rows of the table. The first pass computes the sums of
 * squares by rows and columns, and the norm of the weights. The second computes the norm of the
 * update. The third applies the update, which is computed again, because storing it would take an
 * array as large as the parameter.
 *
 * The first pass works on bands: whole lines of a matrix, or several matrices. Each band has its
 * own column sums. The other passes work on pieces of elements. Bands and pieces depend only on
 * shapes, and their sums are added in order.
 *
 * A convolution has millions of matrices of a few elements, one for each pair of channels. The sums
 * of such a matrix are known as soon as it has been read, so the first pass also computes the norm
 * of its update, and no scratch is needed for it. Bands and pieces are then the same. Kernels
 * process several short lines of a matrix at once, so pieces and runs end at a multiple of such
 * lines. */
#include "factored.h"

#include <math.h>
#include <string.h>

#include "../base/cpu.h"
#include "../base/ints.h"
#include "extras.h"
#include "halves.h"

#define CB_BAND ((int64_t)1 << 16) /* minimum number of elements of a band */
#define LEAST_LINES \
    ((int64_t)64)                   /* minimum number of lines of a band, which limits the column
                                       sums */
#define CB_PIECE ((int64_t)1 << 14) /* elements of a piece, a multiple of CB_EXTRAS_BLOCK */
enum { LANES = CB_OPTIM_LANES };
enum { ROWS, COLUMNS, WHOLE }; /* states */

extern const cb_factored_fns cb_factored_fns_baseline;
#if defined(__x86_64__)
extern const cb_factored_fns cb_factored_fns_avx2, cb_factored_fns_avx512;
static const cb_factored_fns *const tables[CB_ISA_COUNT] = {
    &cb_factored_fns_baseline, &cb_factored_fns_avx2, &cb_factored_fns_avx512};
#else
static const cb_factored_fns *const tables[CB_ISA_COUNT] = {&cb_factored_fns_baseline};
#endif

typedef struct shape {            /* the shape of a row, and how it is divided */
    int64_t small;                /* elements of a matrix if it is small, otherwise 0 */
    int64_t lines, height, width; /* lines of all matrices, 0 if there are none or they are small;
                                     their sides */
    int64_t matrices, bands;      /* matrices of a band; bands of a matrix */
    int64_t piece, run;           /* elements of a piece; maximum number of elements in one call of
                                     a kernel */
    int64_t n_bands, n_pieces;
} shape;

typedef struct place { /* offsets of a row's parts in the arrays of `region` */
    int64_t band, piece, line, column;
} place;

typedef struct region {
    const cb_optim_table *table;
    const cb_factored_fns *f;
    const cb_half_fns *halves;
    const cb_extra_fns *extras;
    cb_factored *of; /* [n_rows] */
    place *at;       /* [n_rows + 1] */
    double *weights; /* [bands] sums of squares of the weights */
    double *size;    /* [pieces] sums of squares of the updates */
    double *line;    /* [lines] sums of squares, later the factors of the column means */
    double *column;  /* [bands, or matrices if a band has several][width] sums of squares */
} region;

static shape shape_of(const cb_optim_row *row) {
    const int64_t each = row->n ? row->height * row->width : 0;
    shape s = {
        .height = row->height, .width = row->width, .piece = CB_PIECE, .run = CB_EXTRAS_BLOCK};
    s.small = each <= CB_FACTORED_SMALL ? each : 0;
    if (each && cb_factored_is_narrow(row)) {
        const int64_t few = (s.small ? each : row->width) * CB_FACTORED_WIDE;
        s.piece -= s.piece % few;
        s.run -= s.run % few;
    }
    s.n_bands = s.n_pieces = div_up(row->n, s.piece);
    if (each == 0 || s.small) return s;
    const int64_t all = row->n / each;
    s.lines = row->n / row->width;
    s.matrices = each < CB_BAND ? CB_BAND / each : 1;
    const int64_t lines = div_up(CB_BAND, row->width);
    s.bands = each < CB_BAND ? 1 : div_up(row->height, lines < LEAST_LINES ? LEAST_LINES : lines);
    s.n_bands = div_up(all, s.matrices) * s.bands;
    return s;
}

/* Returns the offsets of the row after `row`. */
static place after(place at, const cb_optim_row *row) {
    const shape s = shape_of(row);
    const int64_t matrices = s.lines ? s.lines / s.height : 0;
    return (place){at.band + s.n_bands, at.piece + s.n_pieces, at.line + s.lines,
                   at.column + matrices * s.bands * s.width};
}

size_t cb_factored_scratch(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                           uint32_t n_rows) {
    place end = {0};
    (void)o;
    (void)hyper;
    for (uint32_t i = 0; i < n_rows; i++) end = after(end, &rows[i]);
    return n_rows * sizeof(cb_factored) + (n_rows + (size_t)1) * sizeof(place) +
           (size_t)(end.band + end.piece + end.line + end.column) * sizeof(double);
}

/* ---- elements of any dtype ------------------------------------------------------------------- */

typedef void (*run_fn)(const region *r, uint32_t at_row, const cb_optim_row *row, int64_t at,
                       int64_t n, double *sum);

/* Calls `run` for the elements of a piece of row i in runs, as f32 or f64. */
static void in_runs(const region *r, uint32_t i, int64_t piece, run_fn run, double *sum) {
    const cb_optim_row *row = &r->table->rows[i];
    const shape s = shape_of(row);
    const bool halves = cb_optim_is_half(row->dtype);
    const int64_t from = piece * s.piece, end = min_i64(from + s.piece, row->n);
    cb_halves_room room;
    for (int64_t at = from; at < end; at += s.run) {
        const int64_t some = min_i64(end - at, s.run);
        const cb_optim_row whole = halves ? cb_halves_open(r->halves, row, at, some, &room) : *row;
        run(r, i, &whole, at, some, sum);
    }
}

/* Returns the row that a band, or a piece, belongs to. */
static uint32_t row_at(const region *r, int64_t task, bool is_band) {
    uint32_t low = 0, high = r->table->n_rows;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if ((is_band ? r->at[middle].band : r->at[middle].piece) <= task) low = middle;
        else high = middle;
    }
    return low;
}

/* ---- sums of squares ------------------------------------------------------------------------- */

static void move_run(const region *r, uint32_t i, const cb_optim_row *row, int64_t at, int64_t n,
                     double *weights) {
    r->f->move(&r->of[i], row, at, n, weights);
}

static void small_run(const region *r, uint32_t i, const cb_optim_row *row, int64_t at, int64_t n,
                      double *sums) {
    const int64_t each = shape_of(row).small;
    r->f->begin_small(&r->of[i], row, at / each, n / each, sums, sums + LANES);
}

/* Sums the squares of lines from .. to of a matrix into `line` and `column`. */
static void add_lines(const region *r, uint32_t i, int64_t from, int64_t to, double *column,
                      double *weights) {
    const cb_optim_row *row = &r->table->rows[i];
    const shape s = shape_of(row);
    const bool halves = cb_optim_is_half(row->dtype);
    double *line = r->line + r->at[i].line;
    cb_halves_room room;
    memset(line + from, 0, (size_t)(to - from) * sizeof *line);
    memset(column, 0, (size_t)s.width * sizeof *column);
    for (int64_t at = from * s.width, n; at < to * s.width; at += n) {
        const int64_t k = at / s.width, j = at % s.width;
        const int64_t left = cb_factored_is_narrow(row) ? (to - k) * s.width : s.width - j;
        n = halves || left > s.width ? min_i64(left, s.run) : left;
        const cb_optim_row whole = halves ? cb_halves_open(r->halves, row, at, n, &room) : *row;
        r->f->squares(&r->of[i], &whole, at, n, line + k, column + j, weights);
    }
}

static void band_task(void *user, int64_t task, int thread) {
    const region *r = user;
    const uint32_t i = row_at(r, task, true);
    const cb_optim_row *row = &r->table->rows[i];
    const shape s = shape_of(row);
    const int64_t band = task - r->at[i].band;
    double weights[2 * LANES] = {0}, *column = r->column + r->at[i].column;
    (void)thread;
    if (s.small) {
        in_runs(r, i, band, small_run, weights);
        r->size[r->at[i].piece + band] = cb_fold_lanes(weights + LANES);
    } else if (s.lines == 0) {
        in_runs(r, i, band, move_run, weights);
    } else if (s.bands > 1) {
        const int64_t each = div_up(s.height, s.bands), from = band % s.bands * each;
        const int64_t first = band / s.bands * s.height;
        add_lines(r, i, first + min_i64(from, s.height), first + min_i64(from + each, s.height),
                  column + band * s.width, weights);
    } else {
        const int64_t all = s.lines / s.height, end = min_i64((band + 1) * s.matrices, all);
        for (int64_t k = band * s.matrices; k < end; k++)
            add_lines(r, i, k * s.height, (k + 1) * s.height, column + k * s.width, weights);
    }
    r->weights[task] = cb_fold_lanes(weights);
}

static double read_as(cb_dtype dtype, const void *data, int64_t i) {
    return dtype == CB_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static double move_mean(cb_dtype dtype, void *data, int64_t i, double mean, double share) {
    const double new = cb_moved_mean(read_as(dtype, data, i), mean, share);
    if (dtype == CB_F32) ((float *)data)[i] = (float)new;
    else ((double *)data)[i] = new;
    return read_as(dtype, data, i);
}

/* Moves the means of one matrix, and computes the factor of the column means for each line. */
static void finish_matrix(const region *r, uint32_t i, const shape *s, int64_t matrix) {
    const cb_optim_row *row = &r->table->rows[i];
    const cb_factored *f = &r->of[i];
    const cb_dtype dtype = cb_optim_dtype(row);
    double *line = r->line + r->at[i].line + matrix * s->height, all = 0;
    const double *column = r->column + r->at[i].column + matrix * s->bands * s->width;
    for (int64_t k = 0; k < s->height; k++) {
        line[k] = move_mean(dtype, row->state[ROWS], matrix * s->height + k,
                            line[k] / (double)s->width, f->share);
        all += line[k];
    }
    const double mean = all / (double)s->height, by = mean < f->least ? f->least : mean;
    for (int64_t k = 0; k < s->height; k++) line[k] /= by; /* NaN stays */
    for (int64_t j = 0; j < s->width; j++) {
        double sum = 0;
        for (int64_t k = 0; k < s->bands; k++) sum += column[k * s->width + j];
        move_mean(dtype, row->state[COLUMNS], matrix * s->width + j, sum / (double)s->height,
                  f->share);
    }
}

static void finish_task(void *user, int64_t task, int thread) {
    const region *r = user;
    const uint32_t i = (uint32_t)task;
    const cb_optim_row *row = &r->table->rows[i];
    const shape s = shape_of(row);
    double weights = 0;
    (void)thread;
    if (row->n == 0) return;
    for (int64_t k = 0; s.lines && k < s.lines / s.height; k++) finish_matrix(r, i, &s, k);
    for (int64_t k = r->at[i].band; k < r->at[i + 1].band; k++) weights += r->weights[k];
    r->of[i].rate *= fmax(r->of[i].least_size, sqrt(weights / (double)row->n));
}

/* ---- updates --------------------------------------------------------------------------------- */

typedef struct stretch { /* elements of one line, of several narrow lines, or without matrices */
    int64_t n;
    const double *line;
    const char *column;
} stretch;

static stretch stretch_at(const region *r, uint32_t i, int64_t at, int64_t n) {
    static const double one = 1;
    const cb_optim_row *row = &r->table->rows[i];
    const size_t size = cb_dtype_size(cb_optim_dtype(row));
    if (row->height == 0) return (stretch){n, &one, (char *)row->state[WHOLE] + (size_t)at * size};
    const int64_t k = at / row->width, j = at % row->width, matrix = k / row->height;
    const int64_t lines = cb_factored_is_narrow(row) ? (matrix + 1) * row->height - k : 1;
    return (stretch){min_i64(lines * row->width - j, n), r->line + r->at[i].line + k,
                     (char *)row->state[COLUMNS] + (size_t)(matrix * row->width + j) * size};
}

static void measure_run(const region *r, uint32_t i, const cb_optim_row *row, int64_t at, int64_t n,
                        double *sum) {
    for (int64_t done = 0; done < n;) {
        const stretch s = stretch_at(r, i, at + done, n - done);
        r->f->measure(&r->of[i], row, at + done, s.n, s.line, s.column, sum);
        done += s.n;
    }
}

static void measure_task(void *user, int64_t task, int thread) {
    const region *r = user;
    const uint32_t i = row_at(r, task, false);
    double sum[LANES] = {0};
    (void)thread;
    if (shape_of(&r->table->rows[i]).small) return; /* band_task has measured it */
    in_runs(r, i, task - r->at[i].piece, measure_run, sum);
    r->size[task] = cb_fold_lanes(sum);
}

/* The last pass writes parameters, so halves are converted back, and extras follow. */
static void apply_run(const region *r, uint32_t i, const cb_optim_row *row, int64_t at, int64_t n,
                      double *none) {
    const cb_optim_row *given = &r->table->rows[i];
    const int64_t small = shape_of(given).small;
    (void)none;
    if (small) r->f->apply_small(&r->of[i], row, at / small, n / small);
    for (int64_t done = small ? n : 0; done < n;) {
        const stretch s = stretch_at(r, i, at + done, n - done);
        r->f->apply(&r->of[i], row, at + done, s.n, s.line, s.column);
        done += s.n;
    }
    if (r->table->extras) cb_extras_of(r->extras, r->table, i, row, at, n);
    if (cb_optim_is_half(given->dtype)) cb_halves_close(r->halves, given, row, at, n);
}

static void apply_task(void *user, int64_t task, int thread) {
    const region *r = user;
    const uint32_t i = row_at(r, task, false);
    (void)thread;
    in_runs(r, i, task - r->at[i].piece, apply_run, NULL);
}

/* ---- the step -------------------------------------------------------------------------------- */

static region region_of(const cb_optim_table *table, cb_factored_fn of) {
    region r = {.table = table,
                .f = tables[cb_cpu_kernel_isa()],
                .halves = cb_halves_functions(),
                .extras = cb_extras_functions(),
                .of = table->scratch};
    r.at = (place *)(void *)(r.of + table->n_rows);
    r.at[0] = (place){0};
    for (uint32_t i = 0; i < table->n_rows; i++) {
        const cb_optim_row *row = &table->rows[i];
        r.of[i] = of(table->hyper + (size_t)row->group * table->n_hyper, row);
        r.of[i].scale *= table->grad_factor;
        r.at[i + 1] = after(r.at[i], row);
    }
    const place end = r.at[table->n_rows];
    r.weights = (double *)(void *)(r.at + table->n_rows + 1);
    r.size = r.weights + end.band;
    r.line = r.size + end.piece;
    r.column = r.line + end.line;
    return r;
}

void cb_step_factored(const cb_optim_table *table, cb_threads *pool, cb_factored_fn of) {
    region r = region_of(table, of);
    cb_parallel(pool, r.at[table->n_rows].band, band_task, &r);
    cb_parallel(pool, table->n_rows, finish_task, &r);
    cb_parallel(pool, r.at[table->n_rows].piece, measure_task, &r);
    for (uint32_t i = 0; i < table->n_rows; i++) {
        double sum = 0;
        for (int64_t k = r.at[i].piece; k < r.at[i + 1].piece; k++) sum += r.size[k];
        if (sum > 0) r.of[i].rate /= fmax(1, sqrt(sum / (double)table->rows[i].n) / r.of[i].most);
    }
    cb_parallel(pool, r.at[table->n_rows].piece, apply_task, &r);
}
