/* split.h: divides the elements of all rows of a table into tasks of equal size.
 *
 *     cb_split split = cb_split_of(table, pool, grain);
 *     cb_parallel(pool, split.n_tasks, run_task, user);
 *
 *     in run_task:  cb_stretches parts = cb_stretches_of(&split, task);
 *                   for (cb_stretch part; cb_next_stretch(&parts, &part);) ...
 */
#ifndef CB_OPTIM_SPLIT_H
#define CB_OPTIM_SPLIT_H

#include "optimizer.h"

#define CB_SPLIT_ANCHORS 256u /* rows at which the search for a task's first row may start */

typedef struct cb_split {
    const cb_optim_table *table;
    int64_t grain;
    int64_t total, task, n_tasks;     /* units of all rows; units of a task; number of tasks */
    uint32_t n_anchor, stride;        /* anchor a is row a * stride */
    int64_t anchor[CB_SPLIT_ANCHORS]; /* units before each anchor */
} cb_split;

typedef struct cb_stretch { /* elements from .. from + n of a row; n > 0 */
    uint32_t row;
    int64_t from, n;
} cb_stretch;

typedef struct cb_stretches { /* iterator over the stretches of one task */
    const cb_split *split;
    int64_t begin, end, before; /* units of the task; units before `row` */
    uint32_t row;
} cb_stretches;

/* Rows are cut only at multiples of `grain` elements. */
cb_split cb_split_of(const cb_optim_table *table, const cb_threads *pool, int64_t grain);
cb_stretches cb_stretches_of(const cb_split *split, int64_t task);
bool cb_next_stretch(cb_stretches *parts, cb_stretch *out); /* returns false if there are no more
                                                               stretches */

#endif
