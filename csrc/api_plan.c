/* Planning from files: each function parses the graph, asks the planner one thing and gives a text.
 */
#include "pipeline.h"
#include "plan/cut_json.h"
#include "plan/frontier_json.h"
#include "plan/traced.h"

#include <time.h>

typedef struct session { /* of one call */
    cb_context *ctx;
    cb_arena scratch;
    cb_problem *problem;
    cb_plan *plan;
    cb_str text;
} session;

static cb_status open_session(session *s, cb_context *ctx, const char *graph, size_t length,
                              cb_error *err) {
    *s = (session){.ctx = ctx};
    cb_arena_init(&s->scratch, &ctx->alloc);
    cb_str_init(&s->text, &s->scratch);
    return cb_problem_read(&ctx->alloc, graph, length, &s->problem, err);
}

static void close_session(session *s) {
    cb_plan_free(s->plan);
    cb_problem_free(s->problem);
    cb_arena_free(&s->scratch);
}

static cb_status find_device(const char *name, const cb_device **out, cb_error *err) {
    *out = name ? cb_device_find(name) : NULL;
    return name && !*out ? cb_unknown_device(name, err) : CB_OK;
}

static cb_status check_preset(cb_preset preset, cb_error *err) {
    if ((int)preset >= 0 && preset < CB_PRESET_COUNT) return CB_OK;
    return cb_fail(err, CB_INVALID, "plan: no preset has the number %d", (int)preset);
}

cb_status cb_problem_json(cb_context *ctx, const char *graph, size_t length, char **out,
                          cb_error *err) {
    session s;
    cb_status status;
    CB_TRY_DONE(open_session(&s, ctx, graph, length, err));
    CB_TRY_DONE(cb_problem_to_json(s.problem, &s.text, err));
    CB_TRY_DONE(cb_text_give(&ctx->alloc, &s.text, out, err));
done:
    close_session(&s);
    return status;
}

cb_status cb_plan_json(cb_context *ctx, const char *graph, size_t length, cb_preset preset,
                       const cb_budget *budget, const char *device, cb_poll_fn poll,
                       void *poll_user, char **out, cb_error *err) {
    cb_plan_options options = {.preset = preset, .poll = poll, .poll_user = poll_user};
    session s;
    cb_status status;
    if (budget) options.budget = *budget;
    CB_TRY(find_device(device, &options.device, err));
    CB_TRY(check_preset(preset, err));
    CB_TRY_DONE(open_session(&s, ctx, graph, length, err));
    CB_TRY_DONE(cb_plan_make(s.problem, &options, &ctx->alloc, &s.plan, err));
    CB_TRY_DONE(cb_plan_to_json(s.problem, s.plan, &s.text, err));
    CB_TRY_DONE(cb_text_give(&ctx->alloc, &s.text, out, err));
done:
    close_session(&s);
    return status;
}

static cb_status give_planned(session *s, const cb_answer *answer, cb_planned *out, cb_error *err) {
    cb_arena scratch;
    cb_str text;
    cb_arena_init(&scratch, &s->ctx->alloc);
    cb_str_init(&text, &scratch);
    cb_status status;
    if (answer->plan) CB_TRY_DONE(cb_plan_to_json(s->problem, answer->plan, &text, err));
    else cb_str_add(&text, answer->why.text, strlen(answer->why.text));
    CB_TRY_DONE(
        cb_text_give(&s->ctx->alloc, &text, answer->plan ? &out->plan : &out->why_not, err));
done:
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_plans_json(cb_context *ctx, const char *graph, size_t length, cb_preset preset,
                        const cb_budget *budgets, uint32_t n, const char *device, cb_poll_fn poll,
                        void *poll_user, cb_progress *progress, cb_planned *out, cb_error *err) {
    cb_plan_options options = {
        .preset = preset, .poll = poll, .poll_user = poll_user, .progress = progress};
    session s;
    cb_status status;
    uint32_t made = 0, given = 0;
    CB_TRY(find_device(device, &options.device, err));
    CB_TRY(check_preset(preset, err));
    CB_TRY_DONE(open_session(&s, ctx, graph, length, err));
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
    for (uint32_t i = 0; i < given && status != CB_OK; i++) {
        cb_text_free(ctx, planned[i].plan);
        cb_text_free(ctx, planned[i].why_not);
    }
    for (uint32_t i = 0; i < made; i++) cb_plan_free(answer[i].plan);
    close_session(&s);
    return status;
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
    char *answer = NULL;
    CB_TRY(check_preset(preset, err));
    CB_TRY_DONE(open_session(&s, ctx, graph, length, err));
    cb_str_init(&dimacs, &s.scratch);
    CB_TRY_DONE(cb_cut_to_json(s.problem, preset, &ctx->alloc, now, &s.text,
                               network ? &dimacs : NULL, err));
    CB_TRY_DONE(cb_text_give(&ctx->alloc, &s.text, &answer, err));
    if (network) CB_TRY_DONE(cb_text_give(&ctx->alloc, &dimacs, network, err));
    *out = answer;
    answer = NULL;
done:
    cb_text_free(ctx, answer);
    close_session(&s);
    return status;
}

cb_status cb_frontier_json(cb_context *ctx, const char *graph, size_t length, cb_preset preset,
                           const char *device, char **out, cb_error *err) {
    const cb_device *row;
    session s;
    cb_status status;
    CB_TRY(find_device(device, &row, err));
    CB_TRY(check_preset(preset, err));
    CB_TRY_DONE(open_session(&s, ctx, graph, length, err));
    CB_TRY_DONE(cb_frontier_to_json(s.problem, preset, row, &ctx->alloc, &s.text, err));
    CB_TRY_DONE(cb_text_give(&ctx->alloc, &s.text, out, err));
done:
    close_session(&s);
    return status;
}

cb_status cb_plan_explain_json(cb_context *ctx, const char *graph, size_t graph_length,
                               const char *plan, size_t plan_length, const char *device, char **out,
                               cb_error *err) {
    const cb_device *row;
    session s;
    cb_status status;
    CB_TRY(find_device(device, &row, err));
    CB_TRY_DONE(open_session(&s, ctx, graph, graph_length, err));
    CB_TRY_DONE(cb_plan_from_json(s.problem, row, &ctx->alloc, plan, plan_length, &s.plan, err));
    CB_TRY_DONE(cb_plan_explain(s.problem, s.plan, &s.text, err));
    CB_TRY_DONE(cb_text_give(&ctx->alloc, &s.text, out, err));
done:
    close_session(&s);
    return status;
}

cb_status cb_evaluate_json(cb_context *ctx, const char *graph, size_t graph_length,
                           const char *plan, size_t plan_length, const char *device, char **out,
                           cb_error *err) {
    const cb_device *row;
    session s;
    cb_status status;
    CB_TRY(find_device(device, &row, err));
    CB_TRY_DONE(open_session(&s, ctx, graph, graph_length, err));
    CB_TRY_DONE(cb_evaluate_to_json(s.problem, row, &ctx->alloc, plan, plan_length, &s.text, err));
    CB_TRY_DONE(cb_text_give(&ctx->alloc, &s.text, out, err));
done:
    close_session(&s);
    return status;
}
