/* matmul against a plain loop in long double; the same bits for any number of threads; the BLAS's
 * thread setting. */
#include <pthread.h>

#include "base/ints.h"
#include "exec/cpu/gemm/gemm.h"
#include "kernel_test.h"

/* A matrix [batch, rows, columns]: column-major, with a gap after each line, or one matrix repeated
 * over the batch. */
typedef struct layout {
    bool is_transposed, is_padded, is_repeated;
} layout;

static cb_tensor make_matrix(cb_dtype dtype, int64_t batch, int64_t rows, int64_t columns,
                             layout how) {
    int64_t lines = how.is_transposed ? columns : rows, length = how.is_transposed ? rows : columns;
    int64_t ld = length + (how.is_padded ? 3 : 0), copies = how.is_repeated ? 1 : batch;
    cb_tensor all = TENSOR(dtype, copies, lines, ld);
    fill_random(&all);
    cb_tensor t = all;
    t.shape = cb_shape_make(3, (int64_t[]){batch, rows, columns});
    t.stride[0] = how.is_repeated ? 0 : lines * ld;
    t.stride[1] = how.is_transposed ? 1 : ld;
    t.stride[2] = how.is_transposed ? ld : 1;
    return t;
}

static void check_product(const test_op *op) {
    if (!is_compared()) return;
    const cb_tensor *x = &op->in[0], *y = &op->in[1], *out = &op->out[0];
    int64_t batch = x->shape.dim[0], n = x->shape.dim[1], k = x->shape.dim[2], m = y->shape.dim[2],
            wrong = 0;
    for (int64_t i = 0; i < batch * n * m; i++) {
        int64_t b = i / m / n, row = i / m % n, column = i % m;
        long double sum = op->n_in == 3 ? get(&op->in[2], i) : 0, size = fabsl(sum);
        for (int64_t p = 0; p < k; p++) {
            long double term = (long double)get(x, (b * n + row) * k + p) *
                               (long double)get(y, (b * k + p) * m + column);
            sum += term;
            size += fabsl(term);
        }
        wrong += !is_close(out->dtype, get(out, i), (double)sum, (double)size);
    }
    CHECK(wrong == 0);
}

static void check_layouts(cb_dtype dtype, int64_t batch, int64_t n, int64_t k, int64_t m,
                          const cb_blas *blas) {
    for (int how = 0; how < 16; how++) {
        test_op op = {.code = CB_OP_MATMUL, .n_in = 2};
        op.in[0] =
            make_matrix(dtype, batch, n, k, (layout){how & 1, how & 4, (how & 8) && !(how & 1)});
        op.in[1] =
            make_matrix(dtype, batch, k, m, (layout){how & 2, how & 4, (how & 8) && (how & 1)});
        check_threads(&op, blas);
        check_product(&op);
        free_tensors();
    }
}

static void check_sizes(const cb_blas *blas) {
    static const cb_dtype dtypes[] = {CB_F32, CB_F64, CB_F16, CB_BF16};
    for (int d = 0; d < 4; d++) {
        check_layouts(dtypes[d], 1, 1, 1, 1, blas);
        check_layouts(dtypes[d], 3, 5, 7, 2, blas);
        check_layouts(dtypes[d], 2, 17, 0, 9, blas);
        check_layouts(dtypes[d], 1, 0, 4, 3, blas);
        check_layouts(dtypes[d], 0, 2, 4, 3, blas);
        check_layouts(dtypes[d], 1, 1, 300, 33, blas);
        check_layouts(dtypes[d], 1, 33, 259, 1, blas);
        check_layouts(dtypes[d], 7, 19, 64, 16, blas);
        check_layouts(dtypes[d], 1, random_int(1, 40), random_int(1, 600), random_int(1, 40), blas);
    }
    check_layouts(CB_F32, 1, 259, 20, 270, blas); /* several tiles */
    check_layouts(CB_F32, 1, 1, 70, 4100, blas);  /* longer than GEMM_LINE, and beyond GEMM_NEAR */
    check_layouts(CB_F32, 1, 790, 20, 33, blas);  /* several blocks of rows */
    check_layouts(CB_F32, 1, 30, 130, 430, blas); /* more columns than a block that is turned has */
    check_layouts(CB_BF16, 1, 200, 210, 5, blas);
}

