/* plan.h: the planner's question and answer. Pure: the same problem and options give the same plan,
 * bit for bit. */
#ifndef CB_PLAN_PLAN_H
#define CB_PLAN_PLAN_H

#include "../base/threads.h"
#include "schedule.h"

typedef struct cb_plan_options {
    cb_preset preset; /* answer when there is no budget */
    cb_budget budget;
    const cb_device *device; /* NULL: "cpu" */
    cb_poll_fn poll;         /* may be NULL */
    void *poll_user;
    cb_progress *progress; /* filled before each poll; may be NULL */
    cb_pool *threads;      /* to search with; NULL: the caller's only. The plan is the same */
} cb_plan_options;

typedef enum cb_decision {
    CB_DECISION_NONE = 0,
    CB_DECISION_SAVE,
    CB_DECISION_RECOMPUTE,
    CB_DECISION_OFFLOAD
} cb_decision;
typedef enum cb_reason {
    CB_REASON_NONE = 0,
    CB_REASON_CUT,       /* on the minimum cut: the cheapest place to save */
    CB_REASON_FORBIDDEN, /* may not be recomputed (compute-intensive under the preset, stateful,
                            unknown) */
    CB_REASON_POLICY,    /* the user said so */
    CB_REASON_HELD,      /* an output, alive anyway */
    CB_REASON_CHEAP,     /* recomputed: cheaper than keeping it */
    CB_REASON_PEAK,      /* recomputed: it was alive at the peak and the budget needed the room */
    CB_REASON_PRESET     /* the preset saves or recomputes all such values */
} cb_reason;

typedef enum cb_bound_class { /* of schedules that a lower bound on the time holds for */
                              CB_BOUND_NONE = 0, /* no bound is known */
                              CB_BOUND_ANY,      /* all that keep the budget */
                              CB_BOUND_ORDERED /* base ops in order, a forward value absent at most
                                                  once */
} cb_bound_class;

typedef struct cb_plan {
    cb_arena arena;
    cb_schedule schedule;
    const cb_device *device; /* row the times are of */
    uint8_t *decision;       /* [n_value] cb_decision; NONE: the backward does not need it */
    uint8_t *reason;         /* [n_value] cb_reason */
    cb_lives lives;          /* with offsets */
    uint64_t fingerprint;    /* of the problem */
    uint64_t arena_bytes, live_bytes, saved_bytes, total_bytes;
    uint64_t save_all_arena_bytes, save_all_live_bytes,
        save_all_saved_bytes;                 /* the save-everything plan of the same problem */
    int64_t time_ps, once_ps, lower_bound_ps; /* lower_bound_ps -1: none known */
    bool in_order;                            /* of the class CB_BOUND_ORDERED */
    uint64_t budget_bytes;                    /* the resolved budget, UINT64_MAX: none */
    cb_measure measure;
    cb_preset preset;
} cb_plan;

/* CB_INFEASIBLE: the text states the smallest peak found and the op at it. */
CB_MUST_CHECK cb_status cb_plan_make(const cb_problem *p, const cb_plan_options *options,
                                     cb_alloc *alloc, cb_plan **out, cb_error *err);
typedef struct cb_answer {
    cb_plan *plan; /* NULL: the budget is out of reach, `why` says what is not */
    cb_error why;
} cb_answer;
/* The same for `n` budgets, in one search: `out` [n] gets what each would get alone. The budget in
 * `options` does not count. On failure there are no plans. */
CB_MUST_CHECK cb_status cb_plan_make_many(const cb_problem *p, const cb_plan_options *options,
                                          const cb_budget *budget, uint32_t n, cb_alloc *alloc,
                                          cb_answer *out, cb_error *err);
void cb_plan_free(cb_plan *plan);
cb_bound_class cb_plan_bound_class(const cb_plan *plan);
/* (time - lower bound) / lower bound; -1: no bound is known for plans of its kind. */
double cb_plan_gap(const cb_plan *plan);
CB_MUST_CHECK cb_status cb_plan_to_json(const cb_problem *p, const cb_plan *plan, cb_str *out,
                                        cb_error *err);
/* Reads a plan for `p` (fingerprints must agree), walks it and places it anew. `device` NULL: the
 * one it names. */
CB_MUST_CHECK cb_status cb_plan_from_json(const cb_problem *p, const cb_device *device,
                                          cb_alloc *alloc, const char *text, size_t length,
                                          cb_plan **out, cb_error *err);
/* Bytes and times of any document with `steps` and `backward_starts`. `device` NULL: the one it
 * names, or "cpu". */
CB_MUST_CHECK cb_status cb_evaluate_to_json(const cb_problem *p, const cb_device *device,
                                            cb_alloc *alloc, const char *text, size_t length,
                                            cb_str *out, cb_error *err);
/* For people: totals; then one line a saved, recomputed or offloaded value, with the reason and
 * what the other choice would change. */
CB_MUST_CHECK cb_status cb_plan_explain(const cb_problem *p, const cb_plan *plan, cb_str *out,
                                        cb_error *err);
/* The same as JSON (docs/problem.md, "Explanation"). */
CB_MUST_CHECK cb_status cb_plan_explain_to_json(const cb_problem *p, const cb_plan *plan,
                                                cb_str *out, cb_error *err);

#endif
