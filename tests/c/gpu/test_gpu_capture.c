/* A step is captured once and replayed. The counters and inputs of an update are on the device, so
 * each replay corrects Adam's bias for its own step, uses the learning rate last written there, and
 * skips the update if a gradient was infinite. Compared with plain loops in double. */
#include <math.h>

#include "check.h"
#include "gpu.h"
#include "ir/builder.h"
#include "numbers.h"
#include "pipeline.h"

enum { N = 37, MOMENTS = 2, CAPTURED = 1000 /* random step that the host names in a capture */ };
static const double hyper[] = {0.1, 0.9, 0.99, 1e-8, 0.05, 0.0, 0.0}; /* adamw: lr first */

typedef struct
    entries { /* functions of the stand-in driver that a framework calls around a capture */
    int (*cuStreamCreate)(void **stream, unsigned flags);
    int (*cuStreamBeginCapture_v2)(void *stream, int mode);
    int (*cuStreamEndCapture)(void *stream, void **graph);
    int (*cuGraphInstantiateWithFlags)(void **executable, void *graph, unsigned long long flags);
    int (*cuGraphLaunch)(void *executable, void *stream);
    int (*cuGraphExecDestroy)(void *executable);
    int (*cuGraphDestroy)(void *graph);
    int (*cuStreamDestroy_v2)(void *stream);
    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuCtxSetCurrent)(void *context);
    int (*cuStreamSynchronize)(void *stream);
} entries;

static entries cu;

static void open_entries(void) {
    static const char *const names[] = {"cuStreamCreate",
                                        "cuStreamBeginCapture_v2",
                                        "cuStreamEndCapture",
                                        "cuGraphInstantiateWithFlags",
                                        "cuGraphLaunch",
                                        "cuGraphExecDestroy",
                                        "cuGraphDestroy",
                                        "cuStreamDestroy_v2",
                                        "cuDevicePrimaryCtxRetain",
                                        "cuCtxSetCurrent",
                                        "cuStreamSynchronize"};
    void *found[sizeof names / sizeof *names];
    void *library = dlopen(CB_STAND_IN, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        found[i] = dlsym(library, names[i]);
        CHECK(found[i]);
    }
    memcpy(&cu, found, sizeof cu);
}

typedef struct state {
    double p[N], m[N], v[N];
    int64_t t;
} state;

/* Makes one step of AdamW in double. The loss is sum(p^2), so the gradient is 2 p. */
static void step_in_double(state *s, double lr) {
    s->t++;
    const double first = 1 - pow(hyper[1], (double)s->t), second = 1 - pow(hyper[2], (double)s->t);
    for (int i = 0; i < N; i++) {
        const double g = 2 * s->p[i];
        s->m[i] = hyper[1] * s->m[i] + (1 - hyper[1]) * g;
        s->v[i] = hyper[2] * s->v[i] + (1 - hyper[2]) * g * g;
        s->p[i] = s->p[i] * (1 - lr * hyper[4]) -
                  lr * (s->m[i] / first) / (sqrt(s->v[i] / second) + hyper[3]);
    }
}

typedef struct setting {
    cb_context *ctx;
    cb_graph *g;
    cb_step *step;
    void *stream, *p, *moment[MOMENTS], *loss;
    state expected;
} setting;

static void copy(setting *x, bool to_host, void *to, const void *from, size_t bytes) {
    CHECK_OK(cb_memory_copy(x->ctx, "cuda", x->stream, to_host, to, from, bytes, &err));
}

static void *block(setting *x, size_t bytes, const void *from) {
    void *at = NULL;
    CHECK_OK(cb_memory_alloc(x->ctx, "cuda", bytes, &at, &err));
    copy(x, false, at, from, bytes);
    return at;
}

