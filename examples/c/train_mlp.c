/* train_mlp: trains a small network from C, in half the memory that saving everything would take.
 *
 *     x -> [dense, GELU] x 8 -> dense -> mean squared error;  AdamW, 50 steps
 *
 * Everything goes through cutback.h: build the forward graph, compile it under a budget, run it,
 * step the optimizer. Exits with 1 when the loss does not fall or the measured peak is above the
 * planned one. */
#include <cutback.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCH 128
#define WIDTH 32
#define LAYERS 8
#define STEPS 50
#define N_PARAMS (2 * (LAYERS + 1)) /* a matrix and a bias each */

/* Ends the program with the library's error text. */
static void check(cb_status status, const cb_error *err) {
    if (status == CB_OK) return;
    (void)fprintf(stderr, "%s: %s\n", cb_status_name(status), err->text);
    if (status == CB_INFEASIBLE && err->refusal.smallest_bytes > 0) {
        (void)fprintf(stderr, "a budget of %llu bytes can be met\n",
                      (unsigned long long)err->refusal.smallest_bytes);
    }
    exit(1);
}

/* ---- the forward graph
 * ---------------------------------------------------------------------------- */

static cb_value_id add_op(cb_graph *g, const char *name, cb_value_id x, cb_value_id y) {
    cb_error err;
    cb_value_id out, ins[2] = {x, y};
    check(cb_graph_add_op(g, name, y == CB_NONE ? 1 : 2, ins, NULL, 1, &out, &err), &err);
    return out;
}

static cb_value_id add_input(cb_graph *g, const char *name, cb_role role, cb_shape shape) {
    cb_error err;
    cb_value_id out;
    check(cb_graph_add_input(g, name, role, CB_F32, shape, &out, &err), &err);
    return out;
}

static cb_value_id add_dense(cb_graph *g, cb_value_id x, int64_t n_in, int64_t n_out) {
    cb_value_id weight = add_input(g, "weight", CB_ROLE_PARAM, (cb_shape){2, {n_in, n_out}});
    cb_value_id bias = add_input(g, "bias", CB_ROLE_PARAM, (cb_shape){1, {n_out}});
    return add_op(g, "add", add_op(g, "matmul", x, weight), bias);
}

/* Inputs in this order: x, target, then the parameters. */
static cb_graph *build(cb_context *ctx) {
    cb_error err;
    cb_graph *g;
    check(cb_graph_new(ctx, &g, &err), &err);
    cb_value_id x = add_input(g, "x", CB_ROLE_DATA, (cb_shape){2, {BATCH, WIDTH}});
    cb_value_id target = add_input(g, "target", CB_ROLE_DATA, (cb_shape){2, {BATCH, 1}});
    for (int layer = 0; layer < LAYERS; layer++) {
        x = add_op(g, "gelu", add_dense(g, x, WIDTH, WIDTH), CB_NONE);
    }
    cb_value_id difference = add_op(g, "sub", add_dense(g, x, WIDTH, 1), target);
    check(cb_graph_add_output(g,
                              add_op(g, "mean", add_op(g, "square", difference, CB_NONE), CB_NONE),
                              "loss", &err),
          &err);
    return g;
}

static cb_step *compile(cb_context *ctx) {
    cb_error err;
    cb_step *step;
    uint32_t wrt[N_PARAMS];
    for (uint32_t k = 0; k < N_PARAMS; k++) wrt[k] = 2 + k;
    const cb_compile_options options = {
        .wrt = wrt,
        .n_wrt = N_PARAMS,
        .budget = {.kind = CB_BUDGET_SHARE, .share = 0.5, .measure = CB_MEASURE_ARENA},
        .keep_gradients = true,
    };
    cb_graph *g = build(ctx);
    check(cb_compile(ctx, g, &options, &step, &err), &err);
    cb_graph_free(g);
    return step;
}

/* ---- data and parameters
 * -------------------------------------------------------------------------- */

