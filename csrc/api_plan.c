/* Planning from files: each function parses the graph, asks the planner one thing and gives a text.
 */
#include "pipeline.h"
#include "plan/cut/mutwo.h"
#include "plan/files/cut_json.h"
#include "plan/files/explanation.h"
#include "plan/files/frontier_json.h"
#include "plan/files/plan_json.h"
#include "plan/model/device.h"
#include "plan/planner.h"
#include "plan/torch/inductor_fusion.h"
#include "plan/torch/traced.h"

#include <time.h>

typedef struct session { /* of one call */
    cb_context *ctx;
    cb_arena scratch;
    const cb_device *device; /* NULL: not said */
    cb_problem *problem;
    cb_plan *plan;
    cb_str text;
} session;

static cb_status open_session(session *s, cb_context *ctx, const char *graph, size_t length,
                              const char *device, cb_error *err) {
    *s = (session){.ctx = ctx};
    cb_arena_init(&s->scratch, &ctx->alloc);
    cb_str_init(&s->text, &s->scratch);
    CB_TRY(cb_device_parse(device, &s->scratch, &s->device, err));
    CB_TRY(cb_problem_read(&ctx->alloc, graph, length, &s->problem, err));
    return cb_find_fusion(s->problem, err);
}

/* Gives the text if `out` is there, unless something has failed before, and closes the session
 * either way. */
static cb_status close_session(session *s, cb_status status, char **out, cb_error *err) {
    if (status == CB_OK && out) status = cb_text_give(&s->ctx->alloc, &s->text, out, err);
    cb_plan_free(s->plan);
    cb_problem_free(s->problem);
    cb_arena_free(&s->scratch);
    return status;
}

static cb_status check_preset(cb_preset preset, cb_error *err) {
    if ((int)preset >= 0 && preset < CB_PRESET_COUNT) return CB_OK;
    return cb_fail(err, CB_INVALID, "plan: no preset has the number %d", (int)preset);
}

cb_status cb_problem_json(cb_context *ctx, const char *graph, size_t length, char **out,
                          cb_error *err) {
    session s;
    cb_status status;
    CB_TRY_DONE(open_session(&s, ctx, graph, length, NULL, err));
    CB_TRY_DONE(cb_problem_to_json(s.problem, &s.text, err));
done:
    return close_session(&s, status, out, err);
}

cb_status cb_mutwo_json(cb_context *ctx, const char *graph, size_t length, const cb_budget *saved,
                        const char *device, char **out, cb_error *err) {
    session s;
    cb_status status;
    CB_TRY_DONE(open_session(&s, ctx, graph, length, device, err));
    CB_TRY_DONE(cb_mutwo_to_json(s.problem, saved, s.device, &ctx->alloc, &s.text, err));
done:
    return close_session(&s, status, out, err);
}

cb_status cb_plan_json(cb_context *ctx, const char *graph, size_t length, cb_preset preset,
                       const cb_budget *budget, const char *device, cb_poll_fn poll,
                       void *poll_user, char **out, cb_error *err) {
    cb_plan_options options = {
        .preset = preset, .poll = {poll, poll_user}, .threads = ctx->runtime.pool};
    session s;
    cb_status status;
    if (budget) options.budget = *budget;
    CB_TRY(check_preset(preset, err));
    CB_TRY_DONE(open_session(&s, ctx, graph, length, device, err));
    options.device = s.device;
    CB_TRY_DONE(cb_plan_make(s.problem, &options, &ctx->alloc, &s.plan, err));
    CB_TRY_DONE(cb_plan_to_json(s.problem, s.plan, &s.text, err));
done:
    return close_session(&s, status, out, err);
}

