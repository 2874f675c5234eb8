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

#include "network.h"

/* Phases of Dinic before push-relabel takes over. Traced training graphs take one or two; what
 * takes more is done sooner by push-relabel (bench_flow: random graphs, grids). */
#define CB_FLOW_PATIENCE 4

#define CB_FLOW_BITS 64
#include "maxflow_steps.h"
#define CB_FLOW_BITS 128
#include "maxflow_steps.h"

#endif
