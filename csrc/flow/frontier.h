/* frontier.h: the minimum cuts of a network for every price of time at once.
 *
 * A cut with sink side T costs bytes(T), the capacities of the arcs that enter T, and time(T), the
 * sum of `time` over T. For each price lambda >= 0 we look for the cut with the least bytes +
 * lambda * time. As lambda grows, T shrinks node by node, so the whole family is represented by one
 * number for each node and a list of steps:
 *
 *     bytes |*  step 0: lambda = 0, fewest bytes (and least time for them)
 *           |  '.  <- steps between two points: on the hull, at the same price
 *           |    * a point: the price changes
 *           |       ' - . _ * last: least time
 *           +---------------- time
 *
 *     cb_frontier f;
 *     CB_TRY(cb_frontier_make(&f, &network, &arena, err));
 *     uint32_t k;  CB_TRY(cb_frontier_at(&f, budget, &k, err));
 *     f.step[k].time;  cb_frontier_has(&f, v, k);      // is v in T at step k?
 *
 * All results are exact. Points are the corners of the lower hull of all (time, bytes). For this
 * kind of problem the hull is also the bound of the linear relaxation: no cut of at most B bytes
 * takes less time than cb_frontier_bound(B), whether it is on the hull or not. */
#ifndef CB_FLOW_FRONTIER_H
#define CB_FLOW_FRONTIER_H

#include "maxflow.h"

typedef struct cb_priced_network {
    uint32_t n_node, n_arc, source, sink;
    const uint32_t *from, *to; /* [n_arc] */
    const int64_t *bytes;      /* [n_arc] capacities as for cb_flow_solve */
    const int64_t *time;       /* [n_node] each >= 0, their sum < CB_FLOW_MOST */
} cb_priced_network;

typedef struct cb_frontier_step {
    int64_t bytes, time; /* bytes and time of the cut after the step */
    uint32_t point;      /* the first point at or after the step */
} cb_frontier_step;

typedef struct cb_frontier_point {
    int64_t bytes, time;
    int64_t p,
        q; /* lambda = p / q in lowest terms, from which on this point is best; 0/1 at first */
    uint32_t step; /* the step that ends at this point */
} cb_frontier_point;

typedef struct cb_frontier {
    uint32_t n_node, n_step, n_point;
    uint32_t
        *leaves; /* [n_node] the step at which a node leaves T; 0: it is never in T; CB_NONE: it is
                    always in T */
    cb_frontier_step *step;   /* [n_step], bytes rise and time falls */
    cb_frontier_point *point; /* [n_point] */
} cb_frontier;

/* Fails as cb_flow_solve does, and with CB_INVALID for times out of range. */
CB_MUST_CHECK cb_status cb_frontier_make(cb_frontier *f, const cb_priced_network *net,
                                         cb_arena *arena, cb_error *err);
static inline bool cb_frontier_has(const cb_frontier *f, uint32_t node, uint32_t step) {
    return f->leaves[node] > step;
}
/* Finds the last step within the budget (bytes). CB_INFEASIBLE: even step 0 takes more. */
CB_MUST_CHECK cb_status cb_frontier_at(const cb_frontier *f, int64_t budget, uint32_t *step,
                                       cb_error *err);
/* A lower bound on the time of any cut within the budget, rounded up. CB_INFEASIBLE: no cut fits
 * the budget. */
CB_MUST_CHECK cb_status cb_frontier_bound(const cb_frontier *f, int64_t budget, int64_t *time,
                                          cb_error *err);

#endif
