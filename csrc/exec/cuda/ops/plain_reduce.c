/* Sums, means and extremes over any axes, and argmax. A result is computed by a thread if few
 * elements are reduced, else by a block whose threads take every 128th element. If there are too
 * few results to fill a device, the elements of a result are cut into pieces, with a block for
 * each, and another block combines them. The order depends only on the shape. */
#include "families.h"

#include <stdio.h>

enum {
    FEW = 128,            /* with fewer elements, a result is computed by a thread */
    PIECE = 4096,         /* minimum elements of a piece */
    BLOCKS_ENOUGH = 1024, /* fills any device */
    PIECES_MOST = 32768   /* maximum number of pieces of a result */
};

typedef struct axes { /* the kept axes in order, and the reduced axes */
    int n_kept, n_reduced;
    int64_t kept[CB_MAX_RANK], kept_stride[CB_MAX_RANK];
    int64_t reduced[CB_MAX_RANK], reduced_stride[CB_MAX_RANK];
    int64_t count, results;
} axes;

static axes axes_of(const cb_cu_op *x) {
    const cb_operand *in = cb_cu_in(x, 0);
    const cb_shape *list = &x->instr->attrs.dims;
    axes a = {.count = 1, .results = 1};
    for (int32_t k = 0; k < in->shape.rank; k++) {
        bool reduces = x->instr->code != CB_OP_ARGMAX && list->rank == 0;
        for (int32_t i = 0; i < list->rank && x->instr->code != CB_OP_ARGMAX; i++)
            reduces |= list->dim[i] == k;
        if (x->instr->code == CB_OP_ARGMAX) reduces = x->instr->attrs.i[0] == k;
        int *n = reduces ? &a.n_reduced : &a.n_kept;
        (reduces ? a.reduced : a.kept)[*n] = in->shape.dim[k];
        (reduces ? a.reduced_stride : a.kept_stride)[*n] = in->stride[k];
        *(reduces ? &a.count : &a.results) *= in->shape.dim[k];
        (*n)++;
    }
    return a;
}

/* Returns the type in which a dtype is summed. */
static const char *sum_type(cb_dtype dtype) {
    return cb_dtype_is_float(dtype) ? cb_cu_real(dtype) : "int64_t";
}

static bool is_extreme(cb_opcode code) { return code == CB_OP_AMAX || code == CB_OP_AMIN; }

/* Writes the initial `sum`. */
static void declare_sum(const cb_cu_op *x) {
    cb_cu_add(x->code, "%s sum = 0;\n", sum_type(cb_cu_in(x, 0)->dtype));
    if (is_extreme(x->instr->code)) cb_cu_add(x->code, "bool is_there = false;\n");
}

/* Writes code that adds element x to `sum`. The first element of an extreme replaces `sum`. */
static void add_element(const cb_cu_op *x) {
    if (is_extreme(x->instr->code))
        cb_cu_add(x->code, "sum = is_there ? %s(sum, x) : x;\nis_there = true;\n",
                  x->instr->code == CB_OP_AMAX ? "larger" : "smaller");
    else cb_cu_add(x->code, "sum += x;\n");
}

/* Writes a loop that adds elements first, first + step, ... before `end` of result i to `sum`. */
static void add_loop(const cb_cu_op *x, const axes *a, const char *first, const char *end,
                     int step) {
    cb_cu_code *c = x->code;
    const char *type = sum_type(cb_cu_in(x, 0)->dtype);
    cb_cu_offset(c, a->n_kept, a->kept, a->kept_stride, "from", "i");
    declare_sum(x);
    cb_cu_add(c, "%sfor (I r = %s; r < %s; r += %d) {\n", step > 1 ? "#pragma unroll 8\n" : "",
              first, end, step);
    cb_cu_offset(c, a->n_reduced, a->reduced, a->reduced_stride, "o", "r");
    cb_cu_add(c, "const %s x = widen(p%d[from + o]);\n", type, cb_cu_in_param(x, 0));
    add_element(x);
    cb_cu_add(c, "}\n");
}

static void add_result(const cb_cu_op *x, const axes *a) {
    const cb_operand *out = cb_cu_out(x, 0);
    if (x->instr->code == CB_OP_MEAN)
        cb_cu_add(x->code, "sum = sum / (%s)p%d;\n", cb_cu_real(out->dtype),
                  cb_cu_count(x->code, a->count));
    cb_cu_add(x->code, "narrow(&p%d[i], sum);\n", cb_cu_out_param(x, 0));
}

static void thread_each(const cb_cu_op *x, const axes *a) {
    char end[24];
    cb_cu_each(x, a->results);
    (void)snprintf(end, sizeof end, "(I)p%d", cb_cu_count(x->code, a->count));
    add_loop(x, a, "0", end, 1);
    add_result(x, a);
    cb_cu_end_each(x, a->results);
}

/* Writes code that folds the sums of the block into `sum` of thread 0; the other threads return.
 * For an extreme, threads without any of the `count` elements are skipped, because their `sum` is
 * 0. */
