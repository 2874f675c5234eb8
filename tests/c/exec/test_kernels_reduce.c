/* sum, mean, amax, amin and argmax: every dtype, all choices of axes and layout. */
#include "kernel_twin.h"

static cb_shape shape_of(int i) {
    switch (i) {
        case 0: return SHAPE(1);
        case 1: return SHAPE(5);
        case 2: return SHAPE(3, 4, 5);
        case 3: return SHAPE(2, 1, 300, 1);
        case 4: return SHAPE(260, 33);
        case 5: return SHAPE(7, 2500);
        case 6: return SHAPE(3, 5, 4, 70);
        case 7: return SHAPE(600, 3, 2);
        default: return SHAPE(3, 70, 20);
    }
}
#define N_SHAPES 9

static void check_reduce(cb_opcode code, cb_dtype dtype, cb_shape shape, unsigned axes,
                         bool keepdims, layout how) {
    test_op op = {.code = code, .n_in = 1, .attrs = {.i = {keepdims}}};
    int64_t n = 1;
    for (int32_t k = 0; k < shape.rank; k++) {
        if (!(axes >> k & 1)) continue;
        op.attrs.dims.dim[op.attrs.dims.rank++] = k;
        n *= shape.dim[k];
    }
    bool chooses = code == CB_OP_AMAX || code == CB_OP_AMIN;
    if (chooses && n == 0) {
        free_tensors();
        return;
    }
    op.in[0] = input(dtype, shape, how, chooses ? SPECIAL : SMALL);
    CHECK_TWIN(&op, chooses ? 0 : 2 * sqrt((double)n),
               code == CB_OP_SUM ? 4 : 4.0 / (double)(n ? n : 1));
}

TEST(every_choice_of_axes) {
    static const cb_opcode codes[] = {CB_OP_SUM, CB_OP_MEAN, CB_OP_AMAX, CB_OP_AMIN};
    for (int c = 0; c < 4; c++) {
        for (int d = 0; d < COUNT(everything); d++) {
            cb_dtype dtype = everything[d];
            if ((codes[c] == CB_OP_MEAN && !cb_dtype_is_float(dtype)) ||
                (codes[c] > CB_OP_MEAN && dtype == CB_BOOL))
                continue;
            for (int i = 0; i < N_SHAPES; i++) {
                cb_shape shape = shape_of(i);
                for (unsigned axes = 1; axes < 1u << shape.rank; axes++) {
                    check_reduce(codes[c], dtype, shape, axes, axes % 2,
                                 (layout)((axes + (unsigned)d) % N_LAYOUTS));
                }
            }
        }
    }
}

/* Sixteen short rows are summed at once: each has the bits that it has alone. */
TEST(short_rows) {
    static const int64_t lengths[] = {1, 2, 5, 16, 31, 49, 64, 65};
    enum { ROWS = 37 };
    for (int d = 0; d < COUNT(floats); d++) {
        for (int i = 0; i < COUNT(lengths); i++) {
            test_op all = {.code = d % 2 ? CB_OP_MEAN : CB_OP_SUM, .n_in = 1};
            all.attrs.dims = (cb_shape){.rank = 1, .dim = {1}};
            all.in[0] = input(floats[d], SHAPE(ROWS, lengths[i]), PLAIN, SMALL);
            CHECK_OK(run_op(&all, 1, NULL));
            for (int64_t row = 0; row < ROWS; row++) {
                test_op one = {.code = all.code, .n_in = 1, .attrs = all.attrs};
                const int kept = n_owned_blocks;
                one.in[0] = all.in[0];
                one.in[0].shape.dim[0] = 1;
                one.in[0].data = element(&all.in[0], row * lengths[i]);
                CHECK_OK(run_op(&one, 1, NULL));
                CHECK(get(&one.out[0], 0) == get(&all.out[0], row));
                while (n_owned_blocks > kept) free(owned_blocks[--n_owned_blocks]);
            }
            free_tensors();
        }
    }
}

