/* joint.h: from a forward graph to the joint graph. Gradients are ordinary ops, appended after the
 * forward's and computed only for what is asked. */
#ifndef CB_AD_JOINT_H
#define CB_AD_JOINT_H

#include "../ir/graph.h"

typedef struct cb_joint_options {
    const uint32_t *wrt; /* positions among the graph's inputs whose gradients are wanted */
    uint32_t n_wrt;      /* 0: no backward; the result is the forward graph, verified and with owned
                            outputs */
    bool tangent_inputs; /* true: every floating result gets a tangent input, after the others;
                            false: result 0 is a scalar loss, seeded with 1 */
} cb_joint_options;

/* Outputs of the joint graph: the forward's results and states in their order, then one gradient
 * (kind GRAD) for each of `wrt`, in that order, of the input's dtype and shape (zeros where nothing
 * depends on it). Every output owns its storage: copies are added where two outputs, or an output
 * and an input, would share. Ops in the tangent closure have phase BACKWARD. Dead ops are gone.
 * Inputs keep their positions. */
CB_MUST_CHECK cb_status cb_joint_build(const cb_graph *forward, const cb_joint_options *options,
                                       cb_alloc *alloc, cb_graph **out, cb_error *err);

#endif