static void fold_block(const cb_cu_op *x) {
    cb_cu_code *c = x->code;
    const cb_opcode code = x->instr->code;
    cb_cu_add(c, "part[threadIdx.x] = sum;\n");
    cb_cu_add(c, "for (unsigned n = %d; n > 0; n /= 2) {\n__syncthreads();\nif (threadIdx.x < n",
              CB_CU_ROW_THREADS / 2);
    if (is_extreme(code))
        cb_cu_add(c,
                  " && threadIdx.x + n < count) part[threadIdx.x] = %s(part[threadIdx.x], "
                  "part[threadIdx.x + n]);\n",
                  code == CB_OP_AMAX ? "larger" : "smaller");
    else cb_cu_add(c, ") part[threadIdx.x] += part[threadIdx.x + n];\n");
    cb_cu_add(c, "}\nif (threadIdx.x) return;\nsum = part[0];\n");
}

/* Begins a kernel with a block for each result `i`, or for each piece of it if `piece` is not 0. A
 * block has `count` elements from `first` on. */
static void begin_blocks(const cb_cu_op *x, int64_t count, int64_t piece) {
    cb_cu_code *c = x->code;
    const int all = cb_cu_count(c, count);
    cb_cu_add(c, "const I i = blockIdx.x, ");
    if (piece) {
        const int each = cb_cu_count(c, piece);
        cb_cu_add(c, "first = blockIdx.y * (I)p%d, left = (I)p%d - first, ", each, all);
        cb_cu_add(c, "count = left < (I)p%d ? left : (I)p%d;\n", each, each);
    } else {
        cb_cu_add(c, "first = 0, count = (I)p%d;\n", all);
    }
    cb_cu_add(c, "__shared__ %s part[%d];\n", sum_type(cb_cu_in(x, 0)->dtype), CB_CU_ROW_THREADS);
}

static void end_blocks(const cb_cu_op *x, int64_t results, int64_t pieces) {
    cb_cu_end(x->code, (cb_cu_grid){(uint32_t)results, (uint32_t)pieces, 1}, CB_CU_ROW_THREADS);
}

static void block_each(const cb_cu_op *x, const axes *a, int64_t piece) {
    cb_cu_code *c = x->code;
    const char *type = sum_type(cb_cu_in(x, 0)->dtype);
    const int64_t pieces = piece ? cb_cu_div_up(a->count, piece) : 1;
    cb_cu_begin_op(x);
    begin_blocks(x, a->count, piece);
    add_loop(x, a, "first + threadIdx.x", "first + count", CB_CU_ROW_THREADS);
    fold_block(x);
    if (!piece) {
        add_result(x, a);
        end_blocks(x, a->results, 1);
        return;
    }
    const cb_cu_param at = {
        CB_CU_EXTRA, 0, cb_cu_extra(c, (uint64_t)(a->results * pieces) * (type[0] == 'f' ? 4 : 8))};
    cb_cu_add(c, "p%d[i * gridDim.y + blockIdx.y] = sum;\n", cb_cu_param_of(c, at, type, true));
    end_blocks(x, a->results, pieces);

    cb_cu_begin_op(x);
    begin_blocks(x, pieces, 0);
    declare_sum(x);
    cb_cu_add(c, "for (I r = threadIdx.x; r < count; r += %d) {\n", CB_CU_ROW_THREADS);
    cb_cu_add(c, "const %s x = p%d[i * count + r];\n", type, cb_cu_param_of(c, at, type, false));
    add_element(x);
    cb_cu_add(c, "}\n");
    fold_block(x);
    add_result(x, a);
    end_blocks(x, a->results, 1);
}

/* Returns the elements of a piece; 0 if there are enough results to fill a device without
 * pieces. */
static int64_t piece_of(const axes *a) {
    int64_t pieces = cb_cu_div_up(BLOCKS_ENOUGH, a->results);
    if (pieces > a->count / PIECE) pieces = a->count / PIECE;
    if (pieces > PIECES_MOST) pieces = PIECES_MOST;
    return pieces > 1 ? cb_cu_div_up(a->count, pieces) : 0;
}

/* Computes the index of the first largest element; NaN counts as largest. */
static void argmax(const cb_cu_op *x, const axes *a) {
    cb_cu_code *c = x->code;
    cb_cu_each(x, a->results);
    const int in = cb_cu_in_param(x, 0), out = cb_cu_out_param(x, 0),
              count = cb_cu_count(c, a->count);
    cb_cu_offset(c, a->n_kept, a->kept, a->kept_stride, "from", "i");
    cb_cu_add(c, "auto best = widen(p%d[from]);\nint64_t index = 0;\n", in);
    cb_cu_add(c, "for (I r = 1; r < (I)p%d; r++) {\n", count);
    cb_cu_add(c, "const auto x = widen(p%d[from + r * (I)%lld]);\n", in,
              (long long)a->reduced_stride[0]);
    cb_cu_add(c, "if (x > best || (x != x && best == best)) best = x, index = r;\n}\n");
    cb_cu_add(c, "p%d[i] = index;\n", out);
    cb_cu_end_each(x, a->results);
}

void cb_cu_reduce(const cb_cu_op *x) {
    const axes a = axes_of(x);
    if (a.results == 0) return;
    if (x->instr->code == CB_OP_ARGMAX) argmax(x, &a);
    else if (a.count < FEW) thread_each(x, &a);
    else block_each(x, &a, piece_of(&a));
}
