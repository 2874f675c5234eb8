/* Fused groups on the cuda backend give the bits of the cpu backend: pointwise chains, rows,
 * statistics, sums over columns, over pieces and over everything, dropout and masks, with
 * gradients; rows of one leaf and of several, of odd length, and all kinds of broadcasts. Runs in
 * several orders of threads, blocks and operations, with race detection. */
#include <math.h>

#include "base/sanitize.h"
#include "check.h"
#include "gpu.h"
#include "ir/builder.h"
#include "numbers.h"

#define MANY 32

static cb_context *ctx;
static gpu_hooks hooks;

typedef struct model {
    cb_graph *g;
    int64_t rows, columns;
    cb_dtype dtype;
    cb_value_id in[MANY], out[MANY];
    uint32_t n_in, n_out, wrt[MANY], n_wrt;
    cb_status status;
} model;

static cb_value_id input(model *m, cb_dtype dtype, cb_shape shape) {
    cb_value_id id = 0;
    if (dtype == CB_F32) dtype = m->dtype;
    if (m->status == CB_OK)
        m->status = cb_graph_append_input(m->g, "x", CB_ROLE_PARAM, dtype, &shape, &id, &err);
    if (cb_dtype_is_float(dtype)) m->wrt[m->n_wrt++] = m->n_in;
    m->in[m->n_in++] = id;
    return id;
}

static cb_value_id op(model *m, cb_opcode code, uint32_t n, const cb_value_id *ins,
                      const cb_attrs *attrs, cb_value_id *more) {
    cb_value_id outs[4] = {0};
    if (m->status == CB_OK) m->status = cb_build(m->g, code, n, ins, attrs, outs, &err);
    if (more) memcpy(more, outs, sizeof outs);
    return outs[0];
}
#define ONE(code, a) op(m, code, 1, (cb_value_id[]){a}, &(cb_attrs){.f = {0}}, NULL)
#define TWO(code, a, b) op(m, code, 2, (cb_value_id[]){a, b}, &(cb_attrs){.f = {0}}, NULL)
#define WITH(code, a, ...) op(m, code, 1, (cb_value_id[]){a}, &(cb_attrs){__VA_ARGS__}, NULL)

static void give(model *m, cb_value_id value) { m->out[m->n_out++] = value; }

static cb_shape shape2(int64_t a, int64_t b) { return (cb_shape){2, {a, b}}; }
static cb_shape shape1(int64_t a) { return (cb_shape){1, {a}}; }

/* Builds bias, GELU, dropout, residual, LayerNorm, softmax, reductions. */
static cb_value_id rows_model(model *m) {
    const cb_shape full = shape2(m->rows, m->columns);
    const cb_value_id x = input(m, CB_F32, full), bias = input(m, CB_F32, shape1(m->columns)),
                      residual = input(m, CB_F32, full), w = input(m, CB_F32, shape1(m->columns)),
                      s = input(m, CB_F32, shape1(m->columns));
    cb_value_id h = ONE(CB_OP_GELU, TWO(CB_OP_ADD, x, bias)), norm[4];
    h = TWO(CB_OP_ADD, WITH(CB_OP_DROPOUT, h, .f = {0.25}, .i = {7}), residual);
    op(m, CB_OP_LAYER_NORM, 3, (cb_value_id[]){h, w, s}, &(cb_attrs){.f = {1e-5}}, norm);
    const cb_value_id p = ONE(CB_OP_SOFTMAX, norm[0]);
    const cb_value_id largest = WITH(CB_OP_AMAX, h, .dims = {1, {1}}, .i = {1});
    give(m, norm[0]);
    give(m, norm[1]);
    give(m, norm[2]);
    give(m, p);
    give(m, WITH(CB_OP_MEAN, TWO(CB_OP_SUB, h, largest), .dims = {1, {0}}));
    give(m, largest);
    const cb_value_id square = ONE(CB_OP_SQUARE, TWO(CB_OP_MUL, p, ONE(CB_OP_SILU, norm[0])));
    return WITH(CB_OP_SUM, TWO(CB_OP_ADD, square, ONE(CB_OP_TANH, norm[0])), .f = {0});
}

