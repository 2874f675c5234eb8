/* duplicates.h: finds ops of a graph that compute the same values. */
#ifndef CB_PLAN_DUPLICATES_H
#define CB_PLAN_DUPLICATES_H

#include "../../base/alloc.h"
#include "../../base/status.h"

/* The nodes of a graph, in an order in which each reads only earlier ones. Two nodes are equal if
 * their keys (the operator and its constants) and their inputs are equal, one by one. */
typedef struct cb_calls {
    uint32_t n;
    const uint32_t *key;      /* [n]; CB_NONE: equal to no other */
    const uint32_t *in_start; /* [n + 1] */
    const uint32_t *in;       /* [in_start[n]] nodes, each below its reader */
    uint32_t n_in;
} cb_calls;

/* Sets same[i] to the first node that computes the same values as node i, which may be i.
 * CB_INVALID names a node whose inputs are not earlier nodes. */
CB_MUST_CHECK cb_status cb_find_duplicates(cb_alloc *alloc, const cb_calls *calls, uint32_t *same,
                                           cb_error *err);

#endif
