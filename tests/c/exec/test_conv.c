/* Convolution, its gradients and pooling against plain loops; the same bits for any number of
 * threads and any instruction set. */
#include "kernel_test.h"

enum {
    STRIDE_H,
    STRIDE_W,
    PAD_H,
    PAD_W,
    DILATION_H,
    DILATION_W,
    GROUPS
}; /* attributes of a convolution */

typedef struct problem {
    int64_t n, c, h, w, o, kh, kw;
    int64_t a[7];
} problem;

/* The convolution is a sum of terms y[iy] += x[ix] * w[iw]. Given two of the three tensors,
 * computes the third. */
typedef struct sums {
    const cb_tensor *x, *w, *y; /* two are given; the third is NULL */
    double *sum, *size;
} sums;

static void visit(const sums *s, int64_t ix, int64_t iw, int64_t iy) {
    int64_t at = s->y == NULL ? iy : s->x == NULL ? ix : iw;
    double left = s->x ? get(s->x, ix) : get(s->y, iy),
           right = s->w ? get(s->w, iw) : get(s->y, iy);
    s->sum[at] += left * right;
    s->size[at] += fabs(left * right);
}

static void visit_window(const problem *p, const cb_shape *y, int64_t out, const sums *s) {
    const int64_t *a = p->a;
    int64_t ow = y->dim[3], oh = y->dim[2], c_group = p->c / a[GROUPS], o_group = p->o / a[GROUPS];
    int64_t ox = out % ow, oy = out / ow % oh, o = out / ow / oh % p->o, n = out / ow / oh / p->o;
    for (int64_t k = 0; k < c_group * p->kh * p->kw; k++) {
        int64_t j = k % p->kw, i = k / p->kw % p->kh, c = k / p->kw / p->kh + o / o_group * c_group;
        int64_t iy = oy * a[STRIDE_H] - a[PAD_H] + i * a[DILATION_H];
        int64_t ix = ox * a[STRIDE_W] - a[PAD_W] + j * a[DILATION_W];
        if (iy < 0 || iy >= p->h || ix < 0 || ix >= p->w) continue;
        visit(s, ((n * p->c + c) * p->h + iy) * p->w + ix, o * c_group * p->kh * p->kw + k, out);
    }
}

static void check_sums(const test_op *op, const problem *p, const cb_shape *y, sums s) {
    if (!is_compared()) return;
    const cb_tensor *out = &op->out[0];
    int64_t n = cb_numel(&out->shape), wrong = 0;
    s.sum = calloc((size_t)n + 1, sizeof *s.sum);
    s.size = calloc((size_t)n + 1, sizeof *s.size);
    for (int64_t i = 0; i < cb_numel(y); i++) visit_window(p, y, i, &s);
    for (int64_t i = 0; i < n; i++)
        wrong += !is_close(out->dtype, get(out, i), s.sum[i], s.size[i]);
    CHECK(wrong == 0);
    free(s.sum);
    free(s.size);
}

static void check_conv(cb_dtype dtype, problem p, const cb_blas *blas) {
    test_op forward = {.code = CB_OP_CONV2D, .n_in = 2};
    memcpy(forward.attrs.i, p.a, sizeof p.a);
    cb_tensor x = forward.in[0] = TENSOR(dtype, p.n, p.c, p.h, p.w);
    cb_tensor w = forward.in[1] = TENSOR(dtype, p.o, p.c / p.a[GROUPS], p.kh, p.kw);
    fill_random(&x);
    fill_random(&w);
    check_threads(&forward, blas);
    if (!blas->sgemm) check_isas(&forward);
    cb_shape y = forward.out[0].shape;
    check_sums(&forward, &p, &y, (sums){.x = &x, .w = &w});

    test_op dgrad = {.code = CB_OP_CONV2D_DGRAD,
                     .attrs = forward.attrs,
                     .n_in = 2,
                     .in = {new_tensor(dtype, y), w}};
    dgrad.attrs.dims = x.shape;
    fill_random(&dgrad.in[0]);
    check_threads(&dgrad, blas);
    if (!blas->sgemm) check_isas(&dgrad);
    check_sums(&dgrad, &p, &y, (sums){.w = &w, .y = &dgrad.in[0]});

    test_op wgrad = {
        .code = CB_OP_CONV2D_WGRAD, .attrs = forward.attrs, .n_in = 2, .in = {dgrad.in[0], x}};
    wgrad.attrs.dims = w.shape;
    check_threads(&wgrad, blas);
    if (!blas->sgemm) check_isas(&wgrad);
    check_sums(&wgrad, &p, &y, (sums){.x = &x, .y = &wgrad.in[0]});
    free_tensors();
}

