/* A batch is stepped by kernels, one after another. Those of Muon (text/orthogonal.cuh) move the
 * momentum, scale it, and make three products per iteration; those of Adafactor (factored.cuh) move
 * means, measure the update, and compute it again to apply it. Matrices of Muon, each padded to
 * whole chunks, are in device memory that all batches share. Its batches of several matrices are
 * limited to MOST_BYTES. */
#include "matrices.h"

#include <stdio.h>
#include <string.h>

#include "../../optim/formula_factors.h"
#include "../../optim/optimizers.h"

enum { CHUNK = 4096, THREADS = 256, TILE = 64 }; /* the values of optim.cuh and orthogonal.cuh */
enum { BEGIN, SCALE, GRAM, MIX, NEXT, LINES, APPLY };
enum { MOVE_LINES, MOVE_COLUMNS, MEANS, MOVE_ELEMENTS, MEASURE, TOTAL };
#define MOST_BYTES ((uint64_t)256 << 20)

static const char *const names[2][CB_CU_MATRIX_KERNELS] = {
    {"begin", "scale", "gram", "mix", "next", "lines", "apply"},
    {"lines", "columns", "means", "elements", "measure", "total", "apply"},
};

static uint64_t div_up(uint64_t x, uint64_t by) { return (x + by - 1) / by; }

bool cb_cu_is_of_matrices(const cb_optimizer *o) {
    return o == &cb_optimizer_muon || o == &cb_optimizer_normuon || o == &cb_optimizer_adafactor;
}

static bool is_factored(const cb_cu_matrices *m) { return m->of == &cb_optimizer_adafactor; }

cb_status cb_cu_matrices_init(cb_cu_matrices *m, uint32_t rows, cb_arena *memory, cb_error *err) {
    CB_TRY_NEW(m->order, memory, rows, err);
    CB_TRY_NEW(m->batch, memory, rows, err);
    return CB_OK;
}

cb_status cb_cu_matrices_load(cb_cu_matrices *m, const cb_cu_gpu *d, bool has_f64,
                              cb_cu_find_fn find, const void *user, cb_error *err) {
    for (int type = 0; type < 1 + has_f64; type++) {
        for (int k = 0; k < CB_CU_MATRIX_KERNELS; k++) {
            char name[32];
            (void)snprintf(name, sizeof name, "cb_%s_%s", names[is_factored(m)][k],
                           type ? "f64" : "f32");
            CB_TRY(find(user, d, name, &m->function[type][k], err));
        }
    }
    return CB_OK;
}

/* ---- batches --------------------------------------------------------------------------------- */

static int compare(const cb_optim_row *a, const cb_optim_row *b) {
    const int64_t x[] = {a->n, a->height, a->width, a->dtype, a->group},
                  y[] = {b->n, b->height, b->width, b->dtype, b->group};
    for (int k = 0; k < 5; k++)
        if (x[k] != y[k]) return x[k] < y[k] ? -1 : 1;
    return 0;
}

static size_t size_of(const cb_cu_batch *b) { return b->is_f64 ? sizeof(double) : sizeof(float); }
static uint64_t chunks_of(const cb_cu_batch *b) { return div_up((uint64_t)b->size, CHUNK); }
static uint64_t side_of(const cb_cu_batch *b) {
    return (uint64_t)(b->height < b->width ? b->height : b->width);
}

typedef struct layout { /* offsets in bytes */
    uint64_t sums, x, y, gram, square, end;
} layout;

static uint64_t whole_lines(uint64_t bytes) { return div_up(bytes, 256) * 256; }

/* The sums of a row's weights: one for each line, or for each chunk. */
static uint64_t lines_of(const cb_cu_batch *b) {
    return b->height ? (uint64_t)(b->size / b->width) : chunks_of(b);
}
static uint64_t matrices_of(const cb_cu_batch *b) {
    return b->height ? (uint64_t)(b->size / b->width / b->height) : 0;
}

/* For Adafactor, x has the sums of squared updates, y the means of row means, gram the rates. */
static layout factored_layout(const cb_cu_batch *b, uint64_t n) {
    layout l = {.x = whole_lines(n * lines_of(b) * sizeof(double))};
    l.y = l.x + whole_lines(n * chunks_of(b) * sizeof(double));
    l.gram = l.y + whole_lines(n * matrices_of(b) * sizeof(double));
    l.square = l.end = l.gram + whole_lines(n * sizeof(double));
    return l;
}

