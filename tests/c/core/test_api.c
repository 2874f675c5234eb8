/* The errors of the public functions for wrong arguments, and the optimizer step. */
#include "mlp.h"

static const mlp_size size = {.batch = 4, .width = 8, .depth = 2};
static cb_context *ctx;

TEST(context) {
    cb_context *other = NULL;
    int stand_in = 0;
    const cb_context_options negative = {.n_threads = -1},
                             odd = {.blas = {.sgemm = &stand_in, .int_bits = 16}};
    CHECK_FAIL(cb_context_new(&negative, &other, &err), CB_INVALID, "n_threads is -1");
    CHECK_FAIL(cb_context_new(&odd, &other, &err), CB_INVALID, "not 16");
    CHECK_OK(cb_context_new(NULL, &other, &err));
    CHECK(cb_context_threads(other) >= 1);
    CHECK_OK(cb_context_set_threads(other, 3, &err));
    CHECK(cb_context_threads(other) == 3);
    CHECK_FAIL(cb_context_set_threads(other, -2, &err), CB_INVALID, "-2");
    cb_context_free(other);
    cb_context_free(NULL);
}

TEST(graph_mistakes) {
    cb_graph *g = NULL;
    cb_value_id x = 0, y = 0;
    uint32_t region;
    const cb_shape a = {2, {4, 3}}, b = {2, {5, 3}};
    cb_shape negative = {1, {-1}}, deep = {9, {0}};
    CHECK_OK(cb_graph_new(ctx, &g, &err));
    CHECK_OK(cb_graph_add_input(g, "x", CB_ROLE_DATA, CB_F32, a, &x, &err));
    CHECK_OK(cb_graph_add_input(g, "y", CB_ROLE_DATA, CB_F32, b, &y, &err));
    const cb_value_id both[2] = {x, y}, absent[2] = {x, 99};
    cb_value_id out = 1234;
    CHECK_FAIL(cb_graph_add_op(g, "add", 2, both, NULL, 1, &out, &err), CB_INVALID, "(5,3)");
    CHECK_FAIL(cb_graph_add_op(g, "ad", 2, both, NULL, 1, &out, &err), CB_INVALID,
               "no op is called \"ad\"");
    CHECK_FAIL(cb_graph_add_op(g, "input", 0, NULL, NULL, 1, &out, &err), CB_INVALID,
               "cb_graph_add_input");
    CHECK_FAIL(cb_graph_add_op(g, "add", 2, absent, NULL, 1, &out, &err), CB_INVALID,
               "none with the id 99");
    CHECK_FAIL(cb_graph_add_gradients(g, 1, both, both, 2, absent, &out, &err), CB_INVALID,
               "none with the id");
    CHECK_FAIL(cb_graph_add_gradients(g, 2, both, absent, 1, both, &out, &err), CB_INVALID,
               "none with the id");
    CHECK_FAIL(cb_graph_add_op(g, "add", 2, both, NULL, 2, &out, &err), CB_INVALID,
               "has 1 outputs");
    CHECK_FAIL(cb_graph_add_op(g, "add", 1, both, NULL, 1, &out, &err), CB_INVALID, "add");
    CHECK_FAIL(cb_graph_add_input(g, "z", CB_ROLE_DATA, CB_F32, negative, &out, &err), CB_INVALID,
               "-1");
    CHECK_FAIL(cb_graph_add_input(g, "z", CB_ROLE_DATA, CB_F32, deep, &out, &err), CB_INVALID, "");
    CHECK_FAIL(cb_graph_add_input(g, "z", (cb_role)7, CB_F32, a, &out, &err), CB_INVALID, "role");
    CHECK_FAIL(cb_graph_add_input(g, "z", CB_ROLE_DATA, (cb_dtype)77, a, &out, &err), CB_TYPE,
               "77");
    CHECK_FAIL(cb_graph_add_output(g, 99, "loss", &err), CB_INVALID, "99");
    CHECK_FAIL(cb_graph_add_state(g, 5, x, &err), CB_INVALID, "but none at 5");
    CHECK_FAIL(cb_graph_add_state(g, 0, y, &err), CB_INVALID, "(5,3)");
    CHECK_OK(cb_graph_add_state(g, 0, x, &err));
    CHECK_FAIL(cb_graph_add_state(g, 0, x, &err), CB_INVALID, "already has a new value");
    CHECK_FAIL(cb_graph_set_region(g, 0, &err), CB_INVALID, "none with the id 0");
    CHECK_FAIL(cb_graph_add_region(g, "r", 4, UINT64_MAX, &region, &err), CB_INVALID, "region 4");
    CHECK_FAIL(cb_graph_constrain(g, 99, CB_MUST_SAVE, &err), CB_INVALID, "99");
    CHECK_FAIL(cb_graph_constrain(g, x, (cb_constraint)99, &err), CB_INVALID, "unknown constraint");
    CHECK(out == 1234);
    cb_dtype dtype;
    cb_shape shape;
    CHECK_OK(cb_graph_value_info(g, y, &dtype, &shape, &err));
    CHECK(dtype == CB_F32 && shape.rank == 2 && shape.dim[0] == 5);
    CHECK_FAIL(cb_graph_value_info(g, 99, &dtype, &shape, &err), CB_INVALID, "99");
    cb_graph_free(g);
}

