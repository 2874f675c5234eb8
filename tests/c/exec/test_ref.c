/* The reference kernels against numbers worked out by hand. Everything else is compared with these
 * kernels. */
#include "check.h"
#include "exec/graph_eval.h"
#include "ir/builder.h"

#define DIMS(...)                                                                \
    cb_shape_make((int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                  (int64_t[]){__VA_ARGS__})
#define VALUES(...) ((const double[]){__VA_ARGS__})

static cb_alloc alloc;

/* One op under test: `give` sets the inputs, `apply` the op, then `expect` reads its outputs. */
typedef struct bench {
    cb_graph *g;
    eval e;
    cb_value_id in[5], out[4];
    const double *values[5];
    uint32_t n_in;
} bench;

static void give(bench *b, cb_dtype dtype, cb_shape shape, const double *values) {
    if (!b->g) CHECK_OK(cb_graph_create(&alloc, &b->g, &err));
    CHECK_OK(cb_graph_append_input(b->g, "x", CB_ROLE_DATA, dtype, &shape, &b->in[b->n_in], &err));
    b->values[b->n_in++] = values;
}

static cb_status apply(bench *b, cb_opcode code, cb_attrs attrs) {
    if (!b->g) CHECK_OK(cb_graph_create(&alloc, &b->g, &err));
    CHECK_OK(cb_build(b->g, code, b->n_in, b->in, &attrs, b->out, &err));
    CHECK_OK(eval_init(&b->e, b->g, &alloc, &err));
    for (uint32_t k = 0; k < b->n_in; k++) {
        const int64_t n = cb_numel(&b->g->values.at[b->in[k]].shape);
        for (int64_t i = 0; i < n; i++) eval_put(&b->e, b->in[k], i, b->values[k][i]);
    }
    return eval_run(&b->e, &err);
}

/* Checks that the output is equal up to rounding; NaN equals NaN. */
static void expect(const bench *b, int out, int64_t n, const double *want) {
    CHECK(cb_numel(&b->g->values.at[b->out[out]].shape) == n);
    for (int64_t i = 0; i < n; i++) {
        const double got = eval_get(&b->e, b->out[out], i);
        const bool same =
            isnan(want[i]) ? isnan(got) : got == want[i] || fabs(got - want[i]) < 1e-9;
        CHECK(same);
        if (!same) printf("  output %d element %d: %.12g, not %.12g\n", out, (int)i, got, want[i]);
    }
}

static void done(bench *b) {
    eval_free(&b->e);
    cb_graph_free(b->g);
    *b = (bench){0};
}

TEST(rounds_once_to_the_dtype) {
    bench b = {0};
    give(&b, CB_BF16, DIMS(2), VALUES(1.0, 256.0));
    give(&b, CB_BF16, DIMS(2), VALUES(0.00390625, 1.0)); /* halfway: ties to even */
    CHECK_OK(apply(&b, CB_OP_ADD, (cb_attrs){0}));
    expect(&b, 0, 2, VALUES(1.0, 256.0));
    done(&b);
    give(&b, CB_F32, DIMS(1), VALUES(1.0));
    CHECK_OK(apply(&b, CB_OP_EXP, (cb_attrs){0}));
    CHECK(eval_get(&b.e, b.out[0], 0) == (double)(float)exp(1.0));
    done(&b);
}

TEST(integers_wrap_and_casts_saturate) {
    bench b = {0};
    give(&b, CB_U8, DIMS(3), VALUES(250, 3, 16));
    give(&b, CB_U8, DIMS(3), VALUES(10, 3, 16));
    CHECK_OK(apply(&b, CB_OP_MUL, (cb_attrs){0}));
    expect(&b, 0, 3, VALUES(2500 % 256, 9, 0));
    done(&b);
    give(&b, CB_F32, DIMS(4), VALUES(-3.9, 1e20, NAN, -1e20));
    CHECK_OK(apply(&b, CB_OP_CAST, (cb_attrs){.dtype = CB_I32}));
    expect(&b, 0, 4, VALUES(-3, INT32_MAX, 0, INT32_MIN));
    done(&b);
    give(&b, CB_BOOL, DIMS(3), VALUES(1, 0, 1));
    CHECK_OK(apply(&b, CB_OP_SUM, (cb_attrs){0}));
    expect(&b, 0, 1, VALUES(2));
    done(&b);
}

TEST(nan_goes_through) {
    bench b = {0};
    give(&b, CB_F64, DIMS(3), VALUES(NAN, 1, -1));
    give(&b, CB_F64, DIMS(3), VALUES(0, NAN, 2));
    CHECK_OK(apply(&b, CB_OP_MAXIMUM, (cb_attrs){0}));
    expect(&b, 0, 3, VALUES(NAN, NAN, 2));
    done(&b);
    give(&b, CB_F64, DIMS(3), VALUES(NAN, 1, -1));
    CHECK_OK(apply(&b, CB_OP_RELU, (cb_attrs){0}));
    expect(&b, 0, 3, VALUES(NAN, 1, 0));
    done(&b);
    give(&b, CB_F64, DIMS(2, 3), VALUES(4, NAN, 9, 7, 7, 1));
    CHECK_OK(apply(&b, CB_OP_ARGMAX, (cb_attrs){.i = {1, 0}}));
    expect(&b, 0, 2, VALUES(1, 0));
    done(&b);
    give(&b, CB_F64, DIMS(2, 3), VALUES(4, NAN, 9, 7, 7, 1));
    CHECK_OK(apply(&b, CB_OP_AMIN, (cb_attrs){.dims = DIMS(1)}));
    expect(&b, 0, 2, VALUES(NAN, 1));
    done(&b);
}

/* Sums start from +0, as in NumPy, PyTorch and the kernels. */
TEST(no_sum_is_negative_zero) {
    static const cb_opcode codes[] = {CB_OP_SUM, CB_OP_MEAN, CB_OP_AMAX};
    for (int k = 0; k < 3; k++) {
        for (int64_t n = 1; n < 4; n++) {
            bench b = {0};
            give(&b, CB_F32, DIMS(n), VALUES(-0.0, -0.0, -0.0));
            CHECK_OK(apply(&b, codes[k], (cb_attrs){.dims = DIMS(0)}));
            CHECK(!signbit(eval_get(&b.e, b.out[0], 0)) == (codes[k] != CB_OP_AMAX));
            done(&b);
        }
    }
}

TEST(moves) {
    bench b = {0};
    give(&b, CB_I32, DIMS(2, 2), VALUES(1, 2, 3, 4));
    CHECK_OK(apply(&b, CB_OP_PAD, (cb_attrs){.f = {9}, .i = {1, 1, 0, 1}}));
    expect(&b, 0, 8, VALUES(9, 1, 9, 2, 9, 3, 9, 4));
    done(&b);
    give(&b, CB_F32, DIMS(2, 1), VALUES(1, 2));
    give(&b, CB_F32, DIMS(2, 2), VALUES(3, 4, 5, 6));
    CHECK_OK(apply(&b, CB_OP_CONCAT, (cb_attrs){.i = {1}}));
    expect(&b, 0, 6, VALUES(1, 3, 4, 2, 5, 6));
    done(&b);
    give(&b, CB_F32, DIMS(2, 3), VALUES(1, 2, 3, 4, 5, 6));
    CHECK_OK(apply(&b, CB_OP_TRIL, (cb_attrs){.f = {-INFINITY}}));
    expect(&b, 0, 6, VALUES(1, -INFINITY, -INFINITY, 4, 5, -INFINITY));
    done(&b);
    CHECK_OK(apply(&b, CB_OP_IOTA, (cb_attrs){.i = {1}, .dims = DIMS(2, 3), .dtype = CB_I64}));
    expect(&b, 0, 6, VALUES(0, 1, 2, 0, 1, 2));
    done(&b);
}

TEST(indexing) {
    bench b = {0};
    give(&b, CB_F64, DIMS(2, 3), VALUES(1, 2, 3, 4, 5, 6));
    give(&b, CB_I32, DIMS(2, 2), VALUES(2, 0, 1, 1));
    CHECK_OK(apply(&b, CB_OP_GATHER, (cb_attrs){.i = {1}}));
    expect(&b, 0, 4, VALUES(3, 1, 5, 5));
    done(&b);
    give(&b, CB_F64, DIMS(3), VALUES(1, 2, 3));
    give(&b, CB_I64, DIMS(4), VALUES(2, 0, 2, 2));
    give(&b, CB_F64, DIMS(4), VALUES(10, 20, 30, 40));
    CHECK_OK(apply(&b, CB_OP_SCATTER_ADD, (cb_attrs){0}));
    expect(&b, 0, 3, VALUES(21, 2, 83));
    done(&b);
    give(&b, CB_F64, DIMS(2, 2), VALUES(1, 2, 3, 4));
    give(&b, CB_I64, DIMS(2), VALUES(1, 1));
    CHECK_OK(apply(&b, CB_OP_EMBEDDING_BWD, (cb_attrs){.i = {3}}));
    expect(&b, 0, 6, VALUES(0, 0, 4, 6, 0, 0));
    done(&b);
}

TEST(index_out_of_range) {
    bench b = {0};
    give(&b, CB_F64, DIMS(2, 5), VALUES(0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    give(&b, CB_I64, DIMS(2, 1), VALUES(0, 7));
    CHECK_FAIL(apply(&b, CB_OP_GATHER, (cb_attrs){.i = {1}}), CB_INVALID,
               "gather: index 7 out of range for axis 1 of size 5");
    done(&b);
    give(&b, CB_F64, DIMS(2, 1), VALUES(0, 0));
    give(&b, CB_I32, DIMS(1), VALUES(-1));
    CHECK_FAIL(apply(&b, CB_OP_EMBEDDING, (cb_attrs){0}), CB_INVALID,
               "embedding: index -1 out of range for axis 0 of size 2");
    done(&b);
    give(&b, CB_F64, DIMS(1, 2), VALUES(0, 0));
    give(&b, CB_I64, DIMS(1), VALUES(2));
    CHECK_FAIL(apply(&b, CB_OP_CROSS_ENTROPY, (cb_attrs){.i = {-100}}), CB_INVALID,
               "cross_entropy: label 2 out of range");
    done(&b);
}

TEST(products_and_windows) {
    bench b = {0};
    give(&b, CB_F64, DIMS(2, 2), VALUES(1, 2, 3, 4));
    give(&b, CB_F64, DIMS(2, 1), VALUES(5, 6));
    CHECK_OK(apply(&b, CB_OP_MATMUL, (cb_attrs){0}));
    expect(&b, 0, 2, VALUES(17, 39));
    done(&b);
    give(&b, CB_F64, DIMS(1, 1, 3, 3), VALUES(1, 2, 3, 4, 5, 6, 7, 8, 9));
    give(&b, CB_F64, DIMS(1, 1, 2, 2), VALUES(1, 0, 0, -1));
    CHECK_OK(apply(&b, CB_OP_CONV2D, (cb_attrs){.i = {1, 1, 0, 0, 1, 1, 1}}));
    expect(&b, 0, 4, VALUES(-4, -4, -4, -4));
    done(&b);
    give(&b, CB_F64, DIMS(1, 1, 3, 3), VALUES(1, 2, 3, 4, 5, 6, 7, 8, 9));
    CHECK_OK(apply(&b, CB_OP_MAX_POOL2D, (cb_attrs){.i = {2, 2, 2, 2, 1, 1}}));
    expect(&b, 0, 4, VALUES(1, 3, 7, 9));
    expect(&b, 1, 4, VALUES(0, 2, 6, 8));
    done(&b);
    give(&b, CB_F64, DIMS(1, 1, 2, 2), VALUES(4, 8, 12, 16));
    CHECK_OK(apply(&b, CB_OP_AVG_POOL2D, (cb_attrs){.i = {2, 2, 1, 1, 1, 0}}));
    expect(&b, 0, 3, VALUES(3, 10, 7));
    done(&b);
}

TEST(rows) {
    bench b = {0};
    const double half = log(2.0);
    give(&b, CB_F64, DIMS(3, 2), VALUES(0, 0, 1000, 1000, -INFINITY, 0));
    CHECK_OK(apply(&b, CB_OP_LOG_SOFTMAX, (cb_attrs){0}));
    expect(&b, 0, 6, VALUES(-half, -half, -half, -half, -INFINITY, 0));
    done(&b);
    give(&b, CB_F64, DIMS(2, 2), VALUES(5, 5, 3, 3));
    give(&b, CB_I64, DIMS(2), VALUES(1, -100));
    CHECK_OK(apply(&b, CB_OP_CROSS_ENTROPY, (cb_attrs){.i = {-100}}));
    expect(&b, 0, 2, VALUES(half, 0));
    expect(&b, 1, 2, VALUES(5 + half, 3 + half));
    done(&b);
    give(&b, CB_F64, DIMS(1, 2), VALUES(1, 3));
    give(&b, CB_F64, DIMS(2), VALUES(10, 20));
    give(&b, CB_F64, DIMS(2), VALUES(1, 2));
    CHECK_OK(apply(&b, CB_OP_LAYER_NORM, (cb_attrs){0}));
    expect(&b, 0, 2, VALUES(-9, 22));
    expect(&b, 1, 1, VALUES(2));
    expect(&b, 2, 1, VALUES(1));
    done(&b);
    give(&b, CB_F64, DIMS(2, 2), VALUES(1, 5, 3, 5));
    give(&b, CB_F64, DIMS(2), VALUES(10, 20));
    give(&b, CB_F64, DIMS(2), VALUES(1, 2));
    CHECK_OK(apply(&b, CB_OP_BATCH_NORM, (cb_attrs){.f = {0.25}}));
    expect(&b, 1, 2, VALUES(2, 5));
    expect(&b, 2, 2, VALUES(1, 0));
    expect(&b, 3, 2, VALUES(1 / sqrt(1.25), 2));
    done(&b);
}

TEST(dropout_is_a_function_of_the_counter) {
    double x[64];
    bench b = {0};
    for (int i = 0; i < 64; i++) x[i] = 3.0;
    give(&b, CB_F64, DIMS(64), x);
    CHECK_OK(apply(&b, CB_OP_DROPOUT, (cb_attrs){.f = {0.25}, .i = {9}}));
    cb_philox p = b.e.random;
    p.stream = 9;
    for (int i = 0; i < 64; i++) {
        const bool kept = cb_philox_u16(&p, (uint64_t)i) >= 16384;
        CHECK(eval_get(&b.e, b.out[0], i) == (kept ? 4.0 : 0.0));
    }
    done(&b);
}

TEST(what_has_nothing_to_compute) {
    const cb_attrs attrs = {0};
    const cb_tensor t = {0};
    const cb_philox p = {0};
    CHECK_FAIL(cb_ref_op(CB_OP_RESHAPE, &attrs, 1, &t, 1, &t, &p, &err), CB_INTERNAL, "reshape");
    for (int code = 0; code < CB_OP_COUNT; code++) { /* every other op has a family */
        const bool is_done =
            !(cb_op_def_of((cb_opcode)code)->flags & (CB_OPF_VIEW | CB_OPF_SOURCE));
        cb_tensor none[5] = {0}; /* no elements */
        for (int i = 0; i < 5; i++) none[i] = (cb_tensor){.dtype = CB_F64, .shape = {.rank = 4}};
        const uint32_t n_in = (uint32_t)cb_op_def_of((cb_opcode)code)->min_ins;
        const uint32_t n_out = (uint32_t)cb_op_def_of((cb_opcode)code)->n_outs;
        const cb_attrs ones = {.i = {1, 1, 1, 1, 1, 1, 1}};
        const cb_status status =
            cb_ref_op((cb_opcode)code, &ones, n_in, none, n_out, none, &p, &err);
        CHECK((status == CB_OK) == is_done);
    }
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(rounds_once_to_the_dtype);
    RUN(integers_wrap_and_casts_saturate);
    RUN(nan_goes_through);
    RUN(no_sum_is_negative_zero);
    RUN(moves);
    RUN(indexing);
    RUN(index_out_of_range);
    RUN(products_and_windows);
    RUN(rows);
    RUN(dropout_is_a_function_of_the_counter);
    RUN(what_has_nothing_to_compute);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
