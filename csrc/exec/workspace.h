/* workspace.h: computes how much scratch an op needs while it runs; host backends report it to the
 * planner. */
#ifndef CB_EXEC_WORKSPACE_H
#define CB_EXEC_WORKSPACE_H

#include "../ir/graph.h"

/* Returns the bytes of scratch that the kernel needs, which come after the copy of its indices.
 * They are at most CB_WORKSPACE_MAX (tiles.h), and depend only on shapes. */
uint64_t cb_op_workspace(const cb_graph *g, cb_op_id id);

/* Indices in the caller's memory (an argument, or a result) may be overwritten by another thread
 * between their check and their use. The executor copies them to the head of the scratch, where the
 * kernel checks and reads them. Returns the bytes of that copy, a multiple of the arena's
 * alignment; 0 if the op has no indices, or if they are in the arena, which no other thread
 * writes. */
uint64_t cb_op_index_copy(const cb_graph *g, cb_op_id id);
uint64_t cb_index_copy_bytes(cb_dtype dtype, const cb_shape *shape);

#endif
