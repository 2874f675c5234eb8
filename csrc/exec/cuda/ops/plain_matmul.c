/* Matrix products without cuBLASLt (product.h). Products of 16-bit floats use tensor cores
 * (matmul.cuh) if the device supports both types. All others compute tiles of 64 x 64 in registers,
 * 4 x 4 per thread, over slices of 16 of the inner axis, double-buffered in shared memory. Each
 * element is one sum in the order of the inner axis, in f32 (f64 for f64), so its bits depend only
 * on the two matrices, not on the tiles. */
#include "../../../micro/walk.h"
#include "families.h"
#include "product.h"

enum { TILE = 64, SLICE = 16, THREADS = 256 };
enum { TENSOR_CORES = 80 }; /* the first capability with mma.sync for f16 and bf16, and cp.async */

/* Writes the offset of matrix `batch` of an operand. Sizes are parameters, because constants would
 * not make the kernel faster, so products that differ only in sizes share a kernel. For the same
 * reason there are always at least two batch axes. */
static void add_base(const cb_cu_op *x, const cb_operand *o, const char *name) {
    cb_walk w = cb_walk_start(1);
    for (int32_t k = 0; k < o->shape.rank - 2; k++) cb_walk_add(&w, o->shape.dim[k], &o->stride[k]);
    cb_cu_add(x->code, "I %s = 0;\n{ I rest = batch;\n", name);
    for (int k = (w.rank > 2 ? w.rank : 2) - 1; k >= 0; k--) {
        const bool is_there = k < w.rank;
        const int step = cb_cu_count(x->code, is_there ? w.stride[0][k] : 0);
        if (k == 0) {
            cb_cu_add(x->code, "%s += rest * (I)p%d;\n", name, step);
            continue;
        }
        const int dim = cb_cu_count(x->code, is_there ? w.dim[k] : 1);
        cb_cu_add(x->code, "%s += rest %% (I)p%d * (I)p%d; rest /= (I)p%d;\n", name, dim, step,
                  dim);
    }
    cb_cu_add(x->code, "}\n");
}

/* Writes `const I name = stride`, where the stride is a constant if it is 1, otherwise a
 * parameter. */
static void add_step(const cb_cu_op *x, const char *name, int64_t step) {
    if (step == 1) cb_cu_add(x->code, "const I %s = 1;\n", name);
    else cb_cu_add(x->code, "const I %s = (I)p%d;\n", name, cb_cu_count(x->code, step));
}

/* Declares one side of the product: `xs` holds the elements of a slice that a thread reads.
 * Adjacent threads read along the contiguous axis. The kernel determines that axis at run time, so
 * transposed matrices do not need separate kernels. */
static void add_fetched(const cb_cu_op *x, const char *name, int64_t outer, int64_t inner) {
    static const char text[] =
        "const I $(x)_outer = (I)$outer, $(x)_inner = (I)$inner;\n"
        "const bool $(x)_along = $(x)_inner == 1;\n"
        "const I $(x)_o = $(x)_along ? threadIdx.x / $slice : threadIdx.x % $tile;\n"
        "const I $(x)_k = $(x)_along ? threadIdx.x % $slice : threadIdx.x / $tile;\n"
        "const I $(x)_o_step = $(x)_along ? $lines : 0, $(x)_k_step = $(x)_along ? 0 : $slices;\n"
        "T $(x)s[4];\n";
    cb_cu_template(x->code, text,
                   CB_CU_HOLES(CB_CU_HOLE_TEXT(x, name), CB_CU_HOLE_COUNT(outer, outer),
                               CB_CU_HOLE_COUNT(inner, inner), CB_CU_HOLE(slice, SLICE),
                               CB_CU_HOLE(tile, TILE), CB_CU_HOLE(lines, THREADS / SLICE),
                               CB_CU_HOLE(slices, THREADS / TILE)));
}

/* Writes the block's matrix of the batch and its first row and column. Returns the number of
 * blocks. */
static uint32_t add_place(const cb_cu_op *x, const cb_cu_shapes *p, int rows, int columns) {
    cb_cu_code *c = x->code;
    const int64_t across = cb_cu_div_up(p->m, columns), down = cb_cu_div_up(p->n, rows);
    const int n = cb_cu_count(c, p->n), k = cb_cu_count(c, p->k), m = cb_cu_count(c, p->m),
              wide = cb_cu_count(c, across), all = cb_cu_count(c, across * down);
    cb_cu_add(c, "const I N = (I)p%d, K = (I)p%d, M = (I)p%d;\n", n, k, m);
    cb_cu_add(c, "const uint32_t across = (uint32_t)p%d, tile = blockIdx.x %% (uint32_t)p%d;\n",
              wide, all);
    cb_cu_add(c, "const I batch = blockIdx.x / (uint32_t)p%d;\n", all);
    cb_cu_add(c, "const I first_row = tile / across * %d, first_column = tile %% across * %d;\n",
              rows, columns);
    add_base(x, cb_cu_in(x, 0), "x_at");
    add_base(x, cb_cu_in(x, 1), "y_at");
    return (uint32_t)(p->batch * across * down);
}

