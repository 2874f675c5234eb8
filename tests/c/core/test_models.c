/* The demo's two models at small size: a transformer, and a convolutional net with batch norm and
 * running statistics. Every plan gives the same bits in the planned memory, and the slow twin
 * agrees with the kernels. */
#include <stdlib.h>

#include "include/cutback.h"

#include "base/sanitize.h"
#include "check.h"

#define MAX_ARGS 64

static cb_context *ctx;

/* ---- building: the first failure is reported, and what follows does nothing -------------------
 */

typedef struct net {
    cb_graph *g;
    uint32_t n_inputs, n_wrt, wrt[MAX_ARGS];
    bool failed;
} net;

static cb_shape shape_of(int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    return (cb_shape){rank, {a, b, c, d}};
}

static cb_value_id input(net *n, cb_role role, cb_dtype dtype, cb_shape shape) {
    cb_value_id out = CB_NONE;
    if (n->failed) return CB_NONE;
    if (role == CB_ROLE_PARAM) n->wrt[n->n_wrt++] = n->n_inputs;
    n->n_inputs++;
    cb_status status = cb_graph_add_input(n->g, "", role, dtype, shape, &out, &err);
    CHECK_OK(status);
    n->failed = status != CB_OK;
    return out;
}

static cb_value_id param(net *n, cb_shape shape) { return input(n, CB_ROLE_PARAM, CB_F32, shape); }

static void ops(net *n, const char *name, uint32_t n_ins, const cb_value_id *ins,
                const cb_attrs *attrs, uint32_t n_outs, cb_value_id *outs) {
    for (uint32_t k = 0; k < n_outs; k++) outs[k] = CB_NONE;
    if (n->failed) return;
    cb_status status = cb_graph_add_op(n->g, name, n_ins, ins, attrs, n_outs, outs, &err);
    CHECK_OK(status);
    n->failed = status != CB_OK;
}

static cb_value_id op1(net *n, const char *name, cb_value_id x, cb_attrs attrs) {
    cb_value_id out;
    ops(n, name, 1, &x, &attrs, 1, &out);
    return out;
}

static cb_value_id op2(net *n, const char *name, cb_value_id x, cb_value_id y) {
    const cb_value_id ins[2] = {x, y};
    cb_value_id out;
    ops(n, name, 2, ins, NULL, 1, &out);
    return out;
}

static cb_value_id scaled(net *n, cb_value_id x, double factor) {
    const cb_attrs attrs = {.f = {factor}, .dtype = CB_F32};
    cb_value_id scale;
    ops(n, "full", 0, NULL, &attrs, 1, &scale);
    return op2(n, "mul", x, scale);
}

static void loss_of(net *n, cb_value_id logits, cb_value_id labels) {
    const cb_value_id ins[2] = {logits, labels};
    const cb_attrs attrs = {.i = {-100}};
    cb_value_id outs[2];
    ops(n, "cross_entropy", 2, ins, &attrs, 2, outs);
    cb_value_id loss = op1(n, "mean", outs[0], (cb_attrs){0});
    if (!n->failed) CHECK_OK(cb_graph_add_output(n->g, loss, "loss", &err));
}

/* ---- the transformer --------------------------------------------------------------------------
 */

enum { BATCH = 2, TIME = 6, HEADS = 2, CHANNELS = 8, VOCABULARY = 11, LAYERS = 3 };

static cb_value_id norm(net *n, cb_value_id x) {
    const cb_value_id ins[3] = {x, param(n, shape_of(1, CHANNELS, 0, 0, 0)),
                                param(n, shape_of(1, CHANNELS, 0, 0, 0))};
    const cb_attrs attrs = {.f = {1e-5}};
    cb_value_id outs[3];
    ops(n, "layer_norm", 3, ins, &attrs, 3, outs);
    return outs[0];
}

/* Returns part `which` of q, k, v as [batch, heads, time, channels / heads]. */
static cb_value_id head(net *n, cb_value_id qkv, int which) {
    const cb_attrs slice = {.i = {2, which * CHANNELS, (which + 1) * CHANNELS, 1}};
    const cb_attrs split = {.dims = shape_of(4, BATCH, TIME, HEADS, CHANNELS / HEADS)};
    return op1(n, "transpose", op1(n, "reshape", op1(n, "slice", qkv, slice), split),
               (cb_attrs){.dims = shape_of(4, 0, 2, 1, 3)});
}

