/* From a graph to gradients, through the public API: any plan, any number of threads and any
 * backend with the same kernels give the same bits in exactly the planned memory. */
#include "base/sanitize.h"
#include "mlp.h"

static const mlp_size size = {.batch = 24, .width = 16, .depth = 5};
static const mlp_size shallow = {.batch = 24, .width = 16, .depth = 2};

static cb_context *new_context(int n_threads) {
    const cb_context_options options = {.n_threads = n_threads};
    cb_context *ctx = NULL;
    CHECK_OK(cb_context_new(&options, &ctx, &err));
    return ctx;
}

typedef struct outcome {
    uint64_t hash;
    float loss;
    cb_step_numbers numbers;
    cb_run_result result;
} outcome;

static outcome run_once(cb_context *ctx, cb_compile_options options) {
    outcome out = {0};
    cb_step *step = NULL;
    mlp_memory memory;
    CHECK_OK(mlp_compile(ctx, size, options, &step, &err));
    if (!step) return out;
    mlp_memory_init(&memory, step);
    cb_run run = mlp_run(&memory);
    float *state = memory.inputs[cb_step_output(step, 1).input], before = *state;
    CHECK_OK(cb_step_run(step, &run, NULL, &err)); /* the first run may allocate */
    *state = before;
    CHECK_OK(cb_step_run(step, &run, &out.result, &err));
    out.numbers = cb_step_get_numbers(step);
    out.hash = mlp_hash(&memory, step);
    out.loss = *(float *)memory.outputs[0];
    mlp_memory_free(&memory);
    cb_step_free(step);
    return out;
}

TEST(every_plan_gives_the_same_bits) {
    const double shares[] = {0.5, 0.7, 1.0};
    const bool slow = CB_TSAN; /* thread safety does not depend on the plan */
    uint64_t want = 0;
    for (int n_threads = slow ? 2 : 1; n_threads <= 2; n_threads++) {
        cb_context *ctx = new_context(n_threads);
        const int step = slow ? CB_PRESET_COUNT : 2 * n_threads - 1; /* two threads: some plans */
        for (int preset = 0; preset < CB_PRESET_COUNT; preset += step) {
            outcome out = run_once(ctx, (cb_compile_options){.preset = (cb_preset)preset});
            if (!want) want = out.hash;
            CHECK(out.hash == want && isfinite(out.loss) && out.loss > 0);
        }
        for (int k = slow ? 2 : n_threads - 1; k < 3; k += n_threads) {
            const cb_budget budget = {.kind = CB_BUDGET_SHARE, .share = shares[k]};
            outcome out = run_once(ctx, (cb_compile_options){.budget = budget});
            CHECK(out.hash == want && out.numbers.arena_bytes <= out.numbers.budget_bytes);
        }
        if (n_threads == 1) {
            const cb_budget least = {.kind = CB_BUDGET_MIN, .share = 0.4};
            outcome out = run_once(ctx, (cb_compile_options){.budget = least});
            CHECK(out.hash == want && out.numbers.arena_bytes < out.numbers.save_all_arena_bytes);
        }
        cb_context_free(ctx);
    }
}

TEST(measured_peak_is_the_planned_one) {
    cb_context *ctx = new_context(1);
    for (int preset = 0; preset < CB_PRESET_COUNT; preset++) {
        for (int keep = 0; keep < 2; keep++) {
            outcome cpu = run_once(
                ctx, (cb_compile_options){.preset = (cb_preset)preset, .keep_gradients = keep});
            CHECK(cpu.result.peak_bytes == cpu.numbers.arena_bytes && cpu.result.n_alloc == 0);
            outcome debug = run_once(ctx, (cb_compile_options){.preset = (cb_preset)preset,
                                                               .keep_gradients = keep,
                                                               .backend = "debug"});
            CHECK(debug.result.peak_bytes == debug.numbers.live_bytes && debug.hash == cpu.hash);
        }
    }
    cb_context_free(ctx);
}