static const problem problems[] = {
    /* n  c  h  w   o  kh kw   stride, pad, dilation, groups */
    {1, 1, 1, 1, 1, 1, 1, {1, 1, 0, 0, 1, 1, 1}},
    {2, 3, 5, 7, 4, 3, 3, {1, 1, 1, 1, 1, 1, 1}},
    {9, 4, 8, 8, 6, 3, 3, {1, 1, 1, 1, 1, 1, 1}}, /* several images in a tile */
    {3, 2, 9, 6, 5, 3, 2, {2, 3, 0, 1, 1, 1, 1}},
    {2, 4, 11, 10, 6, 3, 3, {1, 2, 2, 3, 2, 3, 2}}, /* dilated, two groups */
    {2, 6, 7, 7, 6, 3, 3, {1, 1, 1, 1, 1, 1, 6}},   /* depthwise */
    {3, 5, 19, 37, 5, 3, 3, {1, 1, 1, 1, 1, 1, 5}}, /* rows of several vectors */
    {2, 4, 1, 12, 4, 3, 3, {1, 1, 1, 1, 1, 1, 4}},  /* windows over fewer rows than they have */
    {2, 4, 2, 17, 8, 3, 3, {1, 1, 1, 1, 1, 1, 4}},
    {1, 4, 4, 9, 4, 3, 3, {1, 1, 0, 0, 1, 1, 4}},
    {2, 4, 6, 33, 4, 3, 3, {1, 1, 2, 3, 1, 2, 4}},    /* dilated along rows only */
    {2, 4, 18, 35, 8, 5, 3, {2, 2, 2, 1, 1, 1, 4}},   /* strides, two outputs a group */
    {2, 4, 13, 21, 4, 3, 2, {1, 3, 0, 2, 3, 2, 4}},   /* dilated */
    {1, 4, 3, 4, 12, 2, 2, {3, 4, 3, 2, 1, 1, 4}},    /* padding wider than windows */
    {1, 4, 200, 130, 4, 3, 3, {1, 1, 1, 1, 1, 1, 4}}, /* in bands of rows */
    {1, 4, 201, 131, 4, 3, 3, {2, 2, 1, 1, 1, 1, 4}},
    {2, 5, 9, 9, 7, 1, 1, {1, 1, 0, 0, 1, 1, 1}}, /* pointwise on x itself */
    {3, 5, 4, 4, 7, 1, 1, {1, 1, 0, 0, 1, 1, 1}}, /* pointwise, small images */
    {2, 4, 9, 9, 4, 1, 1, {2, 2, 1, 1, 1, 1, 2}},
    {1, 2, 40, 40, 3, 5, 5, {1, 1, 2, 2, 1, 1, 1}}, /* several tiles in an image */
    {2, 3, 4, 4, 2, 4, 4, {4, 4, 0, 0, 1, 1, 1}},   /* patches */
    {1, 2, 2, 3, 3, 5, 5, {1, 1, 4, 4, 1, 1, 1}},   /* padding wider than x */
    {1, 1, 3, 3, 2, 2, 2, {5, 7, 1, 1, 1, 1, 1}},
    {2, 2, 0, 4, 3, 2, 3, {1, 1, 1, 1, 1, 1, 1}},
    {2, 2, 5, 0, 3, 3, 2, {1, 1, 1, 2, 1, 1, 1}},
    {0, 2, 4, 4, 3, 3, 3, {1, 1, 1, 1, 1, 1, 1}},
    {2, 0, 4, 4, 3, 3, 3, {1, 1, 1, 1, 1, 1, 1}},
    {2, 2, 4, 4, 0, 3, 3, {1, 1, 1, 1, 1, 1, 1}},
};

static void check_problems(const cb_blas *blas) {
    static const cb_dtype dtypes[] = {CB_F32, CB_F64, CB_F16, CB_BF16};
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        for (int d = 0; d < 4; d++) check_conv(dtypes[d], problems[i], blas);
    }
}

TEST(own) { check_problems(test_blas(false)); }

TEST(with_blas) {
    if (have_blas("with_blas")) check_problems(test_blas(true));
}

