/* Pointwise kernels: every op, dtype and layout against the twin, on each instruction set. */
#include "kernel_twin.h"

static cb_shape shape_of(int i) {
    switch (i) {
        case 0: return cb_shape_make(0, NULL);
        case 1: return SHAPE(1);
        case 2: return SHAPE(3, 0, 2);
        case 3: return SHAPE(17, 3);
        case 4: return SHAPE(2, 3, 4, 5);
        case 5: return SHAPE(5, 1, 129);
        default: return SHAPE(70, 250); /* more than one task */
    }
}
#define N_SHAPES 7

static bool takes(cb_opcode code, cb_dtype dtype) { return cb_cpu_kernel(code, dtype) != NULL; }

/* Returns the allowed error. Results that contain a difference of nearly equal numbers have errors
 * relative to these sizes. */
static slack slack_of(cb_opcode code) {
    switch (code) {
        case CB_OP_EXP:
        case CB_OP_TANH:
        case CB_OP_SIGMOID:
        case CB_OP_ERF:
        case CB_OP_LOG1P: return (slack){3, 0};
        case CB_OP_GELU:
        case CB_OP_GELU_TANH:
        case CB_OP_SILU: return (slack){4, 1};
        case CB_OP_TANH_BWD:
        case CB_OP_SIGMOID_BWD:
        case CB_OP_GELU_BWD:
        case CB_OP_GELU_TANH_BWD:
        case CB_OP_SILU_BWD: return (slack){8, 60}; /* g is up to 30 */
        default: return (slack){2, 0};
    }
}

static values values_of(cb_opcode code) {
    return code >= CB_OP_TANH_BWD && code <= CB_OP_SILU_BWD && code != CB_OP_RELU_BWD ? FINITE
                                                                                      : SPECIAL;
}

TEST(one_input) {
    for (int code = CB_OP_NEG; code <= CB_OP_LOGICAL_NOT; code++) {
        for (int d = 0; d < COUNT(everything); d++) {
            cb_dtype dtype = everything[d];
            if (!takes((cb_opcode)code, dtype) || (dtype == CB_BOOL) != (code == CB_OP_LOGICAL_NOT))
                continue;
            for (int i = 0; i < N_SHAPES; i++) {
                layout how = (layout)((code + d + i) % N_LAYOUTS);
                test_op op = {.code = (cb_opcode)code, .n_in = 1};
                op.in[0] = input(dtype, shape_of(i), how, values_of((cb_opcode)code));
                CHECK_TWIN(&op, slack_of((cb_opcode)code).ulps, slack_of((cb_opcode)code).size);
            }
        }
    }
}

static void check_binary(cb_opcode code, cb_dtype dtype, cb_shape shape, layout first,
                         layout second) {
    test_op op = {.code = code, .n_in = 2};
    op.in[0] = input(dtype, shape, first, values_of(code));
    op.in[1] = input(dtype, shape, second, values_of(code));
    CHECK_TWIN(&op, slack_of(code).ulps, slack_of(code).size);
}

TEST(two_inputs) {
    for (int code = CB_OP_TANH_BWD; code <= CB_OP_LOGICAL_OR; code++) {
        bool logical = code >= CB_OP_LOGICAL_AND, compares = code >= CB_OP_EQ && !logical;
        for (int d = 0; d < COUNT(everything); d++) {
            cb_dtype dtype = everything[d];
            if (!takes((cb_opcode)code, dtype) || (logical && dtype != CB_BOOL)) continue;
            if (dtype == CB_BOOL && !logical && !compares) continue;
            if (code == CB_OP_RELU_BWD && !cb_dtype_is_float(dtype)) continue;
            for (int i = 0; i < N_SHAPES; i++) {
                check_binary((cb_opcode)code, dtype, shape_of(i), (layout)((i + d) % N_LAYOUTS),
                             (layout)((i + code) % N_LAYOUTS));
            }
        }
    }
}

TEST(every_pair_of_layouts) {
    for (int i = 0; i < N_SHAPES; i++) {
        for (int k = 0; k < N_LAYOUTS * N_LAYOUTS; k++) {
            check_binary(CB_OP_SUB, floats[k % 4], shape_of(i), (layout)(k / N_LAYOUTS),
                         (layout)(k % N_LAYOUTS));
        }
    }
}