TEST(groups_run_each_step_once) {
    cb_context *ctx = new_context(1);
    cb_step *step = NULL;
    bool several = false;
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){.backend = "debug"}, &step, &err));
    const uint32_t n_groups = cb_step_get_numbers(step).n_groups;
    uint32_t first[400], members[400], seen[400] = {0};
    CHECK(n_groups <= 400);
    cb_step_group_steps(step, first);
    for (uint32_t g = 0; g < n_groups; g++) {
        const uint32_t n = cb_step_group_members(step, g, members, 400);
        CHECK(n > 0 && n <= 400 && members[0] == first[g]);
        CHECK(cb_step_group_members(step, g, NULL, 0) == n);
        several |= n > 1;
        for (uint32_t i = 0; i < n; i++) CHECK(members[i] < 400 && seen[members[i]]++ == 0);
    }
    CHECK(several && cb_step_group_members(step, n_groups, members, 400) == 0);
    cb_step_free(step);
    cb_context_free(ctx);
}

TEST(presets_order_as_their_names_say) {
    cb_context *ctx = new_context(1);
    outcome all = run_once(ctx, (cb_compile_options){.preset = CB_PRESET_AUTOGRAD});
    outcome least = run_once(ctx, (cb_compile_options){.preset = CB_PRESET_RECOMPUTE_ALL});
    outcome fused = run_once(ctx, (cb_compile_options){.preset = CB_PRESET_CONSERVATIVE});
    CHECK(all.numbers.n_recomputed == 0 &&
          all.numbers.saved_bytes == all.numbers.save_all_saved_bytes);
    CHECK(all.numbers.time_ps == all.numbers.once_ps);
    CHECK(least.numbers.saved_bytes < fused.numbers.saved_bytes &&
          fused.numbers.saved_bytes < all.numbers.saved_bytes);
    CHECK(least.numbers.n_recomputed > fused.numbers.n_recomputed);
    cb_context_free(ctx);
}

TEST(slow_twin_agrees) {
    cb_context *ctx = new_context(1);
    outcome cpu = run_once(ctx, (cb_compile_options){0});
    outcome ref = run_once(ctx, (cb_compile_options){.backend = "ref"});
    CHECK(fabsf(cpu.loss - ref.loss) < 1e-5f * cpu.loss);
    run_once(ctx, (cb_compile_options){.backend = "null"});
    cb_context_free(ctx);
}

TEST(a_run_repeats_and_does_not_allocate) {
    cb_context *ctx = new_context(2);
    cb_step *step = NULL;
    mlp_memory memory;
    double seconds[400];
    CHECK_OK(
        mlp_compile(ctx, size, (cb_compile_options){.preset = CB_PRESET_AGGRESSIVE}, &step, &err));
    mlp_memory_init(&memory, step);
    CHECK(cb_step_get_numbers(step).n_groups <= 400);
    cb_run run = mlp_run(&memory);
    run.group_seconds = seconds;
    cb_argument_info state = cb_step_output(step, 1);
    float *s = memory.inputs[state.input], before = *s;
    CHECK_OK(cb_step_run(step, &run, NULL, &err));
    uint64_t first = mlp_hash(&memory, step), n_alloc = cb_context_memory(ctx).n_alloc;
    CHECK(state.role_or_kind == 1 && state.inside && *s != before);
    *s = before;
    CHECK_OK(cb_step_run(step, &run, NULL, &err));
    CHECK(mlp_hash(&memory, step) == first && cb_context_memory(ctx).n_alloc == n_alloc);
    *s = before;
    run.random_step++; /* different masks */
    CHECK_OK(cb_step_run(step, &run, NULL, &err));
    CHECK(mlp_hash(&memory, step) != first);
    *s = before;
    run.random_step--;
    CHECK_OK(cb_context_set_threads(ctx, 1, &err)); /* while a step is alive */
    CHECK_OK(cb_step_run(step, &run, NULL, &err));
    CHECK(mlp_hash(&memory, step) == first);
    mlp_memory_free(&memory);
    cb_step_free(step);
    cb_context_free(ctx);
}

