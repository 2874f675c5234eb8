/* Updates inside a run: they give the bits of a separate step; refusals; memory that runs out. */
#include "mlp.h"
#include "oom.h"

enum { N = 12 }; /* four parameters per layer */
static const mlp_size size = {.batch = 8, .width = 8, .depth = N / 4};

typedef struct trainer {
    cb_step *step;
    mlp_memory memory;
    void *params[N], *m[N], *v[N], *unused[N];
    void *const *states[3];
    uint32_t group[N];
    double hyper[7];
    cb_run run;
    cb_update update;
} trainer;

static cb_context *ctx;

static void start(trainer *t, cb_compile_options options) {
    *t = (trainer){.hyper = {1e-2, 0.9, 0.999, 1e-8, 0.1}};
    options.keep_gradients = true;
    CHECK_OK(mlp_compile(ctx, size, options, &t->step, &err));
    mlp_memory_init(&t->memory, t->step);
    for (uint32_t k = 0; k < N; k++) {
        cb_argument_info info = cb_step_output(t->step, t->memory.n_outputs - N + k);
        t->params[k] = t->memory.inputs[info.input];
        t->m[k] = calloc(1, info.bytes);
        t->v[k] = calloc(1, info.bytes);
    }
    t->states[0] = t->m, t->states[1] = t->v, t->states[2] = t->unused;
    t->run = mlp_run(&t->memory);
    t->update = (cb_update){.optimizer = cb_optimizer_find("adamw"),
                            .params = t->params,
                            .states = t->states,
                            .group = t->group,
                            .hyper = t->hyper,
                            .n_groups = 1,
                            .t = 1,
                            .on_host = true,
                            .run = &t->run};
    if (options.updates_inside) t->run.update = &t->update;
}

static void end(trainer *t) {
    for (uint32_t k = 0; k < N; k++) {
        free(t->m[k]);
        free(t->v[k]);
    }
    mlp_memory_free(&t->memory);
    cb_step_free(t->step);
}

/* Returns a hash of all bits of parameters, states, the running mean and the loss. */
static uint64_t hash_of(const trainer *t) {
    uint64_t hash = mlp_hash(&t->memory, t->step);
    for (uint32_t k = 0; k < N; k++) {
        const uint64_t bytes = cb_step_output(t->step, t->memory.n_outputs - N + k).bytes;
        const unsigned char *const data[] = {t->params[k], t->m[k], t->v[k]};
        for (int a = 0; a < 3; a++)
            for (uint64_t i = 0; i < bytes; i++)
                hash = (hash ^ data[a][i]) * UINT64_C(1099511628211);
    }
    return hash;
}

TEST(bits_are_those_of_the_separate_step) {
    const cb_budget least = {.kind = CB_BUDGET_SMALLEST};
    trainer after, inside;
    start(&after, (cb_compile_options){.budget = least});
    start(&inside, (cb_compile_options){.budget = least, .updates_inside = true});
    CHECK(!cb_step_updates_inside(after.step) && cb_step_updates_inside(inside.step));
    CHECK(cb_step_updates_reason(inside.step)[0] == 0);
    for (int64_t t = 1; t <= 5; t++) {
        cb_run_result result;
        after.update.t = inside.update.t = t;
        CHECK_OK(cb_step_run(after.step, &after.run, NULL, &err));
        CHECK_OK(cb_step_update(after.step, &after.update, &err));
        CHECK_OK(cb_step_run(inside.step, &inside.run, &result, &err));
        CHECK(hash_of(&after) == hash_of(&inside));
        const cb_step_numbers now = cb_step_get_numbers(inside.step);
        CHECK(result.peak_bytes == now.arena_bytes);
        CHECK(now.arena_bytes < cb_step_get_numbers(after.step).arena_bytes);
        CHECK(t == 1 || result.n_alloc == 0);
    }
    end(&after);
    end(&inside);
}

