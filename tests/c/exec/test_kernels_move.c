/* Kernels that create and move elements: full, iota, uniform, dropout, contiguous, concat, pad,
 * tril. */
#include "kernel_twin.h"

TEST(contiguous) {
    static const int64_t permutations[][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {3, 2, 1, 0},
                                              {0, 1, 3, 2}, {2, 3, 0, 1}, {1, 0, 3, 2}};
    static const int64_t sizes[][4] = {
        {2, 3, 4, 5}, {1, 40, 3, 70}, {3, 1, 65, 33}, {2, 0, 3, 4}, {2, 7, 50, 90}};
    for (int d = 0; d < COUNT(everything); d++) {
        for (int p = 0; p < COUNT(permutations); p++) {
            for (int s = 0; s < COUNT(sizes); s++) {
                cb_tensor x = input(everything[d], cb_shape_make(4, sizes[s]), PLAIN, SPECIAL),
                          view = x;
                for (int k = 0; k < 4; k++) {
                    view.shape.dim[k] = x.shape.dim[permutations[p][k]];
                    view.stride[k] = x.stride[permutations[p][k]];
                }
                test_op op = {.code = CB_OP_CONTIGUOUS, .n_in = 1, .in = {view}};
                CHECK_TWIN(&op, 0, 0);
            }
        }
        for (int how = 0; how < N_LAYOUTS; how++) {
            test_op op = {.code = CB_OP_CONTIGUOUS, .n_in = 1};
            op.in[0] = input(everything[d], SHAPE(3, 70, 130), (layout)how, SPECIAL);
            CHECK_TWIN(&op, 0, 0);
        }
    }
}

TEST(concat) {
    for (int d = 0; d < COUNT(everything); d++) {
        for (int axis = 0; axis < 3; axis++) {
            for (int how = 0; how < N_LAYOUTS; how++) {
                test_op op = {.code = CB_OP_CONCAT, .n_in = 4, .attrs = {.i = {axis}}};
                static const int64_t lengths[] = {3, 0, 1, 40};
                for (int i = 0; i < 4; i++) {
                    cb_shape shape = SHAPE(6, 33, 29);
                    shape.dim[axis] = lengths[i];
                    op.in[i] =
                        input(everything[d], shape, (layout)((how + i) % N_LAYOUTS), SPECIAL);
                }
                CHECK_TWIN(&op, 0, 0);
            }
        }
    }
}

TEST(pad) {
    static const int64_t amounts[][3] = {{0, 0, 0}, {2, 0, 0}, {0, 3, 0},
                                         {1, 2, 2}, {0, 0, 1}, {500, 40, 3}};
    for (int d = 0; d < COUNT(everything); d++) {
        for (int a = 0; a < COUNT(amounts); a++) {
            for (int axis = 0; axis < 3; axis++) {
                for (int s = 0; s < 3; s++) {
                    cb_shape shape =
                        s == 0 ? SHAPE(4, 5, 7) : (s == 1 ? SHAPE(2, 1, 300) : SHAPE(3, 2, 4));
                    if (s == 2) shape.dim[axis] = 0;
                    test_op op = {.code = CB_OP_PAD, .n_in = 1};
                    op.attrs = (cb_attrs){.i = {axis, amounts[a][0], amounts[a][1], amounts[a][2]},
                                          .f = {a == 1 ? -INFINITY : (double)a}};
                    op.in[0] =
                        input(everything[d], shape, (layout)((a + axis) % N_LAYOUTS), SPECIAL);
                    CHECK_TWIN(&op, 0, 0);
                }
            }
        }
    }
}

TEST(tril) {
    static const int64_t ks[] = {0, 1, -1, 100, -100, 7, INT64_C(1) << 61, -(INT64_C(1) << 61)};
    for (int d = 0; d < COUNT(everything); d++) {
        for (int k = 0; k < COUNT(ks); k++) {
            for (int s = 0; s < 4; s++) {
                cb_shape shape =
                    s == 0 ? SHAPE(2, 9, 9)
                           : (s == 1 ? SHAPE(90, 200) : (s == 2 ? SHAPE(1, 1) : SHAPE(3, 2, 0)));
                test_op op = {
                    .code = CB_OP_TRIL, .n_in = 1, .attrs = {.i = {ks[k]}, .f = {-INFINITY}}};
                op.in[0] = input(everything[d], shape, (layout)((k + s) % N_LAYOUTS), SPECIAL);
                CHECK_TWIN(&op, 0, 0);
            }
        }
    }
}

