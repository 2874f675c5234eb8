/* softmax, norms and cross-entropy, with their gradients. */
#include "kernel_twin.h"

static cb_shape shape_of(int i) {
    switch (i) {
        case 0: return SHAPE(1);
        case 1: return SHAPE(7);
        case 2: return SHAPE(0, 5);
        case 3: return SHAPE(3, 4, 65);
        case 4: return SHAPE(90, 300);
        case 5: return SHAPE(5, 2500);
        default: return SHAPE(2, 200, 33);
    }
}
#define N_SHAPES 7

static cb_dtype stat_dtype(cb_dtype dtype) { return dtype == CB_F64 ? CB_F64 : CB_F32; }

static cb_shape rows_of(cb_shape s) {
    s.rank--;
    return s;
}

static cb_tensor plain(cb_dtype dtype, cb_shape shape) { return input(dtype, shape, PLAIN, SMALL); }

TEST(softmax) {
    for (int code = CB_OP_SOFTMAX; code <= CB_OP_LOG_SOFTMAX_BWD; code++) {
        bool is_bwd = code == CB_OP_SOFTMAX_BWD || code == CB_OP_LOG_SOFTMAX_BWD;
        for (int d = 0; d < COUNT(floats); d++) {
            for (int i = 0; i < N_SHAPES; i++) {
                test_op op = {.code = (cb_opcode)code, .n_in = is_bwd ? 2 : 1};
                op.in[0] = plain(floats[d], shape_of(i));
                op.in[1] = plain(floats[d], shape_of(i));
                CHECK_TWIN(&op, 8,
                           is_bwd ? 4 * (double)shape_of(i).dim[shape_of(i).rank - 1] : 1e-3);
            }
        }
    }
}

/* Rows with infinities: -inf adds a term of 0; a row with only -inf, or with +inf or NaN, is
 * NaN. */
TEST(softmax_of_infinities) {
    for (int d = 0; d < COUNT(floats); d++) {
        for (int code = CB_OP_SOFTMAX; code <= CB_OP_LOG_SOFTMAX;
             code += CB_OP_LOG_SOFTMAX - CB_OP_SOFTMAX) {
            test_op op = {
                .code = (cb_opcode)code, .n_in = 1, .in = {plain(floats[d], SHAPE(5, 70))}};
            for (int64_t i = 0; i < 70; i++) set(&op.in[0], i, -INFINITY);
            for (int64_t i = 71; i < 140; i++) set(&op.in[0], i, -INFINITY);
            set(&op.in[0], 150, INFINITY);
            set(&op.in[0], 220, NAN);
            set(&op.in[0], 300, 100);
            CHECK_TWIN(&op, 8, 1e-3);
        }
    }
}

static void check_norm(cb_opcode code, cb_dtype dtype, cb_shape x, cb_shape channels) {
    test_op op = {.code = code, .n_in = code == CB_OP_RMS_NORM ? 2 : 3, .attrs = {.f = {1e-5}}};
    op.in[0] = plain(dtype, x);
    op.in[1] = plain(dtype, channels);
    op.in[2] = plain(dtype, channels);
    CHECK_TWIN(&op, 16, 4);
}

static void check_norm_bwd(cb_opcode code, cb_dtype dtype, cb_shape x, cb_shape channels,
                           cb_shape stats) {
    test_op op = {.code = code, .n_in = code == CB_OP_RMS_NORM_BWD ? 4 : 5};
    op.in[0] = plain(dtype, x);
    op.in[1] = plain(dtype, x);
    op.in[2] = plain(dtype, channels);
    op.in[3] = plain(stat_dtype(dtype), stats); /* rstd, for rms_norm_bwd */
    op.in[4] = plain(stat_dtype(dtype), stats);
    double rows = (double)cb_numel(&x) / (double)(cb_numel(&channels) ? cb_numel(&channels) : 1);
    CHECK_TWIN(&op, 16, 32 * (1 + sqrt(rows)));
}

TEST(norms) {
    for (int d = 0; d < COUNT(floats); d++) {
        for (int i = 0; i < N_SHAPES; i++) {
            cb_shape x = shape_of(i), channels = SHAPE(x.dim[x.rank - 1]);
            check_norm(CB_OP_LAYER_NORM, floats[d], x, channels);
            check_norm(CB_OP_RMS_NORM, floats[d], x, channels);
            check_norm_bwd(CB_OP_LAYER_NORM_BWD, floats[d], x, channels, rows_of(x));
            check_norm_bwd(CB_OP_RMS_NORM_BWD, floats[d], x, channels, rows_of(x));
        }
    }
}

