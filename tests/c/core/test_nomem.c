/* Every allocation from graph to step fails once: the error is clean, nothing leaks, and existing
 * objects stay usable. */
#include "mlp.h"
#include "oom.h"

static const mlp_size size = {.batch = 4, .width = 8, .depth = 2};

static cb_context *new_context(void) {
    const cb_context_options options = {.n_threads = 1};
    cb_context *ctx = NULL;
    CHECK_OK(cb_context_new(&options, &ctx, &err));
    return ctx;
}

static void sweep(mlp_size model, cb_compile_options options, uint64_t each) {
    cb_context *ctx = new_context();
    uint64_t before = cb_context_memory(ctx).live_bytes, n = 0;
    cb_status status = CB_NOMEM;
    for (bool reached = true; reached && n < 100000;) {
        cb_step *step = NULL;
        n = cb_oom_next(n, each);
        (void)cb_context_fail_alloc(ctx, n);
        status = mlp_compile(ctx, model, options, &step, &err);
        reached = cb_context_fail_alloc(ctx, 0) == 0;
        CHECK(status == (reached ? CB_NOMEM : CB_OK));
        CHECK((step != NULL) == (status == CB_OK));
        cb_step_free(step);
        CHECK(cb_context_memory(ctx).live_bytes == before);
    }
    CHECK(status == CB_OK && n > 20);
    cb_context_free(ctx);
}

static void ignore_text(void *user, const char *stage, const char *text) {
    (void)user;
    (void)stage;
    (void)text;
}

/* Every allocation fails once, except in the search, which is sampled: test_workers.c covers it in
 * full. */
TEST(graph_and_compile) {
    const mlp_size small = {.batch = 4, .width = 8, .depth = 1};
    cb_compile_options o = {.budget = {.kind = CB_BUDGET_SHARE, .share = 0.8}, .backend = "debug"};
    sweep(size, (cb_compile_options){.preset = CB_PRESET_AUTOGRAD}, CB_OOM_ALL);
    sweep(size,
          (cb_compile_options){
              .preset = CB_PRESET_AGGRESSIVE, .keep_gradients = true, .dump = ignore_text},
          CB_OOM_ALL);
    sweep(size, (cb_compile_options){.preset = CB_PRESET_RECOMPUTE_ALL, .backend = "ref"},
          CB_OOM_ALL);
    o.budget.measure = CB_MEASURE_SAVED; /* planned by the frontier */
    sweep(size, o, CB_OOM_ALL);
    o.budget.measure = CB_MEASURE_LIVE; /* solved exactly */
    sweep(small, o, CB_OOM_ALL);
    o.budget.measure = CB_MEASURE_ARENA; /* searched */
    sweep(small, o, CB_ASAN ? 2 : 10);
}

/* Writes a text with each allocation failing once. */
static void check_text(cb_context *ctx, const cb_step *step, const char *what) {
    uint64_t before = cb_context_memory(ctx).live_bytes;
    bool reached = true;
    for (uint64_t n = 1; reached; n++) {
        char *text = NULL;
        (void)cb_context_fail_alloc(ctx, n);
        cb_status status = cb_step_text(step, what, &text, &err);
        reached = cb_context_fail_alloc(ctx, 0) == 0;
        CHECK(status == (reached ? CB_NOMEM : CB_OK) && (text != NULL) == (status == CB_OK));
        CHECK(status != CB_OK || strlen(text) > 20);
        cb_text_free(ctx, text);
        CHECK(cb_context_memory(ctx).live_bytes == before);
    }
}

TEST(texts) {
    static const char *const texts[] = {"joint",   "forward", "backward", "problem", "plan",
                                        "explain", "program", "kernels",  "code"};
    cb_context *ctx = new_context();
    cb_step *step = NULL;
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){0}, &step, &err));
    const int n = has_backend("cuda") ? 9 : 8; /* the far backend has no code */
    for (int k = 0; k < n; k++) check_text(ctx, step, texts[k]);
    cb_step_free(step);
    cb_context_free(ctx);
}

