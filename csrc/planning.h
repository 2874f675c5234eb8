/* planning.h: the planner on problems that are read and checked once and used for many requests,
 * from texts (api_plan.c) or from Python objects (the extension module). Internal. */
#ifndef CB_PLANNING_H
#define CB_PLANNING_H

#include "include/cutback.h"
#include "plan/planner.h"

/* Returns the context's allocator for problems and plans that outlive a call. */
cb_alloc *cb_planning_alloc(cb_context *ctx);
/* Reads a problem or a traced graph (docs/problem.md), checks it and prepares it for the planner.
 */
CB_MUST_CHECK cb_status cb_planning_read(cb_context *ctx, const char *graph, size_t length,
                                         cb_problem **out, cb_error *err);
/* Does the same for a problem whose arrays the caller has filled. */
CB_MUST_CHECK cb_status cb_planning_check(cb_problem *p, cb_error *err);

typedef struct cb_planning_request {
    cb_preset preset;
    const cb_budget *budget; /* [n] */
    uint32_t n;
    const char *device; /* device as text; NULL: "cpu" */
    cb_poll poll;
    cb_progress *progress; /* filled before each poll; may be NULL */
    bool until_met;        /* the budgets after the first that is met get no answer */
} cb_planning_request;
/* Makes a plan for each budget, in one search; a budget that cannot be met gets the reason instead.
 * On failure there are no plans. */
CB_MUST_CHECK cb_status cb_planning_plans(cb_context *ctx, const cb_problem *p,
                                          const cb_planning_request *request, cb_answer *out,
                                          cb_error *err);
/* Computes the ends of positions (plan/planner.h). `device` NULL: "cpu". */
CB_MUST_CHECK cb_status cb_planning_ends(cb_context *ctx, const cb_problem *p, cb_preset preset,
                                         cb_measure measure, const char *device, cb_poll poll,
                                         cb_ends *out, cb_error *err);
/* Reads a plan for this problem from JSON. `device` NULL: the plan's device. */
CB_MUST_CHECK cb_status cb_planning_read_plan(cb_context *ctx, const cb_problem *p,
                                              const char *text, size_t length, const char *device,
                                              cb_plan **out, cb_error *err);

/* Computes bytes and times of any schedule; `lives` are allocated in `arena`. */
CB_MUST_CHECK cb_status cb_planning_evaluate(const cb_problem *p, const cb_schedule *schedule,
                                             const char *device, cb_arena *arena, cb_lives *lives,
                                             uint64_t *arena_bytes, cb_error *err);

/* Write texts, which the caller frees with cb_text_free. */
CB_MUST_CHECK cb_status cb_planning_problem_json(cb_context *ctx, const cb_problem *p, char **out,
                                                 cb_error *err);
CB_MUST_CHECK cb_status cb_planning_plan_json(cb_context *ctx, const cb_problem *p,
                                              const cb_plan *plan, char **out, cb_error *err);
CB_MUST_CHECK cb_status cb_planning_explain_text(cb_context *ctx, const cb_problem *p,
                                                 const cb_plan *plan, char **out, cb_error *err);
CB_MUST_CHECK cb_status cb_planning_explain_json(cb_context *ctx, const cb_problem *p,
                                                 const cb_plan *plan, char **out, cb_error *err);
/* The document has `steps` and `backward_starts`; `device` NULL: the one it names, or "cpu". */
CB_MUST_CHECK cb_status cb_planning_evaluate_json(cb_context *ctx, const cb_problem *p,
                                                  const char *text, size_t length,
                                                  const char *device, char **out, cb_error *err);
/* `network` may be NULL. */
CB_MUST_CHECK cb_status cb_planning_cut_json(cb_context *ctx, const cb_problem *p, cb_preset preset,
                                             char **out, char **network, cb_error *err);
CB_MUST_CHECK cb_status cb_planning_frontier_json(cb_context *ctx, const cb_problem *p,
                                                  cb_preset preset, const char *device,
                                                  cb_poll poll, char **out, cb_error *err);

/* Returns the problem of a compiled step, and its plan; the step owns them. */
const cb_problem *cb_step_problem(const cb_step *step);
const cb_plan *cb_step_plan(const cb_step *step);

/* Like cb_compile, but if no plan can meet the budget, the refusal may leave out the smallest plan
 * (smallest_bytes 0), which takes long to find. */
CB_MUST_CHECK cb_status cb_compile_briefly(cb_context *ctx, const cb_graph *forward,
                                           const cb_compile_options *o, cb_step **out,
                                           cb_error *err);

#endif
