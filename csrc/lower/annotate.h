/* annotate.h: joint graph -> cb_problem: bytes, amounts of work, classes and constraints. Op and
 * value ids of the problem are those of the graph. */
#ifndef CB_LOWER_ANNOTATE_H
#define CB_LOWER_ANNOTATE_H

#include "../ir/graph.h"
#include "../plan/model/problem.h"

typedef struct cb_annotate_options {
    bool keep_gradients;   /* gradients live in the arena to the end (an optimizer consumes them);
                              false: the caller's buffers */
    uint64_t static_bytes; /* parameters and optimizer states, for the `total` measure */
} cb_annotate_options;

/* Results are the caller's buffers (STATIC). New states live in the arena to the end and are copied
 * out. */
CB_MUST_CHECK cb_status cb_annotate(const cb_graph *joint, const cb_annotate_options *options,
                                    cb_alloc *alloc, cb_problem **out, cb_error *err);

#endif