/* Builds every formula of a group, on operands of all kinds. */
static cb_value_id point_model(model *m) {
    static const cb_opcode unary[] = {
        CB_OP_NEG, CB_OP_ABS,  CB_OP_SIGN, CB_OP_FLOOR, CB_OP_EXP,  CB_OP_TANH,      CB_OP_SIGMOID,
        CB_OP_ERF, CB_OP_RELU, CB_OP_SIN,  CB_OP_COS,   CB_OP_GELU, CB_OP_GELU_TANH, CB_OP_SILU};
    const cb_shape full = shape2(m->rows, m->columns);
    const cb_value_id x = input(m, CB_F32, full), row = input(m, CB_F32, shape2(m->rows, 1)),
                      turned = input(m, CB_F32, shape2(m->columns, m->rows)),
                      one = input(m, CB_F32, shape1(1)), kept = input(m, CB_BOOL, full);
    cb_value_id y = TWO(CB_OP_ADD, TWO(CB_OP_MUL, x, row), one);
    y = TWO(CB_OP_MAXIMUM, y, WITH(CB_OP_TRANSPOSE, turned, .dims = {2, {1, 0}}));
    for (size_t i = 0; i < sizeof unary / sizeof *unary; i++) {
        const cb_value_id z = ONE(unary[i], y);
        give(m, z);
        y = TWO(CB_OP_ADD, y, TWO(CB_OP_MUL, z, one));
    }
    const cb_value_id positive = TWO(CB_OP_ADD, ONE(CB_OP_ABS, x), ONE(CB_OP_ABS, one));
    give(m, ONE(CB_OP_LOG, positive));
    give(m, ONE(CB_OP_LOG1P, positive));
    give(m, ONE(CB_OP_RSQRT, positive));
    give(m, TWO(CB_OP_DIV, y, positive));
    give(m, TWO(CB_OP_LT, x, y));
    y = op(m, CB_OP_WHERE, 3, (cb_value_id[]){kept, y, x}, NULL, NULL);
    y = WITH(CB_OP_TRIL, y, .f = {0.5}, .i = {3});
    give(m, WITH(CB_OP_DROPOUT, y, .f = {0.4}, .i = {2}));
    return WITH(CB_OP_MEAN, y, .f = {0});
}

/* Builds RMSNorm, log-softmax, sums of pieces, extremes. */
static cb_value_id other_model(model *m) {
    const cb_shape full = shape2(m->rows, m->columns);
    const cb_value_id x = input(m, CB_F32, full), w = input(m, CB_F32, shape1(m->columns));
    cb_value_id norm[4];
    op(m, CB_OP_RMS_NORM, 2, (cb_value_id[]){x, w}, &(cb_attrs){.f = {1e-6}}, norm);
    const cb_value_id p = ONE(CB_OP_LOG_SOFTMAX, norm[0]);
    give(m, p);
    give(m, WITH(CB_OP_AMIN, x, .dims = {1, {1}}));
    if (m->columns % 64 == 0) {
        const cb_value_id pieces =
            WITH(CB_OP_RESHAPE, norm[0], .dims = {2, {m->rows * m->columns / 64, 64}});
        give(m, WITH(CB_OP_MEAN, pieces, .dims = {1, {1}}));
    }
    return WITH(CB_OP_MEAN, ONE(CB_OP_EXP, p), .f = {0});
}

/* Builds a model with so many elements that each thread processes two vectors. */
static cb_value_id large_model(model *m) {
    const cb_value_id x = input(m, CB_F32, shape2(m->rows, m->columns)),
                      bias = input(m, CB_F32, shape1(m->columns));
    const cb_value_id y = TWO(CB_OP_ADD, ONE(CB_OP_GELU, TWO(CB_OP_ADD, x, bias)), x);
    give(m, y);
    return WITH(CB_OP_MEAN, bias, .f = {0});
}

/* Builds ops on elements of rows by index, with some labels ignored: cross-entropy, gather,
 * scatter_add. */
static cb_value_id labels_model(model *m) {
    const cb_shape full = shape2(m->rows, m->columns), one = shape2(m->rows, 1);
    const cb_value_id x = input(m, CB_F32, full), bias = input(m, CB_F32, shape1(m->columns)),
                      labels = input(m, CB_I64, shape1(m->rows)), at = input(m, CB_I64, one),
                      more = input(m, CB_F32, one);
    const cb_value_id logits = TWO(CB_OP_ADD, x, bias);
    cb_value_id nll[4];
    op(m, CB_OP_CROSS_ENTROPY, 2, (cb_value_id[]){logits, labels}, &(cb_attrs){.i = {3}}, nll);
    const cb_value_id e = ONE(CB_OP_EXP, logits);
    give(m, op(m, CB_OP_GATHER, 2, (cb_value_id[]){e, at}, &(cb_attrs){.i = {1}}, NULL));
    give(m, op(m, CB_OP_SCATTER_ADD, 3, (cb_value_id[]){e, at, more}, &(cb_attrs){.i = {1}}, NULL));
    give(m, nll[0]);
    return WITH(CB_OP_MEAN, nll[0], .f = {0});
}

