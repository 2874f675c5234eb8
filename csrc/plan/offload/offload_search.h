/* offload_search.h: the search at one target for plans that also move values to the host. Internal.
 * All plans become candidates of the trial, which has an offload simulator. */
#ifndef CB_PLAN_OFFLOAD_SEARCH_H
#define CB_PLAN_OFFLOAD_SEARCH_H

#include "../search/prices.h"

#define CB_OFFLOAD_LINK_PRICES 6 /* prices of the link */

typedef struct cb_offload_plan {
    cb_pairs pairs;
    int64_t time_ps; /* INT64_MAX: none */
} cb_offload_plan;

typedef struct cb_offload_search {
    cb_trial *t;
    const cb_prices *uses; /* the positions at which values are used */
    cb_cut *cut;
    double *price;   /* [n_base] picoseconds for a byte held while that base op runs */
    double *sum;     /* [n_base + 1] running sum of `price` */
    uint32_t *need;  /* [n_storage] first position that needs it in the last plan */
    bool *fetch;     /* [n_storage] bringing it back is cheaper than keeping it */
    bool *may_fetch; /* [n_storage] */
    double link_ps;  /* picoseconds for a byte in one direction */
    bool reruns;     /* ops may run again */
    cb_pairs pairs, next;
    /* the fastest plan that fits, for each price of the link; the last is the initial plan */
    cb_offload_plan best[CB_OFFLOAD_LINK_PRICES + 1];
    cb_offload_plan now; /* the plan changed by moves */
} cb_offload_search;

/* `uses` and `cut` are borrowed; the costs of the cut change. */
CB_MUST_CHECK cb_status cb_offload_search_init(cb_offload_search *h, cb_trial *t,
                                               const cb_prices *uses, cb_cut *cut, cb_error *err);
/* Searches at the target of the trial. `reruns`: ops may run again. `seed` (may be NULL): a plan
 * without moves. */
CB_MUST_CHECK cb_status cb_offload_search_run(cb_offload_search *h, bool reruns,
                                              const cb_candidate *seed, cb_error *err);

#endif