TEST(own) { check_sizes(test_blas(false)); }

/* Tests every remainder of rows and columns in a register block, both operand orders, and inner
 * sizes around the block size. */
TEST(odd_sizes) {
    static const int64_t inner[] = {1, 31, 40, 255, 256, 257, 513};
    for (int64_t n = 1; n <= 70; n += 1 + n / 17) {
        for (int64_t m = 1; m <= 70; m += 1 + m / 17) {
            cb_dtype dtype = (n + m) % 3 == 0 ? CB_F64 : CB_F32;
            int how = (int)(n * 3 + m) & 7;
            test_op op = {.code = CB_OP_MATMUL, .n_in = 2};
            int64_t k = inner[(n * 5 + m) % 7];
            op.in[0] = make_matrix(dtype, 1, n, k, (layout){how & 1, how & 4, false});
            op.in[1] = make_matrix(dtype, 1, k, m, (layout){how & 2, how & 4, false});
            cb_blas none = {0};
            CHECK_OK(run_op(&op, 3, &none));
            check_product(&op);
            free_tensors();
        }
    }
}

/* The bits of an element depend only on its row, its column and k: part of a product, computed
 * alone, equals that part of the whole. */
TEST(parts) {
    static const int64_t parts[][4] = {{0, 0, 1, 1},    {3, 5, 1, 90},  {7, 2, 60, 1},
                                       {0, 9, 70, 6},   {11, 0, 5, 96}, {1, 1, 13, 33},
                                       {0, 17, 77, 16}, {2, 4, 29, 95}, {5, 0, 48, 96}};
    for (int how = 0; how < 4 * 9; how++) {
        const int64_t *part = parts[how / 4], n = 80, k = 530, m = 101;
        test_op op = {.code = CB_OP_MATMUL, .n_in = 2};
        op.in[0] = make_matrix(CB_F32, 1, n, k, (layout){.is_transposed = how & 1});
        op.in[1] = make_matrix(CB_F32, 1, k, m, (layout){.is_transposed = how & 2});
        cb_blas none = {0};
        CHECK_OK(run_op(&op, 1, &none));
        const cb_tensor whole = op.out[0];
        op.in[0].data = (float *)op.in[0].data + part[0] * op.in[0].stride[1];
        op.in[1].data = (float *)op.in[1].data + part[1] * op.in[1].stride[2];
        op.in[0].shape.dim[1] = part[2], op.in[1].shape.dim[2] = part[3];
        CHECK_OK(run_op(&op, 2, &none));
        int64_t wrong = 0;
        for (int64_t i = 0; i < part[2]; i++) {
            const float *row = (const float *)whole.data + (part[0] + i) * m + part[1];
            wrong += memcmp(row, (const float *)op.out[0].data + i * part[3],
                            (size_t)part[3] * sizeof(float)) != 0;
        }
        CHECK(wrong == 0);
        free_tensors();
    }
}

/* Returns columns begin..end of x, or rows of y. */
static cb_tensor part_of(cb_tensor t, int axis, int64_t begin, int64_t end) {
    t.data = (char *)t.data + begin * t.stride[axis] * (int64_t)cb_dtype_size(t.dtype);
    t.shape.dim[axis] = end - begin;
    return t;
}

/* A product whose inner axis is cut at multiples of 256, each part added to the sum of those before
 * it, has the same bits as the whole product, whether or not the output takes over the base's
 * memory. */