/* Compiles the mean of relu(x @ w), which saves signs if `packs`. */
static cb_status compile_relu(cb_context *ctx, bool packs, cb_step **out, cb_error *e) {
    const cb_shape square = {2, {64, 64}}; /* smaller values are not packed */
    mlp_builder b = {.e = e};
    cb_value_id x, w;
    CB_TRY(cb_graph_new(ctx, &b.g, e));
    cb_status status = mlp_input(&b, "x", CB_ROLE_DATA, square, &x);
    if (status == CB_OK) status = mlp_input(&b, "w", CB_ROLE_PARAM, square, &w);
    if (status == CB_OK) status = mlp_op(&b, "matmul", x, w, NULL, &x);
    if (status == CB_OK) status = mlp_op(&b, "relu", x, CB_NONE, NULL, &x);
    if (status == CB_OK) status = mlp_op(&b, "mean", x, CB_NONE, NULL, &x);
    if (status == CB_OK) status = cb_graph_add_output(b.g, x, "loss", e);
    const cb_compile_options options = {.wrt = b.wrt, .n_wrt = b.n_wrt, .packed = packs};
    if (status == CB_OK) status = cb_compile(ctx, b.g, &options, out, e);
    cb_graph_free(b.g);
    return status;
}

TEST(packed) {
    cb_context *ctx = new_context();
    uint64_t before = cb_context_memory(ctx).live_bytes;
    cb_step *step = NULL;
    bool reached = true;
    for (uint64_t n = 1; reached; n++) {
        (void)cb_context_fail_alloc(ctx, n);
        cb_status status = compile_relu(ctx, true, &step, &err);
        reached = cb_context_fail_alloc(ctx, 0) == 0;
        CHECK(status == (reached ? CB_NOMEM : CB_OK) && (step != NULL) == (status == CB_OK));
        cb_step_free(step);
        step = NULL;
        CHECK(cb_context_memory(ctx).live_bytes == before);
    }
    CHECK_OK(compile_relu(ctx, false, &step, &err));
    check_text(ctx, step, "packed");
    cb_step_free(step);
    cb_context_free(ctx);
}

/* Texts are written without a device. */
TEST(texts_of_what_is_not_compiled) {
    const mlp_size small = {.batch = 4, .width = 8, .depth = 1};
    const char *const backends[] = {"cpu", "cuda"};
    for (int k = 0; k < 2; k++) {
        const cb_compile_options options = {.backend = backends[k]};
        if (!has_backend(backends[k])) continue; /* test_far_* links another list */
        cb_context *ctx = new_context();
        const uint64_t before = cb_context_memory(ctx).live_bytes;
        bool reached = true;
        for (uint64_t n = 1; reached; n = cb_oom_next(n, CB_OOM_EACH)) {
            char *text = NULL;
            (void)cb_context_fail_alloc(ctx, n);
            cb_status status = mlp_compile_text(ctx, small, options, "code", &text, &err);
            reached = cb_context_fail_alloc(ctx, 0) == 0;
            CHECK(status == (reached ? CB_NOMEM : CB_OK) && (text != NULL) == (status == CB_OK));
            cb_text_free(ctx, text);
            CHECK(cb_context_memory(ctx).live_bytes == before);
        }
        cb_context_free(ctx);
    }
}

TEST(run) {
    const char *const backends[] = {cb_backend_name(0), "debug", "ref"};
    for (int k = 0; k < 3; k++) {
        cb_context *ctx = new_context();
        cb_step *step = NULL;
        mlp_memory memory;
        CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){.backend = backends[k]}, &step, &err));
        mlp_memory_init(&memory, step);
        cb_run run = mlp_run(&memory);
        float *state = memory.inputs[cb_step_output(step, 1).input], before = *state;
        CHECK_OK(cb_step_run(step, &run, NULL, &err));
        uint64_t want = mlp_hash(&memory, step), held = cb_context_memory(ctx).live_bytes;
        bool reached = true;
        for (uint64_t n = 1; reached; n++) {
            *state = before;
            (void)cb_context_fail_alloc(ctx, n);
            cb_status status = cb_step_run(step, &run, NULL, &err);
            reached = cb_context_fail_alloc(ctx, 0) == 0;
            CHECK(status == (reached ? CB_NOMEM : CB_OK));
            if (reached) CHECK(*state == before);
        }
        CHECK(mlp_hash(&memory, step) == want && cb_context_memory(ctx).live_bytes == held);
        mlp_memory_free(&memory);
        cb_step_free(step);
        cb_context_free(ctx);
    }
}

int main(void) {
    RUN(graph_and_compile);
    RUN(texts);
    RUN(packed);
    RUN(texts_of_what_is_not_compiled);
    RUN(run);
    return check_report();
}
