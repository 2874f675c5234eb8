/* dimacs.h: a network as text that other solvers read (DIMACS, "max" problems, nodes from 1). */
#ifndef CB_FLOW_DIMACS_H
#define CB_FLOW_DIMACS_H

#include "../base/vec.h"
#include "maxflow.h"

/* An infinite arc is written with one more than the sum of the finite capacities, and a comment
 * says so: minimum cuts are the same. CB_INVALID: capacities that cb_flow_solve would refuse. */
CB_MUST_CHECK cb_status cb_dimacs_write(cb_str *out, uint32_t n_node, uint32_t n_arc,
                                        const uint32_t *from, const uint32_t *to,
                                        const int64_t *capacity, uint32_t source, uint32_t sink,
                                        cb_error *err);

#endif
