/* Mutated problem and plan files: accepted problems can be planned under every preset and budget,
 * and the plans pass the evaluator. */
#include "plan/planner.h"

#include "fuzz.h"
#include "plan/files/explanation.h"
#include "plan/files/plan_json.h"
#include "plan/model/names.h"
#include "problems.h"

static cb_alloc alloc;

static const char *const problems[] = {
    "{\"format\":\"cutback.problem\",\"version\":1,\"backward_starts\":4,\"align\":64,\"static_"
    "bytes\":9,\"forward_outputs\":[4],"
    "\"backward_outputs\":[5],\"regions\":[{\"name\":\"r\",\"saved_limit\":50}],\"storages\":[{"
    "\"bytes\":8,\"flags\":[\"static\"]},"
    "{\"bytes\":100},{\"bytes\":40},{\"bytes\":60,\"flags\":[\"hold_end\"]},{\"bytes\":9,\"flags\":"
    "[\"hold_end\"]}],\"ops\":["
    "{\"name\":\"x\",\"flags\":[\"placeholder\"],\"in\":[],\"out\":[{\"storage\":0}]},"
    "{\"name\":\"mm\",\"at\":\"a.py:1\",\"flags\":[\"compute\"],\"in\":[0],\"out\":[{\"storage\":1,"
    "\"type\":\"f32[25]\"},{\"storage\":2,"
    "\"constraint\":\"prefer_save\"}],\"flops\":1e6,\"region\":0},{\"name\":\"v\",\"flags\":["
    "\"view\"],\"in\":[1],\"out\":[{\"storage\":1}]},"
    "{\"name\":\"y\",\"flags\":[\"fusible\",\"reduction\"],\"in\":[3,2],\"out\":[{\"storage\":3,"
    "\"constraint\":\"must_recompute\"}],"
    "\"time_ps\":77,\"workspace\":30,\"group\":1},{\"name\":\"g\",\"flags\":[\"backward\"],\"in\":["
    "3,4,2],\"out\":[{\"storage\":4}],"
    "\"class\":\"bf16\",\"bytes\":1000}]}",
    "{\"format\":\"cutback.problem\",\"version\":1,\"backward_starts\":5,\"forward_outputs\":[],"
    "\"backward_outputs\":[6,7],\"storages\":["
    "{\"bytes\":8,\"flags\":[\"static\"]},{\"bytes\":64},{\"bytes\":64},{\"bytes\":64},{\"bytes\":"
    "64},{\"bytes\":64},{\"bytes\":64}],\"ops\":["
    "{\"flags\":[\"placeholder\"],\"in\":[],\"out\":[{\"storage\":0}]},{\"in\":[0],\"out\":[{"
    "\"storage\":1}]},{\"flags\":[\"random_stateful\"],"
    "\"in\":[1],\"out\":[{\"storage\":2}]},{\"flags\":[\"mutates\"],\"in\":[2],\"out\":[{"
    "\"storage\":2}]},{\"flags\":[\"fusible\"],\"in\":[3],"
    "\"out\":[{\"storage\":3}]},{\"flags\":[\"backward\"],\"in\":[4,1],\"out\":[{\"storage\":4}]},{"
    "\"flags\":[\"backward\"],\"in\":[5,3],"
    "\"out\":[{\"storage\":5}]},{\"flags\":[\"backward\"],\"in\":[5],\"out\":[{\"storage\":6}]}]}",
};

static void plan_it(const cb_problem *p, const cb_plan_options *o) {
    cb_plan *plan;
    cb_status status = cb_plan_make(p, o, &alloc, &plan, &err);
    if (status == CB_OK) {
        cb_lives lives;
        cb_arena arena;
        cb_str text;
        cb_arena_init(&arena, &alloc);
        cb_str_init(&text, &arena);
        CHECK_OK(
            cb_schedule_walk(p, &plan->schedule, cb_device_find("a100"), &arena, &lives, &err));
        CHECK(o->budget.kind != CB_BUDGET_BYTES || plan->arena_bytes <= o->budget.bytes);
        CHECK_OK(cb_plan_explanation_to_text(p, plan, &text, &err));
        cb_arena_free(&arena);
        cb_plan_free(plan);
    } else {
        CHECK(status == CB_INVALID || status == CB_INFEASIBLE || status == CB_UNSUPPORTED);
    }
}

/* Checks that the text, read as a long text, gives the same problem or is refused. */
static void try_long(const char *text, size_t length, const cb_problem *p) {
    cb_problem *same;
    const cb_status status = cb_problem_from_long_text(&alloc, text, length, &same, &err);
    CHECK(status == CB_OK || (status == CB_INVALID && err.text[0]));
    if (status != CB_OK) return;
    CHECK(p && cb_problem_fingerprint(p) == cb_problem_fingerprint(same));
    cb_problem_free(same);
}

static bool try_problem(const char *text, size_t length) {
    cb_problem *p = NULL;
    cb_status status = cb_problem_from_json(&alloc, text, length, &p, &err);
    try_long(text, length, status == CB_OK ? p : NULL);
    CHECK(status == CB_OK || (status == CB_INVALID && err.text[0]));
    if (status != CB_OK) return false;
    for (cb_preset preset = CB_PRESET_AUTOGRAD; preset < CB_PRESET_COUNT; preset++) {
        cb_plan_options o = {.preset = preset, .device = cb_device_find("a100")};
        plan_it(p, &o);
    }
    cb_plan_options o = {.device = cb_device_find("a100"),
                         .budget = {.kind = CB_BUDGET_BYTES, .bytes = 200}};
    plan_it(p, &o);
    cb_problem_free(p);
    return true;
}

static cb_problem *known; /* the problem that plans are read for */

static bool try_plan(const char *text, size_t length) {
    cb_plan *plan;
    cb_status status = cb_plan_from_json(known, NULL, &alloc, text, length, &plan, &err);
    CHECK(status == CB_OK || (status == CB_INVALID && err.text[0]));
    if (status == CB_OK) cb_plan_free(plan);
    return status == CB_OK;
}

int main(int argc, char **argv) {
    static maker m;
    cb_arena arena;
    cb_str text[2];
    cb_alloc_init(&alloc);
    fuzz_run(problems, 2, fuzz_count(argc, argv), try_problem);

    cb_arena_init(&arena, &alloc);
    make_random(&m, 8, 10);
    known = make_problem(&m, &alloc);
    for (int i = 0; i < 2; i++) {
        cb_plan_options o = {.preset = i ? CB_PRESET_RECOMPUTE_ALL : CB_PRESET_AUTOGRAD};
        cb_plan *plan = NULL;
        cb_str_init(&text[i], &arena);
        CHECK_OK(cb_plan_make(known, &o, &alloc, &plan, &err));
        CHECK_OK(cb_plan_to_json(known, plan, &text[i], &err));
        cb_plan_free(plan);
    }
    fuzz_run((const char *const[]){text[0].at, text[1].at}, 2, fuzz_count(argc, argv), try_plan);
    cb_problem_free(known);
    cb_arena_free(&arena);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