/* Begins with loss = sum(p^2) or, with `drops`, with the loss after dropout of p. */
static void begin(setting *x, bool drops) {
    const cb_context_options options = {.n_threads = 1};
    const cb_shape line = {1, {N}};
    static const float zeros[N] = {0};
    uint32_t wrt[] = {0};
    const cb_compile_options compile = {.wrt = wrt, .n_wrt = 1, .keep_gradients = true};
    cb_value_id p, y, loss;
    void *context = NULL;
    float first[N];
    memset(x, 0, sizeof *x);
    CHECK_OK(cb_context_new(&options, &x->ctx, &err));
    CHECK_OK(cb_graph_new(x->ctx, &x->g, &err));
    CHECK_OK(cb_graph_append_input(x->g, "p", CB_ROLE_PARAM, CB_F32, &line, &p, &err));
    const cb_attrs half = {.f = {0.5}, .i = {3}};
    y = p;
    if (drops) CHECK_OK(cb_build(x->g, CB_OP_DROPOUT, 1, &p, &half, &y, &err));
    CHECK_OK(cb_build2(x->g, CB_OP_MUL, y, y, &y, &err));
    CHECK_OK(cb_build_sum(x->g, y, 0, NULL, false, &loss, &err));
    CHECK_OK(cb_graph_append_output(x->g, loss, "loss", CB_OUTPUT_RESULT, CB_NONE, &err));
    CHECK_OK(cb_compile(x->ctx, x->g, &compile, &x->step, &err));
    CHECK(cu.cuDevicePrimaryCtxRetain(&context, 0) == 0 && cu.cuCtxSetCurrent(context) == 0);
    CHECK(cu.cuStreamCreate(&x->stream, 1) == 0);
    for (int i = 0; i < N; i++) x->expected.p[i] = first[i] = (float)(i % 7) - 2.5f;
    x->p = block(x, sizeof first, first);
    for (int k = 0; k < MOMENTS; k++) x->moment[k] = block(x, sizeof zeros, zeros);
    x->loss = block(x, sizeof(float), zeros);
}

static void end(setting *x) {
    CHECK(cu.cuStreamSynchronize(x->stream) == 0);
    void *const blocks[] = {x->p, x->moment[0], x->moment[1], x->loss};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        cb_memory_free(x->ctx, "cuda", blocks[i]);
    cb_step_free(x->step);
    cb_graph_free(x->g);
    CHECK(cu.cuStreamDestroy_v2(x->stream) == 0);
    cb_context_free(x->ctx);
}

/* Makes a step through the public API. */
static void step_by(setting *x, const char *optimizer, double lr) {
    double numbers[sizeof hyper / sizeof *hyper];
    static const uint32_t group[] = {0};
    void *inputs[] = {x->p}, *outputs[] = {x->loss, NULL};
    void *params[] = {x->p}, *first[] = {x->moment[0]}, *second[] = {x->moment[1]},
         *none[] = {NULL};
    void *const *states[] = {first, second, none};
    memcpy(numbers, hyper, sizeof numbers);
    numbers[0] = lr;
    const cb_run run = {.inputs = inputs, .outputs = outputs, .stream = x->stream};
    const cb_update update = {.optimizer = cb_optimizer_find(optimizer),
                              .params = params,
                              .states = states,
                              .hyper = numbers,
                              .n_groups = 1,
                              .group = group,
                              .t = x->expected.t + 1};
    CHECK_OK(cb_step_check_update(x->step, &update, &err));
    CHECK_OK(cb_step_run(x->step, &run, NULL, &err));
    CHECK_OK(cb_step_update(x->step, &update, &err));
}

static void step_once(setting *x, double lr) {
    step_by(x, "adamw", lr);
    step_in_double(&x->expected, lr);
}

/* Does the same, below the check that refuses a captured stream. */
static cb_status put(setting *x) {
    const cb_backend *b = x->step->backend;
    CB_TRY(cb_step_pin(x->step, &err));
    void *inputs[] = {x->p}, *outputs[] = {x->loss, NULL};
    const cb_bindings bindings = {.stream = (cb_stream *)x->stream,
                                  .inputs = inputs,
                                  .outputs = outputs,
                                  .arena = x->step->pinned->data};
    const cb_optim_table table = {.optimizer = cb_optimizer_find("adamw"),
                                  .grad_factor = 1,
                                  .rows = x->step->rows,
                                  .hyper = hyper,
                                  .n_rows = 1,
                                  .n_groups = 1,
                                  .n_hyper = sizeof hyper / sizeof *hyper};
    cb_run_stats stats;
    CB_TRY(b->run(x->step->state, &bindings, &stats, &err));
    return b->update(x->step->device, x->step->state, (cb_stream *)x->stream, table.optimizer,
                     &table, &err);
}

