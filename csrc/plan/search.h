/* search.h: the fastest schedule found that keeps a budget. Internal. */
#ifndef CB_PLAN_SEARCH_H
#define CB_PLAN_SEARCH_H

#include "../base/threads.h"
#include "../include/cutback.h"
#include "mincut.h"
#include "sim.h"

#define CB_MIN_SHARE 0.4 /* more time that CB_BUDGET_MIN allows where it does not say */
#define CB_ANY_SHARE 100 /* more than any plan takes that a budget gets */

typedef struct cb_goal {
    cb_measure measure;
    uint64_t bytes; /* most bytes allowed */
    bool smallest; /* CB_BUDGET_MIN: ignore `bytes`, take the smallest whose extra time stays within
                      `share` */
    double share;  /* of once_ps */
    cb_offload offload;
    uint64_t pinned_bytes; /* most that the host may hold */
    bool exact;            /* see cb_budget */
    cb_poll_fn poll;       /* may be NULL */
    void *poll_user;
    cb_progress *progress; /* filled before each poll; may be NULL */
} cb_goal;

/* What a measure counts in a walked and placed schedule. */
uint64_t cb_measured(const cb_problem *p, cb_measure measure, const cb_lives *lives,
                     uint64_t arena_bytes);

typedef struct cb_found {
    cb_pairs pairs;        /* of the answer */
    cb_schedule schedule;  /* the answer itself, where `n_step` is not 0: it is no set of pairs */
    double least_extra_ps; /* no plan of the bound's class (prices.h) that fits takes less; < 0:
                              not known */
    uint64_t smallest;     /* bytes of the smallest plan measured, where nothing fits */
} cb_found;

/* [n_op] what runs again in all plans: by wish, and inside regions with limits what their own cut
 * recomputes. */
CB_MUST_CHECK cb_status cb_force_recompute(const cb_facts *f, cb_cut *cut, bool *forced,
                                           cb_error *err);

/* The refusal of a goal `smallest`, whose plan may be of any size: what it may not take is time. */
cb_status cb_fail_time(const cb_goal *goal, uint64_t smallest, cb_error *err);

typedef struct cb_searcher cb_searcher; /* lies in an arena */

/* A search for any number of goals, all on saved bytes or all on peaks: what one goal has found out
 * the next need not, and each gets the answer that it would get alone. With `threads` (may be NULL)
 * it takes less time and is the same. cb_searcher_free does no harm to what was found. */
CB_MUST_CHECK cb_status cb_searcher_new(const cb_facts *f, cb_cut *cut, cb_sim *sim,
                                        cb_arena *arena, cb_pool *threads, cb_searcher **out,
                                        cb_error *err);
/* The goals that will be asked, in this order; they stay the caller's. The first to be asked does
 * the work for all of them at once. */
void cb_searcher_expect(cb_searcher *s, const cb_goal *goal, uint32_t n);
void cb_searcher_free(cb_searcher *s); /* NULL is fine */
/* The answer into `out`, whose arena is given. CB_INFEASIBLE states the smallest schedule found and
 * the op at its peak. */
CB_MUST_CHECK cb_status cb_searcher_ask(cb_searcher *s, const cb_goal *goal, cb_found *out,
                                        cb_error *err);

#endif