static cb_status give_planned(session *s, const cb_answer *answer, cb_planned *out, cb_error *err) {
    cb_arena scratch;
    cb_str text;
    out->why_not = answer->why;
    if (!answer->plan) return CB_OK;
    cb_arena_init(&scratch, &s->ctx->alloc);
    cb_str_init(&text, &scratch);
    cb_status status;
    CB_TRY_DONE(cb_plan_to_json(s->problem, answer->plan, &text, err));
    CB_TRY_DONE(cb_text_give(&s->ctx->alloc, &text, &out->plan, err));
done:
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_plans_json(cb_context *ctx, const char *graph, size_t length, cb_preset preset,
                        const cb_budget *budgets, uint32_t n, const char *device, cb_poll_fn poll,
                        void *poll_user, cb_progress *progress, cb_planned *out, cb_error *err) {
    cb_plan_options options = {.preset = preset,
                               .poll = {poll, poll_user},
                               .progress = progress,
                               .threads = ctx->runtime.pool};
    session s;
    cb_status status;
    uint32_t made = 0, given = 0;
    CB_TRY(check_preset(preset, err));
    CB_TRY_DONE(open_session(&s, ctx, graph, length, device, err));
    options.device = s.device;
    cb_answer *answer = CB_NEW(&s.scratch, cb_answer, n);
    cb_planned *planned = CB_NEW(&s.scratch, cb_planned, n);
    if (!answer || !planned) {
        status = cb_no_memory(err);
        goto done;
    }
    CB_TRY_DONE(cb_plan_make_many(s.problem, &options, budgets, n, &ctx->alloc, answer, err));
    made = n;
    for (; given < n; given++) CB_TRY_DONE(give_planned(&s, &answer[given], &planned[given], err));
    for (uint32_t i = 0; i < n; i++) out[i] = planned[i];
done:
    for (uint32_t i = 0; i < given && status != CB_OK; i++) cb_text_free(ctx, planned[i].plan);
    for (uint32_t i = 0; i < made; i++) cb_plan_free(answer[i].plan);
    return close_session(&s, status, NULL, err);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

cb_status cb_cut_json(cb_context *ctx, const char *graph, size_t length, cb_preset preset,
                      char **out, char **network, cb_error *err) {
    session s;
    cb_str dimacs;
    cb_status status;
    char *arcs = NULL;
    CB_TRY(check_preset(preset, err));
    CB_TRY_DONE(open_session(&s, ctx, graph, length, NULL, err));
    cb_str_init(&dimacs, &s.scratch);
    CB_TRY_DONE(cb_cut_to_json(s.problem, preset, &ctx->alloc, now, &s.text,
                               network ? &dimacs : NULL, err));
    if (network) CB_TRY_DONE(cb_text_give(&ctx->alloc, &dimacs, &arcs, err));
done:
    status = close_session(&s, status, out, err);
    if (status == CB_OK && network) *network = arcs;
    else cb_text_free(ctx, arcs);
    return status;
}

cb_status cb_frontier_json(cb_context *ctx, const char *graph, size_t length, cb_preset preset,
                           const char *device, cb_poll_fn poll, void *poll_user, char **out,
                           cb_error *err) {
    session s;
    cb_status status;
    CB_TRY(check_preset(preset, err));
    CB_TRY_DONE(open_session(&s, ctx, graph, length, device, err));
    const cb_frontier_request request = {
        .preset = preset, .device = s.device, .poll = {poll, poll_user}};
    CB_TRY_DONE(cb_frontier_to_json(s.problem, &request, &ctx->alloc, &s.text, err));
done:
    return close_session(&s, status, out, err);
}

typedef cb_status (*tell_fn)(const cb_problem *p, const cb_plan *plan, cb_str *out, cb_error *err);

static cb_status tell(cb_context *ctx, const char *graph, size_t graph_length, const char *plan,
                      size_t plan_length, const char *device, tell_fn put, char **out,
                      cb_error *err) {
    session s;
    cb_status status;
    CB_TRY_DONE(open_session(&s, ctx, graph, graph_length, device, err));
    CB_TRY_DONE(
        cb_plan_from_json(s.problem, s.device, &ctx->alloc, plan, plan_length, &s.plan, err));
    CB_TRY_DONE(put(s.problem, s.plan, &s.text, err));
done:
    return close_session(&s, status, out, err);
}

cb_status cb_plan_explain_text(cb_context *ctx, const char *graph, size_t graph_length,
                               const char *plan, size_t plan_length, const char *device, char **out,
                               cb_error *err) {
    return tell(ctx, graph, graph_length, plan, plan_length, device, cb_plan_explanation_to_text,
                out, err);
}

cb_status cb_plan_explain_json(cb_context *ctx, const char *graph, size_t graph_length,
                               const char *plan, size_t plan_length, const char *device, char **out,
                               cb_error *err) {
    return tell(ctx, graph, graph_length, plan, plan_length, device, cb_plan_explanation_to_json,
                out, err);
}

cb_status cb_evaluate_json(cb_context *ctx, const char *graph, size_t graph_length,
                           const char *plan, size_t plan_length, const char *device, char **out,
                           cb_error *err) {
    session s;
    cb_status status;
    CB_TRY_DONE(open_session(&s, ctx, graph, graph_length, device, err));
    CB_TRY_DONE(
        cb_evaluate_to_json(s.problem, s.device, &ctx->alloc, plan, plan_length, &s.text, err));
done:
    return close_session(&s, status, out, err);
}
