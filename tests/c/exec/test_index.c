/* gather, scatter_add, embedding and its gradient: values, order of additions, the same bits for
 * any number of threads, and indices out of range. */
#include "kernel_test.h"

static const cb_dtype floats[] = {CB_F32, CB_F64, CB_F16, CB_BF16};
static const cb_dtype all_types[] = {CB_F32, CB_F64, CB_F16, CB_BF16, CB_I64, CB_I32, CB_U8};

static void fill_any(const cb_tensor *t) {
    if (cb_dtype_is_float(t->dtype)) {
        fill_random(t);
    } else {
        fill_indices(t, 100);
    }
}

/* Returns the index of element (o, i, c) of a tensor viewed as [outer, n, inner]. */
static int64_t at(const cb_shape *s, int64_t axis, int64_t o, int64_t i, int64_t c) {
    int64_t inner = 1;
    for (int32_t k = (int32_t)axis + 1; k < s->rank; k++) inner *= s->dim[k];
    return (o * s->dim[axis] + i) * inner + c;
}

static void check_axis(cb_dtype dtype, cb_dtype index_dtype, cb_shape shape, int64_t axis,
                       int64_t n) {
    cb_shape index_shape = shape;
    index_shape.dim[axis] = n;
    cb_tensor x = new_tensor(dtype, shape), index = new_tensor(index_dtype, index_shape),
              src = new_tensor(dtype, index_shape);
    fill_any(&x);
    fill_any(&src);
    fill_indices(&index, shape.dim[axis]);
    test_op pick = {.code = CB_OP_GATHER, .attrs = {.i = {axis}}, .n_in = 2, .in = {x, index}};
    test_op add = {
        .code = CB_OP_SCATTER_ADD, .attrs = {.i = {axis}}, .n_in = 3, .in = {x, index, src}};
    check_threads(&pick, NULL);
    check_threads(&add, NULL);

    int64_t inner = 1, wrong = 0, total = cb_numel(&shape);
    double *sum = malloc((size_t)(total + 1) * sizeof *sum);
    for (int64_t i = 0; i < total; i++) sum[i] = get(&x, i);
    for (int32_t k = (int32_t)axis + 1; k < shape.rank; k++) inner *= shape.dim[k];
    for (int64_t i = 0; i < cb_numel(&index_shape); i++) {
        int64_t from = at(&shape, axis, i / inner / n, (int64_t)get(&index, i), i % inner);
        wrong += get(&pick.out[0], i) != get(&x, from);
        sum[from] += get(&src, i);
    }
    for (int64_t i = 0; i < total; i++) {
        double want = dtype == CB_U8 ? (double)(uint8_t)(int64_t)sum[i] : sum[i];
        wrong += !is_close(dtype, get(&add.out[0], i), want, (double)n + 1);
    }
    CHECK(wrong == 0);
    free(sum);
    free_tensors();
}

TEST(along_an_axis) {
    for (size_t d = 0; d < sizeof all_types / sizeof all_types[0]; d++) {
        cb_dtype index = d % 2 ? CB_I32 : CB_I64;
        check_axis(all_types[d], index, cb_shape_make(1, (int64_t[]){7}), 0, 30);
        check_axis(all_types[d], index, cb_shape_make(3, (int64_t[]){3, 5, 4}), 1, 9);
        check_axis(all_types[d], index, cb_shape_make(2, (int64_t[]){6, 70}), 0, 11);
        check_axis(all_types[d], index, cb_shape_make(3, (int64_t[]){40, 3, 64}), 2, 16);
        check_axis(all_types[d], index, cb_shape_make(2, (int64_t[]){0, 3}), 1, 2);
        check_axis(all_types[d], index, cb_shape_make(2, (int64_t[]){4, 3}), 1, 0);
        check_axis(all_types[d], index, cb_shape_make(2, (int64_t[]){300, 400}), 0, 5);
    }
}

TEST(embedding) {
    for (int d = 0; d < 4; d++) {
        cb_tensor weight = TENSOR(floats[d], 50, 33), index = TENSOR(CB_I64, 7, 20),
                  g = TENSOR(floats[d], 7, 20, 33);
        fill_random(&weight);
        fill_random(&g);
        fill_indices(&index, 50);
        test_op forward = {.code = CB_OP_EMBEDDING, .n_in = 2, .in = {weight, index}};
        test_op backward = {
            .code = CB_OP_EMBEDDING_BWD, .attrs = {.i = {50}}, .n_in = 2, .in = {g, index}};
        check_threads(&forward, NULL);
        check_threads(&backward, NULL);
        double sum[50 * 33] = {0};
        int64_t wrong = 0;
        for (int64_t i = 0; i < 140 * 33; i++) {
            int64_t from = (int64_t)get(&index, i / 33) * 33 + i % 33;
            wrong += get(&forward.out[0], i) != get(&weight, from);
            sum[from] += get(&g, i);
        }
        for (int64_t i = 0; i < 50 * 33; i++)
            wrong += !is_close(floats[d], get(&backward.out[0], i), sum[i], 140);
        CHECK(wrong == 0);
        free_tensors();
    }
}