TEST(parts_of_the_inner_axis_add_up) {
    static const int64_t cuts[] = {0, 256, 768, 1000};
    for (int how = 0; how < 32; how++) {
        const cb_dtype dtype = how & 4 ? CB_F64 : CB_F32;
        const int64_t batch = how & 8 ? 2 : 1, n = how & 16 ? 31 : 75, k = 1000, m = 61;
        const cb_blas none = {0};
        test_op whole = {.code = CB_OP_MATMUL, .n_in = 2}, first, next;
        whole.in[0] = make_matrix(dtype, batch, n, k, (layout){how & 1, how & 2, false});
        whole.in[1] = make_matrix(dtype, batch, k, m, (layout){how & 2, how & 1, false});
        CHECK_OK(run_op(&whole, 2, &none));
        first = whole;
        first.in[0] = part_of(whole.in[0], 2, 0, cuts[1]);
        first.in[1] = part_of(whole.in[1], 1, 0, cuts[1]);
        CHECK_OK(run_op(&first, 1, &none));
        cb_tensor sum = first.out[0];
        for (int i = 1; i < 3; i++) {
            next = (test_op){.code = CB_OP_MATMUL_ADD, .n_in = 3};
            next.in[0] = part_of(whole.in[0], 2, cuts[i], cuts[i + 1]);
            next.in[1] = part_of(whole.in[1], 1, cuts[i], cuts[i + 1]);
            next.in[2] = sum;
            CHECK_OK(run_op(&next, 2, &none));
            sum = next.out[0];
        }
        CHECK(same_bits(&sum, &whole.out[0]));
        free_tensors();
    }
}

/* Tests base + x y for every dtype and layout of the base, and with a BLAS. */
TEST(adds_to_its_base) {
    static const cb_dtype dtypes[] = {CB_F32, CB_F64, CB_F16, CB_BF16};
    for (int how = 0; how < 64; how++) {
        const cb_dtype dtype = dtypes[how >> 4];
        test_op op = {.code = CB_OP_MATMUL_ADD, .n_in = 3};
        op.in[0] = make_matrix(dtype, 2, 17, 40, (layout){how & 2, false, false});
        op.in[1] = make_matrix(dtype, 2, 40, 9, (layout){0});
        op.in[2] = make_matrix(dtype, 2, 17, 9, (layout){how & 1, how & 4, false});
        check_threads(&op, test_blas(how & 8));
        check_product(&op);
        free_tensors();
    }
}

/* -(1 + 2^-11) + (1 + 2^-12)^2 is 2^-24; if the product were rounded, it would be 0. */
TEST(products_are_fused) {
    for (int isa = 0; isa <= (int)cb_cpu_isa(); isa++) {
        setenv("CUTBACK_ISA", cb_isa_name((cb_isa)isa), 1);
        test_op op = {
            .code = CB_OP_MATMUL, .n_in = 2, .in = {TENSOR(CB_F32, 1, 2), TENSOR(CB_F32, 2, 1)}};
        set(&op.in[0], 0, -1), set(&op.in[1], 0, 1 + 0x1p-11);
        set(&op.in[0], 1, 1 + 0x1p-12), set(&op.in[1], 1, 1 + 0x1p-12);
        cb_blas none = {0};
        CHECK_OK(run_op(&op, 1, &none));
        CHECK(get(&op.out[0], 0) == 0x1p-24);
        free_tensors();
    }
    unsetenv("CUTBACK_ISA");
}

static int64_t n_tasks(int64_t batch, int64_t m, int64_t n, int64_t k, int threads) {
    cb_gemm_cut t = cb_gemm_cut_of(batch, m, n, k, threads);
    CHECK(t.rows >= 1 && t.columns >= 1 && t.batches >= 1);
    return div_up(batch, t.batches) * div_up(m, t.rows) * div_up(n, t.columns);
}

/* There are enough tasks for threads to finish together, but no task is too small to be worth
 * starting. */