TEST(where) {
    for (int d = 0; d < COUNT(everything); d++) {
        for (int i = 0; i < N_SHAPES * 3; i++) {
            test_op op = {.code = CB_OP_WHERE, .n_in = 3};
            op.in[0] = input(CB_BOOL, shape_of(i % N_SHAPES), (layout)(i % N_LAYOUTS), SPECIAL);
            op.in[1] = input(everything[d], shape_of(i % N_SHAPES), (layout)((i + d) % N_LAYOUTS),
                             SPECIAL);
            op.in[2] = input(everything[d], shape_of(i % N_SHAPES), (layout)((i / 2) % N_LAYOUTS),
                             SPECIAL);
            CHECK_TWIN(&op, 0, 0);
        }
    }
}

TEST(cast) {
    for (int from = 0; from < COUNT(everything); from++) {
        for (int to = 0; to < COUNT(everything); to++) {
            for (int i = 0; i < N_SHAPES; i++) {
                test_op op = {.code = CB_OP_CAST, .n_in = 1, .attrs = {.dtype = everything[to]}};
                op.in[0] =
                    input(everything[from], shape_of(i), (layout)((i + to) % N_LAYOUTS), SPECIAL);
                CHECK_TWIN(&op, 0.5, 0);
            }
        }
    }
}

/* Checks the cast of one value, at the limits of the integer types. */
static void check_cast(cb_dtype from, double x, cb_dtype to, double want) {
    test_op op = {.code = CB_OP_CAST, .n_in = 1, .attrs = {.dtype = to}, .in = {TENSOR(from, 1)}};
    set(&op.in[0], 0, x);
    CHECK_OK(run_op(&op, 1, NULL));
    CHECK(get(&op.out[0], 0) == want);
    free_tensors();
}

TEST(cast_saturates) {
    check_cast(CB_F32, 0x1p31, CB_I32, INT32_MAX);
    check_cast(CB_F32, -0x1p31, CB_I32, INT32_MIN);
    check_cast(CB_F64, 2147483647.5, CB_I32, INT32_MAX);
    check_cast(CB_F64, -2147483648.5, CB_I32, INT32_MIN);
    check_cast(CB_F64, 0x1p63, CB_I64, 0x1p63);
    check_cast(CB_F64, -1e30, CB_I64, -0x1p63);
    check_cast(CB_F32, NAN, CB_I64, 0);
    check_cast(CB_F32, -0.9, CB_I32, 0);
    check_cast(CB_F32, 255.9, CB_U8, 255);
    check_cast(CB_F32, 254.9, CB_U8, 254);
    check_cast(CB_F64, -3, CB_U8, 0);
    check_cast(CB_F32, NAN, CB_BOOL, 1);
    check_cast(CB_I32, 257, CB_U8, 1);
    check_cast(CB_F64, 1 + 0x1p-8 + 0x1p-30, CB_BF16,
               1 + 0x1p-7); /* through f32 it would be a tie, and 1 */
}

TEST(integers_wrap) {
    test_op op = {.code = CB_OP_ADD, .n_in = 2, .in = {TENSOR(CB_I64, 1), TENSOR(CB_I64, 1)}};
    *(int64_t *)op.in[0].data = INT64_MAX;
    *(int64_t *)op.in[1].data = 1;
    CHECK_OK(run_op(&op, 1, NULL));
    CHECK(*(int64_t *)op.out[0].data == INT64_MIN);
    op.code = CB_OP_ABS;
    op.n_in = 1;
    *(int64_t *)op.in[0].data = INT64_MIN;
    CHECK_OK(run_op(&op, 1, NULL));
    CHECK(*(int64_t *)op.out[0].data == INT64_MIN);
    free_tensors();
}

TEST(huge_angles) { /* Angles beyond the range of the vector code, mixed with others within it. */
    static const cb_opcode codes[] = {CB_OP_SIN, CB_OP_COS};
    for (int k = 0; k < 2; k++) {
        test_op op = {.code = codes[k], .n_in = 1, .in = {TENSOR(CB_F32, 3000)}};
        for (int64_t i = 0; i < 3000; i++)
            set(&op.in[0], i, i % 5 ? 1e6 * random_real() : 1e38 * random_real());
        CHECK_TWIN(&op, 1, 0);
    }
}

int main(void) {
    RUN(one_input);
    RUN(two_inputs);
    RUN(every_pair_of_layouts);
    RUN(where);
    RUN(cast);
    RUN(cast_saturates);
    RUN(integers_wrap);
    RUN(huge_angles);
    return check_report();
}