/* Tests windows and channel counts larger than one block. */
TEST(blocks) {
    check_conv(CB_F32, (problem){1, 140, 5, 5, 3, 3, 3, {1, 1, 1, 1, 1, 1, 1}}, test_blas(true));
    check_conv(CB_F32, (problem){2, 1, 40, 40, 2, 36, 36, {1, 1, 0, 0, 1, 1, 1}}, test_blas(true));
    check_conv(CB_F32, (problem){2, 2, 3, 3, 600, 2, 2, {1, 1, 0, 0, 1, 1, 1}}, test_blas(true));
    check_conv(CB_BF16, (problem){2, 40, 5, 5, 150, 3, 3, {1, 1, 1, 1, 1, 1, 1}}, test_blas(true));
    check_conv(CB_F64, (problem){40, 16, 8, 8, 32, 3, 3, {1, 1, 1, 1, 1, 1, 1}}, test_blas(true));
}

TEST(random_depthwise) {
    for (uint32_t i = 0; i < check_few(40); i++) {
        int64_t groups = random_int(4, 7);
        problem p = {random_int(1, 4),
                     groups,
                     random_int(1, 20),
                     random_int(1, 40),
                     groups * random_int(1, 4),
                     random_int(1, 5),
                     random_int(1, 5),
                     {random_int(1, 3), random_int(1, 3), random_int(0, 4), random_int(0, 4),
                      random_int(1, 3), random_int(1, 3), groups}};
        bool fits = p.h + 2 * p.a[PAD_H] > (p.kh - 1) * p.a[DILATION_H] &&
                    p.w + 2 * p.a[PAD_W] > (p.kw - 1) * p.a[DILATION_W];
        static const cb_dtype dtypes[] = {CB_F32, CB_F64, CB_F16, CB_BF16};
        if (fits) check_conv(dtypes[i % 4], p, test_blas(false));
    }
}

TEST(random_shapes) {
    for (uint32_t i = 0; i < check_few(60); i++) {
        int64_t groups = random_int(1, 3);
        problem p = {random_int(1, 6),
                     groups * random_int(1, 4),
                     random_int(1, 13),
                     random_int(1, 13),
                     groups * random_int(1, 5),
                     random_int(1, 4),
                     random_int(1, 4),
                     {random_int(1, 3), random_int(1, 3), random_int(0, 3), random_int(0, 3),
                      random_int(1, 3), random_int(1, 3), groups}};
        bool fits = p.h + 2 * p.a[PAD_H] > (p.kh - 1) * p.a[DILATION_H] &&
                    p.w + 2 * p.a[PAD_W] > (p.kw - 1) * p.a[DILATION_W];
        if (fits) check_conv(i % 2 ? CB_F32 : CB_F64, p, test_blas(i % 3 != 0));
    }
}

/* There are enough channels to keep outputs in registers, forward and backward (kern_direct.h). */
TEST(direct) {
    static const problem cases[] = {
        {1, 24, 14, 14, 40, 3, 3, {1, 1, 1, 1, 1, 1, 1}},
        {9, 12, 7, 7, 33, 3, 3, {1, 1, 1, 1, 1, 1, 1}},   /* several images in a tile */
        {1, 60, 5, 31, 16, 3, 3, {1, 1, 1, 1, 1, 1, 1}},  /* blocks of the window, remainder rows */
        {2, 12, 4, 5, 80, 5, 3, {1, 1, 4, 2, 1, 1, 1}},   /* rows of padding only */
        {1, 32, 23, 17, 64, 3, 3, {2, 3, 1, 2, 1, 1, 2}}, /* strides, two groups */
        {2, 16, 12, 12, 16, 3, 2, {1, 1, 3, 2, 3, 2, 1}}, /* dilated */
        {2, 300, 5, 9, 12, 1, 1, {2, 2, 0, 0, 1, 1, 1}},  /* 1x1, more channels than a block */
        {1, 3, 24, 200, 34, 7, 7, {2, 2, 3, 3, 1, 1, 1}}, /* several tiles */
    };
    static const cb_dtype dtypes[] = {CB_F32, CB_F64, CB_F16, CB_BF16};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_conv(CB_F32, cases[i], test_blas(false));
        check_conv(dtypes[1 + i % 3], cases[i], test_blas(false));
    }
    for (int i = 0; i < 8; i++) {
        int64_t groups = random_int(1, 2);
        problem p = {
            random_int(1, 4),
            groups * random_int(12, 30),
            random_int(3, 20),
            random_int(4, 33),
            groups * random_int(12, 40),
            random_int(1, 3),
            random_int(1, 3),
            {random_int(1, 2), random_int(1, 2), random_int(0, 2), random_int(0, 2), 1, 1, groups}};
        check_conv(dtypes[i % 4], p, test_blas(false));
    }
}

