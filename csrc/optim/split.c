/* All rows form one sequence of work. An element is one unit, and each row adds ROW_UNITS at its
 * beginning. The sequence is cut into tasks of equal size, so a thousand biases share one task and
 * a large matrix is spread over many.
 *
 *     rows    |---- w0 ----|b0|---- w1 ----|b1|
 *     tasks   |......|......|......|......|... */
#include "split.h"

/* Tasks are long, because each array of a row is a separate stream for the hardware prefetchers: 16
 * M elements of AdamW on two threads took 4.6 ms in tasks of 16 K, 3.7 ms of 1 M and 3.4 ms of 8 M.
 * Two tasks per thread allow others to help a thread that is delayed. */
#define TASKS_PER_THREAD 2
#define LEAST_UNITS ((int64_t)1 << 13) /* smallest task: 230 KB of AdamW, about ten microseconds */
#define ROW_UNITS 64                   /* overhead of calling a formula for a row: about 10 ns */

/* Returns the units of a row; a row without elements costs nothing. */
static int64_t units_of(const cb_optim_row *row) { return row->n ? row->n + ROW_UNITS : 0; }

cb_split cb_split_of(const cb_optim_table *table, const cb_threads *pool, int64_t grain) {
    cb_split x = {.table = table, .grain = grain};
    x.stride = table->n_rows / CB_SPLIT_ANCHORS + 1;
    for (uint32_t r = 0; r < table->n_rows; r++) {
        if (r % x.stride == 0) x.anchor[x.n_anchor++] = x.total;
        x.total += units_of(&table->rows[r]);
    }
    const int64_t wanted = (int64_t)TASKS_PER_THREAD * (pool ? cb_threads_count(pool) : 1);
    x.task = (x.total + wanted - 1) / wanted;
    if (x.task < LEAST_UNITS) x.task = LEAST_UNITS;
    x.n_tasks = (x.total + x.task - 1) / x.task;
    return x;
}

cb_stretches cb_stretches_of(const cb_split *split, int64_t task) {
    int64_t begin = task * split->task, end = begin + split->task;
    if (end > split->total) end = split->total;
    uint32_t a = split->n_anchor - 1;
    while (split->anchor[a] > begin) a--;
    return (cb_stretches){.split = split,
                          .begin = begin,
                          .end = end,
                          .before = split->anchor[a],
                          .row = a * split->stride};
}

/* Returns the first element at or after a unit of a row at which the row may be cut. The first
 * ROW_UNITS of a row are overhead, not elements. */
static int64_t element_at(const cb_split *split, const cb_optim_row *row, int64_t unit) {
    int64_t at = unit - ROW_UNITS, over = at % split->grain;
    if (at <= 0) return 0;
    if (over) at += split->grain - over;
    return at < row->n ? at : row->n;
}

bool cb_next_stretch(cb_stretches *x, cb_stretch *out) {
    while (x->before < x->end) {
        const cb_optim_row *row = &x->split->table->rows[x->row];
        const int64_t before = x->before;
        x->before += units_of(row);
        *out = (cb_stretch){.row = x->row++};
        if (x->before <= x->begin) continue;
        out->from = element_at(x->split, row, x->begin - before);
        out->n = element_at(x->split, row, x->end - before) - out->from;
        if (out->n > 0) return true;
    }
    return false;
}