TEST(tasks) {
    CHECK(n_tasks(1, 512, 512, 512, 1) == 1);
    CHECK(n_tasks(1, 64, 64, 64, 16) == 1);
    CHECK(n_tasks(1, 128, 128, 128, 2) == 8);
    for (int threads = 2; threads <= 16; threads *= 2) {
        CHECK(n_tasks(1, 512, 512, 512, threads) >= 4 * threads);
        CHECK(n_tasks(1, 1024, 1024, 1024, threads) >= 4 * threads);
        CHECK(n_tasks(1, 128, 128, 4096, threads) >= 2 * threads);
        CHECK(n_tasks(1, 8160, 10, 784, threads) >= 4 * threads);
        CHECK(n_tasks(1, 16, 4096, 1024, threads) >= 4 * threads);
        CHECK(n_tasks(64, 64, 64, 64, threads) >= 2 * threads);
    }
    CHECK(n_tasks(0, 5, 5, 5, 4) == 0 && n_tasks(1, 5, 5, 0, 4) == 1);
}

TEST(with_blas) {
    if (have_blas("with_blas")) check_sizes(test_blas(true));
}

/* Tests a product of more than one 1024-wide tile on a sample of its elements. */
TEST(large) {
    for (int blas = 0; blas < 2; blas++) {
        test_op op = {.code = CB_OP_MATMUL, .n_in = 2};
        op.in[0] = make_matrix(CB_F32, 1, 1030, 8, (layout){0});
        op.in[1] = make_matrix(CB_F32, 1, 8, 1100, (layout){.is_transposed = true});
        check_threads(&op, test_blas(blas));
        check_product(&op);
        free_tensors();
    }
}

/* Outputs hold NaN bytes before the kernel runs (infer_outputs), so a kernel that reads them
 * fails. */
TEST(special_values) {
    for (int blas = 0; blas < 2; blas++) {
        test_op op = {
            .code = CB_OP_MATMUL, .n_in = 2, .in = {TENSOR(CB_F32, 2, 2), TENSOR(CB_F32, 2, 2)}};
        const double x[4] = {NAN, 1, 0, INFINITY}, y[4] = {0, 1, 1, 0};
        for (int i = 0; i < 4; i++) set(&op.in[0], i, x[i]), set(&op.in[1], i, y[i]);
        CHECK_OK(run_op(&op, 1, test_blas(blas)));
        CHECK(isnan(get(&op.out[0], 0)) && isnan(get(&op.out[0], 1)));
        CHECK(isinf(get(&op.out[0], 2)) && isnan(get(&op.out[0], 3)));
        free_tensors();
    }
}

/* Our own kernel adds in one order for every vector width. Tests shapes around the edges of its
 * panels in every layout. */
TEST(instruction_sets) {
    static const cb_dtype dtypes[] = {CB_F32, CB_F64, CB_F16, CB_BF16};
    static const int64_t sizes[][4] = {{2, 45, 700, 53}, {1, 1, 1, 1},     {1, 6, 256, 16},
                                       {1, 7, 257, 33},  {3, 13, 5, 31},   {1, 400, 3, 17},
                                       {1, 1, 1000, 1},  {2, 64, 512, 129}};
    for (int i = 0; i < 4 * 8 * 4; i++) {
        const int64_t *n = sizes[i / 4 % 8];
        test_op op = {.code = CB_OP_MATMUL, .n_in = 2};
        op.in[0] = make_matrix(dtypes[i / 32], n[0], n[1], n[2], (layout){.is_transposed = i & 1});
        op.in[1] = make_matrix(dtypes[i / 32], n[0], n[2], n[3], (layout){.is_transposed = i & 2});
        check_isas(&op);
        free_tensors();
    }
}

/* A BLAS whose kernels are older than ours is not called. */
TEST(outdated_blas) {
    test_op op = {.code = CB_OP_MATMUL, .n_in = 2};
    op.in[0] = make_matrix(CB_F32, 1, 20, 30, (layout){0});
    op.in[1] = make_matrix(CB_F32, 1, 30, 40, (layout){0});
    cb_blas old = {.int_bits = 32, .vector_bits = 64}; /* calling its sgemm would crash */
    old.sgemm = &old;
    check_threads(&op, &old);
    check_product(&op);
    free_tensors();
}

