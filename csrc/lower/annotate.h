/* annotate.h: joint graph -> cb_problem: bytes, amounts of work, classes and constraints. Op and
 * value ids of the problem are those of the graph. */
#ifndef CB_LOWER_ANNOTATE_H
#define CB_LOWER_ANNOTATE_H

#include "../ir/graph.h"
#include "../plan/model/problem.h"

/* Bytes of scratch that an op of a graph has while it runs. */
typedef uint64_t (*cb_workspace_fn)(const cb_graph *g, cb_op_id id);

typedef struct cb_annotate_options {
    bool keep_gradients;   /* gradients live in the arena to the end (an optimizer consumes them);
                              false: the caller's buffers */
    uint64_t static_bytes; /* parameters and optimizer states, for the `total` measure */
    cb_reruns reruns;      /* of which ops plans may repeat or delay runs */
    bool takes_over;       /* outputs of pointwise ops may take over the memory of inputs */
    /* What the backend answers that will run the program: */
    uint64_t alignment; /* of what lies in the arena: bytes, a power of two */
    cb_workspace_fn workspace;
} cb_annotate_options;

/* Results are the caller's buffers (STATIC). New states live in the arena to the end and are copied
 * out. */
CB_MUST_CHECK cb_status cb_annotate(const cb_graph *joint, const cb_annotate_options *options,
                                    cb_alloc *alloc, cb_problem **out, cb_error *err);

#endif