static float loss_of(setting *x) {
    float loss;
    copy(x, true, &loss, x->loss, sizeof loss);
    return loss;
}

/* Runs without an update, with the random step given by the caller. */
static cb_status draw(setting *x, uint32_t random_step) {
    CB_TRY(cb_step_pin(x->step, &err));
    void *inputs[] = {x->p}, *outputs[] = {x->loss, NULL};
    const cb_bindings bindings = {.stream = (cb_stream *)x->stream,
                                  .inputs = inputs,
                                  .outputs = outputs,
                                  .arena = x->step->pinned->data,
                                  .seed = 5,
                                  .step = random_step};
    cb_run_stats stats;
    return x->step->backend->run(x->step->state, &bindings, &stats, &err);
}

static void compare(setting *x) {
    float p[N];
    copy(x, true, p, x->p, sizeof p);
    for (int i = 0; i < N; i++) CHECK(fabs(p[i] - x->expected.p[i]) < 1e-5);
}

static void *captured(setting *x, bool draws, void **graph) {
    void *executable = NULL;
    CHECK(cu.cuStreamBeginCapture_v2(x->stream, 0) == 0);
    CHECK_OK(draws ? draw(x, CAPTURED) : put(x));
    CHECK(cu.cuStreamEndCapture(x->stream, graph) == 0);
    CHECK(cu.cuGraphInstantiateWithFlags(&executable, *graph, 0) == 0);
    return executable;
}

static int64_t steps_on_device(setting *x, const cb_resident *r) {
    int64_t t = -1;
    copy(x, true, &t, (const void *)(uintptr_t)r->t, sizeof t);
    return t;
}

TEST(a_replay_is_a_step_more) {
    setting x;
    void *graph = NULL;
    cb_resident r;
    begin(&x, false);
    for (int i = 0; i < 2; i++) step_once(&x, hyper[0]);
    void *executable = captured(&x, false, &graph);
    compare(&x); /* nothing has run yet */
    for (int i = 0; i < 3; i++) {
        CHECK(cu.cuGraphLaunch(executable, x.stream) == 0);
        step_in_double(&x.expected, hyper[0]);
        compare(&x);
    }
    CHECK_OK(cb_step_resident(x.step, 0, &r, &err));
    CHECK(steps_on_device(&x, &r) == 5);

    /* a scheduler writes the learning rate: the first of the hyper-parameters */
    const double rates[] = {0.02, 0.3};
    for (int i = 0; i < 2; i++) {
        copy(&x, false, (void *)(uintptr_t)r.hyper, &rates[i], sizeof(double));
        CHECK(cu.cuGraphLaunch(executable, x.stream) == 0);
        step_in_double(&x.expected, rates[i]);
        compare(&x);
    }

    /* a scaler has found an infinite gradient: nothing is updated or counted */
    const uint32_t found[] = {1, 0};
    copy(&x, false, (void *)(uintptr_t)r.found_inf, &found[0], sizeof found[0]);
    CHECK(cu.cuGraphLaunch(executable, x.stream) == 0);
    compare(&x);
    CHECK(steps_on_device(&x, &r) == 7);
    copy(&x, false, (void *)(uintptr_t)r.found_inf, &found[1], sizeof found[1]);
    CHECK(cu.cuGraphLaunch(executable, x.stream) == 0);
    step_in_double(&x.expected, rates[1]);
    compare(&x);

    /* a normal step continues from the count that its caller gives */
    step_once(&x, 0.05);
    compare(&x);
    CHECK(steps_on_device(&x, &r) == 9);
    CHECK(cu.cuGraphExecDestroy(executable) == 0 && cu.cuGraphDestroy(graph) == 0);
    end(&x);
}