TEST(graph_text) {
    mlp_builder b;
    cb_graph *again = NULL;
    char *text = NULL, *text2 = NULL;
    CHECK_OK(mlp_build(ctx, size, &b, &err));
    CHECK_OK(cb_graph_to_text(b.g, &text, &err));
    CHECK_OK(cb_graph_from_text(ctx, text, strlen(text), &again, &err));
    CHECK_OK(cb_graph_to_text(again, &text2, &err));
    CHECK(strcmp(text, text2) == 0);
    CHECK(cb_graph_from_text(ctx, "nonsense", 8, &again, &err) == CB_INVALID);
    cb_text_free(ctx, text);
    cb_text_free(ctx, text2);
    cb_graph_free(again);
    cb_graph_free(b.g);
}

TEST(compile_mistakes) {
    mlp_builder b;
    cb_step *step = NULL;
    CHECK_OK(mlp_build(ctx, size, &b, &err));
    cb_compile_options o = {.wrt = b.wrt, .n_wrt = b.n_wrt};
    cb_compile_options bad = o;
    CHECK_FAIL(cb_compile(ctx, b.g, NULL, &step, &err), CB_INVALID, "NULL");
    bad.backend = "gpu";
    CHECK_FAIL(cb_compile(ctx, b.g, &bad, &step, &err), CB_INVALID, "no backend is called \"gpu\"");
    bad = o;
    bad.device = "abacus";
    CHECK_FAIL(cb_compile(ctx, b.g, &bad, &step, &err), CB_INVALID,
               "no device is called \"abacus\"");
    bad = o;
    bad.preset = (cb_preset)99;
    CHECK_FAIL(cb_compile(ctx, b.g, &bad, &step, &err), CB_INVALID, "unknown preset");
    bad = o;
    bad.budget.measure = (cb_measure)99;
    CHECK_FAIL(cb_compile(ctx, b.g, &bad, &step, &err), CB_INVALID, "unknown measure");
    bad = o;
    bad.wrt = NULL;
    CHECK_FAIL(cb_compile(ctx, b.g, &bad, &step, &err), CB_INVALID, "wrt is NULL");
    const uint32_t beyond[] = {1000};
    bad.wrt = beyond;
    bad.n_wrt = 1;
    CHECK(cb_compile(ctx, b.g, &bad, &step, &err) == CB_INVALID);
    cb_graph *joint = NULL; /* the reader accepts it, but nothing is left to differentiate */
    const char *text = "cutback.graph 1\n%0 = input {role=param, name=\"w\"} : f32[]\n"
                       "%1 = square(%0) : f32[]\n--- backward\n%2 = neg(%0) : f32[]\n"
                       "output \"loss\" %1 result\noutput \"w\" %2 grad input=0\n";
    CHECK_OK(cb_graph_from_text(ctx, text, strlen(text), &joint, &err));
    CHECK_FAIL(cb_compile(ctx, joint, &(cb_compile_options){0}, &step, &err), CB_INVALID,
               "needs a forward graph");
    cb_graph_free(joint);
    bad = o;
    bad.plan_json = "{}";
    CHECK(cb_compile(ctx, b.g, &bad, &step, &err) == CB_INVALID);
    CHECK(step == NULL);
    cb_graph_free(b.g);
}