/* Builds gradients of norms: sums over rows and columns, in one kernel if there are many rows. */
static cb_value_id gradients_model(model *m) {
    const cb_shape full = shape2(m->rows, m->columns), row = shape1(m->rows);
    const cb_dtype dtype = m->dtype;
    const cb_value_id g = input(m, dtype, full), x = input(m, dtype, full),
                      w = input(m, dtype, shape1(m->columns)), more = input(m, dtype, full);
    m->dtype = CB_F32;
    const cb_value_id mean = input(m, CB_F32, row), rstd = input(m, CB_F32, row);
    m->dtype = dtype;
    cb_value_id norm[4], root[4];
    op(m, CB_OP_LAYER_NORM_BWD, 5, (cb_value_id[]){g, x, w, mean, rstd}, NULL, norm);
    const cb_value_id y = TWO(CB_OP_MUL, ONE(CB_OP_SIGMOID, more), norm[0]);
    op(m, CB_OP_RMS_NORM_BWD, 4, (cb_value_id[]){TWO(CB_OP_ADD, g, more), x, w, rstd}, NULL, root);
    for (int k = 0; k < 3; k++) give(m, norm[k]);
    for (int k = 0; k < 2; k++) give(m, root[k]);
    give(m, y);
    give(m, WITH(CB_OP_SUM, y, .dims = {1, {0}}));
    give(m, WITH(CB_OP_MEAN, root[0], .dims = {1, {0}}));
    return WITH(CB_OP_MEAN, w, .f = {0});
}

static cb_value_id turn(model *m, cb_dtype dtype, int64_t a, int64_t b, int64_t c, int i, int j,
                        int k) {
    const cb_value_id x = input(m, dtype, (cb_shape){3, {a, b, c}});
    return WITH(CB_OP_TRANSPOSE, x, .dims = {3, {i, j, k}});
}

/* Builds ops on arrays whose rows are strided in memory: copies in all widths, chains, and rows. */
static cb_value_id turned_model(model *m) {
    const int64_t n = 3, r = m->rows, c = m->columns;
    const cb_value_id x = input(m, CB_F32, (cb_shape){3, {n, r, c}}),
                      each = turn(m, CB_F32, n, c, r, 0, 2, 1),
                      all = turn(m, CB_F32, c, n, r, 1, 2, 0),
                      outer = turn(m, CB_F32, c, r, n, 2, 1, 0),
                      apart = turn(m, CB_F32, r, c, n, 2, 0, 1),
                      kept = turn(m, CB_BOOL, n, c, r, 0, 2, 1);
    static const cb_dtype widths[] = {CB_BOOL, CB_I32, CB_I64, CB_F64, CB_F16, CB_BF16, CB_F32};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        give(m, ONE(CB_OP_CONTIGUOUS, turn(m, widths[i], n, c, r, 0, 2, 1)));
    give(m, ONE(CB_OP_CONTIGUOUS, turn(m, CB_I32, c, n, r, 1, 2, 0)));
    give(m, ONE(CB_OP_CONTIGUOUS, turn(m, CB_I64, r, n, c, 2, 1, 0)));
    give(m, TWO(CB_OP_MUL, all, x));
    cb_value_id y = op(m, CB_OP_WHERE, 3, (cb_value_id[]){kept, each, x}, NULL, NULL);
    y = TWO(CB_OP_ADD, TWO(CB_OP_MUL, y, outer), apart);
    y = WITH(CB_OP_DROPOUT, y, .f = {0.25}, .i = {4});
    give(m, TWO(CB_OP_SUB, y, all));
    give(m, ONE(CB_OP_SOFTMAX, each));
    give(m, ONE(CB_OP_LOG_SOFTMAX, TWO(CB_OP_ADD, all, TWO(CB_OP_MUL, all, x))));
    return WITH(CB_OP_MEAN, ONE(CB_OP_TANH, y), .f = {0});
}

/* Builds a transposed array, reshaped to two rows whose length is not a multiple of its last axis:
 * a vector of elements must not belong to both rows. */