enum { GUARD = 4096 };

/* Runs once in `block`, from the state `before`. */
static cb_status run_in(cb_step *step, mlp_memory *memory, void *block, float before) {
    cb_run run = mlp_run(memory);
    run.block = block;
    *(float *)memory->inputs[cb_step_output(step, 1).input] = before;
    return cb_step_run(step, &run, NULL, &err);
}

TEST(a_run_can_use_memory_of_the_caller) {
    cb_context *ctx = new_context(2);
    const cb_budget half = {.kind = CB_BUDGET_SHARE, .share = 0.5};
    cb_step *step = NULL;
    mlp_memory memory;
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){.budget = half}, &step, &err));
    mlp_memory_init(&memory, step);
    const float before = *(float *)memory.inputs[cb_step_output(step, 1).input];
    const uint64_t bytes = cb_step_run_bytes(step), grows = cb_step_growth(step);
    const size_t room = (bytes + 63) / 64 * 64 + 2 * GUARD;
    char *block = aligned_alloc(64, room);
    memset(block, 0x5a, room);
    CHECK(bytes > 0 && grows > 0);
    CHECK_OK(run_in(step, &memory, block + GUARD, before));
    const uint64_t first = mlp_hash(&memory, step);
    CHECK(cb_step_growth(step) == grows); /* the step's memory was not used */
    for (size_t i = 0; i < GUARD; i++) CHECK(block[i] == 0x5a);
    for (size_t i = GUARD + bytes; i < room; i++) CHECK(block[i] == 0x5a);
    CHECK_OK(run_in(step, &memory, NULL, before));
    CHECK(mlp_hash(&memory, step) == first && cb_step_growth(step) == 0);
    memset(block, 0xff, room); /* the previous content of the block does not matter */
    CHECK_OK(run_in(step, &memory, block, before));
    CHECK(mlp_hash(&memory, step) == first);
    CHECK(run_in(step, &memory, block + 4, before) == CB_INVALID);
    CHECK(strstr(err.text, "the block is not aligned to 64 bytes"));
    CHECK(*(float *)memory.inputs[cb_step_output(step, 1).input] == before);
    free(block);
    mlp_memory_free(&memory);
    cb_step_free(step);
    cb_context_free(ctx);
}

TEST(a_device_takes_no_memory_of_the_host) {
    cb_context *ctx = new_context(1);
    cb_step *step = NULL;
    mlp_memory memory;
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){0}, &step, &err));
    mlp_memory_init(&memory, step);
    char *block = aligned_alloc(64, 64);
    CHECK(run_in(step, &memory, block, 0) == CB_UNSUPPORTED);
    CHECK(strstr(err.text, "does not accept a block of the caller"));
    free(block);
    mlp_memory_free(&memory);
    cb_step_free(step);
    cb_context_free(ctx);
}

static int stop_at_once(void *user) {
    ++*(int *)user;
    return 1;
}

TEST(cancel_leaves_inputs_alone) {
    cb_context *ctx = new_context(1);
    cb_step *step = NULL;
    mlp_memory memory;
    int asked = 0;
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){0}, &step, &err));
    mlp_memory_init(&memory, step);
    float before = *(float *)memory.inputs[cb_step_output(step, 1).input];
    cb_run run = mlp_run(&memory);
    run.poll = stop_at_once;
    run.poll_user = &asked;
    CHECK_FAIL(cb_step_run(step, &run, NULL, &err), CB_CANCELLED, "");
    CHECK(asked == 1 && *(float *)memory.inputs[cb_step_output(step, 1).input] == before);
    mlp_memory_free(&memory);
    cb_step_free(step);
    cb_context_free(ctx);
}

