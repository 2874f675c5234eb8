/* Every element is updated on its own, so any way of cutting the work gives the same bits. The rows
 * are seen as one long run of work, an element one unit and the beginning of a row ROW_UNITS more,
 * cut into tasks of one size: a thousand biases share one and a large matrix is spread over many.
 *
 *     rows    |---- w0 ----|b0|---- w1 ----|b1|
 *     tasks   |......|......|......|......|...
 */
#include "elements.h"

/* Long tasks: each array of a row is a stream of its own for the processor's prefetchers, and 16 M
 * elements of AdamW on two threads took 4.6 ms in tasks of 16 K, 3.7 of 1 M, 3.4 of 8 M. Two for a
 * thread let one that is held up be helped. */
#define TASKS_PER_THREAD 2
#define LEAST_UNITS ((int64_t)1 << 13) /* of a task: 230 KB of AdamW, some ten microseconds */
#define ROW_UNITS 64 /* of a call of a formula, beside its elements: about 10 ns */
#define ANCHORS 256u /* where tasks begin to look for their first row */

typedef struct region {
    const cb_optim_table *table;
    cb_factors_fn factors;
    cb_formula_fn update;
    int64_t total, task;       /* units of all rows, and of a task */
    uint32_t n_anchor, stride; /* anchor a is row a * stride ... */
    int64_t anchor[ANCHORS];   /* ... and so many units come before it */
} region;

static int64_t units_of(const cb_optim_row *row) { return row->n ? row->n + ROW_UNITS : 0; }

/* The part of a row that lies in units [begin, end), where `before` come before the row. The first
 * ROW_UNITS stand for no element. */
static void update_part(const region *x, const double *factor, const cb_optim_row *row,
                        int64_t before, int64_t begin, int64_t end) {
    int64_t from = begin - before - ROW_UNITS, to = end - before - ROW_UNITS;
    if (from < 0) from = 0;
    if (to > row->n) to = row->n;
    if (from < to) x->update(factor, row, from, to - from);
}

static void run_task(void *user, int64_t task, int thread) {
    const region *x = user;
    const cb_optim_table *table = x->table;
    (void)thread;
    int64_t begin = task * x->task, end = begin + x->task;
    if (end > x->total) end = x->total;
    uint32_t a = x->n_anchor - 1;
    while (x->anchor[a] > begin) a--;
    int64_t before = x->anchor[a]; /* units of the rows before `r` */
    double factor[CB_MAX_FACTORS];
    const cb_optim_row *known = NULL; /* the factors are those of its group and step */
    for (uint32_t r = a * x->stride; before < end; before += units_of(&table->rows[r++])) {
        const cb_optim_row *row = &table->rows[r];
        if (before + units_of(row) <= begin) continue;
        if (!known || known->group != row->group || known->t != row->t)
            x->factors(table->hyper + (size_t)row->group * table->n_hyper, row->t, factor);
        known = row;
        update_part(x, factor, row, before, begin, end);
    }
}

void cb_step_elements(const cb_optim_table *table, cb_threads *pool, cb_factors_fn factors,
                      cb_formula formula) {
    region x = {.table = table, .factors = factors, .update = cb_formula_of(formula)};
    x.stride = table->n_rows / ANCHORS + 1;
    for (uint32_t r = 0; r < table->n_rows; r++) {
        if (r % x.stride == 0) x.anchor[x.n_anchor++] = x.total;
        x.total += units_of(&table->rows[r]);
    }
    if (x.total == 0) return;
    const int64_t n_tasks = (int64_t)TASKS_PER_THREAD * (pool ? cb_threads_count(pool) : 1);
    x.task = (x.total + n_tasks - 1) / n_tasks;
    if (x.task < LEAST_UNITS) x.task = LEAST_UNITS;
    cb_parallel(pool, (x.total + x.task - 1) / x.task, run_task, &x);
}
