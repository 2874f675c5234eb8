/* planner.h: the planner's interface. It is a pure function: the same problem and options give the
 * same plan, bit for bit. */
#ifndef CB_PLAN_PLANNER_H
#define CB_PLAN_PLANNER_H

#include "../base/threads.h"
#include "ends.h"
#include "schedule/plan.h"

typedef struct cb_plan_options {
    cb_preset preset; /* used without a budget */
    cb_budget budget;
    const cb_device *device; /* NULL: "cpu" */
    cb_poll poll;
    cb_progress *progress; /* filled before each poll; may be NULL */
    cb_threads *threads;   /* threads for the search; NULL: only the caller's. They do not affect
                              the plan */
    bool ignores_finish;   /* CB_POLL_FINISH does not end a search */
    bool brief;            /* a refusal need not name the smallest plan: smallest_bytes may be 0 */
    bool until_met;        /* of several budgets, those after the first that is met get no answer */
} cb_plan_options;
/* True if the refusal `why` leaves out the smallest plan. */
static inline bool cb_is_brief(const cb_plan_options *options, const cb_error *why) {
    return options->brief && why->refusal.smallest_bytes == 0;
}

/* Returns CB_INFEASIBLE if no plan is found: err->refusal has the smallest peak found and its
 * op. */
CB_MUST_CHECK cb_status cb_plan_make(const cb_problem *p, const cb_plan_options *options,
                                     cb_alloc *alloc, cb_plan **out, cb_error *err);
typedef struct cb_answer {
    cb_plan *plan; /* NULL: no plan meets the budget; see why.refusal */
    cb_error why;
} cb_answer;
/* Does the same for `n` budgets in one search: `out` [n] gets the same answers as separate calls.
 * The budget in `options` is ignored. On failure there are no plans. */
CB_MUST_CHECK cb_status cb_plan_make_many(const cb_problem *p, const cb_plan_options *options,
                                          const cb_budget *budget, uint32_t n, cb_alloc *alloc,
                                          cb_answer *out, cb_error *err);
/* Computes the ends of positions under a measure: `options` may have any budget. Like a position,
 * it is not ended early by CB_POLL_FINISH, so that the same position is always the same number of
 * bytes. */
CB_MUST_CHECK cb_status cb_plan_ends(const cb_problem *p, const cb_plan_options *options,
                                     cb_measure measure, cb_alloc *alloc, cb_ends *out,
                                     cb_error *err);

/* A planner that answers several requests and shares searches between them, for budgets that depend
 * on the plan for another budget. Problem, options and allocator are borrowed. */
typedef struct cb_planner cb_planner;
CB_MUST_CHECK cb_status cb_planner_new(const cb_problem *p, const cb_plan_options *options,
                                       cb_alloc *alloc, cb_planner **out, cb_error *err);
void cb_planner_free(cb_planner *self); /* NULL is fine */
/* Answers a budget like cb_plan_make. */
CB_MUST_CHECK cb_status cb_planner_ask(cb_planner *self, const cb_budget *budget, cb_plan **out,
                                       cb_error *err);
/* Must be called after a request about a peak. An answer that takes at most this share of extra
 * time is no slower than the plan at position 0. */
double cb_planner_little_extra(const cb_planner *self);
/* Makes the plan at position 0 of the measure of `like`. CB_POLL_FINISH never ends this. */
CB_MUST_CHECK cb_status cb_planner_smallest(cb_planner *self, const cb_budget *like, cb_plan **out,
                                            cb_error *err);

/* Checks and places plan->schedule, and fills all fields that follow from it. */
CB_MUST_CHECK cb_status cb_plan_adopt(const cb_problem *p, const cb_device *device, cb_plan *plan,
                                      cb_error *err);

#endif
