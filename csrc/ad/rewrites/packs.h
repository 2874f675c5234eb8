/* packs.h: forward values that the backward reads from packed copies. */
#ifndef CB_AD_PACKS_H
#define CB_AD_PACKS_H

#include "../../ir/graph.h"

#define CB_PACK_BYTES 4096 /* smaller values stay as they are: two more ops would take longer */

/* Makes a new graph in which the forward packs bools that the backward reads, one bit each, and the
 * backward unpacks them. If the backward reads the result of a `relu` only to see where it is above
 * 0 or NaN, one bit of each element is packed. Indices of argmax and of max poolings that the
 * backward reads become one, two or four bytes each. Results are bitwise equal. Values that share
 * memory with an output, that have a constraint or fewer than CB_PACK_BYTES stay as they are. `out`
 * is NULL if nothing is packed.
 *
 *     mask = gt(x, y)                       mask = gt(x, y)
 *     ...                                   bits = pack_bits(mask)
 *     dx = where(mask, g, 0)                ...
 *                                           copy = unpack_bits(bits)
 *                                           dx = where(copy, g, 0)
 */
CB_MUST_CHECK cb_status cb_pack_saves(const cb_graph *g, cb_alloc *alloc, cb_graph **out,
                                      cb_error *err);

#endif
