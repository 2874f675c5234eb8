/* Matrix products. The output is cut into tiles, never along the inner axis, and each tile is one
 * single-threaded call, so bits are the same for any number of threads. For a BLAS the shape alone
 * determines the tiles (tiles.h): a multi-threaded BLAS gives different bits for different thread
 * counts, and the bits of a row differ from those of the same row computed alone. Our own kernel
 * gives the same bits, so its tiles depend on the number of threads (cb_gemm_cut_of).
 *
 * matmul_add starts from its third input in place of zeros. Our own kernel sums each block of 256
 * along the inner axis from zero and adds it to the result, so cutting the inner axis of a product
 * at multiples of 256 does not change its bits.
 *
 * 16-bit operands are widened to f32 block by block, or pairs of bf16 are multiplied as they are
 * (gemm_bf16.h), and summed in f32 over the whole inner axis; the sum is rounded once. */
#include "../../../base/ints.h"
#include "../../../base/kern_half.h"
#include "../../../micro/vecmath.h"
#include "../kern.h"
#include "gemm_bf16.h"
#include "gemm_own.h"

#include "../../tiles.h"

/* A matrix inside a tensor: the last two axes. */
typedef struct matrix {
    int64_t row, column; /* strides */
    int64_t ld;
    bool is_transposed; /* column-major */
} matrix;

typedef struct product {
    const cb_kernel_args *args;
    cb_matmul_tiles tiles;
    cb_gemm_region region;
    cb_dtype dtype;
    size_t element;
    matrix a, b;
    int64_t batch, n, k, m;
    int64_t n_row, n_column; /* tiles */
    bool adds;               /* the third input is added (matmul_add) */
    bool is_native;          /* pairs of bf16 are multiplied as they are (gemm_bf16.h) */
} product;

/* Determines whether the matrix is row-major or column-major; a side of length 1 may have any
 * stride. Returns false if neither. */
static bool matrix_of(const cb_tensor *t, matrix *out) {
    int32_t r = t->shape.rank;
    int64_t rows = t->shape.dim[r - 2], columns = t->shape.dim[r - 1];
    int64_t row = t->stride[r - 2], column = t->stride[r - 1];
    *out = (matrix){.row = row, .column = column};
    if ((columns <= 1 || column == 1) && (rows <= 1 || row >= columns)) {
        out->ld = max_i64(rows > 1 ? row : columns, 1);
        return true;
    }
    out->is_transposed = true;
    out->ld = max_i64(columns > 1 ? column : rows, 1);
    return (rows <= 1 || row == 1) && (columns <= 1 || column >= rows);
}

/* Returns the offset in elements of matrix `item` of the batch. */
static int64_t batch_offset(const cb_tensor *t, int64_t item) {
    int64_t offset = 0;
    for (int32_t k = t->shape.rank - 3; k >= 0; k--) {
        offset += item % t->shape.dim[k] * t->stride[k];
        item /= t->shape.dim[k];
    }
    return offset;
}

static const void *element_at(const product *p, const cb_tensor *t, int64_t index) {
    return (const char *)t->data + index * (int64_t)p->element;
}

/* The place of one tile in one item of the batch. */
typedef struct place {
    int64_t item, row, column, rows, columns;
} place;

static place place_of(const product *p, int64_t item, int64_t tile) {
    int64_t row = tile / p->n_column * p->tiles.rows,
            column = tile % p->n_column * p->tiles.columns;
    return (place){item, row, column, min_i64(p->tiles.rows, p->n - row),
                   min_i64(p->tiles.columns, p->m - column)};
}

/* Copies a tile of the base to the output, unless the output has taken over its memory. */
static void copy_base(const product *p, place at, char *to) {
    const cb_tensor *base = &p->args->in[2];
    if (base->data == p->args->out[0].data) return;
    const int32_t rank = base->shape.rank;
    const int64_t row = base->stride[rank - 2], column = base->stride[rank - 1];
    const int64_t size = (int64_t)p->element;
    const char *from =
        element_at(p, base, batch_offset(base, at.item) + at.row * row + at.column * column);
    for (int64_t i = 0; i < at.rows; i++, from += row * size, to += p->m * size) {
        if (column == 1) memcpy(to, from, (size_t)(at.columns * size));
        for (int64_t j = 0; column != 1 && j < at.columns; j++)
            memcpy(to + j * size, from + j * column * size, (size_t)size);
    }
}

