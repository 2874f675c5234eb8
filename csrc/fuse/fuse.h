/* fuse.h: joins groups of a plan: which of them run as one, in which order, and where their results
 * live. The plan is the bound: neither live bytes nor the arena exceed what it says. */
#ifndef CB_FUSE_FUSE_H
#define CB_FUSE_FUSE_H

#include "expand.h"

/* `single` is the graph as cb_annotate gives it. What is handed out lies in `arena`. */
CB_MUST_CHECK cb_status cb_fuse(const cb_graph *joint, const cb_problem *single, cb_fuses_fn fuses,
                                cb_arena *arena, cb_expanded *x, cb_error *err);

#endif
