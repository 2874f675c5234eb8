/* together.h: runs batches of rows (micro/together.h). */
#ifndef CB_EXEC_TOGETHER_H
#define CB_EXEC_TOGETHER_H

#include "lanes.h"
#include "streams.h"

/* Describes the elements of a task of rows begin..end. */
cb_x_lines cb_x_lines_of(cb_executor *e, int64_t begin, int64_t end, int thread);
/* Called after a phase has run over n rows from `row` on: adds up the terms in streams, except
 * those of per-row numbers. */
void cb_x_add_terms(const cb_x_lines *l, int64_t row, int64_t n, int phase);
/* For cb_parallel: `user` is a cb_executor. */
void cb_x_task_together(void *user, int64_t index, int thread);

#endif
