/* network.h: a directed network on flat arrays and a flow through it. Internal.
 *
 * cb_flow has 64-bit capacities, cb_flow128 has 128-bit ones; otherwise they are the same. The
 * files of this folder in order: network <- push_relabel <- maxflow <- dimacs, components <-
 * frontier. */
#ifndef CB_FLOW_NETWORK_H
#define CB_FLOW_NETWORK_H

#include "../base/arena.h"

__extension__ typedef __int128 cb_int128;

#define CB_FLOW_INF INT64_MAX
#define CB_FLOW_MOST (INT64_C(1) << 62) /* the sum of the finite capacities must be less */
#define CB_FLOW128_MOST ((cb_int128)1 << 126)
#define CB_FLOW128_INF (CB_FLOW128_MOST - 1 + CB_FLOW128_MOST)

/* An arc is stored at both of its ends: one half leads forward, the other back. */
typedef struct cb_half_arc {
    uint32_t to;
    uint32_t pair; /* the other half */
} cb_half_arc;

#define CB_FLOW_BITS 64
#include "network_type.h"
#define CB_FLOW_BITS 128
#include "network_type.h"

#endif
