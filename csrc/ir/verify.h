/* verify.h: checks the invariants of a graph at each stage boundary. Runs after every stage, in all
 * builds. */
#ifndef CB_IR_VERIFY_H
#define CB_IR_VERIFY_H

#include "graph.h"

typedef enum cb_spec {
    CB_SPEC_FORWARD, /* no backward op, no gradient output */
    CB_SPEC_JOINT,   /* phases closed under "depends on a tangent"; every output owns its whole
                        storage, contiguous, once */
    CB_SPEC_SPLIT    /* a half: ops have an origin */
} cb_spec;

CB_MUST_CHECK cb_status cb_graph_verify(const cb_graph *g, cb_spec spec, cb_error *err);

#endif