/* The separate statistics have the bits of batch_norm's, and applying them gives the bits of y. */
static void check_batch_parts(cb_dtype dtype, cb_shape x) {
    test_op whole = {.code = CB_OP_BATCH_NORM, .n_in = 3, .attrs = {.f = {1e-5}}};
    test_op stats = {.code = CB_OP_BATCH_NORM_STATS, .n_in = 1, .attrs = whole.attrs};
    test_op apply = {.code = CB_OP_BATCH_NORM_APPLY, .n_in = 5};
    whole.in[0] = stats.in[0] = apply.in[0] = plain(dtype, x);
    whole.in[1] = apply.in[3] = plain(dtype, SHAPE(x.dim[1]));
    whole.in[2] = apply.in[4] = plain(dtype, SHAPE(x.dim[1]));
    CHECK_OK(run_op(&whole, 2, NULL));
    CHECK_TWIN_KEEP(&stats, 16, 4);
    apply.in[1] = stats.out[0];
    apply.in[2] = stats.out[2];
    for (int k = 1; k < 5; k++) { /* parameters of all channels are equal */
        memset(apply.in[k].stride, 0, sizeof apply.in[k].stride);
        apply.in[k].stride[1] = 1;
        apply.in[k].shape = x;
    }
    CHECK_TWIN_KEEP(&apply, 16, 16);
    CHECK(same_values(&whole.out[0], &apply.out[0]));
    for (int k = 0; k < 3; k++) CHECK(same_values(&whole.out[1 + k], &stats.out[k]));
    free_tensors();
}

TEST(batch_norm) {
    const cb_shape shapes[] = {
        SHAPE(5, 3),      SHAPE(40, 6, 7, 7), SHAPE(3, 2, 70, 40), SHAPE(300, 5),  SHAPE(1, 1, 9),
        SHAPE(2, 17, 64), SHAPE(600, 70),     SHAPE(256, 32),      SHAPE(1, 5, 1), SHAPE(0, 3, 4)};
    for (int d = 0; d < COUNT(floats); d++) {
        for (int i = 0; i < COUNT(shapes); i++) {
            cb_shape channels = SHAPE(shapes[i].dim[1]);
            check_norm(CB_OP_BATCH_NORM, floats[d], shapes[i], channels);
            check_batch_parts(floats[d], shapes[i]);
            check_norm_bwd(CB_OP_BATCH_NORM_BWD, floats[d], shapes[i], channels, channels);
        }
    }
}

/* One channel of a tensor of images. */
static cb_tensor channel_of(const cb_tensor *all, int64_t channel) {
    int64_t images = all->shape.dim[0], plane = all->shape.dim[2] * all->shape.dim[3];
    cb_tensor one = new_tensor(CB_F32, SHAPE(images, 1, all->shape.dim[2], all->shape.dim[3]));
    for (int64_t i = 0; i < images; i++) {
        memcpy((float *)one.data + i * plane,
               element(all, (i * all->shape.dim[1] + channel) * plane),
               (size_t)plane * sizeof(float));
    }
    return one;
}

static cb_tensor element_of(const cb_tensor *all, int64_t channel) {
    cb_tensor one = TENSOR(CB_F32, 1);
    set(&one, 0, get(all, channel));
    return one;
}

/* Results of 16 MB are written past the caches: each channel has the bits of that channel computed
 * alone. */