static cb_value_id dropout(net *n, cb_value_id x, int stream) {
    return op1(n, "dropout", x, (cb_attrs){.f = {0.2}, .i = {stream}});
}

static cb_value_id attention(net *n, cb_value_id x, int layer) {
    cb_value_id qkv = op2(n, "matmul", x, param(n, shape_of(2, CHANNELS, 3 * CHANNELS, 0, 0)));
    cb_value_id q = head(n, qkv, 0), k = head(n, qkv, 1), v = head(n, qkv, 2);
    cb_value_id k_t = op1(n, "transpose", k, (cb_attrs){.dims = shape_of(4, 0, 1, 3, 2)});
    cb_value_id scores = scaled(n, op2(n, "matmul", q, k_t), 0.5);
    cb_value_id causal = op1(n, "tril", scores, (cb_attrs){.f = {-INFINITY}});
    cb_value_id weights = dropout(n, op1(n, "softmax", causal, (cb_attrs){0}), 3 * layer);
    cb_value_id mixed = op1(n, "transpose", op2(n, "matmul", weights, v),
                            (cb_attrs){.dims = shape_of(4, 0, 2, 1, 3)});
    cb_value_id joined =
        op1(n, "reshape", mixed, (cb_attrs){.dims = shape_of(3, BATCH, TIME, CHANNELS, 0)});
    cb_value_id out = op2(n, "matmul", joined, param(n, shape_of(2, CHANNELS, CHANNELS, 0, 0)));
    return dropout(n, out, 3 * layer + 1);
}

static cb_value_id feed_forward(net *n, cb_value_id x, int layer) {
    cb_value_id wide = op2(n, "matmul", x, param(n, shape_of(2, CHANNELS, 4 * CHANNELS, 0, 0)));
    wide = op2(n, "add", wide, param(n, shape_of(1, 4 * CHANNELS, 0, 0, 0)));
    wide = op1(n, "gelu_tanh", wide, (cb_attrs){0});
    return dropout(n, op2(n, "matmul", wide, param(n, shape_of(2, 4 * CHANNELS, CHANNELS, 0, 0))),
                   3 * layer + 2);
}

static void transformer(net *n) {
    cb_value_id tokens = input(n, CB_ROLE_DATA, CB_I64, shape_of(2, BATCH, TIME, 0, 0));
    cb_value_id labels = input(n, CB_ROLE_DATA, CB_I64, shape_of(2, BATCH, TIME, 0, 0));
    cb_value_id table = param(n, shape_of(2, VOCABULARY, CHANNELS, 0, 0));
    cb_value_id x = op2(n, "add", op2(n, "embedding", table, tokens),
                        param(n, shape_of(2, TIME, CHANNELS, 0, 0)));
    for (int layer = 0; layer < LAYERS; layer++) {
        x = op2(n, "add", x, attention(n, norm(n, x), layer));
        x = op2(n, "add", x, feed_forward(n, norm(n, x), layer));
    }
    cb_value_id head_t =
        op1(n, "transpose", table, (cb_attrs){.dims = shape_of(2, 1, 0, 0, 0)}); /* tied */
    loss_of(n, op2(n, "matmul", norm(n, x), head_t), labels);
}

/* ---- the convolutional net --------------------------------------------------------------------
 */

enum { IMAGES = 3, SIDE = 12, CLASSES = 5 };