/* `fetch(slice)` reads a slice into registers, `put(buffer)` writes it to shared memory. While one
 * slice is fetched, the previous one is multiplied. */
static const char plain_text[] =
    "const auto fetch = [&](I slice) {\n"
    "#pragma unroll\n"
    "for (int j = 0; j < 4; j++) {\n"
    "const I xo = first_row + x_o + j * x_o_step, xk = slice + x_k + j * x_k_step;\n"
    "const I yo = first_column + y_o + j * y_o_step, yk = slice + y_k + j * y_k_step;\n"
    "xs[j] = xo < N && xk < K ? (T)widen($x[x_at + xo * x_outer + xk * x_inner]) : (T)0;\n"
    "ys[j] = yo < M && yk < K ? (T)widen($y[y_at + yo * y_outer + yk * y_inner]) : (T)0;\n"
    "}\n"
    "};\n"
    "const auto put = [&](int buffer) {\n"
    "#pragma unroll\n"
    "for (int j = 0; j < 4; j++) {\n"
    "x_tile[buffer][x_k + j * x_k_step][x_o + j * x_o_step] = xs[j];\n"
    "y_tile[buffer][y_k + j * y_k_step][y_o + j * y_o_step] = ys[j];\n"
    "}\n"
    "};\n"
    "T sum[4][4] = {};\n"
    "$(start)"
    "for (I slice = 0, turn = 1; slice < K + $slice; slice += $slice, turn ^= 1) {\n"
    "const bool goes_on = slice < K;\n"
    "if (goes_on) fetch(slice);\n"
    "if (slice > 0) {\n"
    "#pragma unroll 4\n"
    "for (int k = 0; k < $slice; k++) {\n"
    "T a[4], b[4];\n"
    "#pragma unroll\n"
    "for (int j = 0; j < 4; j++) a[j] = x_tile[turn][k][ty * 4 + j], "
    "b[j] = y_tile[turn][k][tx * 4 + j];\n"
    "#pragma unroll\n"
    "for (int r = 0; r < 4; r++)\n"
    "#pragma unroll\n"
    "for (int j = 0; j < 4; j++) sum[r][j] = mad(a[r], b[j], sum[r][j]);\n"
    "}\n"
    "}\n"
    "if (goes_on) put(turn ^ 1);\n"
    "__syncthreads();\n"
    "}\n"
    "for (int r = 0; r < 4; r++)\n"
    "for (int j = 0; j < 4; j++) {\n"
    "const I at_row = first_row + ty * 4 + r, at_column = first_column + tx * 4 + j;\n"
    "if (at_row < N && at_column < M) narrow(&$out[(batch * N + at_row) * M + at_column], "
    "sum[r][j]);\n"
    "}\n";

/* The sums of matmul_add start from the elements of its third input. */
static const char base_text[] =
    "for (int r = 0; r < 4; r++)\n"
    "for (int j = 0; j < 4; j++) {\n"
    "const I at_row = first_row + ty * 4 + r, at_column = first_column + tx * 4 + j;\n"
    "if (at_row < N && at_column < M) sum[r][j] = "
    "(T)widen($base[base_at + at_row * base_row + at_column * base_column]);\n"
    "}\n";

static void add_plain(const cb_cu_op *x, const cb_cu_shapes *p) {
    cb_cu_code *c = x->code;
    cb_cu_add(c, "typedef %s T;\n__shared__ T x_tile[2][%d][%d], y_tile[2][%d][%d];\n",
              cb_cu_real(cb_cu_out(x, 0)->dtype), SLICE, TILE + 4, SLICE, TILE + 4);
    const uint32_t blocks = add_place(x, p, TILE, TILE);
    cb_cu_add(c, "const int tx = threadIdx.x %% 16, ty = threadIdx.x / 16;\n");
    add_fetched(x, "x", p->row[0], p->column[0]);
    add_fetched(x, "y", p->column[1], p->row[1]);
    const bool adds = x->instr->code == CB_OP_MATMUL_ADD;
    if (adds) {
        const cb_operand *base = cb_cu_in(x, 2);
        add_base(x, base, "base_at");
        add_step(x, "base_row", base->stride[base->shape.rank - 2]);
        add_step(x, "base_column", base->stride[base->shape.rank - 1]);
    }
    cb_cu_op_template(
        x, adds ? "x=x0 y=x1 base=x2 out=y0" : "x=x0 y=x1 out=y0", plain_text,
        CB_CU_HOLES(CB_CU_HOLE(slice, SLICE), CB_CU_HOLE_TEXT(start, adds ? base_text : "")));
    cb_cu_end(c, (cb_cu_grid){blocks, 1, 1}, THREADS);
}

