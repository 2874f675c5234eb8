/* Steps that share their run memory: its size is that of the largest step, the bits are those of
 * separate memories, and gradients stay in it until the next run. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/sanitize.h"
#include "mlp.h"

enum { N_SIZE = 4, N_GRADIENT = 8 }; /* four parameters per layer */
static const int64_t batches[N_SIZE] = {24, 40, 8, 33};

static cb_context *new_context(void) {
    const cb_context_options options = {.n_threads = 1};
    cb_context *ctx = NULL;
    CHECK_OK(cb_context_new(&options, &ctx, &err));
    return ctx;
}

static cb_step *new_step(cb_context *ctx, int64_t batch, cb_compile_options options) {
    cb_step *step = NULL;
    CHECK_OK(mlp_compile(ctx, (mlp_size){.batch = batch, .width = 16, .depth = 2}, options, &step,
                         &err));
    return step;
}

static uint64_t hash_of_run(cb_step *step, cb_run_result *result) {
    mlp_memory arrays;
    mlp_memory_init(&arrays, step);
    const cb_run run = mlp_run(&arrays);
    CHECK_OK(cb_step_run(step, &run, result, &err));
    const uint64_t hash = mlp_hash(&arrays, step);
    mlp_memory_free(&arrays);
    return hash;
}

/* Returns the bytes of the largest step; 0 on backends with their own buffers, which leave this
 * memory empty. */
static uint64_t largest(cb_step *const *steps, uint32_t n) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        if (cb_step_run_bytes(steps[i]) > most) most = cb_step_run_bytes(steps[i]);
    return most;
}

static void check_sharing(const char *backend) {
    cb_context *ctx = new_context();
    cb_run_memory *memory = NULL;
    cb_step *together[N_SIZE], *apart[N_SIZE];
    CHECK_OK(cb_run_memory_new(ctx, &memory, &err));
    for (int i = 0; i < N_SIZE; i++) {
        together[i] =
            new_step(ctx, batches[i], (cb_compile_options){.memory = memory, .backend = backend});
        apart[i] = new_step(ctx, batches[i], (cb_compile_options){.backend = backend});
    }
    CHECK(cb_run_memory_bytes(memory) == 0);
    for (int k = 0; k < 3 * N_SIZE; k++) {
        const int i = k * 3 % N_SIZE;
        const uint64_t before = cb_run_memory_bytes(memory), growth = cb_step_growth(together[i]);
        cb_run_result result;
        CHECK(hash_of_run(together[i], &result) == hash_of_run(apart[i], NULL));
        CHECK(cb_run_memory_bytes(memory) == before + growth && cb_step_growth(together[i]) == 0);
        if (!backend && k >= N_SIZE) CHECK(result.n_alloc == (growth > 0));
        if (k == 2 * N_SIZE) (void)cb_run_memory_release(memory);
    }
    CHECK(cb_run_memory_bytes(memory) == largest(together, N_SIZE));
    CHECK(cb_run_memory_release(memory) == largest(together, N_SIZE));
    CHECK(cb_run_memory_bytes(memory) == 0 && cb_run_memory_release(memory) == 0);
    CHECK(hash_of_run(together[2], NULL) == hash_of_run(apart[2], NULL));
    CHECK(cb_run_memory_bytes(memory) == cb_step_run_bytes(together[2]));
    for (int i = 0; i < 2; i++) cb_step_free(together[i]);
    cb_run_memory_free(memory); /* the steps hold a reference */
    CHECK(hash_of_run(together[3], NULL) == hash_of_run(apart[3], NULL));
    for (int i = 2; i < N_SIZE; i++) cb_step_free(together[i]);
    for (int i = 0; i < N_SIZE; i++) cb_step_free(apart[i]);
    cb_context_free(ctx);
}

TEST(programs_take_what_the_largest_needs) {
    check_sharing(NULL);
    check_sharing("debug");
    check_sharing("ref");
    if (has_backend("null")) check_sharing("null");
}

TEST(a_memory_of_another_context) {
    cb_context *ctx = new_context(), *other = new_context();
    cb_run_memory *memory = NULL;
    cb_step *step = NULL;
    const mlp_size small = {.batch = 2, .width = 4, .depth = 1};
    CHECK_OK(cb_run_memory_new(other, &memory, &err));
    CHECK_FAIL(mlp_compile(ctx, small, (cb_compile_options){.memory = memory}, &step, &err),
               CB_INVALID, "the memory belongs to another context");
    cb_run_memory_free(memory);
    cb_run_memory_free(NULL);
    cb_context_free(ctx);
    cb_context_free(other);
}

