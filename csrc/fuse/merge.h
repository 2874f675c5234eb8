/* merge.h: neighbours among the kernels of an expanded plan become one kernel where they read what
 * the other makes or reads: what neither hands on then has no bytes. The plan is the bound: merging
 * takes no more live bytes and no larger arena. Forward and backward stay apart. */
#ifndef CB_FUSE_MERGE_H
#define CB_FUSE_MERGE_H

#include "expand.h"

/* `single`: the graph as cb_annotate gives it. What is handed out lies in `arena`. */
CB_MUST_CHECK cb_status cb_merge(const cb_graph *joint, const cb_problem *single, cb_fuses_fn fuses,
                                 cb_arena *arena, cb_expanded *x, cb_error *err);

#endif
