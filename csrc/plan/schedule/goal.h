/* goal.h: what a search is asked for, and what it answers. Internal. */
#ifndef CB_PLAN_GOAL_H
#define CB_PLAN_GOAL_H

#include "sim.h"

#define CB_MIN_SHARE 0.4    /* more time that CB_BUDGET_MIN allows where it does not say */
#define CB_LITTLE_EXTRA 0.1 /* budgets whose answer costs less do not look at position 0 */

typedef struct cb_goal {
    cb_measure measure;
    uint64_t bytes; /* most bytes allowed */
    bool smallest; /* CB_BUDGET_MIN: ignore `bytes`, take the smallest whose extra time stays within
                      `share` */
    double share;  /* of once_ps */
    bool quick;    /* `smallest` with less effort: position 0 */
    cb_offload offload;
    uint64_t pinned_bytes; /* most that the host may hold */
    bool exact;            /* see cb_budget */
    bool skips_bound;      /* the answer needs no lower bound on its time */
    int64_t known_ps; /* of a plan that meets it: only faster ones are of use; 0: none is known */
    cb_poll poll;
    cb_progress *progress; /* filled before each poll; may be NULL */
} cb_goal;

typedef struct cb_found {
    cb_pairs pairs;        /* of the answer */
    cb_schedule schedule;  /* the answer itself, where `n_step` is not 0: it is no set of pairs */
    double least_extra_ps; /* no plan of the bound's class (prices.h) that fits takes less; < 0:
                              not known */
    int64_t cost_ps;       /* of the answer, preferences counted; INT64_MAX: none is as fast as
                              the one known */
    uint64_t bytes;        /* of the answer, by the goal's measure */
    uint64_t smallest;     /* bytes of the smallest plan measured, where nothing fits */
} cb_found;

#endif