TEST(empty) {
    for (int d = 0; d < COUNT(everything); d++) {
        for (unsigned axes = 1; axes < 8; axes++)
            check_reduce(CB_OP_SUM, everything[d], SHAPE(3, 0, 4), axes, false, PLAIN);
    }
    check_reduce(CB_OP_SUM, CB_F32, cb_shape_make(0, NULL), 0, false, PLAIN);
}

/* Long rows are cut into segments, wide columns into tiles, many rows into blocks. */
TEST(long_ones) {
    for (int d = 0; d < COUNT(floats); d++) {
        check_reduce(CB_OP_SUM, floats[d], SHAPE(200001), 1, false, PLAIN);
        check_reduce(CB_OP_SUM, floats[d], SHAPE(2, 70000), 2, false, PLAIN);
        check_reduce(CB_OP_SUM, floats[d], SHAPE(2100, 1500), 1, false, PLAIN);
        check_reduce(CB_OP_SUM, floats[d], SHAPE(5000, 5), 1, false, PLAIN);
        check_reduce(CB_OP_MEAN, floats[d], SHAPE(20, 300, 50), 2, false, PLAIN);
        check_reduce(CB_OP_AMAX, floats[d], SHAPE(300, 300), 3, false, REVERSED);
    }
}

/* The order of a sum depends on the shape only: a strided view gives the bits of its copy. */
TEST(strides_do_not_matter) {
    for (unsigned axes = 1; axes < 8; axes++) {
        test_op view = {.code = CB_OP_SUM, .n_in = 1}, copy = view;
        view.in[0] = input(CB_F32, SHAPE(37, 50, 44), (layout)(axes % N_LAYOUTS), SMALL);
        copy.in[0] = TENSOR(CB_F32, 37, 50, 44);
        for (int64_t i = 0; i < cb_numel(&copy.in[0].shape); i++)
            set(&copy.in[0], i, get(&view.in[0], i));
        for (int k = 0; k < 3; k++) {
            if (axes >> k & 1) view.attrs.dims.dim[view.attrs.dims.rank++] = k;
        }
        copy.attrs = view.attrs;
        CHECK_OK(run_op(&view, 1, NULL));
        CHECK_OK(run_op(&copy, 2, NULL));
        CHECK(same_bits(&view.out[0], &copy.out[0]));
        free_tensors();
    }
}

TEST(error_stays_small) {
    cb_tensor x = TENSOR(CB_F32, 1 << 22);
    for (int64_t i = 0; i < 1 << 22; i++) set(&x, i, 0.1);
    test_op op = {.code = CB_OP_SUM, .n_in = 1, .in = {x}, .attrs = {.dims = SHAPE(0)}};
    CHECK_OK(run_op(&op, 2, NULL));
    CHECK(fabs(get(&op.out[0], 0) / ((double)0.1f * (1 << 22)) - 1) < 1e-6);
    op.in[0].shape = SHAPE(1 << 16, 64);
    cb_shape_strides(&op.in[0].shape, op.in[0].stride);
    CHECK_OK(run_op(&op, 2, NULL));
    for (int64_t i = 0; i < 64; i++)
        CHECK(fabs(get(&op.out[0], i) / ((double)0.1f * (1 << 16)) - 1) < 1e-6);
    free_tensors();
}

TEST(argmax) {
    for (int d = 0; d < COUNT(numbers); d++) {
        for (int i = 0; i < N_SHAPES; i++) {
            for (int axis = 0; axis < shape_of(i).rank; axis++) {
                test_op op = {.code = CB_OP_ARGMAX, .n_in = 1, .attrs = {.i = {axis, i % 2}}};
                op.in[0] = input(numbers[d], shape_of(i), PLAIN, SPECIAL);
                if (i % 2) { /* ties */
                    for (int64_t k = 0; k < cb_numel(&op.in[0].shape); k++)
                        set(&op.in[0], k, (double)random_int(0, 3));
                }
                CHECK_TWIN(&op, 0, 0);
            }
        }
    }
}

int main(void) {
    RUN(every_choice_of_axes);
    RUN(short_rows);
    RUN(empty);
    RUN(long_ones);
    RUN(strides_do_not_matter);
    RUN(error_stays_small);
    RUN(argmax);
    return check_report();
}
