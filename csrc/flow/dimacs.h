/* dimacs.h: writes a network in DIMACS format, which other solvers read ("max" problems; nodes are
 * numbered from 1). */
#ifndef CB_FLOW_DIMACS_H
#define CB_FLOW_DIMACS_H

#include "../base/vec.h"
#include "maxflow.h"

/* An infinite arc is written with a capacity of one more than the sum of the finite capacities,
 * which leaves the minimum cuts unchanged; a comment in the text gives this number. CB_INVALID:
 * cb_flow_solve would refuse the capacities. */
CB_MUST_CHECK cb_status cb_dimacs_write(cb_str *out, uint32_t n_node, uint32_t n_arc,
                                        const uint32_t *from, const uint32_t *to,
                                        const int64_t *capacity, uint32_t source, uint32_t sink,
                                        cb_error *err);

#endif
