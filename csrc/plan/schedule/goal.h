/* goal.h: the request to a search, and its answer. Internal. */
#ifndef CB_PLAN_GOAL_H
#define CB_PLAN_GOAL_H

#include "sim.h"

#define CB_MIN_SHARE 0.4 /* default extra time of CB_BUDGET_MIN */
#define CB_LITTLE_EXTRA \
    0.1 /* if an answer takes less extra time, the plan at position 0 is not
                               considered */

typedef struct cb_goal {
    cb_measure measure;
    uint64_t bytes; /* maximum bytes of the plan */
    bool smallest;  /* CB_BUDGET_MIN: ignore `bytes` and find the smallest plan whose extra time is
                      within `share` */
    double share;   /* maximum extra time, relative to once_ps */
    bool quick;     /* like `smallest` with less effort, for position 0 */
    cb_offload offload;
    uint64_t pinned_bytes; /* maximum bytes that the host may hold */
    bool exact;            /* see cb_budget */
    bool skips_bound;      /* the answer needs no lower bound on its time */
    int64_t known_ps; /* time of a known plan that meets the goal: only faster plans are useful; 0:
                         no plan is known */
    cb_poll poll;
    cb_progress *progress; /* filled before each poll; may be NULL */
} cb_goal;

typedef struct cb_found {
    cb_pairs pairs;        /* pairs of the answer */
    cb_schedule schedule;  /* the answer, if `n_step` is not 0: it is not a set of pairs */
    double least_extra_ps; /* lower bound for plans of the bound's class (prices.h) that fit; < 0:
                              unknown */
    int64_t cost_ps;       /* cost of the answer, including preferences; INT64_MAX: no plan is as
                              fast as the known one */
    uint64_t bytes;        /* bytes of the answer, by the goal's measure */
    uint64_t smallest;     /* bytes of the smallest plan measured, if nothing fits */
} cb_found;

#endif
