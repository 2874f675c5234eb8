/* choose.h: finds the best candidate of a search for one goal. Internal.
 *
 * Candidates are ranked by the peak of live bytes; some goals also count offsets, or memory of the
 * caller. So a candidate that may be the answer is measured: its schedule is made, checked and
 * placed. */
#ifndef CB_PLAN_CHOOSE_H
#define CB_PLAN_CHOOSE_H

#include "candidates/weigh.h"
#include "ladder.h"

typedef struct cb_weighed {
    cb_pair *pair;
    size_t n_pair;
    cb_weight weight;
} cb_weighed;

/* The results that budgets of one search share. */
typedef struct cb_memo {
    cb_arena *arena;
    cb_placings *placings;                    /* those of the planner */
    CB_VEC(cb_weighed) list;                  /* plans that were placed */
    struct cb_chooser *min[CB_MEASURE_COUNT]; /* the answer to CB_BUDGET_MIN (pick.c); or NULL */
    struct cb_chooser *further[CB_MEASURE_COUNT]; /* the same after one descent (low.h) of two */
    struct cb_chooser *coarse[CB_MEASURE_COUNT];  /* the same without a descent */
    struct cb_chooser *low[CB_MEASURE_COUNT];     /* the answer to position 0 */
} cb_memo;

typedef struct cb_chooser {
    cb_trial *t;
    cb_memo *memo;
    const cb_facts *f; /* facts of the original problem; those of `t` may include spare ops */
    cb_arena *arena;
    cb_candidate best; /* pairs in `arena`; size 0: nothing fits so far */
    uint64_t best_bytes;
    uint64_t smallest; /* the smallest bytes measured, and the op at that peak */
    uint32_t smallest_op;
    uint64_t solved; /* the smallest bytes over all plans, by the exact solver; UINT64_MAX:
                        unknown */
    uint32_t solved_op;
    const cb_swept *swept;       /* the best schedule, if no pairs describe it; or NULL */
    bool climbed[CB_RUNGS_MOST]; /* rungs considered */
    bool settles;                /* the caller has ended the search: no further polls */
} cb_chooser;

static inline bool cb_has_best(const cb_chooser *k) { return k->best.pair != NULL; }
/* Returns the extra time of the best plan so far or of another known plan; infinite if there is
 * none. */
double cb_time_to_beat(const cb_chooser *k);

CB_MUST_CHECK cb_status cb_weigh(cb_chooser *k, const cb_candidate *c, cb_weight *out,
                                 cb_error *err);
/* Keeps the candidate if it fits the budget and is faster than the best, or equally fast and
 * smaller. */
CB_MUST_CHECK cb_status cb_consider(cb_chooser *k, const cb_candidate *c, cb_error *err);
/* Considers all candidates of the trial. */
CB_MUST_CHECK cb_status cb_consider_candidates(cb_chooser *k, cb_error *err);
CB_MUST_CHECK cb_status cb_consider_all_of(cb_chooser *k, const cb_candidates *all, cb_error *err);
/* For the goal `min`: keeps the candidate if it is smaller than the best. */
CB_MUST_CHECK cb_status cb_consider_small(cb_chooser *k, const cb_candidate *c, cb_error *err);
/* Considers all candidates of the trial, and of other sets, that take at most `most_ps`. */
CB_MUST_CHECK cb_status cb_consider_small_candidates(cb_chooser *k, double most_ps, cb_error *err);
CB_MUST_CHECK cb_status cb_consider_small_of(cb_chooser *k, const cb_candidates *candidates,
                                             double most_ps, cb_error *err);
/* Considers the result of the sweep, like cb_consider, or if `small` like cb_consider_small. */
CB_MUST_CHECK cb_status cb_consider_swept(cb_chooser *k, const cb_swept *s, bool small,
                                          cb_error *err);

#endif
