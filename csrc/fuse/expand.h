/* expand.h: a plan of a contracted problem as a plan of the graph: each step becomes the ops that
 * it runs, as one group. What the plan places keeps its place; what a step makes for itself alone
 * is a local of its group. Nothing is grouped or placed anew. */
#ifndef CB_FUSE_EXPAND_H
#define CB_FUSE_EXPAND_H

#include "fuse.h"
#include "grouping.h"

typedef struct cb_expanded {
    cb_plan plan;     /* of the graph, op by op, with lives as far as lowering looks at them */
    cb_groups groups; /* its steps in order, one group a step of the plan that there was */
    bool is_merged;   /* merge.h has taken some together: the plan's bytes are a bound */
    uint32_t *step;   /* [plan.schedule.n_step] that step */
} cb_expanded;

/* `single` is the graph as cb_annotate gives it; `p` and `plan` are of the contracted problem. What
 * is handed out lies in `arena`. */
CB_MUST_CHECK cb_status cb_expand(const cb_graph *joint, const cb_problem *single,
                                  const cb_grouping *grouping, const cb_problem *p,
                                  const cb_plan *plan, cb_arena *arena, cb_expanded *out,
                                  cb_error *err);

#endif