/* Builds y = batch_norm(conv(x)); the running mean and variance are states. */
static cb_value_id conv_block(net *n, cb_value_id x, int64_t from, int64_t to, int64_t stride) {
    cb_value_id w = param(n, shape_of(4, to, from, 3, 3)), outs[4];
    const cb_value_id conv_ins[2] = {x, w};
    const cb_attrs conv = {.i = {stride, stride, 1, 1, 1, 1, 1}}, eps = {.f = {1e-5}};
    ops(n, "conv2d", 2, conv_ins, &conv, 1, &x);
    const cb_value_id ins[3] = {x, param(n, shape_of(1, to, 0, 0, 0)),
                                param(n, shape_of(1, to, 0, 0, 0))};
    ops(n, "batch_norm", 3, ins, &eps, 4, outs);
    for (int k = 1; k < 3; k++) {
        uint32_t position = n->n_inputs;
        cb_value_id running = input(n, CB_ROLE_STATE, CB_F32, shape_of(1, to, 0, 0, 0));
        cb_value_id fresh = op2(n, "add", scaled(n, running, 0.9), scaled(n, outs[k], 0.1));
        if (!n->failed) CHECK_OK(cb_graph_add_state(n->g, position, fresh, &err));
    }
    return op1(n, "relu", outs[0], (cb_attrs){0});
}

static void convolutional(net *n) {
    cb_value_id x = input(n, CB_ROLE_DATA, CB_F32, shape_of(4, IMAGES, 2, SIDE, SIDE));
    cb_value_id labels = input(n, CB_ROLE_DATA, CB_I64, shape_of(1, IMAGES, 0, 0, 0));
    const cb_attrs window = {.i = {2, 2, 2, 2, 0, 0}};
    cb_value_id pooled[2];
    x = conv_block(n, x, 2, 4, 1);
    for (int k = 0; k < 6; k++) x = conv_block(n, x, 4, 4, 1);
    ops(n, "max_pool2d", 1, &x, &window, 2, pooled);
    x = conv_block(n, pooled[0], 4, 6, 1);
    x = op1(n, "avg_pool2d", x, window);
    x = dropout(n, conv_block(n, x, 6, 8, 2), 1);
    x = op1(n, "reshape", x, (cb_attrs){.dims = shape_of(2, IMAGES, 8 * 2 * 2, 0, 0)});
    x = op2(n, "matmul", x, param(n, shape_of(2, 8 * 2 * 2, CLASSES, 0, 0)));
    loss_of(n, op2(n, "add", x, param(n, shape_of(1, CLASSES, 0, 0, 0))), labels);
}

/* ---- running ----------------------------------------------------------------------------------
 */

/* All results, new states and gradients of one run, concatenated. */
typedef struct outcome {
    float *data;
    size_t n;
    cb_step_numbers numbers;
    uint64_t peak;
} outcome;

static void *new_input(cb_argument_info info, uint32_t argument) {
    size_t size = info.dtype == CB_I64 ? 8 : 4, n = info.bytes / size;
    void *data = malloc(info.bytes);
    for (size_t i = 0; i < n; i++) {
        uint32_t number = (uint32_t)(i * 2654435761u + argument * 40503u) >> 7;
        if (info.dtype == CB_I64) {
            ((int64_t *)data)[i] = number % CLASSES; /* also below the size of the vocabulary */
        } else {
            ((float *)data)[i] = (float)(number % 2001u) / 2000.0f - 0.5f;
        }
    }
    return data;
}

static outcome collect(const cb_step *step, void *const *inputs, void *const *outputs) {
    outcome out = {.numbers = cb_step_get_numbers(step)};
    for (uint32_t i = 0; i < cb_step_n_outputs(step); i++)
        out.n += cb_step_output(step, i).bytes / 4;
    out.data = malloc(4 * out.n);
    size_t at = 0;
    for (uint32_t i = 0; i < cb_step_n_outputs(step); i++) {
        cb_argument_info info = cb_step_output(step, i);
        memcpy(out.data + at, info.inside ? inputs[info.input] : outputs[i], info.bytes);
        at += info.bytes / 4;
    }
    return out;
}