static float uniform(void) { /* in (-1, 1), the same numbers each time */
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static float *new_array(uint64_t bytes, float scale) {
    float *data = malloc(bytes);
    if (!data) exit(1);
    for (uint64_t i = 0; i < bytes / sizeof *data; i++) data[i] = scale * uniform();
    return data;
}

/* target = sin(x0) + x1 * x2 */
static void fill_target(float *target, const float *x) {
    for (int row = 0; row < BATCH; row++, x += WIDTH) target[row] = sinf(3.0f * x[0]) + x[1] * x[2];
}

/* ---- training
 * ------------------------------------------------------------------------------------- */

static int train(cb_step *step, void *const *inputs, void *const *m, void *const *v) {
    static const uint32_t group[N_PARAMS];                         /* all in group 0 */
    static const double rates[7] = {3e-3, 0.9, 0.999, 1e-8, 0.01}; /* lr, betas, eps, decay */
    void *const *states[] = {m, v, v}; /* without amsgrad the third is ignored */
    cb_update update = {.optimizer = cb_optimizer_find("adamw"),
                        .params = inputs + 2,
                        .states = states,
                        .group = group,
                        .hyper = rates,
                        .n_groups = 1};
    const uint64_t planned = cb_step_get_numbers(step).arena_bytes;
    float loss = 0, first = 0;
    void *outputs[1 + N_PARAMS] = {&loss}; /* gradients stay inside the step */
    cb_error err;
    for (int t = 1; t <= STEPS; t++) {
        const cb_run run = {.inputs = inputs, .outputs = outputs, .random_step = (uint32_t)t};
        cb_run_result result;
        check(cb_step_run(step, &run, &result, &err), &err);
        update.t = t;
        check(cb_step_update(step, &update, &err), &err);
        if (t == 1) first = loss;
        if (t % 10 == 0 || t == 1) {
            printf("step %2d  loss %.5f  peak %llu bytes\n", t, (double)loss,
                   (unsigned long long)result.peak_bytes);
        }
        if (result.peak_bytes > planned) {
            (void)fprintf(stderr, "peak of %llu bytes, %llu were planned\n",
                          (unsigned long long)result.peak_bytes, (unsigned long long)planned);
            return 1;
        }
    }
    if (loss < 0.5f * first) return 0;
    (void)fprintf(stderr, "the loss went from %g to %g\n", (double)first, (double)loss);
    return 1;
}

int main(void) {
    cb_error err;
    cb_context *ctx;
    void *inputs[2 + N_PARAMS], *m[N_PARAMS], *v[N_PARAMS];
    check(cb_context_new(NULL, &ctx, &err), &err);
    cb_step *step = compile(ctx);
    const cb_step_numbers numbers = cb_step_get_numbers(step);
    printf("arena %llu bytes; saving everything takes %llu\n",
           (unsigned long long)numbers.arena_bytes,
           (unsigned long long)numbers.save_all_arena_bytes);

    for (uint32_t i = 0; i < 2 + N_PARAMS; i++) {
        const cb_argument_info info = cb_step_input(step, i);
        const bool is_matrix = i >= 2 && info.shape.rank == 2;
        inputs[i] = new_array(info.bytes, i < 2 ? 1.0f : is_matrix ? sqrtf(6.0f / WIDTH) : 0.0f);
        if (i < 2) continue;
        m[i - 2] = new_array(info.bytes, 0.0f);
        v[i - 2] = new_array(info.bytes, 0.0f);
    }
    fill_target(inputs[1], inputs[0]);
    int failed =
        train(step, inputs, m, v) || 2 * numbers.arena_bytes > numbers.save_all_arena_bytes;

    for (uint32_t i = 0; i < 2 + N_PARAMS; i++) free(inputs[i]);
    for (uint32_t k = 0; k < N_PARAMS; k++) {
        free(m[k]);
        free(v[k]);
    }
    cb_step_free(step);
    cb_context_free(ctx);
    return failed;
}
