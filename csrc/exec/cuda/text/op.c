#include "op.h"

#include <string.h>

#define CB_OP(id, ...) [CB_OP_##id] = #id,
static const char *const names[CB_OP_COUNT] = {
#include "../../../ir/ops.def"
};
#undef CB_OP
const char *cb_cu_op_name(cb_opcode code) { return names[code]; }

const char *cb_cu_real(cb_dtype dtype) { return dtype == CB_F64 ? "double" : "float"; }

static uint32_t in_id(const cb_cu_op *x, uint32_t k) {
    return x->code->program->operand_id[x->instr->in_begin + k];
}
static uint32_t out_id(const cb_cu_op *x, uint32_t k) {
    return x->code->program->operand_id[x->instr->out_begin + k];
}
const cb_operand *cb_cu_in(const cb_cu_op *x, uint32_t k) {
    return &x->code->program->operand[in_id(x, k)];
}
const cb_operand *cb_cu_out(const cb_cu_op *x, uint32_t k) {
    return &x->code->program->operand[out_id(x, k)];
}
int cb_cu_in_param(const cb_cu_op *x, uint32_t k) {
    return cb_cu_operand(x->code, in_id(x, k), false);
}
int cb_cu_out_param(const cb_cu_op *x, uint32_t k) {
    return cb_cu_operand(x->code, out_id(x, k), true);
}

/* True if 32-bit offsets reach every element of all operands. */
static bool is_small(const cb_cu_op *x) {
    bool small = true;
    for (uint32_t k = 0; k < x->instr->n_in + x->instr->n_out; k++) {
        const cb_operand *o =
            k < x->instr->n_in ? cb_cu_in(x, k) : cb_cu_out(x, k - x->instr->n_in);
        int64_t last = 0;
        for (int32_t d = 0; d < o->shape.rank; d++) last += o->shape.dim[d] * o->stride[d];
        small = small && last < INT32_MAX && cb_numel(&o->shape) < INT32_MAX;
    }
    return small;
}

void cb_cu_begin_op(const cb_cu_op *x) {
    cb_cu_begin(x->code);
    cb_cu_add(x->code, "typedef %s I;\n", is_small(x) ? "uint32_t" : "uint64_t");
}

void cb_cu_each(const cb_cu_op *x, int64_t n) {
    cb_cu_begin_op(x);
    cb_cu_add(x->code, "const I i = blockIdx.x * (I)%d + threadIdx.x;\nif (i >= (I)p%d) return;\n",
              CB_CU_THREADS, cb_cu_count(x->code, n));
}

void cb_cu_end_each(const cb_cu_op *x, int64_t n) {
    cb_cu_end(x->code, (cb_cu_grid){(uint32_t)cb_cu_div_up(n, CB_CU_THREADS), 1, 1}, CB_CU_THREADS);
}

void cb_cu_each_row(const cb_cu_op *x, int64_t columns) {
    cb_cu_begin_op(x);
    cb_cu_add(x->code, "const I row = blockIdx.x, COLUMNS = (I)p%d;\n",
              cb_cu_count(x->code, columns));
}

void cb_cu_end_each_row(const cb_cu_op *x, int64_t rows) {
    cb_cu_end(x->code, (cb_cu_grid){(uint32_t)rows, 1, 1}, CB_CU_ROW_THREADS);
}

void cb_cu_op_template(const cb_cu_op *x, const char *operands, const char *text,
                       const cb_cu_hole *more) {
    enum { MOST = 32 };
    cb_cu_hole hole[MOST + 1] = {{.name = NULL}}; /* if there are more, the template fails */
    int n = 0;
    for (const char *at = operands; *at && n < MOST; at += *at == ' ') {
        const char *is = strchr(at, '=');
        const uint32_t k = (uint32_t)(is[2] - '0');
        const int param = is[1] == 'x' ? cb_cu_in_param(x, k) : cb_cu_out_param(x, k);
        hole[n++] = (cb_cu_hole){.name = at, .number = param, .is_param = true};
        at = is + 3;
    }
    for (; more->name && n < MOST; more++) hole[n++] = *more;
    cb_cu_template(x->code, text, hole);
}

void cb_cu_in_offset(const cb_cu_op *x, uint32_t k, const char *name, const char *at) {
    const cb_operand *o = cb_cu_in(x, k);
    if (cb_is_contiguous(&o->shape, o->stride)) cb_cu_add(x->code, "const I %s = %s;\n", name, at);
    else cb_cu_offset(x->code, o->shape.rank, o->shape.dim, o->stride, name, at);
}

enum { MANY_INDICES = 4096 }; /* more of them are checked by a block of the largest size */

/* Uses one block, because there are few indices compared to the elements they select. The first
 * wrong index is reported, so the error is the same in every run. If nothing is ignored, 0 is used
 * as the ignored index: it is always in range, except if the range is empty. */
void cb_cu_check_index(const cb_cu_op *x, uint32_t k, int64_t limit, const int64_t *ignore) {
    static const char text[] =
        "__shared__ uint64_t wrong[$threads];\n"
        "uint64_t first = ~(uint64_t)0;\n"
        "#pragma unroll 4\n"
        "for (I i = threadIdx.x; i < (I)$n; i += $threads) {\n"
        "const int64_t at = $index[i];\n"
        "const bool is_wrong = at < 0 || at >= (int64_t)$limit;\n"
        "if (is_wrong$(ignores) && i < first) first = i;\n"
        "}\n"
        "wrong[threadIdx.x] = first;\n"
        "#pragma unroll 1\n"
        "for (unsigned n = $half; n > 0; n /= 2) {\n"
        "__syncthreads();\n"
        "if (threadIdx.x < n && wrong[threadIdx.x + n] < first) "
        "wrong[threadIdx.x] = first = wrong[threadIdx.x + n];\n"
        "}\n"
        "if (threadIdx.x == 0 && first != ~(uint64_t)0 && $failure->instr == 0) {\n"
        "$failure->index = $index[first];\n"
        "$failure->instr = (uint32_t)$number;\n"
        "}\n";
    cb_cu_code *c = x->code;
    const int64_t n = cb_numel(&cb_cu_in(x, k)->shape);
    const int threads = n > MANY_INDICES ? 1024 : CB_CU_THREADS;
    if (n == 0) return;
    cb_cu_begin_op(x);
    const int p = cb_cu_in_param(x, k),
              f = cb_cu_param_of(c, (cb_cu_param){.place = CB_CU_FAILURE}, "failure", true),
              count = cb_cu_count(c, n), most = cb_cu_count(c, limit),
              number = cb_cu_count(c, x->at + 1);
    cb_cu_template(
        c, text,
        CB_CU_HOLES(
            CB_CU_HOLE(threads, threads), CB_CU_HOLE(half, threads / 2), CB_CU_HOLE_PARAM(index, p),
            CB_CU_HOLE_PARAM(failure, f), CB_CU_HOLE_PARAM(n, count), CB_CU_HOLE_PARAM(limit, most),
            CB_CU_HOLE_PARAM(number, number),
            CB_CU_HOLE_TEXT(ignores, limit > 0 || ignore ? " && at != (int64_t)$ignored" : ""),
            CB_CU_HOLE_COUNT(ignored, ignore ? *ignore : 0)));
    cb_cu_end(c, (cb_cu_grid){1, 1, 1}, (uint32_t)threads);
}
