/* fuse.h: merges groups of a plan: decides which groups run as one, their order, and the place of
 * their results. Neither live bytes nor the arena exceed the plan's. */
#ifndef CB_FUSE_FUSE_H
#define CB_FUSE_FUSE_H

#include "expand.h"

/* `single` is the result of cb_annotate. Results are allocated in `arena`. */
CB_MUST_CHECK cb_status cb_fuse(const cb_graph *joint, const cb_problem *single, cb_fuses_fn fuses,
                                cb_arena *arena, cb_expanded *x, cb_error *err);

#endif