TEST(a_plan_read_back_is_the_same_step) {
    cb_context *ctx = new_context(1);
    cb_step *step = NULL, *again = NULL;
    char *plan = NULL, *problem = NULL, *remade = NULL, *program = NULL, *program2 = NULL;
    const cb_budget budget = {.kind = CB_BUDGET_SHARE, .share = 0.6};
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){.budget = budget}, &step, &err));
    CHECK_OK(cb_step_text(step, "plan", &plan, &err));
    CHECK_OK(cb_step_text(step, "problem", &problem, &err));
    CHECK_OK(cb_step_text(step, "program", &program, &err));
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){.plan_json = plan}, &again, &err));
    CHECK_OK(cb_step_text(again, "program", &program2, &err));
    CHECK(strcmp(program, program2) == 0);
    /* and the planner makes the same plan from the file, without the step */
    CHECK_OK(cb_plan_json(ctx, problem, strlen(problem), CB_PRESET_AUTOGRAD, &budget, NULL, NULL,
                          NULL, &remade, &err));
    CHECK(strcmp(plan, remade) == 0);
    cb_text_free(ctx, plan);
    cb_text_free(ctx, problem);
    cb_text_free(ctx, remade);
    cb_text_free(ctx, program);
    cb_text_free(ctx, program2);
    cb_step_free(step);
    cb_step_free(again);
    cb_context_free(ctx);
}

TEST(a_text_needs_no_executable) {
    cb_context *ctx = new_context(1);
    cb_step *step = NULL;
    char *program = NULL, *same = NULL, *code = NULL;
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){0}, &step, &err));
    CHECK_OK(cb_step_text(step, "program", &program, &err));
    CHECK_OK(mlp_compile_text(ctx, size, (cb_compile_options){0}, "program", &same, &err));
    CHECK(strcmp(program, same) == 0);
    const cb_compile_options ref = {.backend = "ref"};
    CHECK_FAIL(mlp_compile_text(ctx, size, ref, "code", &code, &err), CB_UNSUPPORTED,
               "\"ref\" has no code to show");
    CHECK_FAIL(mlp_compile_text(ctx, size, ref, "poem", &code, &err), CB_INVALID,
               "unknown name \"poem\"");
    cb_text_free(ctx, program);
    cb_text_free(ctx, same);
    cb_step_free(step);
    cb_context_free(ctx);
}

TEST(the_code_of_a_gpu_needs_none) {
    const cb_compile_options cuda = {.backend = "cuda"};
    cb_context *ctx = new_context(1);
    char *code = NULL;
    CHECK_OK(mlp_compile_text(ctx, size, cuda, "code", &code, &err));
    CHECK(strstr(code, "// group 0: cb_k0<<<") && strstr(code, "__global__"));
    cb_text_free(ctx, code);
    CHECK_FAIL(mlp_compile_text(ctx, size, cuda, "launches", &code, &err), CB_UNSUPPORTED,
               "only a compiled step has launches");
    cb_context_free(ctx);
}

static void note_stage(void *user, const char *stage, const char *text) {
    char *seen = user;
    CHECK(strlen(text) > 20);
    strcat(strcat(seen, stage), " ");
}

TEST(stages_can_be_watched) {
    cb_context *ctx = new_context(1);
    cb_step *step = NULL;
    char seen[200] = "";
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){.dump = note_stage, .dump_user = seen},
                         &step, &err));
    CHECK(strcmp(seen, "forward joint problem plan split program ") == 0);
    const char *const texts[] = {"joint",   "forward", "backward", "problem", "plan",
                                 "explain", "program", "kernels",  "code"};
    for (int k = 0; k < (has_backend("cuda") ? 9 : 8); k++) { /* the far backend has no code */
        char *text = NULL;
        CHECK_OK(cb_step_text(step, texts[k], &text, &err));
        CHECK(text && strlen(text) > 20);
        cb_text_free(ctx, text);
    }
    cb_step_free(step);
    cb_context_free(ctx);
}