/* ---- pooling --------------------------------------------------------------------------------- */

enum { KERNEL_H, KERNEL_W, POOL_STRIDE_H, POOL_STRIDE_W, POOL_PAD_H, POOL_PAD_W };

/* Returns the index in x under position (i, j) of the window of y's element `out`; -1 in the
 * padding. */
static int64_t pooled(const cb_shape *x, const cb_shape *y, const int64_t *a, int64_t out,
                      int64_t i, int64_t j) {
    int64_t ow = y->dim[3], oh = y->dim[2], plane = out / ow / oh;
    int64_t iy = out / ow % oh * a[POOL_STRIDE_H] - a[POOL_PAD_H] + i;
    int64_t ix = out % ow * a[POOL_STRIDE_W] - a[POOL_PAD_W] + j;
    if (iy < 0 || iy >= x->dim[2] || ix < 0 || ix >= x->dim[3]) return -1;
    return (plane * x->dim[2] + iy) * x->dim[3] + ix;
}

static void check_max_window(const test_op *op, int64_t out) {
    const cb_tensor *x = &op->in[0], *y = &op->out[0], *index = &op->out[1];
    const int64_t *a = op->attrs.i;
    int64_t best = -1;
    for (int64_t k = 0; k < a[KERNEL_H] * a[KERNEL_W]; k++) {
        int64_t at = pooled(&x->shape, &y->shape, a, out, k / a[KERNEL_W], k % a[KERNEL_W]);
        if (at < 0) continue;
        double v = get(x, at), most = best < 0 ? -INFINITY : get(x, best);
        if (best < 0 || v > most || (isnan(v) && !isnan(most))) best = at;
    }
    double want = get(x, best), got = get(y, out);
    CHECK(got == want || (isnan(got) && isnan(want)));
    CHECK(get(index, out) == (double)(best % (x->shape.dim[2] * x->shape.dim[3])));
}

static void check_avg(const test_op *forward, const test_op *backward) {
    const cb_tensor *x = &forward->in[0], *y = &forward->out[0], *g = &backward->in[0],
                    *dx = &backward->out[0];
    const int64_t *a = forward->attrs.i;
    int64_t area = a[KERNEL_H] * a[KERNEL_W], n_x = cb_numel(&x->shape), wrong = 0;
    double *sum = calloc((size_t)n_x + 1, sizeof *sum);
    for (int64_t out = 0; out < cb_numel(&y->shape); out++) {
        double total = 0, size = 0;
        for (int64_t k = 0; k < area; k++) {
            int64_t at = pooled(&x->shape, &y->shape, a, out, k / a[KERNEL_W], k % a[KERNEL_W]);
            if (at < 0) continue;
            total += get(x, at) / (double)area;
            size += fabs(get(x, at));
            sum[at] += get(g, out) / (double)area;
        }
        wrong += !is_close(y->dtype, get(y, out), total, size);
    }
    for (int64_t i = 0; i < n_x; i++)
        wrong += !is_close(dx->dtype, get(dx, i), sum[i], (double)area);
    CHECK(wrong == 0);
    free(sum);
}

static void check_pool(cb_dtype dtype, cb_shape shape, const int64_t *a) {
    test_op max = {.code = CB_OP_MAX_POOL2D, .n_in = 1, .in = {new_tensor(dtype, shape)}};
    memcpy(max.attrs.i, a, 6 * sizeof *a);
    fill_random(&max.in[0]);
    int64_t n = cb_numel(&shape);
    if (n > 4)
        set(&max.in[0], n / 2, NAN), set(&max.in[0], n / 3, 2), set(&max.in[0], n / 3 + 1, 2);
    check_threads(&max, NULL);
    for (int64_t i = 0; i < cb_numel(&max.out[0].shape); i++) check_max_window(&max, i);

    test_op avg = {
        .code = CB_OP_AVG_POOL2D, .attrs = max.attrs, .n_in = 1, .in = {new_tensor(dtype, shape)}};
    fill_random(&avg.in[0]);
    check_threads(&avg, NULL);
    test_op bwd = {.code = CB_OP_AVG_POOL2D_BWD, .attrs = max.attrs, .n_in = 1};
    bwd.in[0] = new_tensor(dtype, avg.out[0].shape);
    bwd.attrs.dims = shape;
    fill_random(&bwd.in[0]);
    check_threads(&bwd, NULL);
    check_avg(&avg, &bwd);
    free_tensors();
}