TEST(bits) {
    static const cb_dtype packable[] = {CB_BOOL, CB_F32, CB_F64, CB_F16, CB_BF16};
    const cb_shape shapes[] = {SHAPE(0, 3), SHAPE(1, 1), SHAPE(3, 5), SHAPE(64, 8), SHAPE(7, 9001)};
    for (int s = 0; s < COUNT(shapes); s++) {
        const int64_t n = cb_numel(&shapes[s]);
        for (int d = 0; d < COUNT(packable); d++) {
            test_op op = {.code = CB_OP_PACK_BITS, .n_in = 1};
            op.in[0] = input(packable[d], shapes[s], PLAIN, SPECIAL);
            CHECK_TWIN(&op, 0, 0);
        }
        test_op op = {.code = CB_OP_UNPACK_BITS, .n_in = 1, .attrs = {.dims = shapes[s]}};
        op.in[0] = input(CB_U8, SHAPE((n + 7) / 8), PLAIN, SPECIAL);
        CHECK_TWIN(&op, 0, 0);
    }
}

/* Returns random indices, each in its window if there are windows. */
static cb_tensor random_indices(cb_dtype dtype, const cb_shape *shape, const int64_t *a) {
    cb_tensor index = input(dtype, *shape, PLAIN, SMALL);
    for (int64_t i = 0; i < cb_numel(shape); i++) {
        int64_t at[2] = {0, random_int(0, a[7] - 1)}; /* a row and a column of the plane */
        for (int k = 0; k < 2 && a[0]; k++) {
            const int64_t axis = k ? i % shape->dim[3] : i / shape->dim[3] % shape->dim[2];
            const int64_t first = axis * a[2 + k] - a[4 + k], size = k ? a[6] : a[7] / a[6];
            const int64_t last = first + a[k] < size ? first + a[k] : size;
            at[k] = random_int(first < 0 ? 0 : first, last - 1);
        }
        set(&index, i, (double)(a[0] ? at[0] * a[6] + at[1] : at[1]));
    }
    return index;
}

/* Indices become bytes, and the same indices again. */
static void check_indices(cb_dtype dtype, const cb_shape *shape, const cb_attrs *attrs) {
    test_op pack = {.code = CB_OP_PACK_INDEX, .n_in = 1, .attrs = *attrs}, unpack = pack;
    pack.in[0] = random_indices(dtype, shape, attrs->i);
    CHECK_OK(run_op(&pack, 1, NULL));
    unpack.code = CB_OP_UNPACK_INDEX;
    unpack.in[0] = pack.out[0];
    unpack.attrs.dims = *shape;
    unpack.attrs.dtype = dtype;
    CHECK_OK(run_op(&unpack, 1, NULL));
    CHECK(same_bits(&unpack.out[0], &pack.in[0]));
    CHECK_TWIN(&unpack, 0, 0); /* frees all tensors */
    pack.in[0] = random_indices(dtype, shape, attrs->i);
    CHECK_TWIN(&pack, 0, 0);
}

TEST(packed_indices) {
    static const int64_t limits[] = {1, 256, 257, 65536, 65537, INT64_C(1) << 31};
    const cb_attrs pools[] = {{.i = {2, 2, 2, 2, 0, 0, 9, 54}},
                              {.i = {3, 3, 1, 2, 1, 1, 7, 77}},
                              {.i = {16, 17, 1, 1, 8, 8, 5, 30}},
                              {.i = {1, 5, 3, 1, 0, 2, 2, 2}}};
    const cb_shape planes[] = {SHAPE(2, 3, 3, 4), SHAPE(3, 2, 11, 4), SHAPE(2, 1, 7, 5),
                               SHAPE(2, 1, 1, 2)};
    for (int d = 0; d < 2; d++) {
        const cb_dtype dtype = d ? CB_I64 : CB_I32;
        for (int k = 0; k < COUNT(limits); k++) {
            const cb_attrs plain = {.i = {[7] = limits[k]}};
            const cb_shape shape = k % 2 ? SHAPE(3, 9001) : SHAPE(0, 3);
            check_indices(dtype, &shape, &plain);
        }
        for (int k = 0; k < COUNT(pools); k++) check_indices(dtype, &planes[k], &pools[k]);
    }
}

