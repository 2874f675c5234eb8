/* cuBLASLt computes products of matrices that are contiguous along rows or columns, in batches with
 * a constant stride. Our own kernels compute all others. */
#include "product.h"

#include "../../../ir/graph.h"

cb_cu_shapes cb_cu_shapes_of(const cb_cu_op *x) {
    const cb_operand *o[3] = {cb_cu_in(x, 0), cb_cu_in(x, 1), cb_cu_out(x, 0)};
    const int32_t rank = o[2]->shape.rank;
    cb_cu_shapes s = {.batch = cb_numel_of(&o[2]->shape, 0, rank - 2),
                      .n = o[2]->shape.dim[rank - 2],
                      .k = o[0]->shape.dim[rank - 1],
                      .m = o[2]->shape.dim[rank - 1]};
    for (int k = 0; k < 3; k++) {
        s.row[k] = o[k]->stride[rank - 2];
        s.column[k] = o[k]->stride[rank - 1];
    }
    return s;
}

/* If there are too few tiles to fill a device and the inner axis is long, parts of it may be summed
 * separately. Returns the memory that four such sums need. */
uint64_t cb_cu_product_room(const cb_graph *g, cb_op_id op) {
    enum { PARTS = 4, LONG = 1024, FEW = 64 * 128 * 128, MOST = 4 << 20 };
    const cb_value *x = &g->values.at[cb_op_ins(g, op)[0]],
                   *out = &g->values.at[g->ops.at[op].out_begin];
    const int64_t n = cb_numel(&out->shape), k = x->shape.dim[x->shape.rank - 1];
    if (k < LONG || n > FEW) return 0;
    const uint64_t bytes = (uint64_t)n * PARTS * (out->dtype == CB_F64 ? 8 : 4);
    return bytes < MOST ? bytes : MOST;
}

/* Sets the stride from matrix to matrix; returns false if it is not constant. */
static bool batch_step_of(const cb_operand *o, int64_t *step) {
    int64_t length = 1;
    *step = 0;
    for (int32_t d = o->shape.rank - 3; d >= 0; d--) {
        if (o->shape.dim[d] == 1) continue;
        if (length == 1) *step = o->stride[d];
        else if (o->stride[d] != *step * length) return false;
        length *= o->shape.dim[d];
    }
    return true;
}

/* Describes a matrix of `rows` x `columns`; the stride of an axis with one element is ignored.
 * Returns false if it is contiguous along neither axis. */
static bool matrix_of(const cb_operand *o, int64_t rows, int64_t columns, cb_cu_matrix *out) {
    const int32_t rank = o->shape.rank;
    const int64_t row = rows == 1 ? columns : o->stride[rank - 2],
                  column = columns == 1 ? 1 : o->stride[rank - 1];
    if (column == 1 && row >= columns) *out = (cb_cu_matrix){.step = row};
    else if ((row == 1 || rows == 1) && column >= rows)
        *out = (cb_cu_matrix){.step = column, .turned = true};
    else return false;
    return batch_step_of(o, &out->batch_step);
}

static bool number_of(cb_dtype dtype, cb_cu_scalar *out) {
    switch (dtype) {
        case CB_F32: *out = CB_CU_F32; return true;
        case CB_F64: *out = CB_CU_F64; return true;
        case CB_F16: *out = CB_CU_F16; return true;
        case CB_BF16: *out = CB_CU_BF16; return true;
        default: return false;
    }
}

static bool form_of(const cb_cu_op *x, const cb_cu_shapes *s, cb_cu_form *out) {
    *out = (cb_cu_form){.n = s->n, .k = s->k, .m = s->m, .batch = s->batch};
    if (s->k == 0 || s->n > INT32_MAX || s->k > INT32_MAX || s->m > INT32_MAX ||
        s->batch > INT32_MAX)
        return false;
    const uint32_t scratch = x->instr->scratch;
    if (scratch != CB_NONE) out->room = x->code->program->buffer[scratch].bytes;
    return number_of(cb_cu_out(x, 0)->dtype, &out->type) &&
           matrix_of(cb_cu_in(x, 0), s->n, s->k, &out->x) &&
           matrix_of(cb_cu_in(x, 1), s->k, s->m, &out->y);
}

bool cb_cu_takes_product(const cb_cu_op *x, const cb_cu_shapes *s) {
    cb_cu_code *c = x->code;
    cb_cu_form form;
    cb_cu_call call = {0};
    bool found = false;
    if (!c->products || c->status != CB_OK || !form_of(x, s, &form)) return false;
    c->status = cb_cu_product_make(c->blaslt, c->products, &form, &call.product, &found, &c->error);
    if (!found) return false;
    cb_cu_begin(c);
    call.x = cb_cu_in_param(x, 0);
    call.y = cb_cu_in_param(x, 1);
    call.out = cb_cu_out_param(x, 0);
    call.room = -1;
    if (form.room) {
        const cb_buffer *room = &c->program->buffer[x->instr->scratch];
        call.room = cb_cu_param_of(c, (cb_cu_param){CB_CU_ARENA, 0, room->offset}, "void", true);
    }
    if (cb_cu_end_call(c, &call)) return true;
    cb_cu_product_release(c->blaslt, &call.product);
    return false;
}