TEST(pools) {
    static const struct {
        int64_t shape[4], a[6];
    } cases[] = {
        {{2, 3, 8, 8}, {2, 2, 2, 2, 0, 0}},    {{1, 2, 7, 9}, {3, 2, 2, 1, 1, 1}},
        {{3, 1, 5, 5}, {3, 3, 1, 1, 1, 1}},    {{1, 1, 1, 1}, {1, 1, 1, 1, 0, 0}},
        {{0, 2, 4, 4}, {2, 2, 2, 2, 0, 0}},    {{2, 2, 9, 4}, {4, 3, 5, 4, 2, 1}},
        {{1, 40, 64, 64}, {3, 3, 2, 2, 1, 1}}, {{1, 2, 11, 37}, {2, 2, 2, 2, 0, 0}},
        {{1, 2, 9, 40}, {3, 2, 2, 1, 1, 1}},   {{1, 2, 9, 99}, {2, 3, 4, 5, 0, 1}},
    };
    static const cb_dtype dtypes[] = {CB_F32, CB_F64, CB_F16, CB_BF16};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int d = 0; d < 4; d++)
            check_pool(dtypes[d], cb_shape_make(4, cases[i].shape), cases[i].a);
    }
}

/* Returns the first `columns` elements of each row. */
static cb_tensor left_of(const cb_tensor *x, int64_t columns) {
    cb_shape shape = x->shape;
    shape.dim[3] = columns;
    cb_tensor left = new_tensor(x->dtype, shape);
    for (int64_t i = 0; i < cb_numel(&shape); i++)
        set(&left, i, get(x, i / columns * x->shape.dim[3] + i % columns));
    return left;
}

static bool same_left(const cb_tensor *a, const cb_tensor *b, int64_t columns) {
    cb_tensor x = left_of(a, columns), y = left_of(b, columns);
    return same_bits(&x, &y);
}

/* Wide rows of outputs are computed tap by tap, with the bits of narrow ones. */
TEST(wide_average_pools) {
    static const int64_t kinds[][6] = {{2, 2, 2, 2, 0, 0}, {3, 3, 1, 1, 1, 1}, {3, 3, 2, 2, 1, 1},
                                       {2, 3, 3, 2, 0, 1}, {1, 2, 1, 3, 0, 0}, {4, 4, 2, 2, 0, 1}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        for (int d = 0; d < 2; d++) {
            test_op wide = {.code = CB_OP_AVG_POOL2D,
                            .n_in = 1,
                            .in = {new_tensor(d ? CB_F64 : CB_F32,
                                              cb_shape_make(4, (int64_t[]){2, 3, 10, 81}))}};
            memcpy(wide.attrs.i, kinds[i], sizeof kinds[i]);
            fill_random(&wide.in[0]);
            test_op narrow = wide;
            narrow.in[0] = left_of(&wide.in[0], 15);
            CHECK_OK(run_op(&wide, 1, NULL));
            CHECK_OK(run_op(&narrow, 1, NULL));
            CHECK(same_left(&wide.out[0], &narrow.out[0], 3));
            test_op back = {.code = CB_OP_AVG_POOL2D_BWD, .n_in = 1, .attrs = wide.attrs};
            back.in[0] = new_tensor(wide.in[0].dtype, wide.out[0].shape);
            fill_random(&back.in[0]);
            back.attrs.dims = wide.in[0].shape;
            test_op few = back;
            few.in[0] = left_of(&back.in[0], narrow.out[0].shape.dim[3]);
            few.attrs.dims = narrow.in[0].shape;
            CHECK_OK(run_op(&back, 1, NULL));
            CHECK_OK(run_op(&few, 1, NULL));
            CHECK(same_left(&back.out[0], &few.out[0], 8));
            free_tensors();
        }
    }
}

int main(void) {
    RUN(own);
    RUN(with_blas);
    RUN(blocks);
    RUN(random_depthwise);
    RUN(random_shapes);
    RUN(direct);
    RUN(pools);
    RUN(wide_average_pools);
    return check_report();
}