static void multiply_tile(const product *p, place at) {
    const cb_tensor *x = &p->args->in[0], *y = &p->args->in[1], *out = &p->args->out[0];
    const cb_gemm g = {
        .dtype = p->dtype,
        .m = at.rows,
        .n = at.columns,
        .k = p->k,
        .a = element_at(p, x, batch_offset(x, at.item) + at.row * p->a.row),
        .b = element_at(p, y, batch_offset(y, at.item) + at.column * p->b.column),
        .lda = p->a.ld,
        .ldb = p->b.ld,
        .ldc = p->m,
        .a_transposed = p->a.is_transposed,
        .b_transposed = p->b.is_transposed,
        .add = p->adds,
        .c = (char *)out->data +
             ((at.item * p->n + at.row) * p->m + at.column) * (int64_t)p->element,
    };
    if (p->adds) copy_base(p, at, g.c);
    cb_gemm_run(&p->region, &g);
}

static void run_task(void *user, int64_t task, int thread) {
    (void)thread;
    const product *p = user;
    int64_t n_tiles = p->n_row * p->n_column, first = task / n_tiles * p->tiles.batches;
    int64_t last = min_i64(first + p->tiles.batches, p->batch);
    cb_gemm_enter_task(&p->region);
    for (int64_t item = first; item < last; item++)
        multiply_tile(p, place_of(p, item, task % n_tiles));
}

/* ---- 16-bit ---------------------------------------------------------------------------------- */

/* Widens block [rows, columns] of a matrix to f32, in storage order. `ld` is that of the copy. */
static const float *widen_block(const product *p, const void *at, const matrix *m, int64_t rows,
                                int64_t columns, float *to, int64_t *ld) {
    const uint16_t *from = at;
    int64_t lines = m->is_transposed ? columns : rows, length = m->is_transposed ? rows : columns;
    for (int64_t i = 0; i < lines; i++)
        half_widen(p->dtype, from + i * m->ld, to + i * length, length);
    *ld = max_i64(length, 1);
    return to;
}

static bf16_view bf16_view_of(const void *at, const matrix *m) {
    return m->is_transposed ? (bf16_view){at, 1, m->ld} : (bf16_view){at, m->ld, 1};
}

/* Multiplies a tile in bf16. Two bf16 take the memory of one f32, so a block of the inner axis is
 * twice as long as in f32. */
static void multiply_pairs(const product *p, place at, float *left, float *sum) {
    const cb_tensor *x = &p->args->in[0], *y = &p->args->in[1];
    _Alignas(64) uint16_t panel[2 * BF16_INNER * BF16_COLUMNS];
    const int64_t x_at = batch_offset(x, at.item) + at.row * p->a.row,
                  y_at = batch_offset(y, at.item) + at.column * p->b.column,
                  most = 2 * p->tiles.inner;
    int64_t k0 = 0;
    do { /* runs once even if k is 0, which writes the zeros */
        const bf16_view a = bf16_view_of(element_at(p, x, x_at + k0 * p->a.column), &p->a),
                        b = bf16_view_of(element_at(p, y, y_at + k0 * p->b.row), &p->b);
        const bf16_out out = {sum, at.columns, at.columns, k0 > 0 || p->adds};
        bf16_multiply(a, at.rows, b, min_i64(most, p->k - k0), out, (uint16_t *)left, panel);
        k0 += most;
    } while (k0 < p->k);
}

/* Multiplies a tile whose operands are widened to f32. */
static void multiply_widened(const product *p, place at, float *a, float *b, float *sum) {
    const cb_tensor *x = &p->args->in[0], *y = &p->args->in[1];
    const int64_t x_at = batch_offset(x, at.item) + at.row * p->a.row,
                  y_at = batch_offset(y, at.item) + at.column * p->b.column;
    cb_gemm g = {.dtype = CB_F32,
                 .m = at.rows,
                 .n = at.columns,
                 .c = sum,
                 .ldc = at.columns,
                 .a_transposed = p->a.is_transposed,
                 .b_transposed = p->b.is_transposed};
    int64_t k0 = 0;
    do {
        g.k = min_i64(p->tiles.inner, p->k - k0);
        g.a = widen_block(p, element_at(p, x, x_at + k0 * p->a.column), &p->a, at.rows, g.k, a,
                          &g.lda);
        g.b = widen_block(p, element_at(p, y, y_at + k0 * p->b.row), &p->b, g.k, at.columns, b,
                          &g.ldb);
        g.add = k0 > 0 || p->adds;
        cb_gemm_run(&p->region, &g);
        k0 += p->tiles.inner;
    } while (k0 < p->k);
}

/* Widens a tile of the base, from which the sums start. */
static void widen_base(const product *p, place at, float *sum) {
    const cb_tensor *base = &p->args->in[2];
    const int32_t rank = base->shape.rank;
    const int64_t row = base->stride[rank - 2], column = base->stride[rank - 1];
    const uint16_t *from =
        element_at(p, base, batch_offset(base, at.item) + at.row * row + at.column * column);
    for (int64_t i = 0; i < at.rows; i++, from += row, sum += at.columns) {
        if (column == 1) half_widen(p->dtype, from, sum, at.columns);
        for (int64_t j = 0; column != 1 && j < at.columns; j++)
            half_widen(p->dtype, from + j * column, sum + j, 1);
    }
}

