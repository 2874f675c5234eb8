/* gradients.h: appends the gradients of values to their graph. They are ordinary forward ops, so a
 * loss may read them and be differentiated again. */
#ifndef CB_AD_GRADIENTS_H
#define CB_AD_GRADIENTS_H

#include "../ir/graph.h"

typedef struct cb_gradients {
    const cb_value_id *of;   /* [n_of] floating results */
    const cb_value_id *from; /* [n_of] the gradients of the results, with their dtypes and shapes */
    const cb_value_id *wrt;  /* [n_wrt] values whose gradients are wanted */
    uint32_t n_of, n_wrt;
} cb_gradients;

/* out[n_wrt] receives the gradients, CB_NONE where no result depends on the value. The appended ops
 * get the graph's current region and constraint, and the locations of the ops that they
 * differentiate. The graph is unchanged on failure. */
CB_MUST_CHECK cb_status cb_gradients_append(cb_graph *g, const cb_gradients *wanted,
                                            cb_value_id *out, cb_error *err);

#endif
