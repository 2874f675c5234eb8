/* softmax, norms and cross-entropy, with their gradients. */
#include "kernel_twin.h"

#include "ir/work.h"

static cb_shape shape_of(int i) {
    switch (i) {
        case 0: return SHAPE(1);
        case 1: return SHAPE(7);
        case 2: return SHAPE(0, 5);
        case 3: return SHAPE(3, 4, 65);
        case 4: return SHAPE(90, 300);
        case 5: return SHAPE(5, 2500);
        case 6: return SHAPE(70, 10);
        default: return SHAPE(2, 200, 33);
    }
}
#define N_SHAPES 8

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

/* Checks that the separate statistics have the bits of batch_norm's, and that applying them gives
 * the bits of y. */
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

/* Returns one channel of a tensor of images. */
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

/* Returns row `row` of a tensor; a vector with one element for each row has rows of one element. */
static cb_tensor one_row(const cb_tensor *all, int64_t row) {
    cb_tensor one = *all;
    one.shape.dim[0] = 1;
    one.data = (char *)all->data + row * all->stride[0] * (int64_t)cb_dtype_size(all->dtype);
    return one;
}

/* Checks that each of sixteen short rows that run at once has the bits that it has alone. Outputs
 * with one row for all (gradients of weights) are not compared. */
static void check_single_rows(test_op *op, unsigned shared_inputs) {
    enum { ROWS = 37 };
    CHECK_OK(run_op(op, 1, NULL));
    for (int64_t row = 0; row < ROWS; row++) {
        test_op one = {.code = op->code, .n_in = op->n_in, .attrs = op->attrs};
        for (uint32_t i = 0; i < op->n_in; i++)
            one.in[i] = shared_inputs >> i & 1 ? op->in[i] : one_row(&op->in[i], row);
        const int kept = n_owned_blocks;
        CHECK_OK(run_op(&one, 1, NULL));
        for (uint32_t k = 0; k < op->n_out; k++) {
            if (op->out[k].shape.dim[0] != ROWS) continue;
            const cb_tensor want = one_row(&op->out[k], row);
            CHECK(same_values(&want, &one.out[k]));
        }
        while (n_owned_blocks > kept) free(owned_blocks[--n_owned_blocks]);
    }
    free_tensors();
}

TEST(short_rows) {
    static const int64_t lengths[] = {1, 2, 5, 16, 17, 31, 49, 64, 65};
    for (int d = 0; d < COUNT(floats); d++) {
        for (int i = 0; i < COUNT(lengths); i++) {
            const cb_shape x = SHAPE(37, lengths[i]), channels = SHAPE(lengths[i]);
            for (int code = CB_OP_SOFTMAX; code <= CB_OP_LOG_SOFTMAX_BWD; code++) {
                const bool is_bwd = code == CB_OP_SOFTMAX_BWD || code == CB_OP_LOG_SOFTMAX_BWD;
                test_op op = {.code = (cb_opcode)code, .n_in = is_bwd ? 2 : 1};
                op.in[0] = plain(floats[d], x);
                op.in[1] = plain(floats[d], x);
                check_single_rows(&op, 0);
            }
            for (int is_rms = 0; is_rms < 2; is_rms++) {
                test_op op = {.code = is_rms ? CB_OP_RMS_NORM : CB_OP_LAYER_NORM,
                              .n_in = is_rms ? 2 : 3,
                              .attrs = {.f = {1e-5}},
                              .in = {plain(floats[d], x), plain(floats[d], channels),
                                     plain(floats[d], channels)}};
                check_single_rows(&op, 6);
                test_op bwd = {.code = is_rms ? CB_OP_RMS_NORM_BWD : CB_OP_LAYER_NORM_BWD,
                               .n_in = is_rms ? 4 : 5,
                               .in = {plain(floats[d], x), plain(floats[d], x),
                                      plain(floats[d], channels),
                                      plain(stat_dtype(floats[d]), SHAPE(37)),
                                      plain(stat_dtype(floats[d]), SHAPE(37))}};
                check_single_rows(&bwd, 4);
            }
            test_op op = cross_entropy(floats[d], CB_I64, x, -100);
            check_single_rows(&op, 0);
            op = cross_entropy(floats[d], CB_I64, x, -100);
            test_op bwd = {.code = CB_OP_CROSS_ENTROPY_BWD, .n_in = 3, .attrs = op.attrs};
            bwd.in[0] = plain(stat_dtype(floats[d]), SHAPE(37));
            bwd.in[1] = op.in[0];
            bwd.in[2] = op.in[1];
            check_single_rows(&bwd, 0);
        }
    }
}

/* Rows are summed in order, from zero in each block of rows (cb_row_blocks), and then the blocks in
 * order. */
TEST(gradients_of_weights_of_short_rows) {
    enum { ROWS = 1000, BLOCKS = 62, IN_BLOCK = 17, COLUMNS = 10 };
    test_op op = {.code = CB_OP_LAYER_NORM_BWD, .n_in = 5};
    for (int k = 0; k < 5; k++)
        op.in[k] = plain(CB_F32, k < 2    ? SHAPE(ROWS, COLUMNS)
                                 : k == 2 ? SHAPE(COLUMNS)
                                          : SHAPE(ROWS));
    CHECK(cb_row_blocks(ROWS, COLUMNS) == BLOCKS);
    CHECK_OK(run_op(&op, 1, NULL));
    const float *g = op.in[0].data, *x = op.in[1].data, *mean = op.in[3].data,
                *rstd = op.in[4].data;
    for (int j = 0; j < COLUMNS; j++) {
        float weight = 0, bias = 0;
        for (int first = 0; first < ROWS; first += IN_BLOCK) {
            volatile float dw = 0, db = 0; /* rounded after each operation */
            for (int r = first; r < first + IN_BLOCK && r < ROWS; r++) {
                volatile float h = (x[r * COLUMNS + j] - mean[r]) * rstd[r];
                volatile float term = g[r * COLUMNS + j] * h;
                dw += term;
                db += g[r * COLUMNS + j];
            }
            weight += dw;
            bias += db;
        }
        CHECK(((float *)op.out[1].data)[j] == weight);
        CHECK(((float *)op.out[2].data)[j] == bias);
    }
    free_tensors();
}

int main(void) {
    RUN(softmax);
    RUN(short_rows);
    RUN(gradients_of_weights_of_short_rows);
    RUN(softmax_of_infinities);
    RUN(norms);
    RUN(batch_norm);
    RUN(batch_norm_around_the_caches);
    RUN(norm_of_large_mean);
    RUN(cross_entropy);
    RUN(labels_out_of_range);
    return check_report();
}
