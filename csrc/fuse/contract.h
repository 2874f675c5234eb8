/* contract.h: makes the problem in which each group is one op. Ops with several members have an
 * inside. Value ids count the outputs of the problem's ops in order; the storage of a value has the
 * value's id. */
#ifndef CB_FUSE_CONTRACT_H
#define CB_FUSE_CONTRACT_H

#include "grouping.h"

/* Makes `value` [values of the graph] in `arena`: the problem's value with the same storage;
 * CB_NONE: the value never leaves its group. */
CB_MUST_CHECK cb_status cb_contracted_values(const cb_graph *joint, const cb_grouping *grouping,
                                             cb_arena *arena, uint32_t **value, cb_error *err);
/* Makes the problem. `single` is the result of cb_annotate. */
CB_MUST_CHECK cb_status cb_contract(const cb_graph *joint, const cb_problem *single,
                                    const cb_grouping *grouping, cb_alloc *alloc, cb_problem **out,
                                    cb_error *err);

#endif
