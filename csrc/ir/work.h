/* work.h: how much work an op is, from its shapes alone: what the planner's cost model and the
 * executor's scratch are made of. */
#ifndef CB_IR_WORK_H
#define CB_IR_WORK_H

#include "graph.h"
#include "tiles.h"

typedef struct cb_work {
    double flops;
    uint64_t bytes;     /* read once + written once; 0 for views */
    uint64_t workspace; /* scratch while it runs: of the kernel, at most CB_WORKSPACE_MAX and a
                           function of shapes alone, after the copy of its indices */
} cb_work;

cb_work cb_op_work(const cb_graph *g, cb_op_id id);

/* Indices in the caller's memory (an argument, or a result) may be overwritten by another thread
 * between their check and their use. The executor copies them to the head of the scratch, where the
 * kernel checks and reads them. This is the room for such a copy; 0: the op has no indices, or they
 * lie in the arena, which nobody else writes. A multiple of the arena's grain. */
uint64_t cb_op_index_copy(const cb_graph *g, cb_op_id id);
uint64_t cb_index_copy_bytes(cb_dtype dtype, const cb_shape *shape);

/* How kernels cut their work, fixed by shape so that results do not depend on the thread count.
 * Shared by cb_op_work (how much scratch) and the kernels (how it is used). */
int64_t cb_row_blocks(int64_t rows,
                      int64_t columns); /* partial sums a column reduction keeps: 1..64 */

#endif
