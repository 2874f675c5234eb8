/* weigh.h: measures a plan for a goal and compares it with the best so far, for searches with and
 * without offload. Internal. */
#ifndef CB_PLAN_WEIGH_H
#define CB_PLAN_WEIGH_H

#include "../../model/facts.h"
#include "../../schedule/goal.h"
#include "../../schedule/plan.h"
#include "placings.h"

typedef struct cb_weight {
    uint64_t bytes;   /* bytes by the goal's measure, including offsets */
    int64_t time_ps;  /* time without preferences */
    uint32_t peak_op; /* op at the peak; CB_NONE: the schedule has no steps */
} cb_weight;

typedef struct cb_best {
    int64_t time_ps;
    uint64_t bytes;
} cb_best;

#define CB_NO_BEST ((cb_best){INT64_MAX, UINT64_MAX})

/* Returns the bytes that a goal counts but searches do not. */
static inline uint64_t cb_beside_bytes(const cb_facts *f, const cb_goal *goal) {
    return goal->measure == CB_MEASURE_TOTAL ? f->p->static_bytes : 0;
}

/* Returns the picoseconds that the goal `min` allows. */
static inline double cb_most_time(const cb_facts *f, const cb_goal *goal) {
    return (double)f->once_ps * (1 + goal->share);
}

/* Checks the schedule, and assigns offsets if the goal depends on them. `known` remembers them. */
CB_MUST_CHECK cb_status cb_weigh_schedule(const cb_facts *f, const cb_goal *goal,
                                          cb_placings *known, const cb_schedule *s, cb_weight *out,
                                          cb_error *err);

/* For a budget: true if the plan fits and is faster than the best so far, or equally fast and
 * smaller. */
static inline bool cb_is_faster(const cb_goal *goal, int64_t time_ps, uint64_t bytes,
                                cb_best best) {
    bool first = time_ps < best.time_ps || (time_ps == best.time_ps && bytes < best.bytes);
    return bytes <= goal->bytes && first;
}

/* For the goal `min`: true if the plan is smaller than the best so far and not too slow. */
static inline bool cb_is_smaller(double most_ps, const cb_weight *w, cb_best best) {
    return w->bytes < best.bytes && (double)w->time_ps <= most_ps;
}

#endif
