/* planning.h: the planner on problems that are read and checked once and asked many times: what
 * api_plan.c does with texts, and the extension module with objects of Python. Internal. */
#ifndef CB_PLANNING_H
#define CB_PLANNING_H

#include "include/cutback.h"
#include "plan/planner.h"

/* Of the context: what a problem or a plan that outlives a call is made in. */
cb_alloc *cb_planning_alloc(cb_context *ctx);
/* A problem or a traced graph (docs/problem.md), checked and ready for the planner. */
CB_MUST_CHECK cb_status cb_planning_read(cb_context *ctx, const char *graph, size_t length,
                                         cb_problem **out, cb_error *err);
/* The same for a problem whose arrays the caller has filled. */
CB_MUST_CHECK cb_status cb_planning_check(cb_problem *p, cb_error *err);

typedef struct cb_planning_request {
    cb_preset preset;
    const cb_budget *budget; /* [n] */
    uint32_t n;
    const char *device; /* as text; NULL: "cpu" */
    cb_poll poll;
    cb_progress *progress; /* filled before each poll; may be NULL */
} cb_planning_request;
/* A plan for each budget, in one search; an impossible one has its reason in its place. On failure
 * there are no plans. */
CB_MUST_CHECK cb_status cb_planning_plans(cb_context *ctx, const cb_problem *p,
                                          const cb_planning_request *request, cb_answer *out,
                                          cb_error *err);
/* The ends that positions lie between (plan/planner.h). `device` NULL: "cpu". */
CB_MUST_CHECK cb_status cb_planning_ends(cb_context *ctx, const cb_problem *p, cb_preset preset,
                                         cb_measure measure, const char *device, cb_poll poll,
                                         cb_ends *out, cb_error *err);
/* A plan as JSON, for this problem. `device` NULL: the one it names. */
CB_MUST_CHECK cb_status cb_planning_read_plan(cb_context *ctx, const cb_problem *p,
                                              const char *text, size_t length, const char *device,
                                              cb_plan **out, cb_error *err);

/* Bytes and times of a schedule from anywhere; `lives` lie in `arena`. */
CB_MUST_CHECK cb_status cb_planning_evaluate(const cb_problem *p, const cb_schedule *schedule,
                                             const char *device, cb_arena *arena, cb_lives *lives,
                                             uint64_t *arena_bytes, cb_error *err);

/* Texts, which the caller frees with cb_text_free. */
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
/* `network` may be NULL: not wanted. */
CB_MUST_CHECK cb_status cb_planning_cut_json(cb_context *ctx, const cb_problem *p, cb_preset preset,
                                             char **out, char **network, cb_error *err);
CB_MUST_CHECK cb_status cb_planning_frontier_json(cb_context *ctx, const cb_problem *p,
                                                  cb_preset preset, const char *device,
                                                  cb_poll poll, char **out, cb_error *err);

/* What a compiled step was planned from, and its plan; the step owns them. */
const cb_problem *cb_step_problem(const cb_step *step);
const cb_plan *cb_step_plan(const cb_step *step);

#endif