TEST(forward_only) {
    mlp_builder b;
    cb_step *step = NULL;
    mlp_memory memory;
    CHECK_OK(mlp_build(ctx, size, &b, &err));
    CHECK_OK(cb_compile(ctx, b.g, &(cb_compile_options){0}, &step, &err));
    cb_graph_free(b.g);
    CHECK(cb_step_n_outputs(step) == 2);
    mlp_memory_init(&memory, step);
    cb_run run = mlp_run(&memory);
    CHECK_OK(cb_step_run(step, &run, NULL, &err));
    CHECK(*(float *)memory.outputs[0] > 0);
    mlp_memory_free(&memory);
    cb_step_free(step);
}

TEST(binding_mistakes) {
    cb_step *step = NULL;
    mlp_memory memory;
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){0}, &step, &err));
    mlp_memory_init(&memory, step);
    cb_run run = mlp_run(&memory);
    CHECK_OK(cb_step_run(step, &run, NULL, &err));
    CHECK_FAIL(cb_step_run(step, NULL, NULL, &err), CB_INVALID, "NULL");
    run.inputs = NULL;
    CHECK_FAIL(cb_step_run(step, &run, NULL, &err), CB_INVALID, "a list is NULL");
    run = mlp_run(&memory);

    void *kept = memory.inputs[1];
    memory.inputs[1] = NULL;
    CHECK_FAIL(cb_step_run(step, &run, NULL, &err), CB_INVALID,
               "input \"target\": no memory given");
    memory.inputs[1] = (char *)kept + 2;
    CHECK_FAIL(cb_step_run(step, &run, NULL, &err), CB_INVALID,
               "input \"target\": f32 at an address that is not a multiple of 4");
    memory.inputs[1] = memory.inputs[0]; /* read-only arguments may be shared */
    CHECK_OK(cb_step_run(step, &run, NULL, &err));
    memory.inputs[1] = kept;

    uint32_t gradient = memory.n_outputs - 1;
    kept = memory.outputs[gradient];
    memory.outputs[gradient] = NULL;
    CHECK_FAIL(cb_step_run(step, &run, NULL, &err), CB_INVALID, "no memory given");
    memory.outputs[gradient] = memory.inputs[0];
    CHECK_FAIL(cb_step_run(step, &run, NULL, &err), CB_INVALID, "overlap in memory");
    CHECK(strstr(err.text, "input \"x\"") && strstr(err.text, "output \"shift\""));
    memory.outputs[gradient] = memory.outputs[gradient - 1];
    CHECK_FAIL(cb_step_run(step, &run, NULL, &err), CB_INVALID, "overlap in memory");
    memory.outputs[gradient] = kept;
    uint32_t state = cb_step_output(step, 1).input;
    kept = memory.inputs[state];
    memory.inputs[state] = memory.inputs[0]; /* a state is written at the end */
    CHECK_FAIL(cb_step_run(step, &run, NULL, &err), CB_INVALID, "overlap in memory");
    memory.inputs[state] = kept;
    CHECK_OK(cb_step_run(step, &run, NULL, &err));
    CHECK(cb_step_input(step, 1000).name == NULL && cb_step_output(step, 1000).name == NULL);
    char *text = NULL;
    CHECK_FAIL(cb_step_text(step, "poem", &text, &err), CB_INVALID, "unknown name \"poem\"");
    mlp_memory_free(&memory);
    cb_step_free(step);
}

