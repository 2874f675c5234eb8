/* annotate.h: converts a joint graph to a cb_problem: bytes, amounts of work, classes and
 * constraints. Op and value ids of the problem are those of the graph. */
#ifndef CB_LOWER_ANNOTATE_H
#define CB_LOWER_ANNOTATE_H

#include "../ir/graph.h"
#include "../plan/model/problem.h"

/* Returns the scratch of an op of a graph. */
typedef uint64_t (*cb_workspace_fn)(const cb_graph *g, cb_op_id id);

typedef struct cb_annotate_options {
    bool keep_gradients;   /* gradients stay in the arena to the end (an optimizer uses them);
                              false: they go to the caller's buffers */
    bool updates_inside;   /* with keep_gradients: updates consume the gradients during the run */
    uint64_t static_bytes; /* parameters and optimizer states, for the `total` measure */
    cb_reruns reruns;      /* the ops that plans may run again or late */
    bool takes_over;       /* outputs of pointwise ops may take over the memory of inputs */
    /* Properties of the backend that will run the program: */
    uint64_t alignment; /* alignment of buffers in the arena, in bytes, a power of two */
    cb_workspace_fn workspace;
} cb_annotate_options;

/* Results are the caller's buffers (STATIC). New states stay in the arena to the end and are then
 * copied out. */
CB_MUST_CHECK cb_status cb_annotate(const cb_graph *joint, const cb_annotate_options *options,
                                    cb_alloc *alloc, cb_problem **out, cb_error *err);

#endif
