/* maxflow.h: minimum cut of a directed network by Dinic's algorithm on flat arrays.
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
 * `path` holds the nodes of a shortest such path, source first. Nothing is allocated in a solve. */
#ifndef CB_FLOW_MAXFLOW_H
#define CB_FLOW_MAXFLOW_H

#include "../base/arena.h"

#define CB_FLOW_INF INT64_MAX
#define CB_FLOW_MOST (INT64_C(1) << 62) /* finite capacities must sum to less */

typedef struct cb_flow {
    uint32_t n_node, n_arc;
    uint32_t *first;   /* [n_node + 1] into the half-arcs: each arc stands at both its ends */
    uint32_t *to;      /* [2 n_arc] */
    uint32_t *pair;    /* [2 n_arc] the other half */
    uint32_t *half;    /* [n_arc] the forward half of an arc */
    int64_t *residual; /* [2 n_arc] */
    uint32_t *level;   /* [n_node] distance to the sink, CB_NONE: cannot reach it */
    uint32_t *current; /* [n_node] next half-arc to try */
    uint32_t *queue;   /* [n_node] */
    uint32_t *stack;   /* [n_node] half-arcs of the path being grown */
    bool *sink_side;   /* [n_node] result */
    int64_t value;     /* result */
    uint32_t *path;    /* [n_path] after CB_INFEASIBLE */
    uint32_t n_path;
} cb_flow;

/* Arcs are directed; parallel arcs add up, loops are fine. All memory comes from `arena`. */
CB_MUST_CHECK cb_status cb_flow_build(cb_flow *f, cb_arena *arena, uint32_t n_node, uint32_t n_arc,
                                      const uint32_t *from, const uint32_t *to, cb_error *err);
/* `capacity` [n_arc], each >= 0. CB_INVALID: a negative one, or their sum passes CB_FLOW_MOST. */
CB_MUST_CHECK cb_status cb_flow_solve(cb_flow *f, uint32_t source, uint32_t sink,
                                      const int64_t *capacity, cb_error *err);

#endif