/* Updates one tensor by the formula, in double. */
static void adamw_twin(float *p, const float *g, size_t n, const double *hyper) {
    const double lr = hyper[0], beta1 = hyper[1], beta2 = hyper[2], eps = hyper[3],
                 decay = hyper[4];
    for (size_t i = 0; i < n; i++) {
        double m = (1 - beta1) * (double)g[i] / (1 - beta1),
               v = (1 - beta2) * (double)g[i] * (double)g[i] / (1 - beta2);
        p[i] = (float)((double)p[i] * (1 - lr * decay) - lr * m / (sqrt(v) + eps));
    }
}

static void refuse_update(cb_step *step, const cb_update *update, const char *text) {
    CHECK_FAIL(cb_step_check_update(step, update, &err), CB_INVALID, text);
    CHECK_FAIL(cb_step_update(step, update, &err), CB_INVALID, text);
}

/* Changes one thing at a time in a valid update with two states and two groups. */
static void refuse_updates(cb_step *step, const cb_update *good) {
    void **second = (void **)good->states[1], *kept = second[2];
    void *const *half[] = {good->states[0], NULL, good->states[2]};
    cb_update bad = *good;
    refuse_update(step, NULL, "no update given");
    second[2] = second[1];
    refuse_update(step, good, "overlap in memory");
    second[2] = NULL;
    refuse_update(step, good, "no memory given");
    second[2] = kept;
    bad.n_groups = 1;
    refuse_update(step, &bad, "is in group 1");
    bad = *good;
    bad.hyper = NULL;
    refuse_update(step, &bad, "hyper is NULL");
    bad = *good;
    bad.states = NULL;
    refuse_update(step, &bad, "a list is NULL");
    bad.states = half;
    refuse_update(step, &bad, "a list is NULL");
    bad = *good;
    bad.optimizer = NULL;
    refuse_update(step, &bad, "no optimizer given");
}

TEST(optimizer_step) {
    enum { N = 8 }; /* four parameters per layer */
    cb_step *outside = NULL, *inside = NULL;
    mlp_memory memory, memory2;
    const double groups[2][7] = {{1e-2, 0.9, 0.999, 1e-8, 0.1}, {1e-3, 0.9, 0.99, 1e-8, 0.0}};
    uint32_t group[N];
    void *params[N], *m[N], *v[N];
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){0}, &outside, &err));
    CHECK_OK(mlp_compile(ctx, size, (cb_compile_options){.keep_gradients = true}, &inside, &err));
    mlp_memory_init(&memory, outside);
    mlp_memory_init(&memory2, inside);
    cb_run run = mlp_run(&memory), run2 = mlp_run(&memory2);
    void *unused[N] = {0};
    void *const *states[] = {m, v, unused};
    cb_update update = {.optimizer = cb_optimizer_find("adamw"),
                        .params = params,
                        .states = states,
                        .group = group,
                        .hyper = groups[0],
                        .n_groups = 2,
                        .t = 1,
                        .on_host = true};
    for (uint32_t k = 0; k < N; k++) {
        cb_argument_info info = cb_step_output(inside, memory2.n_outputs - N + k);
        CHECK(info.inside && info.role_or_kind == 2 && !memory2.outputs[memory2.n_outputs - N + k]);
        params[k] = memory2.inputs[info.input];
        m[k] = calloc(1, info.bytes);
        v[k] = calloc(1, info.bytes);
        group[k] = k % 2;
    }
    CHECK_FAIL(cb_step_update(outside, &update, &err), CB_INVALID, "without keep_gradients");
    CHECK_FAIL(cb_step_update(inside, &update, &err), CB_INVALID, "run the step first");
    CHECK_OK(cb_step_run(outside, &run, NULL, &err));
    CHECK_OK(cb_step_run(inside, &run2, NULL, &err));
    CHECK_OK(cb_step_check_update(inside, &update, &err));
    refuse_updates(inside, &update);
    uint64_t n_alloc = cb_context_memory(ctx).n_alloc;
    CHECK_OK(cb_step_update(inside, &update, &err));
    CHECK(cb_context_memory(ctx).n_alloc == n_alloc);
    for (uint32_t k = 0; k < N; k++) {
        uint32_t output = memory.n_outputs - N + k;
        cb_argument_info info = cb_step_output(outside, output);
        float *want = memory.inputs[info.input];
        adamw_twin(want, memory.outputs[output], info.bytes / 4, groups[group[k]]);
        float worst = 0;
        for (size_t i = 0; i < info.bytes / 4; i++) {
            worst = fmaxf(worst, fabsf(want[i] - ((float *)params[k])[i]));
        }
        CHECK(worst < 1e-6f);
        free(m[k]);
        free(v[k]);
    }
    mlp_memory_free(&memory);
    mlp_memory_free(&memory2);
    cb_step_free(outside);
    cb_step_free(inside);
}