/* The choice of product depends on the processor: disabling an instruction set changes no bit. */
TEST(one_choice_for_all_instruction_sets) {
    static const int widest[] = {128, 256, 512};
    test_op op = {.code = CB_OP_MATMUL, .n_in = 2};
    op.in[0] = make_matrix(CB_F32, 1, 20, 30, (layout){0});
    op.in[1] = make_matrix(CB_F32, 1, 30, 40, (layout){0});
    cb_blas old = {.int_bits = 32, .vector_bits = widest[cb_cpu_isa()] - 1};
    old.sgemm = &old; /* calling it would crash */
    CHECK_OK(run_op(&op, 1, &old));
    cb_tensor first = op.out[0];
    for (int isa = 0; isa <= (int)cb_cpu_isa(); isa++) {
        setenv("CUTBACK_ISA", cb_isa_name((cb_isa)isa), 1);
        CHECK_OK(run_op(&op, 2, &old));
        CHECK(same_bits(&first, &op.out[0]));
    }
    unsetenv("CUTBACK_ISA");
    free_tensors();
}

TEST(rounds_once) { /* 1 + 255 * 2^-9 in bf16: adding one term at a time in bf16 would stay at 1 */
    test_op op = {
        .code = CB_OP_MATMUL, .n_in = 2, .in = {TENSOR(CB_BF16, 1, 256), TENSOR(CB_BF16, 256, 1)}};
    for (int i = 0; i < 256; i++) set(&op.in[0], i, i == 0 ? 1 : 0x1p-9), set(&op.in[1], i, 1);
    CHECK_OK(run_op(&op, 1, test_blas(false)));
    CHECK(get(&op.out[0], 0) == 1.5); /* 1.498 */
    free_tensors();
}

typedef int (*get_fn)(void);
typedef void (*set_fn)(int);

static void *multiply_often(void *arg) {
    (void)arg;
    cb_alloc alloc;
    cb_threads *pool = NULL;
    cb_alloc_init(&alloc);
    if (cb_threads_new(&alloc, 2, &pool, NULL) != CB_OK) return NULL;
    double x[64 * 64] = {0}, out[64 * 64]; /* the BLAS multiplies doubles */
    cb_tensor t = {.data = x,
                   .dtype = CB_F64,
                   .shape = {.rank = 2, .dim = {64, 64}},
                   .stride = {64, 1}},
              o = t;
    const cb_tensor in[2] = {t, t};
    cb_attrs attrs = {0};
    o.data = out;
    const cb_kernel_args args = {.in = in,
                                 .out = &o,
                                 .n_in = 2,
                                 .n_out = 1,
                                 .attrs = &attrs,
                                 .code = CB_OP_MATMUL,
                                 .pool = pool,
                                 .blas = test_blas(true)};
    cb_kernel_fn kernel = cb_cpu_kernel(CB_OP_MATMUL, CB_F64);
    bool failed = false;
    for (int i = 0; i < 200; i++) failed |= kernel(&args, NULL) != CB_OK;
    cb_threads_free(pool);
    return failed ? NULL : &random_state;
}

/* The next caller of the BLAS finds the thread count it had set, also when two contexts run at
 * once. */
TEST(blas_setting_is_kept) {
    const cb_blas *b = test_blas(true);
    if (!have_blas("blas_setting_is_kept") || !b->get_threads || !b->set_threads) return;
    ((set_fn)b->set_threads)(2);
    pthread_t other;
    void *result = NULL;
    CHECK(pthread_create(&other, NULL, multiply_often, NULL) == 0);
    CHECK(multiply_often(NULL) != NULL);
    pthread_join(other, &result);
    CHECK(result != NULL);
    CHECK(((get_fn)b->get_threads)() == 2);
}

int main(void) {
    RUN(own);
    RUN(odd_sizes);
    RUN(parts);
    RUN(parts_of_the_inner_axis_add_up);
    RUN(adds_to_its_base);
    RUN(products_are_fused);
    RUN(tasks);
    RUN(with_blas);
    RUN(large);
    RUN(special_values);
    RUN(instruction_sets);
    RUN(outdated_blas);
    RUN(one_choice_for_all_instruction_sets);
    RUN(rounds_once);
    RUN(blas_setting_is_kept);
    return check_report();
}