static layout layout_of(const cb_cu_matrices *m, const cb_cu_batch *b, uint64_t n) {
    if (is_factored(m)) return factored_layout(b, n);
    const uint64_t side = side_of(b), chunks = chunks_of(b), height = (uint64_t)b->height;
    const uint64_t matrix = whole_lines(n * chunks * CHUNK * size_of(b)),
                   square = whole_lines(n * side * side * size_of(b));
    layout l = {.x = whole_lines(n * (chunks > height ? chunks : height) * sizeof(double))};
    l.y = l.x + matrix;
    l.gram = l.y + matrix;
    l.square = l.gram + square;
    l.end = l.square + square;
    return l;
}

static int turns_of(const cb_cu_matrices *m, const double *hyper) {
    return is_factored(m) ? 0 : (int)hyper[CB_MUON_NS_STEPS];
}

void cb_cu_matrices_sort(cb_cu_matrices *m, const cb_optim_table *table) {
    uint32_t n = 0;
    m->n_batch = 0;
    for (uint32_t i = 0; i < table->n_rows; i++) { /* few shapes: rows mostly stay in order */
        uint32_t k = i;
        for (; k > 0 && compare(&table->rows[m->order[k - 1]], &table->rows[i]) > 0; k--)
            m->order[k] = m->order[k - 1];
        m->order[k] = i;
    }
    const cb_optim_row *last = NULL;
    for (uint32_t i = 0; i < table->n_rows; i++) {
        const cb_optim_row *row = &table->rows[m->order[i]];
        if (row->n == 0) continue;
        cb_cu_batch *b = &m->batch[m->n_batch > 0 ? m->n_batch - 1 : 0];
        if (!last || compare(last, row) != 0 || layout_of(m, b, b->n + 1).end > MOST_BYTES) {
            const double *hyper = table->hyper + (size_t)row->group * table->n_hyper;
            m->batch[m->n_batch++] = (cb_cu_batch){.first = n,
                                                   .n = 0,
                                                   .group = row->group,
                                                   .is_f64 = row->dtype == CB_F64,
                                                   .size = row->n,
                                                   .height = row->height,
                                                   .width = row->width,
                                                   .turns = turns_of(m, hyper)};
        }
        m->batch[m->n_batch - 1].n++;
        last = row;
        n++;
    }
}

cb_status cb_cu_matrices_make_room(cb_cu_matrices *m, const cb_cu_gpu *d, cb_error *err) {
    uint64_t wanted = 0;
    for (uint32_t k = 0; k < m->n_batch; k++) {
        const uint64_t bytes = layout_of(m, &m->batch[k], m->batch[k].n).end;
        if (bytes > wanted) wanted = bytes;
    }
    if (wanted <= m->bytes) return CB_OK;
    CB_CU(&d->driver, cuCtxSynchronize());
    cb_cu_matrices_release(m, d);
    CB_TRY(cb_cu_take(d, wanted, &m->room, err));
    m->bytes = wanted;
    return CB_OK;
}

void cb_cu_matrices_release(cb_cu_matrices *m, const cb_cu_gpu *d) {
    if (m->room) (void)d->driver.cuMemFree(m->room);
    m->room = m->bytes = 0;
}

cb_status cb_cu_matrices_check(const cb_cu_matrices *m, const cb_optim_table *table,
                               cb_error *err) {
    for (uint32_t k = 0; m->of && k < m->n_batch; k++) {
        const cb_cu_batch *b = &m->batch[k];
        const int turns = turns_of(m, table->hyper + (size_t)b->group * table->n_hyper);
        if (turns == b->turns) continue;
        return cb_fail(err, CB_INVALID,
                       "%s: ns_steps is %d, but the captured graph makes %d iterations; capture "
                       "the step again after clear()",
                       table->optimizer->name, turns, b->turns);
    }
    return CB_OK;
}

/* ---- launches -------------------------------------------------------------------------------- */

typedef struct work { /* a batch, with the arguments of its kernels */
    const cb_cu_matrices *m;
    const cb_cu_gpu *d;
    void *stream;
    const cb_cu_batch *b;
    cb_cu_numbers numbers;
    uint64_t sums, x, y, gram, square, stride, height, width, side, chunks, by_lines, lines,
        matrices;
} work;

/* Launches a kernel with the numbers of the step and the given arguments, ended by NULL. */
static cb_status launch(work *w, int kernel, uint64_t blocks, void *const *given, cb_error *err) {
    void *arguments[16] = {&w->numbers.rows, &w->numbers.factors, &w->numbers.failed,
                           &w->numbers.words};
    for (int k = 0; given[k]; k++) arguments[4 + k] = given[k];
    CB_CU(&w->d->driver, cuLaunchKernel(w->m->function[w->b->is_f64][kernel], (unsigned)blocks, 1,
                                        1, THREADS, 1, 1, 0, w->stream, arguments, NULL));
    return CB_OK;
}