TEST(budget_that_cannot_be_met) {
    cb_context *ctx = new_context(1);
    cb_step *step = NULL;
    const cb_budget budget = {.kind = CB_BUDGET_BYTES, .bytes = 64};
    CHECK_FAIL(mlp_compile(ctx, shallow, (cb_compile_options){.budget = budget}, &step, &err),
               CB_INFEASIBLE, "");
    CHECK(step == NULL && err.refusal.budget_bytes == 64 && err.refusal.smallest_bytes > 64);
    for (int i = 0; i < 2; i++) { /* also with groups, and without an error argument */
        const cb_compile_options options = {.budget = budget, .groups = i ? "auto" : "found"};
        CHECK(mlp_compile(ctx, shallow, options, &step, NULL) == CB_INFEASIBLE && step == NULL);
    }
    cb_context_free(ctx);
}

TEST(bytes_of_a_step_are_those_that_it_allocates) {
    const char *const groups[] = {NULL, "found"};
    cb_context *ctx = new_context(1);
    cb_run_memory *memory = NULL; /* run memory, which is not counted */
    CHECK_OK(cb_run_memory_new(ctx, &memory, &err));
    for (uint32_t i = 0; cb_backend_name(i); i++) {
        if (strcmp(cb_backend_name(i), "cuda") == 0) continue; /* needs a device */
        for (int k = 0; k < 2; k++) {
            cb_compile_options options = {
                .backend = cb_backend_name(i), .groups = groups[k], .memory = memory};
            if (i == 0) options.budget = (cb_budget){.kind = CB_BUDGET_POSITION, .share = 0.5};
            else options.preset = CB_PRESET_RECOMPUTE_ALL; /* takes no search */
            cb_step *step = NULL;
            uint64_t before = 0; /* opening a backend allocates, too */
            for (int turn = 0; turn < 2; turn++) {
                cb_step_free(step);
                before = cb_context_memory(ctx).live_bytes;
                CHECK_OK(mlp_compile(ctx, size, options, &step, &err));
            }
            const uint64_t live = cb_context_memory(ctx).live_bytes - before;
            const bool on_host = strncmp(cb_backend_name(i), "far", 3) != 0;
            CHECK(cb_step_bytes(step) <= live);
            CHECK(cb_step_bytes(step) + (on_host ? 0 : 512) >= live); /* events of a device */
            cb_step_free(step);
            CHECK(cb_context_memory(ctx).live_bytes == before);
        }
    }
    cb_run_memory_free(memory);
    cb_context_free(ctx);
}

static cb_status decide(cb_context *ctx, mlp_size at, cb_compile_options options,
                        cb_decisions **out) {
    mlp_builder b;
    CB_TRY(mlp_build(ctx, at, &b, &err));
    options.wrt = b.wrt;
    options.n_wrt = b.n_wrt;
    const cb_status status = cb_decisions_make(ctx, b.g, &options, out, &err);
    cb_graph_free(b.g);
    return status;
}

static bool follows(cb_context *ctx, mlp_size at, cb_compile_options options) {
    cb_step *step = NULL;
    CHECK_OK(mlp_compile(ctx, at, options, &step, &err));
    const bool found = step && cb_step_follows(step);
    cb_step_free(step);
    return found;
}

TEST(decisions_are_followed_at_other_sizes) {
    const char *const groups[] = {NULL, "auto", "found"};
    const mlp_size smaller = {.batch = 21, .width = 16, .depth = 5},
                   larger = {.batch = 60, .width = 16, .depth = 5},
                   deeper = {.batch = 24, .width = 16, .depth = 6};
    cb_context *ctx = new_context(1);
    const uint64_t before = cb_context_memory(ctx).live_bytes;
    for (int k = 0; k < 3; k++) {
        cb_decisions *d = NULL;
        cb_compile_options o = {.budget = {.kind = CB_BUDGET_POSITION, .share = 0.4},
                                .groups = groups[k]};
        CHECK_OK(decide(ctx, size, o, &d));
        CHECK(d && cb_decisions_bytes(d) == cb_context_memory(ctx).live_bytes - before);
        o.decisions = d;
        CHECK(follows(ctx, size, o) && follows(ctx, smaller, o));
        CHECK(!follows(ctx, larger, o) && !follows(ctx, deeper, o));
        o.groups = k == 2 ? NULL : "found"; /* may not follow them */
        (void)follows(ctx, smaller, o);
        cb_decisions_free(d);
    }
    cb_context_free(ctx);
}

