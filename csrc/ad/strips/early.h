/* early.h: moves the gradients of a loss that runs in pieces (find.h) right after the pieces. */
#ifndef CB_AD_EARLY_H
#define CB_AD_EARLY_H

#include "../../ir/graph.h"

/* Where the ops are in a graph whose gradients have been appended but not reordered yet. */
typedef struct cb_early {
    const cb_op_id *first; /* [n_pieces + 1] of a strip (find.h) */
    uint32_t n_pieces;
    cb_op_id starts;     /* the first appended op */
    cb_op_id begin, end; /* the appended ops that the walk made when it visited the pieces */
} cb_early;

/* A seed is a constant, so the gradient of a mean or a sum is known before the loss is. Then the
 * gradients of each piece may follow the piece, and its logits never wait for the backward: in the
 * new graph these ops belong to the forward. `out` gets NULL if some of them depend on results of
 * the pieces; the backward then makes the pieces again, or the forward saves them. */
CB_MUST_CHECK cb_status cb_gradients_early(const cb_graph *g, const cb_early *early,
                                           cb_alloc *alloc, cb_graph **out, cb_error *err);

#endif