/* One iteration: x becomes (a I + b g + c g^2) x, where g is x x^T, or x^T x from the other
 * side. */
static cb_status turn(work *w, cb_error *err) {
    const uint64_t n = w->b->n, across = div_up(w->side, TILE);
    uint64_t squares = across * across, tiles = div_up(w->height, TILE) * div_up(w->width, TILE);
    const uint64_t x = w->x;
    CB_TRY(launch(w, GRAM, n * squares,
                  (void *[]){&w->x, &w->gram, &w->stride, &w->height, &w->width, &squares, NULL},
                  err));
    CB_TRY(launch(w, MIX, n * squares, (void *[]){&w->gram, &w->square, &w->side, &squares, NULL},
                  err));
    CB_TRY(launch(
        w, NEXT, n * tiles,
        (void *[]){&w->x, &w->square, &w->y, &w->stride, &w->height, &w->width, &tiles, NULL},
        err));
    w->x = w->y;
    w->y = x;
    return CB_OK;
}

static cb_status put_batch(work *w, cb_error *err) {
    const uint64_t n = w->b->n, blocks = n * w->chunks;
    void *const elements[] = {&w->x, &w->sums, &w->stride, &w->chunks, NULL};
    CB_TRY(launch(w, BEGIN, blocks, elements, err));
    CB_TRY(launch(w, SCALE, blocks, elements, err));
    for (int k = 0; k < w->b->turns; k++) CB_TRY(turn(w, err));
    if (w->by_lines)
        CB_TRY(launch(w, LINES, n * w->height,
                      (void *[]){&w->x, &w->sums, &w->stride, &w->height, &w->width, NULL}, err));
    return launch(w, APPLY, blocks,
                  (void *[]){&w->x, &w->sums, &w->stride, &w->height, &w->width, &w->chunks,
                             &w->by_lines, NULL},
                  err);
}

static cb_status put_means(work *w, cb_error *err) {
    const uint64_t n = w->b->n;
    uint64_t all = n * w->lines;
    if (w->height == 0)
        return launch(w, MOVE_ELEMENTS, n * w->chunks, (void *[]){&w->sums, &w->chunks, NULL}, err);
    CB_TRY(launch(w, MOVE_LINES, div_up(all, THREADS / 32),
                  (void *[]){&w->sums, &w->lines, &w->width, &all, NULL}, err));
    CB_TRY(launch(w, MOVE_COLUMNS, n * w->matrices * div_up(w->width, 32),
                  (void *[]){&w->matrices, &w->height, &w->width, NULL}, err));
    return launch(w, MEANS, n * w->matrices, (void *[]){&w->y, &w->matrices, &w->height, NULL},
                  err);
}

static cb_status put_factored(work *w, cb_error *err) {
    const uint64_t n = w->b->n, blocks = n * w->chunks;
    CB_TRY(put_means(w, err));
    CB_TRY(launch(w, MEASURE, blocks,
                  (void *[]){&w->y, &w->x, &w->matrices, &w->height, &w->width, &w->chunks, NULL},
                  err));
    CB_TRY(launch(w, TOTAL, n, (void *[]){&w->sums, &w->x, &w->gram, &w->lines, &w->chunks, NULL},
                  err));
    return launch(
        w, APPLY, blocks,
        (void *[]){&w->y, &w->gram, &w->matrices, &w->height, &w->width, &w->chunks, NULL}, err);
}

cb_status cb_cu_matrices_put(const cb_cu_matrices *m, const cb_cu_gpu *d, void *stream,
                             const cb_cu_numbers *numbers, size_t row_bytes, cb_error *err) {
    for (uint32_t k = 0; k < m->n_batch; k++) {
        const cb_cu_batch *b = &m->batch[k];
        const layout l = layout_of(m, b, b->n);
        work w = {.m = m, .d = d, .stream = stream, .b = b, .numbers = *numbers};
        w.numbers.rows += (uint64_t)b->first * row_bytes;
        w.sums = m->room;
        w.x = m->room + l.x, w.y = m->room + l.y;
        w.gram = m->room + l.gram, w.square = m->room + l.square;
        w.chunks = chunks_of(b);
        w.stride = w.chunks * CHUNK;
        w.height = (uint64_t)b->height, w.width = (uint64_t)b->width, w.side = side_of(b);
        w.by_lines = m->of == &cb_optimizer_normuon;
        w.lines = lines_of(b), w.matrices = matrices_of(b);
        CB_TRY(is_factored(m) ? put_factored(&w, err) : put_batch(&w, err));
    }
    return CB_OK;
}