/* ---- gradients ------------------------------------------------------------------------------- */

typedef struct trained {
    cb_step *step;
    mlp_memory arrays;
    void *params[N_GRADIENT], *m[N_GRADIENT], *v[N_GRADIENT], *unused[N_GRADIENT];
    void *const *states[3];
} trained;

static void begin_training(trained *t, cb_context *ctx, int64_t batch, cb_run_memory *memory,
                           const char *backend) {
    *t = (trained){
        .step = new_step(
            ctx, batch,
            (cb_compile_options){.memory = memory, .keep_gradients = true, .backend = backend})};
    mlp_memory_init(&t->arrays, t->step);
    void *const *states[] = {t->m, t->v, t->unused};
    memcpy(t->states, states, sizeof states);
    for (uint32_t k = 0; k < N_GRADIENT; k++) {
        const cb_argument_info info = cb_step_output(t->step, t->arrays.n_outputs - N_GRADIENT + k);
        t->params[k] = t->arrays.inputs[info.input];
        t->m[k] = calloc(1, info.bytes);
        t->v[k] = calloc(1, info.bytes);
    }
}

static void end_training(trained *t) {
    cb_step_free(t->step);
    mlp_memory_free(&t->arrays);
    for (int k = 0; k < N_GRADIENT; k++) free(t->m[k]);
    for (int k = 0; k < N_GRADIENT; k++) free(t->v[k]);
}

static cb_status run(trained *t) {
    const cb_run settings = mlp_run(&t->arrays);
    return cb_step_run(t->step, &settings, NULL, &err);
}

static cb_status update(trained *t) {
    static const double hyper[7] = {1e-2, 0.9, 0.999, 1e-8, 0.1};
    static const uint32_t group[N_GRADIENT] = {0};
    const cb_update settings = {.optimizer = cb_optimizer_find("adamw"),
                                .params = t->params,
                                .states = t->states,
                                .group = group,
                                .hyper = hyper,
                                .n_groups = 1,
                                .t = 1,
                                .on_host = true};
    return cb_step_update(t->step, &settings, &err);
}

static float first_of(const trained *t) { return *(float *)t->params[0]; }

/* Checks that gradients stay valid until another step runs in the memory or it is released, and no
 * longer. */
static void check_gradients(const char *backend) {
    cb_context *ctx = new_context();
    cb_run_memory *memory = NULL;
    trained a, b;
    CHECK_OK(cb_run_memory_new(ctx, &memory, &err));
    begin_training(&a, ctx, 8, memory, backend);
    begin_training(&b, ctx, 24, memory, backend);
    const float before = first_of(&a);
    CHECK_FAIL(update(&a), CB_INVALID, "run the step first");
    CHECK_OK(run(&a));
    CHECK_OK(run(&b));
    CHECK_FAIL(update(&a), CB_INVALID, "the gradients are gone");
    CHECK(first_of(&a) == before);
    CHECK_OK(update(&b));
    CHECK_OK(run(&a));
    (void)cb_run_memory_release(memory);
    CHECK_FAIL(update(&a), CB_INVALID, "the gradients are gone");
    CHECK(first_of(&a) == before);
    CHECK_OK(run(&a));
    CHECK_OK(update(&a));
    CHECK(first_of(&a) != before);
    CHECK_OK(run(&a));
    end_training(&b); /* frees a step that was not the last to run */
    CHECK_OK(update(&a));
    end_training(&a);
    cb_run_memory_free(memory);
    cb_context_free(ctx);
}

TEST(gradients_stay_until_the_next_run) {
    check_gradients(NULL);
    check_gradients("debug");
    check_gradients("ref");
}

/* ---- failures -------------------------------------------------------------------------------- */

/* If an allocation fails while a run grows the block, there is no block afterwards, inputs are
 * unchanged, and the next run allocates again. */
