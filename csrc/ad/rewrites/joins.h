/* joins.h: products of the steps of a loop, joined into fewer products of more rows. A product of
 * few rows is mostly reading and packing its right side. */
#ifndef CB_AD_JOINS_H
#define CB_AD_JOINS_H

#include "../../ir/graph.h"

#define CB_JOIN_ROWS \
    256 /* maximum rows of a joined product, and maximum length of its inner axis
                            in a joined sum: beyond this, products are no faster */
#define CB_JOIN_PARTS \
    4 /* products with the same right side become at least this many, so that what
                            must be in memory at once stays a part of it all */

/* Makes a new graph in which matrix products with the same right side are joined, in groups of
 * consecutive ones, if their left sides are known before the first of them. Left sides that are
 * consecutive rows of one array are read in place; others are concatenated.
 *
 *     a = matmul(x[0:1], w)                 joined = matmul(x[0:2], w)
 *     ..                                    a = joined[0:1]
 *     b = matmul(x[1:2], w)                 b = joined[1:2]
 *
 * The joined product has at most CB_JOIN_ROWS rows and a CB_JOIN_PARTS-th of all of them. Bits are
 * those of a product of that size. `out` is NULL if nothing is joined. */
CB_MUST_CHECK cb_status cb_join_products(const cb_graph *g, cb_alloc *alloc, cb_graph **out,
                                         cb_error *err);

/* Does the same for sums of products in the backward of a joint graph, such as the gradient of a
 * weight that every step reads: consecutive products become one with a longer inner axis, which is
 * added to the sum so far in place. If reading the left sides across their rows would be slow, the
 * transposed products are summed, and the sum is transposed at the end. Products in 16-bit types,
 * each of which is rounded, stay as they are. `g` must have no dead ops; `out` has some.
 *
 *     sum = add(matmul(a^T, c), matmul(b^T, d))
 *     ->
 *     sum = matmul(concat(b, a)^T, concat(d, c)) */
CB_MUST_CHECK cb_status cb_join_sums(const cb_graph *g, cb_alloc *alloc, cb_graph **out,
                                     cb_error *err);

#endif
