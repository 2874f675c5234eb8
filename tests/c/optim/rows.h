/* rows.h: a table of tensors of many sizes, for tests of optimizers. */
#ifndef ROWS_H
#define ROWS_H

#include "base/cpu.h"
#include "optim/optimizers.h"

#include "check.h"
#include "step.h"

#include <stdlib.h>

#define ROWS 7
#define BIG 40000 /* several tasks */
#define BLOCKS 5  /* param, grad and three states */
#define STEPPED 3 /* the step count */

/* Small rows around a large one, two dtypes, and one empty row. */
static const int64_t sizes[ROWS] = {3, 0, 1, BIG, 17, 5, 16384};
static const cb_dtype dtypes[ROWS] = {CB_F32, CB_F32, CB_F64, CB_F32, CB_F64, CB_F32, CB_F64};

typedef struct table {
    char *block[BLOCKS]; /* all rows, one after the other, 8 bytes per element */
    size_t bytes;
    cb_optim_row row[ROWS];
} table;

/* Returns the initial value of an element. Blocks 3 and 4 hold no negative numbers, because they
 * may be means of squares. */
static inline double value_at(int block, size_t i) {
    double x = (double)((i * 2654435761u + (size_t)block * 97) % 20001) / 10000.0 - 1.0;
    return block >= 3 ? x * x : x;
}

static inline double get(const cb_optim_row *row, const void *data, int64_t i) {
    return row->dtype == CB_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static inline void put(const cb_optim_row *row, void *data, int64_t i, double x) {
    if (row->dtype == CB_F32) {
        ((float *)data)[i] = (float)x;
    } else {
        ((double *)data)[i] = x;
    }
}

static inline void table_init(table *s) {
    s->bytes = 0;
    for (int r = 0; r < ROWS; r++) s->bytes += 8 * (size_t)sizes[r];
    for (int k = 0; k < BLOCKS; k++) s->block[k] = calloc(1, s->bytes);
    size_t at = 0;
    for (int r = 0; r < ROWS; r++) {
        s->row[r] = (cb_optim_row){.param = s->block[0] + at,
                                   .grad = s->block[1] + at,
                                   .state = {s->block[2] + at, s->block[3] + at, s->block[4] + at},
                                   .n = sizes[r],
                                   .t = STEPPED,
                                   .number = {0.5, 0.25},
                                   .dtype = dtypes[r],
                                   .group = (uint32_t)r % 2};
        for (int64_t i = 0; i < sizes[r]; i++) {
            for (int k = 0; k < BLOCKS; k++)
                put(&s->row[r], s->block[k] + at, i, value_at(k, at + (size_t)i));
        }
        at += 8 * (size_t)sizes[r];
    }
}

static inline void table_free(table *s) {
    for (int k = 0; k < BLOCKS; k++) free(s->block[k]);
}

static inline bool same_bits(const table *x, const table *y) {
    bool same = true;
    for (int k = 0; k < BLOCKS; k++) same &= memcmp(x->block[k], y->block[k], x->bytes) == 0;
    return same;
}

/* Checks that three steps with 1 to 4 threads, and with every build of the formulas, give the same
 * bits as without a pool. */
static inline void check_threads(const cb_optimizer *o, const double *hyper, uint32_t n_groups) {
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    table alone;
    for (int threads = 0; threads <= 4; threads++) {
        cb_threads *pool = NULL;
        table s;
        setenv("CUTBACK_ISA", cb_isa_name((cb_isa)(threads % CB_ISA_COUNT)), 1);
        if (threads) CHECK_OK(cb_threads_new(&alloc, threads, &pool, &err));
        table_init(&s);
        for (int64_t t = 1; t <= 3; t++) {
            for (int r = 0; r < ROWS; r++) s.row[r].t = t;
            CHECK_OK(step_table(o, pool, hyper, n_groups, s.row, ROWS, &err));
        }
        if (!threads) {
            alone = s;
            continue;
        }
        CHECK(same_bits(&s, &alone));
        table_free(&s);
        cb_threads_free(pool);
    }
    unsetenv("CUTBACK_ISA");
    table_free(&alone);
}

/* Checks that thousands of rows of 0 to 2 elements give the bits of one row. `n_state` is at most
 * 3. */
static inline void check_many_rows(const cb_optimizer *o, const double *hyper, uint32_t n_state) {
    enum { N = 3000 }; /* more rows than anchors */
    static float array[BLOCKS][2 * N], expect[BLOCKS][2 * N];
    static cb_optim_row rows[N];
    for (int k = 0; k < BLOCKS; k++) {
        for (size_t i = 0; i < 2 * N; i++) array[k][i] = expect[k][i] = (float)value_at(k, i);
    }
    cb_optim_row whole = {.param = expect[0], .grad = expect[1], .t = STEPPED, .dtype = CB_F32};
    for (uint32_t k = 0; k < n_state; k++) whole.state[k] = expect[2 + k];
    for (int r = 0; r < N; r++) {
        rows[r] = whole;
        rows[r].n = r % 3;
        rows[r].param = array[0] + whole.n;
        rows[r].grad = array[1] + whole.n;
        for (uint32_t k = 0; k < n_state; k++) rows[r].state[k] = array[2 + k] + whole.n;
        whole.n += rows[r].n;
    }
    CHECK_OK(step_table(o, NULL, hyper, 1, rows, N, &err));
    CHECK_OK(step_table(o, NULL, hyper, 1, &whole, 1, &err));
    CHECK(memcmp(array, expect, sizeof array) == 0);
}

#endif