/* ---- tensor cores ---------------------------------------------------------------------------- */

enum { EIGHT = 8, BYTES = 16 }; /* elements of one copy, and their bytes */

/* True if every line of an operand begins at a multiple of 16 bytes when the operand does. */
static bool is_even(const cb_operand *o, int64_t line_step, int64_t step) {
    bool even = step == 1 && line_step % EIGHT == 0;
    for (int32_t d = 0; d < o->shape.rank - 2; d++) even = even && o->stride[d] % EIGHT == 0;
    return even;
}

/* Writes `const bool name`: whether 16-byte accesses are allowed. If the alignment of an address is
 * not known, the kernel checks it. */
static void add_even(cb_cu_code *c, const char *name, int param, bool even) {
    if (!even) cb_cu_add(c, "const bool %s = false;\n", name);
    else if (cb_cu_is_even(c, param, BYTES)) cb_cu_add(c, "const bool %s = true;\n", name);
    else cb_cu_add(c, "const bool %s = is_even(p%d, %d);\n", name, param, BYTES);
}

/* Declares `x` or `y`, a `side` of matmul.cuh. */
static void add_side(const cb_cu_op *x, const cb_cu_shapes *p, int k, int size, int threads) {
    const char name = "xy"[k];
    const cb_operand *o = cb_cu_in(x, (uint32_t)k);
    const int64_t outer_step = k ? p->column[1] : p->row[0],
                  inner_step = k ? p->row[1] : p->column[0];
    const bool along = inner_step == 1 || outer_step != 1;
    const int64_t line_step = along ? outer_step : inner_step,
                  step = along ? inner_step : outer_step;
    const char even[] = {name, '_', 'e', 'v', 'e', 'n', 0};
    add_even(x->code, even, p->in[k], is_even(o, line_step, step));
    add_step(x, k ? "y_line" : "x_line", line_step);
    add_step(x, k ? "y_step" : "x_step", step);
    cb_cu_add(x->code,
              "const side<T, I, %d, %s, %d> %c = {p%d + %c_at, %s, K, %c_line, %c_step, %s, %s};\n",
              size, along ? "true" : "false", threads, name, p->in[k], name, k ? "M" : "N", name,
              name, k ? "first_column" : "first_row", even);
}

/* Returns the edge of a tile. Large tiles read less memory. They are used if there are enough of
 * them to fill a device, and if padding at the edges adds at most about a quarter to the work. */
static int tile_of(const cb_cu_shapes *p) {
    enum { SMALL = 64, LARGE = 128, ENOUGH = 128 };
    const int64_t large = p->batch * cb_cu_div_up(p->n, LARGE) * cb_cu_div_up(p->m, LARGE),
                  small = p->batch * cb_cu_div_up(p->n, SMALL) * cb_cu_div_up(p->m, SMALL);
    return large >= ENOUGH && 4 * large <= small + small / 4 ? LARGE : SMALL;
}

static void add_tensor(const cb_cu_op *x, const cb_cu_shapes *p) {
    cb_cu_code *c = x->code;
    const int size = tile_of(p), threads = 2 * size;
    cb_cu_add(c, "typedef %s T;\n", cb_cu_type(cb_cu_out(x, 0)->dtype));
    const uint32_t blocks = add_place(x, p, size, size);
    add_side(x, p, 0, size, threads);
    add_side(x, p, 1, size, threads);
    add_even(c, "out_even", p->out, p->m % EIGHT == 0);
    cb_cu_add(c, "product<%d, %d, T, I>(p%d + batch * N * M, x, y, out_even);\n", size, size,
              p->out);
    cb_cu_end(c, (cb_cu_grid){blocks, 1, 1}, (uint32_t)threads);
}

void cb_cu_matmul(const cb_cu_op *x) {
    cb_cu_shapes p = cb_cu_shapes_of(x);
    const cb_dtype dtype = cb_cu_out(x, 0)->dtype;
    const bool adds = x->instr->code == CB_OP_MATMUL_ADD;
    const bool on_cores =
        !adds && (dtype == CB_F16 || dtype == CB_BF16) && x->code->capability >= TENSOR_CORES;
    if (p.batch == 0 || p.n == 0 || p.m == 0) return;
    if (!adds && cb_cu_takes_product(x, &p)) return;
    if (on_cores) cb_cu_include(x->code, "matmul.cuh");
    cb_cu_begin_op(x);
    p.in[0] = cb_cu_in_param(x, 0), p.in[1] = cb_cu_in_param(x, 1), p.out = cb_cu_out_param(x, 0);
    if (on_cores) add_tensor(x, &p);
    else add_plain(x, &p);
}
