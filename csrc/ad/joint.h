/* joint.h: builds the joint graph from a forward graph. Gradients are ordinary ops, appended after
 * the forward ops, and only requested gradients are computed. */
#ifndef CB_AD_JOINT_H
#define CB_AD_JOINT_H

#include "../ir/graph.h"

typedef struct cb_joint_options {
    const uint32_t *wrt; /* positions among the graph's inputs whose gradients are wanted */
    uint32_t n_wrt;      /* 0: no backward; the result is the verified forward graph, whose outputs
                            own their storages */
    bool
        tangent_inputs; /* true: every floating result gets a tangent input, after the other inputs;
                            false: result 0 is a scalar loss, seeded with 1 */
    bool slices;        /* run chains of row-wise ops in pieces (strips/find.h) */
    bool packed;        /* the backward reads packed copies of masks (packs.h) */
    cb_str *sliced; /* receives a line about each op that ends such a chain or could end one; may be
                       NULL */
} cb_joint_options;

/* The outputs of the joint graph are the forward's results and states in their order, then one
 * gradient (kind GRAD) for each of `wrt`, in that order, with the input's dtype and shape. The
 * gradient is zeros if no result depends on the input. Every output owns its storage: if two
 * outputs, or an output and an input, would share one, a copy is added. Ops that depend on a
 * tangent have phase BACKWARD. Dead ops are removed. Inputs keep their positions. */
CB_MUST_CHECK cb_status cb_joint_build(const cb_graph *forward, const cb_joint_options *options,
                                       cb_alloc *alloc, cb_graph **out, cb_error *err);

#endif