TEST(what_follows_gives_the_same_bits) {
    const mlp_size at = {.batch = 28, .width = 16, .depth = 5};
    cb_context *ctx = new_context(1);
    cb_decisions *d = NULL;
    const uint64_t want = run_once(ctx, (cb_compile_options){0}).hash;
    cb_compile_options o = {.budget = {.kind = CB_BUDGET_MIN}};
    CHECK_OK(decide(ctx, at, o, &d));
    o.decisions = d;
    const outcome out = run_once(ctx, o);
    CHECK(out.hash == want && out.numbers.n_recomputed > 0);
    CHECK(out.result.peak_bytes <= out.numbers.arena_bytes);
    CHECK(out.numbers.arena_bytes <= out.numbers.budget_bytes);
    cb_decisions_free(d);
    cb_context_free(ctx);
}

TEST(decisions_run_out_of_memory_cleanly) {
    const mlp_size small = {.batch = 18, .width = 4, .depth = 1},
                   smaller = {.batch = 17, .width = 4, .depth = 1};
    cb_context *ctx = new_context(1);
    const uint64_t before = cb_context_memory(ctx).live_bytes;
    cb_compile_options o = {.budget = {.kind = CB_BUDGET_POSITION}, .backend = "null"};
    cb_decisions *d = NULL;
    cb_step *step = NULL;
    bool failed = true;
    for (uint64_t nth = 1; failed; nth += check_rounds(CB_ASAN ? 97 : 29, 13) + nth / 10) {
        cb_context_fail_alloc(ctx, nth);
        o.decisions = NULL;
        cb_status status = decide(ctx, small, o, &d);
        o.decisions = d;
        if (status == CB_OK) status = mlp_compile(ctx, smaller, o, &step, &err);
        failed = cb_context_fail_alloc(ctx, 0) == 0;
        CHECK(status == (failed ? CB_NOMEM : CB_OK));
        cb_step_free(step);
        cb_decisions_free(d);
        step = NULL;
        d = NULL;
        if (failed) CHECK(cb_context_memory(ctx).live_bytes == before);
    }
    cb_context_free(ctx);
}

int main(void) {
    /* One thread plans, and nothing runs: test_far_*, without a cuda backend, would repeat it. */
    const bool plans = !CB_TSAN && has_backend("cuda");
    RUN(every_plan_gives_the_same_bits);
    if (!CB_TSAN) RUN(measured_peak_is_the_planned_one); /* one thread */
    if (!CB_TSAN) RUN(groups_run_each_step_once);
    if (!CB_TSAN) RUN(presets_order_as_their_names_say);
    if (!CB_TSAN) RUN(slow_twin_agrees);
    RUN(a_run_repeats_and_does_not_allocate);
    if (has_backend("cuda")) RUN(a_run_can_use_memory_of_the_caller);
    else RUN(a_device_takes_no_memory_of_the_host);
    RUN(cancel_leaves_inputs_alone);
    RUN(a_plan_read_back_is_the_same_step);
    RUN(a_text_needs_no_executable);
    if (has_backend("cuda")) RUN(the_code_of_a_gpu_needs_none); /* test_far_* has no cuda backend */
    RUN(stages_can_be_watched);
    if (!CB_TSAN) RUN(bytes_of_a_step_are_those_that_it_allocates);
    if (plans) RUN(decisions_are_followed_at_other_sizes);
    if (!CB_TSAN) RUN(what_follows_gives_the_same_bits);
    if (plans) RUN(decisions_run_out_of_memory_cleanly);
    if (plans) RUN(budget_that_cannot_be_met);
    return check_report();
}