TEST(refusals) {
    trainer t;
    start(&t, (cb_compile_options){.updates_inside = true});
    const uint64_t before = hash_of(&t);
    cb_run other = t.run;
    CHECK_FAIL(cb_step_run(t.step, &other, NULL, &err), CB_INVALID, "is not this run");
    CHECK_FAIL(cb_step_update(t.step, &t.update, &err), CB_INVALID, "updates inside its runs");
    cb_optim_extras extras = {.skips = true};
    t.update.extras = &extras;
    CHECK_FAIL(cb_step_run(t.step, &t.run, NULL, &err), CB_UNSUPPORTED, "clip");
    t.update.extras = NULL;
    void *own = t.params[1];
    t.params[1] = t.m[1];
    CHECK_FAIL(cb_step_run(t.step, &t.run, NULL, &err), CB_INVALID, "not the input of the run");
    t.params[1] = own;
    own = t.m[1];
    t.m[1] = t.memory.inputs[0];
    CHECK_FAIL(cb_step_run(t.step, &t.run, NULL, &err), CB_INVALID, "overlap in memory");
    t.m[1] = own;
    t.hyper[1] = 2;
    CHECK_FAIL(cb_step_run(t.step, &t.run, NULL, &err), CB_INVALID, "must be in");
    t.hyper[1] = 0.9;
    CHECK(hash_of(&t) == before);
    t.run.update = NULL; /* a run that updates nothing */
    float *state = t.memory.inputs[cb_step_output(t.step, 1).input], kept = *state;
    CHECK_OK(cb_step_run(t.step, &t.run, NULL, &err));
    *state = kept;
    memset(t.memory.outputs[0], 0, sizeof(float));
    CHECK(hash_of(&t) == before);
    end(&t);
    start(&t, (cb_compile_options){0});
    t.run.update = &t.update;
    CHECK_FAIL(cb_step_run(t.step, &t.run, NULL, &err), CB_INVALID, "after its runs");
    end(&t);
}

/* The first run allocates the block. */
TEST(a_run_without_memory_changes_nothing) {
    trainer t;
    start(&t, (cb_compile_options){.updates_inside = true});
    const uint64_t before = hash_of(&t);
    (void)cb_context_fail_alloc(ctx, 1);
    CHECK(cb_step_run(t.step, &t.run, NULL, &err) == CB_NOMEM);
    CHECK(cb_context_fail_alloc(ctx, 0) == 0 && hash_of(&t) == before);
    CHECK_OK(cb_step_run(t.step, &t.run, NULL, &err));
    CHECK(hash_of(&t) != before);
    end(&t);
}

static int stop(void *user) {
    ++*(int *)user;
    return 1;
}

TEST(a_cancelled_run_changes_nothing) {
    trainer t;
    int asked = 0;
    start(&t, (cb_compile_options){.updates_inside = true});
    const uint64_t before = hash_of(&t);
    t.run.poll = stop;
    t.run.poll_user = &asked;
    CHECK(cb_step_run(t.step, &t.run, NULL, &err) == CB_CANCELLED);
    CHECK(asked == 1 && hash_of(&t) == before);
    end(&t);
}

TEST(compiling_runs_out_of_memory_cleanly) {
    const cb_compile_options options = {.keep_gradients = true, .updates_inside = true};
    const uint64_t before = cb_context_memory(ctx).live_bytes;
    bool reached = true;
    for (uint64_t n = 1; reached; n = cb_oom_next(n, CB_OOM_EACH)) {
        cb_step *step = NULL;
        (void)cb_context_fail_alloc(ctx, n);
        const cb_status status = mlp_compile(ctx, size, options, &step, &err);
        reached = cb_context_fail_alloc(ctx, 0) == 0;
        CHECK(status == (reached ? CB_NOMEM : CB_OK) && (step != NULL) == (status == CB_OK));
        cb_step_free(step);
        CHECK(cb_context_memory(ctx).live_bytes == before);
    }
}

int main(void) {
    CHECK_OK(cb_context_new(NULL, &ctx, &err));
    RUN(bits_are_those_of_the_separate_step);
    RUN(refusals);
    RUN(a_run_without_memory_changes_nothing);
    RUN(a_cancelled_run_changes_nothing);
    RUN(compiling_runs_out_of_memory_cleanly);
    CHECK(cb_context_memory(ctx).live_bytes > 0);
    cb_context_free(ctx);
    return check_report();
}
