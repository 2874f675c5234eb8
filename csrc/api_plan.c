/* Planning from files: each function parses the graph, makes one request to planning.c and returns
 * text. */
#include "plan/cut/mutwo.h"
#include "plan/model/device.h"
#include "planning.h"

static cb_status check_preset(cb_preset preset, cb_error *err) {
    if ((int)preset >= 0 && preset < CB_PRESET_COUNT) return CB_OK;
    return cb_fail(err, CB_INVALID, "plan: unknown preset %d", (int)preset);
}

cb_status cb_problem_json(cb_context *ctx, const char *graph, size_t length, char **out,
                          cb_error *err) {
    cb_problem *p;
    CB_TRY(cb_planning_read(ctx, graph, length, &p, err));
    cb_status status = cb_planning_problem_json(ctx, p, out, err);
    cb_problem_free(p);
    return status;
}

cb_status cb_mutwo_json(cb_context *ctx, const char *graph, size_t length, const cb_budget *saved,
                        const char *device, char **out, cb_error *err) {
    cb_alloc *alloc = cb_planning_alloc(ctx);
    const cb_device *row;
    cb_problem *p = NULL;
    cb_arena scratch;
    cb_str text;
    cb_status status;
    cb_arena_init(&scratch, alloc);
    cb_str_init(&text, &scratch);
    CB_TRY_DONE(cb_device_parse(device, &scratch, &row, err));
    CB_TRY_DONE(cb_planning_read(ctx, graph, length, &p, err));
    CB_TRY_DONE(cb_mutwo_to_json(p, saved, row, alloc, &text, err));
    CB_TRY_DONE(cb_text_give(alloc, &text, out, err));
done:
    cb_problem_free(p);
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_plan_json(cb_context *ctx, const char *graph, size_t length, cb_preset preset,
                       const cb_budget *budget, const char *device, cb_poll_fn poll,
                       void *poll_user, char **out, cb_error *err) {
    static const cb_budget none = {.kind = CB_BUDGET_NONE};
    cb_planned planned;
    CB_TRY(cb_plans_json(ctx, graph, length, preset, budget ? budget : &none, 1, device, poll,
                         poll_user, NULL, &planned, err));
    if (planned.plan) *out = planned.plan;
    else if (err) *err = planned.why_not;
    return planned.plan ? CB_OK : planned.why_not.status;
}

static cb_status give_planned(cb_context *ctx, const cb_problem *p, const cb_answer *answer,
                              cb_planned *out, cb_error *err) {
    out->why_not = answer->why;
    return answer->plan ? cb_planning_plan_json(ctx, p, answer->plan, &out->plan, err) : CB_OK;
}

cb_status cb_plans_json(cb_context *ctx, const char *graph, size_t length, cb_preset preset,
                        const cb_budget *budgets, uint32_t n, const char *device, cb_poll_fn poll,
                        void *poll_user, cb_progress *progress, cb_planned *out, cb_error *err) {
    const cb_planning_request request = {.preset = preset,
                                         .budget = budgets,
                                         .n = n,
                                         .device = device,
                                         .poll = {poll, poll_user},
                                         .progress = progress};
    cb_problem *p = NULL;
    cb_arena scratch;
    cb_status status;
    uint32_t made = 0, given = 0;
    CB_TRY(check_preset(preset, err));
    cb_arena_init(&scratch, cb_planning_alloc(ctx));
    cb_answer *answer = CB_NEW(&scratch, cb_answer, n);
    cb_planned *planned = CB_NEW(&scratch, cb_planned, n);
    if (!answer || !planned) {
        status = cb_no_memory(err);
        goto done;
    }
    CB_TRY_DONE(cb_planning_read(ctx, graph, length, &p, err));
    CB_TRY_DONE(cb_planning_plans(ctx, p, &request, answer, err));
    made = n;
    for (; given < n; given++)
        CB_TRY_DONE(give_planned(ctx, p, &answer[given], &planned[given], err));
    for (uint32_t i = 0; i < n; i++) out[i] = planned[i];
done:
    for (uint32_t i = 0; i < given && status != CB_OK; i++) cb_text_free(ctx, planned[i].plan);
    for (uint32_t i = 0; i < made; i++) cb_plan_free(answer[i].plan);
    cb_problem_free(p);
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_cut_json(cb_context *ctx, const char *graph, size_t length, cb_preset preset,
                      char **out, char **network, cb_error *err) {
    cb_problem *p;
    CB_TRY(check_preset(preset, err));
    CB_TRY(cb_planning_read(ctx, graph, length, &p, err));
    cb_status status = cb_planning_cut_json(ctx, p, preset, out, network, err);
    cb_problem_free(p);
    return status;
}

cb_status cb_frontier_json(cb_context *ctx, const char *graph, size_t length, cb_preset preset,
                           const char *device, cb_poll_fn poll, void *poll_user, char **out,
                           cb_error *err) {
    cb_problem *p;
    CB_TRY(check_preset(preset, err));
    CB_TRY(cb_planning_read(ctx, graph, length, &p, err));
    cb_status status =
        cb_planning_frontier_json(ctx, p, preset, device, (cb_poll){poll, poll_user}, out, err);
    cb_problem_free(p);
    return status;
}

typedef cb_status (*tell_fn)(cb_context *ctx, const cb_problem *p, const cb_plan *plan, char **out,
                             cb_error *err);

typedef struct plan_text { /* a plan as text, and its device */
    const char *text;
    size_t length;
    const char *device;
} plan_text;

static cb_status tell(cb_context *ctx, const char *graph, size_t length, plan_text given,
                      tell_fn put, char **out, cb_error *err) {
    cb_problem *p = NULL;
    cb_plan *plan = NULL;
    cb_status status;
    CB_TRY_DONE(cb_planning_read(ctx, graph, length, &p, err));
    CB_TRY_DONE(cb_planning_read_plan(ctx, p, given.text, given.length, given.device, &plan, err));
    CB_TRY_DONE(put(ctx, p, plan, out, err));
done:
    cb_plan_free(plan);
    cb_problem_free(p);
    return status;
}

cb_status cb_plan_explain_text(cb_context *ctx, const char *graph, size_t graph_length,
                               const char *plan, size_t plan_length, const char *device, char **out,
                               cb_error *err) {
    return tell(ctx, graph, graph_length, (plan_text){plan, plan_length, device},
                cb_planning_explain_text, out, err);
}

cb_status cb_plan_explain_json(cb_context *ctx, const char *graph, size_t graph_length,
                               const char *plan, size_t plan_length, const char *device, char **out,
                               cb_error *err) {
    return tell(ctx, graph, graph_length, (plan_text){plan, plan_length, device},
                cb_planning_explain_json, out, err);
}

cb_status cb_evaluate_json(cb_context *ctx, const char *graph, size_t graph_length,
                           const char *plan, size_t plan_length, const char *device, char **out,
                           cb_error *err) {
    cb_problem *p;
    CB_TRY(cb_planning_read(ctx, graph, graph_length, &p, err));
    cb_status status = cb_planning_evaluate_json(ctx, p, plan, plan_length, device, out, err);
    cb_problem_free(p);
    return status;
}
