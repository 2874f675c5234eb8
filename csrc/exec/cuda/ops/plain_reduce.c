/* Sums, means and extremes over any axes, and argmax. A result has a thread where little is
 * reduced, else a block, whose threads take every 128th element: the order depends on the shape
 * alone. */
#include "families.h"

enum { FEW = 128 };

typedef struct axes { /* those that are kept, in order, and those that are reduced */
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

/* What a value is summed in. */
static const char *sum_type(cb_dtype dtype) {
    return cb_dtype_is_float(dtype) ? cb_cu_real(dtype) : "int64_t";
}

static bool is_extreme(cb_opcode code) { return code == CB_OP_AMAX || code == CB_OP_AMIN; }

/* `sum` of elements first, first + step, ... of result i. */
static void add_loop(const cb_cu_op *x, const axes *a, const char *first, int step) {
    cb_cu_code *c = x->code;
    const cb_operand *in = cb_cu_in(x, 0);
    const cb_opcode code = x->instr->code;
    const int p = cb_cu_in_param(x, 0), count = cb_cu_count(c, a->count);
    cb_cu_offset(c, a->n_kept, a->kept, a->kept_stride, "from", "i");
    cb_cu_add(c, "%s sum = 0;\nbool is_there = false;\n", sum_type(in->dtype));
    cb_cu_add(c, "for (I r = %s; r < (I)p%d; r += %d) {\n", first, count, step);
    cb_cu_offset(c, a->n_reduced, a->reduced, a->reduced_stride, "o", "r");
    cb_cu_add(c, "const %s x = widen(p%d[from + o]);\n", sum_type(in->dtype), p);
    if (is_extreme(code))
        cb_cu_add(c, "sum = is_there ? %s(sum, x) : x;\n",
                  code == CB_OP_AMAX ? "larger" : "smaller");
    else cb_cu_add(c, "sum += x;\n");
    cb_cu_add(c, "is_there = true;\n}\n");
}

static void add_result(const cb_cu_op *x, const axes *a) {
    const cb_operand *out = cb_cu_out(x, 0);
    if (x->instr->code == CB_OP_MEAN)
        cb_cu_add(x->code, "sum = sum / (%s)p%d;\n", cb_cu_real(out->dtype),
                  cb_cu_count(x->code, a->count));
    cb_cu_add(x->code, "narrow(&p%d[i], sum);\n", cb_cu_out_param(x, 0));
}

static void thread_each(const cb_cu_op *x, const axes *a) {
    cb_cu_each(x, a->results);
    add_loop(x, a, "0", 1);
    add_result(x, a);
    cb_cu_end_each(x, a->results);
}

static void block_each(const cb_cu_op *x, const axes *a) {
    cb_cu_code *c = x->code;
    const char *type = sum_type(cb_cu_in(x, 0)->dtype);
    const cb_opcode code = x->instr->code;
    cb_cu_each_row(x, a->count);
    cb_cu_add(c, "const I i = row;\n__shared__ %s part[%d];\n", type, CB_CU_ROW_THREADS);
    add_loop(x, a, "threadIdx.x", CB_CU_ROW_THREADS);
    cb_cu_add(c, "part[threadIdx.x] = sum;\n");
    cb_cu_add(c,
              "for (unsigned n = %d; n > 0; n /= 2) {\n__syncthreads();\nif (threadIdx.x < n) {\n",
              CB_CU_ROW_THREADS / 2);
    if (is_extreme(code))
        cb_cu_add(c, "part[threadIdx.x] = %s(part[threadIdx.x], part[threadIdx.x + n]);\n",
                  code == CB_OP_AMAX ? "larger" : "smaller");
    else cb_cu_add(c, "part[threadIdx.x] += part[threadIdx.x + n];\n");
    cb_cu_add(c, "}\n}\nif (threadIdx.x) return;\nsum = part[0];\n");
    add_result(x, a);
    cb_cu_end_each_row(x, a->results);
}

/* The first of the largest; a NaN is largest. */
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
    else block_each(x, &a);
}
