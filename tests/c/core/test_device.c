/* Steps whose arguments are in the backend's memory: work is queued on streams, and errors appear
 * when the caller waits. On host backends the same calls run at once. */
#include "mlp.h"
#include "pipeline.h"

static const mlp_size size = {.batch = 8, .width = 16, .depth = 2};

static cb_context *new_context(void) {
    const cb_context_options options = {.n_threads = 1};
    cb_context *ctx = NULL;
    CHECK_OK(cb_context_new(&options, &ctx, &err));
    return ctx;
}

/* ---- arguments ------------------------------------------------------------------------------- */

typedef struct placed { /* the arguments of a step, in its backend's memory */
    cb_step *step;
    void *inputs[MLP_MAX_ARGS], *outputs[MLP_MAX_ARGS];
} placed;

static void *place(const cb_step *step, const void *from, uint64_t bytes) {
    void *block = NULL;
    CHECK_OK(step->backend->alloc(step->device, bytes, &block, &err));
    CHECK_OK(step->backend->copy(step->device, NULL, CB_WAY_IN, block, from, bytes, &err));
    CHECK_OK(step->backend->sync(step->device, NULL, &err));
    return block;
}

static void fetch(const cb_step *step, const void *from, void *to, uint64_t bytes) {
    CHECK_OK(step->backend->copy(step->device, NULL, CB_WAY_OUT, to, from, bytes, &err));
    CHECK_OK(step->backend->sync(step->device, NULL, &err));
}

static void placed_init(placed *p, cb_step *step, const mlp_memory *memory) {
    *p = (placed){.step = step};
    for (uint32_t i = 0; i < memory->n_inputs; i++)
        p->inputs[i] = place(step, memory->inputs[i], cb_step_input(step, i).bytes);
    for (uint32_t i = 0; i < memory->n_outputs; i++) {
        if (memory->outputs[i])
            p->outputs[i] = place(step, memory->outputs[i], cb_step_output(step, i).bytes);
    }
}

/* Copies the device's arguments back to the host's. */
static void placed_fetch(const placed *p, mlp_memory *memory) {
    for (uint32_t i = 0; i < memory->n_inputs; i++)
        fetch(p->step, p->inputs[i], memory->inputs[i], cb_step_input(p->step, i).bytes);
    for (uint32_t i = 0; i < memory->n_outputs; i++) {
        if (p->outputs[i])
            fetch(p->step, p->outputs[i], memory->outputs[i], cb_step_output(p->step, i).bytes);
    }
}

static void placed_free(placed *p) {
    for (uint32_t i = 0; i < MLP_MAX_ARGS; i++) {
        p->step->backend->free(p->step->device, p->inputs[i]);
        p->step->backend->free(p->step->device, p->outputs[i]);
    }
}

static cb_run placed_run(const placed *p, uintptr_t stream) {
    return (cb_run){.inputs = p->inputs,
                    .outputs = p->outputs,
                    .stream = (void *)stream,
                    .seed = 42,
                    .random_step = 3};
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Makes three runs, each of which changes the running mean that the next one reads. */
static uint64_t hash_on_host(cb_context *ctx) {
    cb_step *step = NULL;
    mlp_memory memory;
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){0}, &step, &err));
    mlp_memory_init(&memory, step);
    const cb_run run = mlp_run(&memory);
    for (int k = 0; k < 3; k++) CHECK_OK(cb_step_run(step, &run, NULL, &err));
    const uint64_t hash = mlp_hash(&memory, step);
    mlp_memory_free(&memory);
    cb_step_free(step);
    return hash;
}

TEST(runs_on_any_stream_follow_each_other) {
    cb_context *ctx = new_context();
    cb_step *step = NULL;
    mlp_memory memory;
    placed p;
    double seconds = -1;
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){0}, &step, &err));
    mlp_memory_init(&memory, step);
    placed_init(&p, step, &memory);
    CHECK_FAIL(cb_step_wait(step, NULL, &err), CB_INVALID, "no run to wait for");
    for (uintptr_t stream = 0; stream < 3; stream++) {
        const cb_run run = placed_run(&p, stream);
        CHECK_OK(cb_step_run(step, &run, NULL, &err));
    }
    CHECK_OK(cb_step_wait(step, &seconds, &err));
    CHECK(seconds > 0);
    placed_fetch(&p, &memory);
    CHECK(mlp_hash(&memory, step) == hash_on_host(ctx));
    placed_free(&p);
    mlp_memory_free(&memory);
    cb_step_free(step);
    cb_context_free(ctx);
}

