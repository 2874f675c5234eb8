/* planning.c: runs the planner on problems that have been read and checked. */
#include "planning.h"
#include "pipeline.h"
#include "plan/files/cut_json.h"
#include "plan/files/explanation.h"
#include "plan/files/frontier_json.h"
#include "plan/files/plan_json.h"
#include "plan/model/device.h"
#include "plan/torch/inductor_fusion.h"
#include "plan/torch/traced.h"

#include <time.h>

cb_alloc *cb_planning_alloc(cb_context *ctx) { return &ctx->alloc; }

cb_status cb_planning_check(cb_problem *p, cb_error *err) {
    CB_TRY(cb_problem_verify(p, err));
    return cb_find_fusion(p, err);
}

cb_status cb_planning_read(cb_context *ctx, const char *graph, size_t length, cb_problem **out,
                           cb_error *err) {
    cb_problem *p;
    CB_TRY(cb_problem_read(&ctx->alloc, graph, length, &p, err));
    cb_status status = cb_find_fusion(p, err);
    if (status == CB_OK) *out = p;
    else cb_problem_free(p);
    return status;
}

cb_status cb_planning_plans(cb_context *ctx, const cb_problem *p,
                            const cb_planning_request *request, cb_answer *out, cb_error *err) {
    cb_plan_options options = {.preset = request->preset,
                               .poll = request->poll,
                               .progress = request->progress,
                               .until_met = request->until_met,
                               .threads = ctx->runtime.pool};
    cb_arena scratch;
    cb_status status;
    cb_arena_init(&scratch, &ctx->alloc);
    CB_TRY_DONE(cb_device_parse(request->device, &scratch, &options.device, err));
    CB_TRY_DONE(cb_plan_make_many(p, &options, request->budget, request->n, &ctx->alloc, out, err));
done:
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_planning_ends(cb_context *ctx, const cb_problem *p, cb_preset preset,
                           cb_measure measure, const char *device, cb_poll poll, cb_ends *out,
                           cb_error *err) {
    cb_plan_options options = {.preset = preset, .poll = poll, .threads = ctx->runtime.pool};
    cb_arena scratch;
    cb_status status;
    cb_arena_init(&scratch, &ctx->alloc);
    CB_TRY_DONE(cb_device_parse(device, &scratch, &options.device, err));
    CB_TRY_DONE(cb_plan_ends(p, &options, measure, &ctx->alloc, out, err));
done:
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_planning_read_plan(cb_context *ctx, const cb_problem *p, const char *text,
                                size_t length, const char *device, cb_plan **out, cb_error *err) {
    const cb_device *row;
    cb_arena scratch;
    cb_status status;
    cb_arena_init(&scratch, &ctx->alloc);
    CB_TRY_DONE(cb_device_parse(device, &scratch, &row, err));
    CB_TRY_DONE(cb_plan_from_json(p, row, &ctx->alloc, text, length, out, err));
done:
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_planning_evaluate(const cb_problem *p, const cb_schedule *schedule, const char *device,
                               cb_arena *arena, cb_lives *lives, uint64_t *arena_bytes,
                               cb_error *err) {
    const cb_device *row;
    CB_TRY(cb_device_parse(device, arena, &row, err));
    CB_TRY(cb_schedule_walk(p, schedule, row ? row : cb_device_find("cpu"), arena, lives, err));
    return cb_place(p, lives, arena, (cb_poll){0}, arena_bytes, err);
}

/* ---- texts ----------------------------------------------------------------------------------- */

typedef struct page { /* a text being written */
    cb_context *ctx;
    cb_arena scratch;
    cb_str text;
} page;

static void open_page(page *t, cb_context *ctx) {
    t->ctx = ctx;
    cb_arena_init(&t->scratch, &ctx->alloc);
    cb_str_init(&t->text, &t->scratch);
}

/* Returns the text unless something has failed. Closes the page in both cases. */
static cb_status close_page(page *t, cb_status status, char **out, cb_error *err) {
    if (status == CB_OK) status = cb_text_give(&t->ctx->alloc, &t->text, out, err);
    cb_arena_free(&t->scratch);
    return status;
}

cb_status cb_planning_problem_json(cb_context *ctx, const cb_problem *p, char **out,
                                   cb_error *err) {
    page t;
    open_page(&t, ctx);
    return close_page(&t, cb_problem_to_json(p, &t.text, err), out, err);
}

cb_status cb_planning_plan_json(cb_context *ctx, const cb_problem *p, const cb_plan *plan,
                                char **out, cb_error *err) {
    page t;
    open_page(&t, ctx);
    return close_page(&t, cb_plan_to_json(p, plan, &t.text, err), out, err);
}

cb_status cb_planning_explain_text(cb_context *ctx, const cb_problem *p, const cb_plan *plan,
                                   char **out, cb_error *err) {
    page t;
    open_page(&t, ctx);
    return close_page(&t, cb_plan_explanation_to_text(p, plan, &t.text, err), out, err);
}

cb_status cb_planning_explain_json(cb_context *ctx, const cb_problem *p, const cb_plan *plan,
                                   char **out, cb_error *err) {
    page t;
    open_page(&t, ctx);
    return close_page(&t, cb_plan_explanation_to_json(p, plan, &t.text, err), out, err);
}

cb_status cb_planning_evaluate_json(cb_context *ctx, const cb_problem *p, const char *text,
                                    size_t length, const char *device, char **out, cb_error *err) {
    const cb_device *row;
    page t;
    open_page(&t, ctx);
    cb_status status = cb_device_parse(device, &t.scratch, &row, err);
    if (status == CB_OK)
        status = cb_evaluate_to_json(p, row, &ctx->alloc, text, length, &t.text, err);
    return close_page(&t, status, out, err);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

cb_status cb_planning_cut_json(cb_context *ctx, const cb_problem *p, cb_preset preset, char **out,
                               char **network, cb_error *err) {
    page t;
    cb_str dimacs;
    char *arcs = NULL;
    open_page(&t, ctx);
    cb_str_init(&dimacs, &t.scratch);
    cb_status status =
        cb_cut_to_json(p, preset, &ctx->alloc, now, &t.text, network ? &dimacs : NULL, err);
    if (status == CB_OK && network) status = cb_text_give(&ctx->alloc, &dimacs, &arcs, err);
    status = close_page(&t, status, out, err);
    if (status == CB_OK && network) *network = arcs;
    else cb_text_free(ctx, arcs);
    return status;
}

cb_status cb_planning_frontier_json(cb_context *ctx, const cb_problem *p, cb_preset preset,
                                    const char *device, cb_poll poll, char **out, cb_error *err) {
    page t;
    open_page(&t, ctx);
    cb_frontier_request request = {.preset = preset, .poll = poll};
    cb_status status = cb_device_parse(device, &t.scratch, &request.device, err);
    if (status == CB_OK) status = cb_frontier_to_json(p, &request, &ctx->alloc, &t.text, err);
    return close_page(&t, status, out, err);
}

const cb_problem *cb_step_problem(const cb_step *step) { return step->problem; }
const cb_plan *cb_step_plan(const cb_step *step) { return step->plan; }