static cb_shape source_shape(int i) {
    return i == 0 ? cb_shape_make(0, NULL)
                  : (i == 1 ? SHAPE(3, 0) : (i == 2 ? SHAPE(5, 6, 7) : SHAPE(9, 41, 123)));
}

TEST(full) {
    static const double constants[] = {0, -0.0, 1.5, -7, 300, 1e30, -1e30, INFINITY, NAN};
    for (int d = 0; d < COUNT(everything); d++) {
        for (int v = 0; v < COUNT(constants); v++) {
            for (int s = 0; s < 4; s++) {
                test_op op = {.code = CB_OP_FULL,
                              .attrs = {.f = {constants[v]},
                                        .dims = source_shape(s),
                                        .dtype = everything[d]}};
                op.in[0].dtype = everything[d]; /* selects the kernel */
                CHECK_TWIN(&op, 0, 0);
            }
        }
    }
}

TEST(iota) {
    for (int d = 0; d < COUNT(everything); d++) {
        for (int s = 1; s < 4; s++) {
            for (int axis = 0; axis < source_shape(s).rank; axis++) {
                test_op op = {
                    .code = CB_OP_IOTA,
                    .attrs = {.i = {axis}, .dims = source_shape(s), .dtype = everything[d]}};
                op.in[0].dtype = everything[d];
                CHECK_TWIN(&op, 0, 0);
            }
        }
    }
}

static const cb_philox generators[] = {{.seed = 0},
                                       {.seed = UINT64_C(0x123456789ABCDEF0), .step = 7},
                                       {.seed = UINT64_MAX, .step = UINT32_MAX}};

TEST(uniform) {
    for (int d = 0; d < COUNT(floats); d++) {
        for (int s = 0; s < 4; s++) {
            test_op op = {.code = CB_OP_UNIFORM, .random = generators[s % 3]};
            op.attrs = (cb_attrs){.i = {s == 2 ? (int64_t)UINT32_MAX : s},
                                  .dims = source_shape(s),
                                  .dtype = floats[d]};
            op.in[0].dtype = floats[d];
            CHECK_TWIN(&op, 0, 0);
        }
    }
}

TEST(dropout) {
    static const double ps[] = {0, 0.1, 0.5, 0.9, 0.999999, 1e-6};
    for (int d = 0; d < COUNT(floats); d++) {
        for (int p = 0; p < COUNT(ps); p++) {
            for (int s = 0; s < 4; s++) {
                test_op op = {.code = CB_OP_DROPOUT, .n_in = 1, .random = generators[p % 3]};
                op.attrs = (cb_attrs){.f = {ps[p]}, .i = {p}};
                op.in[0] = input(floats[d], source_shape(s), PLAIN, SMALL);
                CHECK_TWIN(&op, 1.5, 0);
            }
        }
    }
}

/* The dropout mask depends only on the element's index: a longer tensor starts with the same
 * mask. */
TEST(dropout_mask_is_of_the_element) {
    test_op one = {.code = CB_OP_DROPOUT,
                   .n_in = 1,
                   .attrs = {.f = {0.3}, .i = {5}},
                   .random = generators[1]},
            two = one;
    one.in[0] = TENSOR(CB_F32, 3001);
    two.in[0] = TENSOR(CB_F32, 70000);
    for (int64_t i = 0; i < 3001; i++) set(&one.in[0], i, 1);
    for (int64_t i = 0; i < 70000; i++) set(&two.in[0], i, 1);
    CHECK_OK(run_op(&one, 1, NULL));
    CHECK_OK(run_op(&two, 2, NULL));
    double sum = 0;
    for (int64_t i = 0; i < 3001; i++) CHECK(get(&one.out[0], i) == get(&two.out[0], i));
    for (int64_t i = 0; i < 70000; i++) sum += get(&two.out[0], i);
    CHECK(fabs(sum / 70000 - 1) < 0.01);
    free_tensors();
}

int main(void) {
    RUN(contiguous);
    RUN(concat);
    RUN(bits);
    RUN(packed_indices);
    RUN(pad);
    RUN(tril);
    RUN(full);
    RUN(iota);
    RUN(uniform);
    RUN(dropout);
    RUN(dropout_mask_is_of_the_element);
    return check_report();
}