/* If some arguments are on the host and some on the device, each stays where it is, and the bits
 * equal those with all arguments on the host. */
TEST(arguments_of_both_kinds) {
    cb_context *ctx = new_context();
    cb_step *step = NULL;
    mlp_memory memory;
    placed p;
    bool there[2 * MLP_MAX_ARGS] = {false};
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){0}, &step, &err));
    mlp_memory_init(&memory, step);
    placed_init(&p, step, &memory);
    cb_run run = mlp_run(&memory);
    void *inputs[MLP_MAX_ARGS], *outputs[MLP_MAX_ARGS];
    memcpy(inputs, memory.inputs, sizeof inputs);
    memcpy(outputs, memory.outputs, sizeof outputs);
    for (uint32_t i = 0; i < memory.n_inputs + memory.n_outputs; i += 2) {
        const uint32_t k = i < memory.n_inputs ? i : i - memory.n_inputs;
        void **at = i < memory.n_inputs ? &inputs[k] : &outputs[k];
        if (!*at) continue;
        *at = i < memory.n_inputs ? p.inputs[k] : p.outputs[k];
        there[i] = true;
    }
    run.inputs = inputs;
    run.outputs = outputs;
    run.there = there;
    for (int k = 0; k < 3; k++) CHECK_OK(cb_step_run(step, &run, NULL, &err));
    for (uint32_t i = 0; i < memory.n_inputs; i++)
        if (there[i]) fetch(step, p.inputs[i], memory.inputs[i], cb_step_input(step, i).bytes);
    for (uint32_t i = 0; i < memory.n_outputs; i++)
        if (there[memory.n_inputs + i])
            fetch(step, p.outputs[i], memory.outputs[i], cb_step_output(step, i).bytes);
    CHECK(mlp_hash(&memory, step) == hash_on_host(ctx));
    placed_free(&p);
    mlp_memory_free(&memory);
    cb_step_free(step);
    cb_context_free(ctx);
}

/* Arguments in the wrong memory are refused on a backend with its own memory. A step is freed while
 * work is queued on its streams. */
TEST(memory_of_the_host_has_to_be_named) {
    cb_context *ctx = new_context();
    cb_step *step = NULL;
    mlp_memory memory;
    placed p;
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){0}, &step, &err));
    mlp_memory_init(&memory, step);
    placed_init(&p, step, &memory);
    cb_run run = mlp_run(&memory);
    run.on_host = false;
    const cb_status status = cb_step_run(step, &run, NULL, &err);
    CHECK(status == (step->backend->is_host ? CB_OK : CB_INVALID));
    run = placed_run(&p, 1);
    CHECK_OK(cb_step_run(step, &run, NULL, &err));
    CHECK_OK(step->backend->sync(step->device, run.stream, &err));
    placed_free(&p);
    mlp_memory_free(&memory);
    cb_step_free(step);
    cb_context_free(ctx);
}

/* ---- errors that appear late ----------------------------------------------------------------- */

enum { ROWS = 5, COLUMNS = 3, PICKED = 4 };

/* Builds loss = mean(table[index]), differentiated with respect to the table, which SGD updates,
 * and s' = s + loss. */
static cb_status picking_graph(cb_graph *g, cb_error *e) {
    const cb_shape table = {2, {ROWS, COLUMNS}}, index = {1, {PICKED}}, one = {0};
    cb_value_id ins[2], state, loss, next;
    CB_TRY(cb_graph_add_input(g, "table", CB_ROLE_PARAM, CB_F32, table, &ins[0], e));
    CB_TRY(cb_graph_add_input(g, "index", CB_ROLE_DATA, CB_I64, index, &ins[1], e));
    CB_TRY(cb_graph_add_input(g, "s", CB_ROLE_STATE, CB_F32, one, &state, e));
    CB_TRY(cb_graph_add_op(g, "embedding", 2, ins, NULL, 1, &loss, e));
    CB_TRY(cb_graph_add_op(g, "mean", 1, &loss, NULL, 1, &loss, e));
    CB_TRY(cb_graph_add_op(g, "add", 2, (cb_value_id[]){state, loss}, NULL, 1, &next, e));
    CB_TRY(cb_graph_add_output(g, loss, "loss", e));
    return cb_graph_add_state(g, 2, next, e);
}

static cb_status compile_picking(cb_context *ctx, const char *backend, cb_step **step) {
    const cb_compile_options options = {
        .wrt = (const uint32_t[]){0}, .n_wrt = 1, .keep_gradients = true, .backend = backend};
    cb_graph *g = NULL;
    CB_TRY(cb_graph_new(ctx, &g, &err));
    cb_status status = picking_graph(g, &err);
    if (status == CB_OK) status = cb_compile(ctx, g, &options, step, &err);
    cb_graph_free(g);
    return status;
}