static cb_value_id two_rows_model(model *m) {
    const cb_shape one = shape2(m->rows, 1);
    const int64_t across = 24, down = m->rows * m->columns / across;
    const cb_value_id x = input(m, CB_F32, shape2(across, down)),
                      w = input(m, CB_F32, shape1(across)), row = input(m, CB_F32, one),
                      at = input(m, CB_I64, one);
    const cb_value_id turned = WITH(CB_OP_TRANSPOSE, x, .dims = {2, {1, 0}}),
                      y = WITH(CB_OP_RESHAPE, TWO(CB_OP_MUL, turned, w),
                               .dims = shape2(m->rows, m->columns));
    give(m, op(m, CB_OP_SCATTER_ADD, 3, (cb_value_id[]){TWO(CB_OP_MUL, y, row), at, row},
               &(cb_attrs){.i = {1}}, NULL));
    return WITH(CB_OP_MEAN, w, .f = {0});
}

typedef cb_value_id (*model_fn)(model *m);

static void fill(void *to, const cb_argument_info *info, uint32_t i) {
    uint64_t state = 77 + i;
    const size_t n = (size_t)info->bytes / cb_dtype_size(info->dtype);
    for (size_t k = 0; k < n; k++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const double unit = (double)(uint32_t)(state >> 40) / 16777216.0;
        const double number = info->dtype == CB_BOOL            ? unit < 0.5
                              : !cb_dtype_is_float(info->dtype) ? floor(unit * 64)
                                                                : 4.0 * unit - 2.0;
        put_number(info->dtype, to, k, number);
    }
}

static bool same_bits(const cb_argument_info *info, const void *a, const void *b) {
    const size_t size = cb_dtype_size(info->dtype);
    for (size_t k = 0; k < info->bytes / size; k++) {
        const double x = get_number(info->dtype, a, k), y = get_number(info->dtype, b, k);
        if ((x == y && signbit(x) == signbit(y)) || (x != x && y != y)) continue;
        printf("  %s[%zu]: cuda %.9g, cpu %.9g\n", info->name, k, x, y);
        return false;
    }
    return true;
}

static void run(cb_step *step, void **inputs, void **outputs) {
    for (uint32_t i = 0; i < cb_step_n_outputs(step); i++)
        if (!outputs[i]) outputs[i] = calloc(1, cb_step_output(step, i).bytes + 1);
    const cb_run binding = {.inputs = inputs,
                            .outputs = outputs,
                            .on_host = true,
                            .seed = 12345678901,
                            .random_step = 5};
    CHECK_OK(cb_step_run(step, &binding, NULL, &err));
}

static void compare(cb_step *gpu, cb_step *cpu, int n_seed) {
    void *inputs[MANY] = {0}, *x[2 * MANY] = {0}, *y[2 * MANY] = {0};
    for (uint32_t i = 0; i < cb_step_n_inputs(gpu); i++) {
        const cb_argument_info info = cb_step_input(gpu, i);
        inputs[i] = calloc(1, info.bytes + 1);
        fill(inputs[i], &info, i);
    }
    run(cpu, inputs, y);
    for (int seed = 0; seed < n_seed; seed++) {
        hooks.seed((unsigned)seed);
        run(gpu, inputs, x);
        for (uint32_t i = 0; i < cb_step_n_outputs(gpu); i++) {
            const cb_argument_info info = cb_step_output(gpu, i);
            CHECK(same_bits(&info, x[i], y[i]));
            memset(x[i], 0xAA, (size_t)info.bytes);
        }
    }
    hooks.seed(0);
    for (uint32_t i = 0; i < MANY; i++) free(inputs[i]);
    for (uint32_t i = 0; i < 2 * MANY; i++) free(x[i]), free(y[i]);
}

static void check_of(model_fn make, cb_dtype dtype, int64_t rows, int64_t columns, bool grads,
                     int n_seed) {
    const int failures = check_failures;
    model m = {.rows = rows, .columns = columns, .dtype = dtype};
    cb_step *gpu = NULL, *cpu = NULL;
    CHECK_OK(cb_graph_new(ctx, &m.g, &err));
    cb_value_id loss = make(&m);
    if (dtype != CB_F32 && m.status == CB_OK)
        m.status = cb_build_cast(m.g, loss, CB_F32, &loss, &err);
    CHECK_OK(m.status);
    CHECK_OK(cb_graph_append_output(m.g, loss, "loss", CB_OUTPUT_RESULT, CB_NONE, &err));
    for (uint32_t i = 0; i < m.n_out; i++)
        CHECK_OK(cb_graph_append_output(m.g, m.out[i], "y", CB_OUTPUT_RESULT, CB_NONE, &err));
    cb_compile_options options = {.wrt = m.wrt, .n_wrt = grads ? m.n_wrt : 0};
    CHECK_OK(cb_compile(ctx, m.g, &options, &gpu, &err));
    options.backend = "cpu";
    CHECK_OK(cb_compile(ctx, m.g, &options, &cpu, &err));
    if (gpu && cpu) compare(gpu, cpu, n_seed);
    char text[4096];
    if (hooks.reports(text, sizeof text)) printf("%s\n", text), check_failures++;
    if (check_failures > failures) printf("  %d x %d\n", (int)rows, (int)columns);
    cb_step_free(gpu);
    cb_step_free(cpu);
    cb_graph_free(m.g);
}