static void multiply_half_tile(const product *p, place at, float *scratch) {
    const cb_matmul_tiles *t = &p->tiles;
    float *a = scratch, *b = a + t->rows * t->inner, *sum = b + t->inner * t->columns;
    if (p->adds) widen_base(p, at, sum);
    if (p->is_native) multiply_pairs(p, at, a, sum);
    else multiply_widened(p, at, a, b, sum);
    uint16_t *out = (uint16_t *)p->args->out[0].data + (at.item * p->n + at.row) * p->m + at.column;
    for (int64_t i = 0; i < at.rows; i++)
        half_narrow(p->dtype, sum + i * at.columns, out + i * p->m, at.columns);
}

static void run_half_slot(void *user, int64_t slot, int thread) {
    (void)thread;
    const product *p = user;
    int64_t n_tiles = p->n_row * p->n_column;
    float *scratch = (float *)((char *)p->args->scratch + (uint64_t)slot * p->tiles.slot_bytes);
    cb_gemm_enter_task(&p->region);
    for (int64_t unit = slot; unit < p->batch * n_tiles; unit += p->tiles.slots)
        multiply_half_tile(p, place_of(p, unit / n_tiles, unit % n_tiles), scratch);
}

static void cut_by_threads(product *p) {
    cb_gemm_cut cut = cb_gemm_cut_of(p->batch, p->n, p->m, p->k, cb_threads_count(p->args->pool));
    p->tiles.rows = cut.rows;
    p->tiles.columns = cut.columns;
    p->tiles.batches = cut.batches;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static cb_status want_matrix(const cb_tensor *t, const char *side, matrix *out, cb_error *err) {
    if (matrix_of(t, out)) return CB_OK;
    char text[CB_SHAPE_TEXT];
    return cb_fail(err, CB_INTERNAL, "matmul: the %s operand %s is neither row- nor column-major",
                   side, cb_shape_text(&t->shape, text));
}

static cb_status multiply(const cb_kernel_args *args, bool is_native, cb_error *err) {
    const cb_shape *x = &args->in[0].shape, *y = &args->in[1].shape;
    int32_t r = x->rank;
    product p = {.args = args,
                 .dtype = args->out[0].dtype,
                 .is_native = is_native,
                 .adds = args->code == CB_OP_MATMUL_ADD,
                 .batch = cb_numel_of(x, 0, r - 2),
                 .n = x->dim[r - 2],
                 .k = x->dim[r - 1],
                 .m = y->dim[r - 1]};
    if (p.batch == 0 || p.n == 0 || p.m == 0) return CB_OK;
    p.element = cb_dtype_size(p.dtype);
    CB_TRY(want_matrix(&args->in[0], "left", &p.a, err));
    CB_TRY(want_matrix(&args->in[1], "right", &p.b, err));
    p.tiles = cb_matmul_tiles_of(p.batch, p.n, p.k, p.m, p.dtype);
    bool is_faster = is_half(p.dtype) ? cb_gemm_own_is_faster(CB_F32, p.tiles.rows, p.tiles.columns,
                                                              p.tiles.inner)
                                      : cb_gemm_own_is_faster(p.dtype, p.n, p.m, p.k);
    cb_gemm_begin(&p.region, is_faster || is_native ? NULL : args->blas, &gemm_own);
    if (!is_half(p.dtype) && cb_gemm_is_own(&p.region, p.dtype)) cut_by_threads(&p);
    p.n_row = div_up(p.n, p.tiles.rows);
    p.n_column = div_up(p.m, p.tiles.columns);
    if (is_half(p.dtype)) {
        cb_parallel(args->pool, p.tiles.slots, run_half_slot, &p);
    } else {
        cb_parallel(args->pool, div_up(p.batch, p.tiles.batches) * p.n_row * p.n_column, run_task,
                    &p);
    }
    cb_gemm_end(&p.region);
    return CB_OK;
}

static cb_status matmul(const cb_kernel_args *args, cb_error *err) {
    return multiply(args, false, err);
}
static cb_status matmul_pairs(const cb_kernel_args *args, cb_error *err) {
    return multiply(args, true, err);
}

cb_kernel_fn CB_KERN(matmul)(cb_opcode code, cb_dtype dtype) {
    const bool is_product = code == CB_OP_MATMUL || code == CB_OP_MATMUL_ADD;
    if (!is_product || !cb_dtype_is_float(dtype)) return NULL;
    return dtype == CB_BF16 && bf16_is_native() ? matmul_pairs : matmul;
}
