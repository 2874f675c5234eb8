/* Every element is updated on its own, so any way of cutting the work gives the same bits. The rows
 * are seen as one long run of elements, cut into tasks of a fixed size: a thousand biases share a
 * few tasks and one large matrix is spread over many.
 *
 *     rows    |---- w0 ----|b0|---- w1 ----|b1|
 *     tasks   |......|......|......|......|...
 */
#include "elements.h"

#define TASK_ELEMENTS ((int64_t)1 << 14) /* 4 arrays of f32: 256 KiB, in a second-level cache */
#define ANCHORS 256u                     /* where tasks begin to look for their first row */

typedef struct region {
    const cb_optim_table *table;
    cb_factors_fn factors;
    cb_elements_fn update;
    int64_t total;             /* elements of all rows */
    uint32_t n_anchor, stride; /* anchor a is row a * stride ... */
    int64_t anchor[ANCHORS];   /* ... and so many elements come before it */
} region;

static void run_task(void *user, int64_t task, int thread) {
    const region *x = user;
    const cb_optim_table *table = x->table;
    (void)thread;
    int64_t begin = task * TASK_ELEMENTS, end = begin + TASK_ELEMENTS;
    if (end > x->total) end = x->total;
    uint32_t a = x->n_anchor - 1;
    while (x->anchor[a] > begin) a--;
    int64_t before = x->anchor[a]; /* elements of the rows before `r` */
    double factor[CB_MAX_FACTORS];
    const cb_optim_row *known = NULL; /* the factors are those of its group and step */
    for (uint32_t r = a * x->stride; before < end; before += table->rows[r++].n) {
        const cb_optim_row *row = &table->rows[r];
        int64_t from = begin > before ? begin - before : 0;
        int64_t to = end - before < row->n ? end - before : row->n;
        if (from >= to) continue;
        if (!known || known->group != row->group || known->t != row->t)
            x->factors(table->hyper + (size_t)row->group * table->n_hyper, row->t, factor);
        known = row;
        x->update(factor, row, from, to - from);
    }
}

void cb_step_elements(const cb_optim_table *table, cb_threads *pool, cb_factors_fn factors,
                      cb_elements_fn update) {
    region x = {.table = table, .factors = factors, .update = update};
    x.stride = table->n_rows / ANCHORS + 1;
    for (uint32_t r = 0; r < table->n_rows; r++) {
        if (r % x.stride == 0) x.anchor[x.n_anchor++] = x.total;
        x.total += table->rows[r].n;
    }
    if (x.total) cb_parallel(pool, (x.total + TASK_ELEMENTS - 1) / TASK_ELEMENTS, run_task, &x);
}