/* Copies parameters and moments of `from` to the device. */
static void restore(setting *x, const state *from) {
    void *const blocks[] = {x->p, x->moment[0], x->moment[1]};
    const double *const values[] = {from->p, from->m, from->v};
    for (int k = 0; k < 3; k++) {
        float narrowed[N];
        for (int i = 0; i < N; i++) narrowed[i] = (float)values[k][i];
        copy(x, false, blocks[k], narrowed, sizeof narrowed);
    }
    x->expected = *from;
}

/* Makes a step that is not captured, continuing from step `t` of a restored checkpoint. */
static void step_from(setting *x, int64_t t) {
    cb_resident r;
    state kept = x->expected;
    kept.t = t;
    restore(x, &kept);
    step_once(x, hyper[0]);
    compare(x);
    CHECK_OK(cb_step_resident(x->step, 0, &r, &err));
    CHECK(steps_on_device(x, &r) == t + 1);
}

/* After replays the host does not know the count on the device, even if the caller passes the value
 * that the host saw last: the count before the capture (2), that count with the captured update
 * (3), or that of an uncaptured step between replays (6). The same holds for the learning rate and
 * the gradient factor. */
TEST(a_step_after_replays_goes_on_from_what_its_caller_says) {
    const double rate = 0.7;
    for (int64_t t = 1; t <= 4; t++) {
        setting x;
        void *graph = NULL;
        cb_resident r;
        begin(&x, false);
        for (int i = 0; i < 2; i++) step_once(&x, hyper[0]);
        void *executable = captured(&x, false, &graph);
        CHECK_OK(cb_step_resident(x.step, 0, &r, &err));
        for (int i = 0; i < 3; i++) CHECK(cu.cuGraphLaunch(executable, x.stream) == 0);
        step_from(&x, t);
        step_from(&x, 5);
        for (int i = 0; i < 2; i++) CHECK(cu.cuGraphLaunch(executable, x.stream) == 0);
        copy(&x, false, (void *)(uintptr_t)r.hyper, &rate, sizeof rate);
        copy(&x, false, (void *)(uintptr_t)r.grad_factor, &rate, sizeof rate);
        step_from(&x, 6);
        CHECK(cu.cuGraphExecDestroy(executable) == 0 && cu.cuGraphDestroy(graph) == 0);
        end(&x);
    }
}

/* The first optimizer's count on the device may have been overwritten. */
TEST(another_optimizer_goes_on_from_what_its_caller_says) {
    const int64_t written = 40;
    setting x;
    cb_resident r;
    begin(&x, false);
    for (int i = 0; i < 2; i++) step_once(&x, hyper[0]);
    CHECK_OK(cb_step_resident(x.step, 0, &r, &err));
    copy(&x, false, (void *)(uintptr_t)r.t, &written, sizeof written);
    step_by(&x, "adam", hyper[0]);
    CHECK_OK(cb_step_resident(x.step, 0, &r, &err));
    CHECK(steps_on_device(&x, &r) == x.expected.t + 1);
    end(&x);
}

TEST(a_replay_draws_new_numbers) {
    enum { STEPS = 5, FIRST = 2 };
    setting x;
    void *graph = NULL;
    float expected[STEPS];
    int n_others = 0;
    begin(&x, true);
    for (uint32_t i = 0; i < STEPS; i++) {
        CHECK_OK(draw(&x, i));
        expected[i] = loss_of(&x);
        n_others += expected[i] != expected[0];
    }
    CHECK(n_others >= STEPS - 2); /* masks differ, and so do nearly all their sums */
    CHECK_OK(draw(&x, FIRST - 1));
    CHECK(loss_of(&x) == expected[FIRST - 1]);
    void *executable = captured(&x, true, &graph);
    for (int i = FIRST; i < STEPS; i++) {
        CHECK(cu.cuGraphLaunch(executable, x.stream) == 0);
        CHECK(loss_of(&x) == expected[i]);
    }
    CHECK_OK(draw(&x, CAPTURED + 1)); /* the step that a real run would have left on the device */
    const float next = loss_of(&x);
    CHECK_OK(draw(&x, 0));
    CHECK_OK(draw(&x, CAPTURED + 1));
    CHECK(loss_of(&x) == next);
    CHECK_OK(draw(&x, 3));
    CHECK(loss_of(&x) == expected[3]);

    /* After a replay the host does not know the device's step, whatever it was told before. */
    CHECK(cu.cuGraphLaunch(executable, x.stream) == 0);
    CHECK_OK(draw(&x, 4));
    CHECK(loss_of(&x) == expected[4]);
    CHECK(cu.cuGraphExecDestroy(executable) == 0 && cu.cuGraphDestroy(graph) == 0);
    end(&x);
}

