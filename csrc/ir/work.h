/* work.h: how much work an op is, from its shapes alone, for the planner's cost model. */
#ifndef CB_IR_WORK_H
#define CB_IR_WORK_H

#include "graph.h"

typedef struct cb_work {
    double flops;
    uint64_t bytes; /* read once + written once; 0 for views */
} cb_work;

cb_work cb_op_work(const cb_graph *g, cb_op_id id);

/* In how many blocks of rows a sum over columns is added up, fixed by shape so that results do not
 * depend on the thread count: 1..64. */
int64_t cb_row_blocks(int64_t rows, int64_t columns);

#endif