TEST(half_precision_parameters_are_not_stepped) {
    cb_graph *g = NULL;
    cb_value_id w, loss;
    cb_step *step = NULL;
    const cb_shape four = {1, {4}};
    const uint32_t wrt[] = {0}, group[] = {0};
    uint16_t data[4] = {0}, out = 0, m[4], v[4];
    CHECK_OK(cb_graph_new(ctx, &g, &err));
    CHECK_OK(cb_graph_add_input(g, "w", CB_ROLE_PARAM, CB_BF16, four, &w, &err));
    CHECK_OK(cb_graph_add_op(g, "mean", 1, &w, NULL, 1, &loss, &err));
    CHECK_OK(cb_graph_add_output(g, loss, "loss", &err));
    CHECK_OK(cb_compile(ctx, g,
                        &(cb_compile_options){.wrt = wrt, .n_wrt = 1, .keep_gradients = true},
                        &step, &err));
    void *inputs[] = {data}, *outputs[] = {&out, NULL}, *ms[] = {m}, *vs[] = {v};
    const cb_run run = {.inputs = inputs, .outputs = outputs, .on_host = true};
    const double options[7] = {1e-2, 0.9, 0.999, 1e-8, 0.1};
    void *const *states[] = {ms, vs, ms};
    const cb_update update = {.optimizer = cb_optimizer_find("adamw"),
                              .params = inputs,
                              .states = states,
                              .group = group,
                              .hyper = options,
                              .n_groups = 1,
                              .t = 1,
                              .on_host = true};
    CHECK_FAIL(cb_step_check_update(step, &update, &err), CB_UNSUPPORTED,
               "parameter \"w\" is bf16");
    CHECK_OK(cb_step_run(step, &run, NULL, &err));
    CHECK_FAIL(cb_step_update(step, &update, &err), CB_UNSUPPORTED, "parameter \"w\" is bf16");
    cb_step_free(step);
    cb_graph_free(g);
}

int main(void) {
    CHECK_OK(cb_context_new(NULL, &ctx, &err));
    RUN(context);
    uint64_t before = cb_context_memory(ctx).live_bytes;
    RUN(graph_mistakes);
    RUN(graph_text);
    RUN(compile_mistakes);
    RUN(forward_only);
    RUN(binding_mistakes);
    RUN(optimizer_step);
    RUN(half_precision_parameters_are_not_stepped);
    CHECK(cb_context_memory(ctx).live_bytes == before);
    cb_context_free(ctx);
    return check_report();
}