static void check(model_fn make, int64_t rows, int64_t columns, int n_seed) {
    check_of(make, CB_F32, rows, columns, true, n_seed);
}

/* True if all sizes are tested. Each size compiles its own program, so by default only the sizes at
 * which another code path begins are tested. */
static bool every_size(void) { return check_rounds(0, 1) > 0; }

/* Sums over rows of fewer than 32 elements, and over fewer than 128 columns, are not part of
 * groups: the backend sums them in a different order. */
TEST(elements) {
    check(point_model, 6, 32, 5);
    if (!every_size()) return;
    check_of(point_model, CB_F32, 7, 13, false, 1);
    check(point_model, 5, 260, 1);
}
TEST(rows) {
    check(rows_model, 33, 128, 5);
    check(rows_model, 9, 129, 1); /* odd, a multiple of 3, one more than the lanes */
    if (!every_size()) return;
    check(rows_model, 3, 2500, 2);  /* three leaves */
    check(rows_model, 130, 128, 1); /* blocks of columns */
    check(rows_model, 2, 16000, 1);
}
TEST(others) {
    check(other_model, 17, 128, 5);
    if (every_size()) check(other_model, 4, 3000, 1);
}
TEST(labels) {
    check(labels_model, 33, 128, 5);
    check(labels_model, 3, 5001, 2); /* odd, five leaves */
    if (!every_size()) return;
    check(labels_model, 9, 131, 1);
    check(labels_model, 5, 1500, 1); /* two leaves */
    check_of(labels_model, CB_BF16, 7, 256, true, 1);
}
TEST(large) {
    check_of(large_model, CB_F32, 2112, 1024, false, 1);
    if (every_size()) check_of(large_model, CB_F32, 2121, 1023, false, 1);
}
TEST(halves) {
    check_of(rows_model, CB_BF16, 33, 128, true, 2);
    check_of(point_model, CB_F16, 6, 32, false, 1);
    if (!every_size()) return;
    check_of(rows_model, CB_F16, 5, 1027, true, 1);
    check_of(point_model, CB_BF16, 6, 32, false, 1);
}

TEST(turned) {
    check(turned_model, 40, 64, 5);
    check(turned_model, 19, 257, 1); /* odd */
    if (!every_size()) return;
    check_of(turned_model, CB_BF16, 48, 136, true, 2);
    check(turned_model, 36, 96, 2);
    check(turned_model, 128, 16, 1);
    check(turned_model, 24, 1024, 1);
    check_of(turned_model, CB_F16, 33, 68, true, 1);
}

TEST(two_rows_of_an_array_that_lies_across) { check_of(two_rows_model, CB_F16, 2, 204, false, 1); }

TEST(gradients) {
    check_of(gradients_model, CB_F32, 523, 128, false, 3);
    if (!every_size()) return;
    check_of(gradients_model, CB_F16, 600, 1028, false, 1); /* two leaves */
    check_of(gradients_model, CB_F32, 523, 128, false, 5);
    check_of(gradients_model, CB_F32, 1300, 260, false, 1);
    check_of(gradients_model, CB_F32, 520, 1500, false, 2);
    check_of(gradients_model, CB_F32, 530, 2500, false, 1);
    check_of(gradients_model, CB_BF16, 2100, 136, false, 1);
}

int main(void) {
    const cb_context_options options = {.n_threads = 1};
    hooks = gpu_hooks_of();
    hooks.set("races", 1);
    CHECK_OK(cb_context_new(&options, &ctx, &err));
    if (!CB_ASAN) { /* the host runs the same code in all of these */
        RUN(elements);
        RUN(rows);
        RUN(labels);
        RUN(large);
        RUN(turned);
        RUN(two_rows_of_an_array_that_lies_across);
        RUN(gradients);
    }
    RUN(others);
    RUN(halves);
    cb_context_free(ctx);
    return check_report();
}
