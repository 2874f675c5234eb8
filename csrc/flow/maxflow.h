/* maxflow.h: minimum cut of a directed network on flat arrays.
 *
 * A network is built once from a list of arcs, and solved whenever capacities change:
 *
 *     cb_flow f;
 *     CB_TRY(cb_flow_build(&f, &arena, n_node, n_arc, from, to, err));
 *     CB_TRY(cb_flow_solve(&f, source, sink, capacity, err));
 *     f.value;  f.sink_side[v];          // read until the next solve
 *
 * The cut is the sink-minimal one: a node is on the sink side only if every minimum cut has it
 * there. So it depends only on the capacities, not on the order of arcs. CB_FLOW_INF marks an arc
 * that no cut may contain. If a path of such arcs joins source and sink, solving fails with
 * CB_INFEASIBLE, and `path` holds the nodes of a shortest such path, source first. A solve
 * allocates nothing.
 *
 * cb_flow has 64-bit capacities, cb_flow128 has 128-bit ones; otherwise they are the same. */
#ifndef CB_FLOW_MAXFLOW_H
#define CB_FLOW_MAXFLOW_H

#include "network.h"

/* Phases of Dinic's algorithm before push-relabel takes over. Traced training graphs take one or
 * two; networks that take more are solved faster by push-relabel (bench_flow: random graphs,
 * grids). */
#define CB_FLOW_PATIENCE 4

#define CB_FLOW_BITS 64
#include "maxflow_steps.h"
#define CB_FLOW_BITS 128
#include "maxflow_steps.h"

#endif