TEST(a_block_that_cannot_grow) {
    cb_context *ctx = new_context();
    cb_run_memory *memory = NULL;
    trained a, b;
    CHECK_OK(cb_run_memory_new(ctx, &memory, &err));
    begin_training(&a, ctx, 8, memory, NULL);
    begin_training(&b, ctx, 24, memory, NULL);
    CHECK_OK(run(&a));
    const float before = first_of(&a);
    (void)cb_context_fail_alloc(ctx, 1);
    CHECK_FAIL(run(&b), CB_NOMEM, "no memory for the arena of");
    CHECK(cb_context_fail_alloc(ctx, 0) == 0 && cb_run_memory_bytes(memory) == 0);
    CHECK_FAIL(update(&b), CB_INVALID, "run the step first");
    CHECK_FAIL(update(&a), CB_INVALID, "the gradients are gone");
    CHECK(first_of(&a) == before);
    CHECK_OK(run(&a));
    CHECK_OK(update(&a));
    CHECK_OK(run(&b));
    CHECK_OK(update(&b));
    end_training(&a);
    end_training(&b);
    cb_run_memory_free(memory);
    cb_context_free(ctx);
}

/* ---- pinned blocks --------------------------------------------------------------------------- */

TEST(a_pinned_block_stays) {
    cb_context *ctx = new_context();
    cb_run_memory *memory = NULL;
    CHECK_OK(cb_run_memory_new(ctx, &memory, &err));
    const cb_compile_options options = {.memory = memory};
    cb_step *small = new_step(ctx, 8, options), *large = new_step(ctx, 24, options),
            *middle = new_step(ctx, 16, options);
    const uint64_t hashes[] = {hash_of_run(small, NULL), hash_of_run(large, NULL)};
    (void)cb_run_memory_release(memory);
    CHECK_OK(cb_step_pin(small, &err));
    CHECK_OK(cb_step_pin(small, &err));
    CHECK(cb_run_memory_bytes(memory) == cb_step_run_bytes(small));
    CHECK(cb_run_memory_release(memory) == 0);
    CHECK(hash_of_run(large, NULL) == hashes[1]); /* in another block */
    CHECK(cb_run_memory_bytes(memory) == cb_step_run_bytes(large));
    CHECK(hash_of_run(small, NULL) == hashes[0]);
    CHECK_OK(cb_step_pin(middle, &err)); /* shares the block of the large step */
    CHECK(cb_run_memory_bytes(memory) == cb_step_run_bytes(large));
    CHECK(hash_of_run(large, NULL) == hashes[1]);
    CHECK(cb_run_memory_release(memory) == 0);
    cb_step_free(middle);
    CHECK(cb_run_memory_release(memory) == cb_step_run_bytes(large));
    CHECK(hash_of_run(small, NULL) == hashes[0]);
    cb_step_free(small);
    CHECK(hash_of_run(large, NULL) == hashes[1]);
    cb_step_free(large);
    cb_run_memory_free(memory);
    cb_context_free(ctx);
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct others { /* steps in the same memory, created and freed by another thread */
    cb_context *ctx;
    cb_run_memory *memory;
    atomic_bool stop;
} others;

static void *come_and_go(void *user) {
    others *o = user;
    while (!atomic_load(&o->stop)) {
        cb_step *step = NULL;
        const mlp_size small = {.batch = 2, .width = 4, .depth = 1};
        cb_error none;
        const cb_status status =
            mlp_compile(o->ctx, small, (cb_compile_options){.memory = o->memory}, &step, &none);
        if (status != CB_OK) return user;
        cb_step_free(step);
    }
    return NULL;
}

TEST(steps_are_freed_while_others_run) {
    cb_context *ctx = new_context();
    others o = {.ctx = ctx};
    pthread_t thread;
    void *failed = NULL;
    CHECK_OK(cb_run_memory_new(ctx, &o.memory, &err));
    cb_step *step = new_step(ctx, 24, (cb_compile_options){.memory = o.memory});
    const uint64_t want = hash_of_run(step, NULL);
    CHECK(pthread_create(&thread, NULL, come_and_go, &o) == 0);
    for (int i = 0; i < 50; i++) {
        CHECK(hash_of_run(step, NULL) == want);
        if (i % 10 == 0) CHECK(cb_run_memory_release(o.memory) == cb_step_run_bytes(step));
    }
    atomic_store(&o.stop, true);
    pthread_join(thread, &failed);
    CHECK(!failed);
    cb_step_free(step);
    cb_run_memory_free(o.memory);
    cb_context_free(ctx);
}

int main(void) {
    RUN(programs_take_what_the_largest_needs);
    RUN(a_memory_of_another_context);
    RUN(gradients_stay_until_the_next_run);
    RUN(a_block_that_cannot_grow);
    RUN(a_pinned_block_stays);
    RUN(steps_are_freed_while_others_run);
    return check_report();
}
