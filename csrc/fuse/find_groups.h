/* find_groups.h: finds the ops of a joint graph that are worth planning as one, and the values to
 * inline into their runs. The result is a request to cb_grouping_make (grouping.h), the same on
 * every machine. */
#ifndef CB_FUSE_FIND_GROUPS_H
#define CB_FUSE_FIND_GROUPS_H

#include "grouping.h"

/* Values of cb_compile_options.groups: FOUND uses found groups; AUTO uses them only if single ops
 * cannot meet the budget. */
#define CB_GROUPS_FOUND "found"
#define CB_GROUPS_AUTO "auto"

/* `single`: the result of cb_annotate. `fuses` NULL: no groups. The result is allocated in
 * `arena`. */
CB_MUST_CHECK cb_status cb_find_groups(const cb_graph *joint, const cb_problem *single,
                                       cb_fuses_fn fuses, cb_arena *arena, cb_group_request *out,
                                       cb_error *err);

/* Marks in `out` [n_op] ops of a problem that run as groups of one in every program: products and
 * concatenations. `x` NULL: the problem has the ops of the graph. */
void cb_mark_separate(const cb_graph *g, const cb_grouping *x, uint32_t n_op, bool *out);

#endif
