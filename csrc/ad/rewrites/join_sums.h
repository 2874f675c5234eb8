/* join_sums.h: sums of matrix products over the steps of a loop, by fewer products of longer inner
 * axes. A product with a short inner axis is mostly reading and writing its result. */
#ifndef CB_AD_JOIN_SUMS_H
#define CB_AD_JOIN_SUMS_H

#include "../../ir/graph.h"

#define CB_JOIN_INNER \
    256 /* maximum length of a joined inner axis: beyond this, products are no faster */
#define CB_JOIN_PARTS 4 /* a sum of at least 8 products becomes at least this many */

/* Makes a new graph in which sums of products in the backward of a joint graph, such as the
 * gradient of a weight that every step reads, are joined: consecutive products become one with a
 * longer inner axis, which is added to the sum so far in place, if what is concatenated for it
 * takes no more memory than one of the products that are not made any more. If reading the left
 * sides across their rows would be slow, the transposed products are summed, and the sum is
 * transposed at the end. Products in 16-bit types, each of which is rounded, stay as they are. `g`
 * must have no dead ops; `out` has some, and is NULL if nothing is joined.
 *
 *     sum = add(matmul(a^T, c), matmul(b^T, d))
 *     ->
 *     sum = matmul(concat(b, a)^T, concat(d, c)) */
CB_MUST_CHECK cb_status cb_join_sums(const cb_graph *g, cb_alloc *alloc, cb_graph **out,
                                     cb_error *err);

#endif
