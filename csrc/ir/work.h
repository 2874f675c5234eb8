/* work.h: the amount of work of an op, computed only from its shapes, for the planner's cost
 * model. */
#ifndef CB_IR_WORK_H
#define CB_IR_WORK_H

#include "graph.h"

typedef struct cb_work {
    double flops;
    uint64_t bytes; /* read once + written once; 0 for views */
} cb_work;

cb_work cb_op_work(const cb_graph *g, cb_op_id id);

/* Returns the number of blocks of rows in a sum over columns: 1..64, determined by shape so that
 * results do not depend on the thread count. */
int64_t cb_row_blocks(int64_t rows, int64_t columns);

#endif