typedef struct picking {
    float table[ROWS * COLUMNS], moment[ROWS * COLUMNS], s, loss;
    int64_t index[PICKED];
} picking;

static const uint64_t table_bytes = sizeof((picking){0}.table);

static const double hyper[] = {0.5, 0.9, 0.25, 0, 0, 0}; /* lr, momentum, dampening, ... */
static const uint32_t group[] = {0};

static cb_update sgd(void *const *params, void *const *const *states, int64_t t) {
    return (cb_update){.optimizer = cb_optimizer_find("sgd"),
                       .params = params,
                       .states = states,
                       .group = group,
                       .hyper = hyper,
                       .n_groups = 1,
                       .t = t};
}

/* Runs and updates on one stream, with one wait for both. */
static cb_status run_and_update(cb_step *step, void *const *inputs, void *const *outputs,
                                void *moment, int64_t t) {
    void *const moments[] = {moment};
    void *const *states[] = {moments};
    const cb_run run = {.inputs = inputs, .outputs = outputs, .stream = (void *)(uintptr_t)2};
    const cb_update update = sgd(inputs, states, t);
    CB_TRY(cb_step_run(step, &run, NULL, &err));
    CB_TRY(cb_step_update(step, &update, &err));
    return cb_step_wait(step, NULL, &err);
}

/* The caller also counts steps that failed, so the first that succeeds is its third, with
 * dampening. */
TEST(a_run_that_fails_late_changes_nothing) {
    cb_context *ctx = new_context();
    cb_step *step = NULL;
    picking here = {.index = {0, 1, 99, 2}}, there;
    for (int i = 0; i < ROWS * COLUMNS; i++) here.table[i] = (float)i;
    CHECK_OK(compile_picking(ctx, NULL, &step));
    void *inputs[] = {place(step, here.table, table_bytes),
                      place(step, here.index, sizeof here.index), place(step, &here.s, 4)};
    void *outputs[] = {place(step, &here.loss, 4), NULL, NULL};
    void *moment = place(step, here.moment, table_bytes);
    for (int turn = 0; turn < 2; turn++) {
        CHECK_FAIL(run_and_update(step, inputs, outputs, moment, turn + 1), CB_INVALID, "index 99");
        fetch(step, inputs[0], there.table, table_bytes);
        fetch(step, moment, there.moment, table_bytes);
        fetch(step, inputs[2], &there.s, 4);
        CHECK(memcmp(here.table, there.table, table_bytes) == 0 && there.s == 0);
        CHECK(memcmp(here.moment, there.moment, table_bytes) == 0);
    }
    void *mine[] = {here.table, here.index, &here.s}, *results[] = {&here.loss, NULL, NULL};
    const cb_run on_host = {.inputs = mine, .outputs = results, .on_host = true};
    CHECK_FAIL(cb_step_run(step, &on_host, NULL, &err), CB_INVALID, "index 99");
    CHECK(here.s == 0 && here.loss == 0);
    here.index[2] = 4;
    step->backend->free(step->device, inputs[1]);
    inputs[1] = place(step, here.index, sizeof here.index);
    CHECK_OK(run_and_update(step, inputs, outputs, moment, 3));
    fetch(step, inputs[0], there.table, table_bytes);
    fetch(step, inputs[2], &there.s, 4);
    fetch(step, outputs[0], &there.loss, 4);
    CHECK(there.loss == 6.25f && there.s == there.loss); /* rows 0, 1, 4 and 2 */
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        const float slope = i / COLUMNS == 3 ? 0 : 1.0f / (PICKED * COLUMNS);
        CHECK(there.table[i] == here.table[i] - 0.5f * (0.75f * slope));
    }
    for (int i = 0; i < 3; i++) step->backend->free(step->device, inputs[i]);
    step->backend->free(step->device, outputs[0]);
    step->backend->free(step->device, moment);
    cb_step_free(step);
    cb_context_free(ctx);
}

/* Builds s' = s + x. */
static cb_status counting_graph(cb_graph *g, cb_error *e) {
    const cb_shape shape = {1, {COLUMNS}};
    cb_value_id ins[2], next;
    CB_TRY(cb_graph_add_input(g, "s", CB_ROLE_STATE, CB_F32, shape, &ins[0], e));
    CB_TRY(cb_graph_add_input(g, "x", CB_ROLE_DATA, CB_F32, shape, &ins[1], e));
    CB_TRY(cb_graph_add_op(g, "add", 2, ins, NULL, 1, &next, e));
    return cb_graph_add_state(g, 0, next, e);
}