/* Many rows of 16-bit gradients exceed one block of scratch; those of f32 are filled by several
 * tasks. */
TEST(embedding_blocks) {
    const cb_dtype types[] = {CB_BF16, CB_F32};
    for (int d = 0; d < 2; d++) {
        cb_tensor index = TENSOR(CB_I32, 600), g = TENSOR(types[d], 600, 40);
        fill_random(&g);
        fill_indices(&index, 9000);
        test_op op = {
            .code = CB_OP_EMBEDDING_BWD, .attrs = {.i = {9000}}, .n_in = 2, .in = {g, index}};
        check_threads(&op, NULL);
        double total = 0, want = 0;
        for (int64_t i = 0; i < cb_numel(&op.out[0].shape); i++) total += get(&op.out[0], i);
        for (int64_t i = 0; i < cb_numel(&g.shape); i++) want += get(&g, i);
        CHECK(fabs(total - want) < 1);
        free_tensors();
    }
}

/* A row that is hit often is rounded once: otherwise 1 + 255 * 2^-9 would stay at 1 in bf16. */
TEST(rounds_once) {
    cb_tensor index = TENSOR(CB_I64, 256), g = TENSOR(CB_BF16, 256, 1);
    for (int64_t i = 0; i < 256; i++) set(&index, i, 0), set(&g, i, i == 0 ? 1 : 0x1p-9);
    test_op op = {.code = CB_OP_EMBEDDING_BWD, .attrs = {.i = {2}}, .n_in = 2, .in = {g, index}};
    CHECK_OK(run_op(&op, 2, NULL));
    CHECK(get(&op.out[0], 0) == 1.5 && get(&op.out[0], 1) == 0);
    free_tensors();
}

/* f32 additions in the order of src: the small term is lost because it comes after a large one. */
TEST(order) {
    cb_tensor base = TENSOR(CB_F32, 1), index = TENSOR(CB_I64, 3), src = TENSOR(CB_F32, 3);
    const double terms[3] = {0x1p24, 1, -0x1p24};
    set(&base, 0, 0);
    for (int64_t i = 0; i < 3; i++) set(&index, i, 0), set(&src, i, terms[i]);
    test_op op = {.code = CB_OP_SCATTER_ADD, .n_in = 3, .in = {base, index, src}};
    CHECK_OK(run_op(&op, 1, NULL));
    CHECK(get(&op.out[0], 0) == 0);
    free_tensors();
}

TEST(out_of_range) {
    cb_tensor weight = TENSOR(CB_F32, 256, 4), index = TENSOR(CB_I64, 3), g = TENSOR(CB_F32, 3, 4);
    fill_random(&weight);
    fill_random(&g);
    fill_indices(&index, 256);
    set(&index, 1, 300);
    test_op op = {.code = CB_OP_EMBEDDING, .n_in = 2, .in = {weight, index}};
    CHECK_FAIL(run_op(&op, 2, NULL), CB_INVALID, "embedding: index 300 out of range for 256 rows");
    set(&index, 1, -1);
    CHECK_FAIL(run_op(&op, 2, NULL), CB_INVALID, "embedding: index -1 out of range for 256 rows");
    test_op backward = {
        .code = CB_OP_EMBEDDING_BWD, .attrs = {.i = {256}}, .n_in = 2, .in = {g, index}};
    CHECK_FAIL(run_op(&backward, 2, NULL), CB_INVALID, "embedding_bwd: index -1");
    cb_tensor x = TENSOR(CB_F32, 2), none = TENSOR(CB_F32, 0);
    test_op pick = {.code = CB_OP_GATHER, .n_in = 2, .in = {x, index}};
    CHECK_FAIL(run_op(&pick, 1, NULL), CB_INVALID, "gather: index");
    pick.in[0] = none;
    CHECK_FAIL(run_op(&pick, 1, NULL), CB_INVALID, "out of range for 0 rows");
    free_tensors();
}

int main(void) {
    RUN(along_an_axis);
    RUN(embedding);
    RUN(embedding_blocks);
    RUN(rounds_once);
    RUN(order);
    RUN(out_of_range);
    return check_report();
}