static outcome run_model(void (*build)(net *), cb_compile_options options) {
    net n = {0};
    cb_step *step = NULL;
    void *inputs[MAX_ARGS] = {0}, *outputs[MAX_ARGS] = {0};
    CHECK_OK(cb_graph_new(ctx, &n.g, &err));
    build(&n);
    options.wrt = n.wrt;
    options.n_wrt = n.n_wrt;
    if (!n.failed) CHECK_OK(cb_compile(ctx, n.g, &options, &step, &err));
    cb_graph_free(n.g);
    if (!step) return (outcome){0};
    for (uint32_t i = 0; i < cb_step_n_inputs(step); i++)
        inputs[i] = new_input(cb_step_input(step, i), i);
    for (uint32_t i = 0; i < cb_step_n_outputs(step); i++) {
        outputs[i] = cb_step_output(step, i).inside ? NULL : malloc(cb_step_output(step, i).bytes);
    }
    const cb_run run = {
        .inputs = inputs, .outputs = outputs, .on_host = true, .seed = 9, .random_step = 1};
    cb_run_result result = {0};
    CHECK_OK(cb_step_run(step, &run, &result, &err));
    outcome out = collect(step, inputs, outputs);
    out.peak = result.peak_bytes;
    for (uint32_t i = 0; i < MAX_ARGS; i++) {
        free(inputs[i]);
        free(outputs[i]);
    }
    cb_step_free(step);
    return out;
}

static bool same_bits(const outcome *a, const outcome *b) {
    return a->n == b->n && a->n > 0 && memcmp(a->data, b->data, 4 * a->n) == 0;
}

static void check_plans(void (*build)(net *)) {
    outcome want = run_model(build, (cb_compile_options){0});
    const double shares[] = {0.6, 0.75, 0.9};
    const bool slow = CB_TSAN; /* thread safety does not depend on the plan */
    for (int n_threads = slow ? 2 : 1; n_threads <= 2; n_threads++) {
        CHECK_OK(cb_context_set_threads(ctx, n_threads, &err));
        const int step = slow ? CB_PRESET_COUNT : 2 * n_threads - 1; /* two threads: some plans */
        for (int preset = 0; preset < CB_PRESET_COUNT; preset += step) {
            outcome cpu = run_model(build, (cb_compile_options){.preset = (cb_preset)preset});
            CHECK(same_bits(&want, &cpu) && cpu.peak == cpu.numbers.arena_bytes);
            outcome debug = run_model(
                build, (cb_compile_options){.preset = (cb_preset)preset, .backend = "debug"});
            CHECK(same_bits(&want, &debug) && debug.peak == debug.numbers.live_bytes);
            free(cpu.data);
            free(debug.data);
        }
        for (int k = slow ? 2 : n_threads - 1; k < 3; k += n_threads) { /* with two threads: one */
            const cb_budget budget = {.kind = CB_BUDGET_SHARE, .share = shares[k]};
            outcome cpu = run_model(build, (cb_compile_options){.budget = budget});
            CHECK(same_bits(&want, &cpu) && cpu.peak <= cpu.numbers.budget_bytes);
            free(cpu.data);
        }
    }
    free(want.data);
}

static void check_twin(void (*build)(net *)) {
    outcome cpu = run_model(build, (cb_compile_options){0});
    outcome ref =
        run_model(build, (cb_compile_options){.backend = "ref", .preset = CB_PRESET_RECOMPUTE_ALL});
    float largest = 0, worst = 0;
    CHECK(cpu.n == ref.n && cpu.n > 0);
    for (size_t i = 0; i < cpu.n; i++) {
        largest = fmaxf(largest, fabsf(ref.data[i]));
        worst = fmaxf(worst, fabsf(ref.data[i] - cpu.data[i]));
    }
    CHECK(isfinite(largest) && largest > 0 && worst <= 1e-5f * largest);
    free(cpu.data);
    free(ref.data);
}

TEST(transformer_plans) { check_plans(transformer); }
TEST(transformer_twin) { check_twin(transformer); }
TEST(convolutional_plans) { check_plans(convolutional); }
TEST(convolutional_twin) { check_twin(convolutional); }

int main(void) {
    CHECK_OK(cb_context_new(NULL, &ctx, &err));
    uint64_t before = cb_context_memory(ctx).live_bytes;
    RUN(transformer_plans);
    RUN(convolutional_plans);
    if (!CB_TSAN) RUN(transformer_twin);
    if (!CB_TSAN) RUN(convolutional_twin);
    CHECK_OK(cb_context_set_threads(ctx, 0, &err));
    CHECK(cb_context_memory(ctx).live_bytes == before);
    cb_context_free(ctx);
    return check_report();
}
