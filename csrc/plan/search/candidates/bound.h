/* bound.h: proven lower bounds on the extra time of plans of a size. Internal.
 *
 * A bound that is linear in the budget is a tangent of the best bound (prices.h explains its origin
 * and its class of plans). Several tangents together give a better bound than any one of them. */
#ifndef CB_PLAN_BOUND_H
#define CB_PLAN_BOUND_H

#include "../../../base/vec.h"

typedef struct cb_tangent { /* the bound is extra picoseconds >= constant - slope x bytes */
    double constant, slope;
    double reach; /* sum over moments of price x min(time until its end, time from its start) */
} cb_tangent;

typedef CB_VEC(cb_tangent) cb_tangents;

static inline double cb_tangent_at(cb_tangent line, double bytes) {
    return line.constant - line.slope * bytes;
}

/* Returns the best bound of the first `n` tangents at `bytes`; at least 0. */
double cb_tangents_bound(const cb_tangents *t, size_t n, double bytes);

#endif
