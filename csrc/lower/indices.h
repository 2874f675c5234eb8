/* indices.h: index arrays that a step reads more than once. An op checks its indices when it runs,
 * so every op that reads indices can fail. If the step copies them once, only the first check can
 * fail, since later ones see the same numbers. */
#ifndef CB_LOWER_INDICES_H
#define CB_LOWER_INDICES_H

#include "../ir/graph.h"

/* True if the op returns positions of elements of its input, which are in range for every input. */
static inline bool cb_makes_positions(cb_opcode code) {
    return code == CB_OP_MAX_POOL2D || code == CB_OP_ARGMAX || code == CB_OP_UNPACK_INDEX;
}
/* True if the op copies integers from the memory of an input. */
bool cb_copies_indices(const cb_graph *g, cb_op_id id);
/* Makes a new graph in which ops read copies of indices that are in the memory of inputs; NULL if
 * no op reads such indices. */
CB_MUST_CHECK cb_status cb_copy_index_inputs(const cb_graph *g, cb_alloc *alloc, cb_graph **out,
                                             cb_error *err);
/* Finds an op of a joint graph whose indices may prove out of range after the forward: no op that
 * the forward's outputs need checks the same copy against the same bound. CB_NONE: there is none.
 */
CB_MUST_CHECK cb_status cb_find_late_check(const cb_graph *joint, cb_op_id *out, cb_error *err);

#endif
