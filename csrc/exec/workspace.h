/* workspace.h: the scratch of an op while it runs, as host backends report it for planning. */
#ifndef CB_EXEC_WORKSPACE_H
#define CB_EXEC_WORKSPACE_H

#include "../ir/graph.h"

/* Returns the scratch of the kernel, at most CB_WORKSPACE_MAX (tiles.h) and a function of shapes
 * only, which comes after the copy of its indices. */
uint64_t cb_op_workspace(const cb_graph *g, cb_op_id id);

/* Indices in the caller's memory (an argument, or a result) may be overwritten by another thread
 * between their check and their use. The executor copies them to the head of the scratch, where the
 * kernel checks and reads them. Returns the room for such a copy, a multiple of the arena's
 * alignment; 0 if the op has no indices, or if they are in the arena, which no other thread
 * writes. */
uint64_t cb_op_index_copy(const cb_graph *g, cb_op_id id);
uint64_t cb_index_copy_bytes(cb_dtype dtype, const cb_shape *shape);

#endif