/* A larger step in the same memory gets its own block; the graph replays in the pinned one. */
TEST(a_captured_graph_keeps_its_block) {
    const cb_shape line = {1, {100 * N}};
    const uint32_t wrt[] = {0};
    setting x;
    void *graph = NULL;
    cb_graph *g = NULL;
    cb_step *larger = NULL;
    cb_value_id p, y, loss;
    static float p_there[100 * N], loss_there;
    begin(&x, false);
    for (int i = 0; i < 2; i++) step_once(&x, hyper[0]);
    void *executable = captured(&x, false, &graph);
    const cb_compile_options compile = {
        .wrt = wrt, .n_wrt = 1, .keep_gradients = true, .memory = x.step->memory};
    CHECK_OK(cb_graph_new(x.ctx, &g, &err));
    CHECK_OK(cb_graph_append_input(g, "p", CB_ROLE_PARAM, CB_F32, &line, &p, &err));
    CHECK_OK(cb_build2(g, CB_OP_MUL, p, p, &y, &err));
    CHECK_OK(cb_build2(g, CB_OP_MUL, y, y, &y, &err));
    CHECK_OK(cb_build_sum(g, y, 0, NULL, false, &loss, &err));
    CHECK_OK(cb_graph_append_output(g, loss, "loss", CB_OUTPUT_RESULT, CB_NONE, &err));
    CHECK_OK(cb_compile(x.ctx, g, &compile, &larger, &err));
    CHECK(cb_step_growth(larger) > 0);
    const cb_run run = {
        .inputs = (void *[]){p_there}, .outputs = (void *[]){&loss_there, NULL}, .on_host = true};
    CHECK_OK(cb_step_run(larger, &run, NULL, &err));
    CHECK(cb_run_memory_bytes(x.step->memory) == cb_step_run_bytes(larger));
    for (int i = 0; i < 3; i++) {
        CHECK(cu.cuGraphLaunch(executable, x.stream) == 0);
        step_in_double(&x.expected, hyper[0]);
        CHECK_OK(cb_step_run(larger, &run, NULL, &err));
        compare(&x);
    }
    CHECK(cu.cuGraphExecDestroy(executable) == 0 && cu.cuGraphDestroy(graph) == 0);
    cb_step_free(larger);
    cb_graph_free(g);
    end(&x);
}

TEST(a_first_update_is_not_captured) {
    setting x;
    void *graph = NULL;
    cb_resident r;
    begin(&x, false);
    step_once(&x, hyper[0]);
    CHECK_FAIL(cb_step_resident(x.step, 1, &r, &err), CB_INVALID, "no update of group 1");
    x.step->rows[0].param = x.loss; /* another array, which the device's table does not have */
    x.step->rows[0].n = 1;
    CHECK(cu.cuStreamBeginCapture_v2(x.stream, 0) == 0);
    CHECK_FAIL(put(&x), CB_UNSUPPORTED, "update once before the capture begins");
    CHECK(cu.cuStreamEndCapture(x.stream, &graph) == 0);
    CHECK(cu.cuGraphDestroy(graph) == 0);
    compare(&x);
    end(&x);
}

int main(void) {
    open_entries();
    RUN(a_replay_is_a_step_more);
    RUN(a_step_after_replays_goes_on_from_what_its_caller_says);
    RUN(another_optimizer_goes_on_from_what_its_caller_says);
    RUN(a_replay_draws_new_numbers);
    RUN(a_captured_graph_keeps_its_block);
    RUN(a_first_update_is_not_captured);
    return check_report();
}
