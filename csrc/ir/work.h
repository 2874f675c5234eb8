/* work.h: how much work an op is, from its shapes alone: what the planner's cost model and the
 * executor's scratch are made of. */
#ifndef CB_IR_WORK_H
#define CB_IR_WORK_H

#include "graph.h"
#include "tiles.h"

typedef struct cb_work {
    double flops;
    uint64_t bytes;     /* read once + written once; 0 for views */
    uint64_t workspace; /* scratch the kernel may use while it runs; at most CB_WORKSPACE_MAX, a
                           function of shapes alone */
} cb_work;

cb_work cb_op_work(const cb_graph *g, cb_op_id id);

/* How kernels cut their work, fixed by shape so that results do not depend on the thread count.
 * Shared by cb_op_work (how much scratch) and the kernels (how it is used). */
int64_t cb_row_blocks(int64_t rows,
                      int64_t columns); /* partial sums a column reduction keeps: 1..64 */

#endif