TEST(a_state_without_other_outputs_is_replaced) {
    cb_context *ctx = new_context();
    cb_graph *g = NULL;
    cb_step *step = NULL;
    const cb_compile_options options = {0};
    float s[COLUMNS] = {1, 2, 3}, x[COLUMNS] = {10, 20, 30};
    CHECK_OK(cb_graph_new(ctx, &g, &err));
    CHECK_OK(counting_graph(g, &err));
    CHECK_OK(cb_compile(ctx, g, &options, &step, &err));
    cb_graph_free(g);
    void *inputs[] = {place(step, s, sizeof s), place(step, x, sizeof x)}, *outputs[] = {NULL};
    const cb_run run = {.inputs = inputs, .outputs = outputs};
    for (int turn = 0; turn < 2; turn++) CHECK_OK(cb_step_run(step, &run, NULL, &err));
    CHECK_OK(cb_step_wait(step, NULL, &err));
    fetch(step, inputs[0], s, sizeof s);
    CHECK(s[0] == 21 && s[1] == 42 && s[2] == 63);
    for (int i = 0; i < 2; i++) step->backend->free(step->device, inputs[i]);
    cb_step_free(step);
    cb_context_free(ctx);
}

/* ---- properties of backends ------------------------------------------------------------------ */

static bool is_gpu(const cb_backend *b) { return strcmp(b->name, "cuda") == 0; }

/* Returns false for a GPU that is not the first in the list, because it may be missing. */
static bool is_here(uint32_t k) { return k == 0 || !is_gpu(cb_backends[k]); }

TEST(buffers_are_aligned_as_the_backend_asks) {
    cb_context *ctx = new_context();
    const uint64_t want = hash_on_host(ctx);
    for (uint32_t k = 0; cb_backends[k]; k++) {
        if (!is_here(k)) continue;
        cb_step *step = NULL;
        mlp_memory memory;
        const cb_compile_options options = {.backend = cb_backend_name(k)};
        CHECK_OK(mlp_compile(ctx, size, options, &step, &err));
        const cb_program *p = step->program;
        CHECK(p->align == cb_backends[k]->alignment && p->arena_bytes % p->align == 0);
        for (uint32_t b = 0; b < p->n_buffer; b++) CHECK(p->buffer[b].offset % p->align == 0);
        mlp_memory_init(&memory, step);
        const cb_run run = mlp_run(&memory);
        for (int i = 0; i < 3; i++) CHECK_OK(cb_step_run(step, &run, NULL, &err));
        /* The slow twins round differently, and so do products on a GPU. */
        const bool is_like_the_first =
            cb_backends[k]->fuses != NULL && is_gpu(cb_backends[k]) == is_gpu(cb_backends[0]);
        if (is_like_the_first) CHECK(mlp_hash(&memory, step) == want);
        mlp_memory_free(&memory);
        cb_step_free(step);
    }
    CHECK(cb_backend_name(0) && cb_backend_name(1000) == NULL);
    cb_context_free(ctx);
}

/* The refusal comes before the run replaces states, which could not be restored. */
TEST(a_backend_without_optimizers_says_so_before_a_run) {
    cb_context *ctx = new_context();
    picking here = {0};
    void *params[] = {here.table}, *moments[] = {here.moment};
    void *const *states[] = {moments};
    cb_update update = sgd(params, states, 1);
    update.on_host = true;
    for (uint32_t k = 0; cb_backends[k]; k++) {
        if (!is_here(k)) continue;
        cb_step *step = NULL;
        CHECK_OK(compile_picking(ctx, cb_backend_name(k), &step));
        if (cb_backends[k]->update) {
            CHECK_OK(cb_step_check_update(step, &update, &err));
        } else {
            CHECK_FAIL(cb_step_check_update(step, &update, &err), CB_UNSUPPORTED,
                       "\"far256\" has no optimizers");
        }
        cb_step_free(step);
    }
    cb_context_free(ctx);
}

int main(void) {
    RUN(runs_on_any_stream_follow_each_other);
    RUN(arguments_of_both_kinds);
    RUN(memory_of_the_host_has_to_be_named);
    RUN(a_run_that_fails_late_changes_nothing);
    RUN(a_state_without_other_outputs_is_replaced);
    RUN(buffers_are_aligned_as_the_backend_asks);
    RUN(a_backend_without_optimizers_says_so_before_a_run);
    return check_report();
}