TEST(batch_norm_around_the_caches) {
    for (int is_bwd = 0; is_bwd < 2; is_bwd++) {
        test_op all = {.code = is_bwd ? CB_OP_BATCH_NORM_BWD : CB_OP_BATCH_NORM,
                       .n_in = is_bwd ? 5 : 3,
                       .attrs = {.f = {1e-5}}};
        uint32_t n_large = is_bwd ? 2 : 1;
        for (uint32_t i = 0; i < all.n_in; i++) {
            all.in[i] = i < n_large ? TENSOR(CB_F32, 4, 16, 256, 256) : TENSOR(CB_F32, 16);
            fill_random(&all.in[i]);
        }
        for (int isa = 0; isa <= (int)cb_cpu_isa(); isa++) {
            setenv("CUTBACK_ISA", cb_isa_name((cb_isa)isa), 1);
            CHECK_OK(run_op(&all, 2, NULL));
            int64_t channel = 15;
            test_op one = {.code = all.code, .n_in = all.n_in, .attrs = all.attrs};
            for (uint32_t i = 0; i < all.n_in; i++) {
                one.in[i] =
                    i < n_large ? channel_of(&all.in[i], channel) : element_of(&all.in[i], channel);
            }
            CHECK_OK(run_op(&one, 1, NULL));
            cb_tensor part = channel_of(&all.out[0], channel);
            CHECK(same_bits(&part, &one.out[0]));
        }
        unsetenv("CUTBACK_ISA");
        free_tensors();
    }
}

/* A large mean does not lose the variance, which is taken around the mean and not as E[x^2] -
 * E[x]^2. */
TEST(norm_of_large_mean) {
    test_op op = {.code = CB_OP_LAYER_NORM, .n_in = 3, .attrs = {.f = {1e-5}}};
    for (int k = 0; k < 3; k++)
        op.in[k] = k ? plain(CB_F32, SHAPE(256)) : plain(CB_F32, SHAPE(4, 256));
    for (int64_t i = 0; i < 1024; i++) set(&op.in[0], i, 1000 + (double)(i % 2));
    CHECK_OK(run_op(&op, 1, NULL));
    for (int64_t i = 0; i < 4; i++) CHECK(fabs(get(&op.out[2], i) - 1 / sqrt(0.25 + 1e-5)) < 1e-4);
    free_tensors();
}

static test_op cross_entropy(cb_dtype dtype, cb_dtype label, cb_shape shape, int64_t ignore) {
    test_op op = {.code = CB_OP_CROSS_ENTROPY, .n_in = 2, .attrs = {.i = {ignore}}};
    op.in[0] = plain(dtype, shape);
    op.in[1] = plain(label, rows_of(shape));
    fill_indices(&op.in[1], shape.dim[shape.rank - 1]);
    for (int64_t i = 0; i < cb_numel(&op.in[1].shape); i++) {
        if (i % 3 == 1) set(&op.in[1], i, (double)ignore);
    }
    return op;
}

TEST(cross_entropy) {
    for (int d = 0; d < COUNT(floats); d++) {
        for (int i = 0; i < N_SHAPES; i++) {
            cb_dtype label = i % 2 ? CB_I64 : CB_I32;
            test_op op = cross_entropy(floats[d], label, shape_of(i), i == 3 ? 2 : -100);
            test_op bwd = {.code = CB_OP_CROSS_ENTROPY_BWD, .n_in = 3, .attrs = op.attrs};
            bwd.in[0] = plain(stat_dtype(floats[d]), rows_of(shape_of(i)));
            bwd.in[1] = op.in[0];
            bwd.in[2] = op.in[1];
            CHECK_TWIN_KEEP(&op, 8, 4);
            CHECK_TWIN(&bwd, 8, 4);
        }
    }
}

TEST(labels_out_of_range) {
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        test_op op = cross_entropy(CB_F32, CB_I64, SHAPE(500, 40), -1);
        set(&op.in[1], 300, 40);
        set(&op.in[1], 401, -2);
        CHECK_FAIL(run_op(&op, n_threads, NULL), CB_INVALID,
                   "label 40 of row 300 is not one of 40 classes");
        set(&op.in[1], 300, -100);
        CHECK_FAIL(run_op(&op, n_threads, NULL), CB_INVALID, "label -100 of row 300");
        test_op bwd = {.code = CB_OP_CROSS_ENTROPY_BWD, .n_in = 3, .attrs = op.attrs};
        bwd.in[0] = plain(CB_F32, SHAPE(500));
        bwd.in[1] = op.in[0];
        bwd.in[2] = op.in[1];
        CHECK_FAIL(run_op(&bwd, n_threads, NULL), CB_INVALID,
                   "cross_entropy_bwd: label -100 of row 300");
        free_tensors();
    }
}

int main(void) {
    RUN(softmax);
    RUN(softmax_of_infinities);
    RUN(norms);
    RUN(batch_norm);
    RUN(batch_norm_around_the_caches);
    RUN(norm_of_large_mean);
    RUN(cross_entropy);
    RUN(labels_out_of_range);
    return check_report();
}
