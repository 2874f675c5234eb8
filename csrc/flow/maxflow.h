/* maxflow.h: minimum cut of a directed network on flat arrays.
 *
 * Built once from a list of arcs, solved as often as capacities change:
 *
 *     cb_flow f;
 *     CB_TRY(cb_flow_build(&f, &arena, n_node, n_arc, from, to, err));
 *     CB_TRY(cb_flow_solve(&f, source, sink, capacity, err));
 *     f.value;  f.sink_side[v];          // read until the next solve
 *
 * The cut is the sink-minimal one: a node is on the sink side only if every minimum cut has it
 * there. It depends on the capacities alone, not on the order of arcs. CB_FLOW_INF marks an arc
 * that no cut may hold; if such arcs join source and sink, solving fails with CB_INFEASIBLE and
 * `path` holds the nodes of a shortest such path, source first. Nothing is allocated in a solve.
 *
 * cb_flow has capacities of 64 bits, cb_flow128 of 128; all else is alike. */
#ifndef CB_FLOW_MAXFLOW_H
#define CB_FLOW_MAXFLOW_H

#include "../base/arena.h"

__extension__ typedef __int128 cb_int128;

#define CB_FLOW_INF INT64_MAX
#define CB_FLOW_MOST (INT64_C(1) << 62) /* finite capacities must sum to less */
#define CB_FLOW128_MOST ((cb_int128)1 << 126)
#define CB_FLOW128_INF (CB_FLOW128_MOST - 1 + CB_FLOW128_MOST)

/* Phases of Dinic before push-relabel takes over. Traced training graphs take one or two; what
 * takes more is done sooner by push-relabel (bench_flow: random graphs, grids). */
#define CB_FLOW_PATIENCE 4

/* An arc stands at both its ends: one half leads forward, the other back. */
typedef struct cb_half_arc {
    uint32_t to;
    uint32_t pair; /* the other half */
} cb_half_arc;

#define CB_FLOW_BITS 64
#include "maxflow_type.h"
#define CB_FLOW_BITS 128
#include "maxflow_type.h"

#endif
