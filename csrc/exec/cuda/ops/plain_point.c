/* Pointwise ops: a thread for each element of the result. */
#include <stdio.h>
#include <string.h>

#include "../../../base/draw.h"
#include "../../element.h"
#include "../text/turn.h"
#include "families.h"

/* ---- ops without inputs ---------------------------------------------------------------------- */

static void add_constant(const cb_cu_op *x, double value) {
    const cb_dtype dtype = cb_cu_out(x, 0)->dtype;
    const unsigned long long bits = (unsigned long long)cb_element_of(dtype, value);
    const int p = cb_cu_out_param(x, 0);
    switch (dtype) {
        case CB_F16:
        case CB_BF16: cb_cu_add(x->code, "p%d[i].bits = 0x%llX;\n", p, bits); break;
        case CB_F32: cb_cu_add(x->code, "p%d[i] = cb_f32_of_bits(0x%llXu);\n", p, bits); break;
        case CB_F64: cb_cu_add(x->code, "p%d[i] = cb_f64_of_bits(0x%llXull);\n", p, bits); break;
        case CB_I32: cb_cu_add(x->code, "p%d[i] = (int32_t)0x%llXu;\n", p, bits); break;
        default: cb_cu_add(x->code, "p%d[i] = (%s)0x%llXull;\n", p, cb_cu_type(dtype), bits);
    }
}

static void add_iota(const cb_cu_op *x) {
    const cb_operand *out = cb_cu_out(x, 0);
    const int64_t axis = x->instr->attrs.i[0];
    const int64_t inner = cb_numel_of(&out->shape, axis + 1, out->shape.rank);
    const int p = cb_cu_out_param(x, 0);
    cb_cu_add(x->code, "const int64_t index = i / (I)%lld %% (I)%lld;\n", (long long)inner,
              (long long)out->shape.dim[axis]);
    cb_cu_add(x->code, out->dtype == CB_BOOL ? "p%d[i] = index != 0;\n" : "cast(&p%d[i], index);\n",
              p);
}

static void add_bits(const cb_cu_op *x) {
    const int seed = cb_cu_param_of(x->code, (cb_cu_param){.place = CB_CU_SEED}, "uint64_t", false),
              step = cb_cu_param_of(x->code, (cb_cu_param){.place = CB_CU_STEP}, "uint64_t", false);
    cb_cu_add(x->code, "const cb_philox philox = {p%d, (uint32_t)p%d, (uint32_t)p%d};\n", seed,
              cb_cu_count(x->code, x->instr->attrs.i[0]), step);
    cb_cu_add(x->code, "const uint32_t bits = cb_philox_u16(&philox, i);\n");
}

static void add_uniform(const cb_cu_op *x) {
    add_bits(x);
    const cb_dtype dtype = cb_cu_out(x, 0)->dtype;
    const char *real = cb_cu_real(dtype);
    cb_cu_add(x->code, "narrow(&p%d[i], (%s)(bits & %uu) * (%s)0x1p-16f);\n", cb_cu_out_param(x, 0),
              real, cb_uniform_mask(dtype), real);
}

/* ---- ops with inputs ------------------------------------------------------------------------- */

/* Writes x<k> = element i of input k, in the type of the arithmetic. */
static void add_inputs(const cb_cu_op *x) {
    for (uint32_t k = 0; k < x->instr->n_in; k++) {
        char name[16];
        snprintf(name, sizeof name, "o%u", k);
        cb_cu_in_offset(x, k, name, "i");
        cb_cu_add(x->code, "const auto x%u = widen(p%d[%s]);\n", k, cb_cu_in_param(x, k), name);
    }
}

static void add_dropout(const cb_cu_op *x) {
    const double p = x->instr->attrs.f[0];
    const char *real = cb_cu_real(cb_cu_out(x, 0)->dtype);
    add_bits(x);
    cb_cu_add(x->code, "const %s kept = x0 * (%s)%a;\n", real, real, cb_dropout_scale(p));
    cb_cu_add(x->code, "narrow(&p%d[i], bits >= %uu ? kept : (%s)0);\n", cb_cu_out_param(x, 0),
              cb_dropout_threshold(p), real);
}

/* Writes ops that copy elements unchanged. */
static void add_moved(const cb_cu_op *x) {
    const cb_shape *s = &cb_cu_out(x, 0)->shape;
    const int out = cb_cu_out_param(x, 0);
    if (x->instr->code == CB_OP_WHERE) {
        cb_cu_in_offset(x, 0, "o0", "i");
        cb_cu_in_offset(x, 1, "o1", "i");
        cb_cu_in_offset(x, 2, "o2", "i");
        const int c = cb_cu_in_param(x, 0), a = cb_cu_in_param(x, 1), b = cb_cu_in_param(x, 2);
        cb_cu_add(x->code, "p%d[i] = p%d[o0] ? p%d[o1] : p%d[o2];\n", out, c, a, b);
        return;
    }
    cb_cu_in_offset(x, 0, "o0", "i");
    const int in = cb_cu_in_param(x, 0);
    if (x->instr->code == CB_OP_TRIL) {
        const long long columns = (long long)s->dim[s->rank - 1],
                        rows = (long long)s->dim[s->rank - 2];
        cb_cu_add(x->code,
                  "if ((int64_t)(i %% (I)%lld) > (int64_t)(i / (I)%lld %% (I)%lld) + "
                  "(int64_t)%lld) {\n",
                  columns, columns, rows, (long long)x->instr->attrs.i[0]);
        add_constant(x, x->instr->attrs.f[0]);
        cb_cu_add(x->code, "return;\n}\n");
    }
    cb_cu_add(x->code, "p%d[i] = p%d[o0];\n", out, in);
}

static void add_cast(const cb_cu_op *x) {
    const cb_dtype from = cb_cu_in(x, 0)->dtype, to = cb_cu_out(x, 0)->dtype;
    const int out = cb_cu_out_param(x, 0);
    add_inputs(x);
    if (to == CB_BOOL) cb_cu_add(x->code, "p%d[i] = x0 != 0;\n", out);
    else
        cb_cu_add(x->code, "cast(&p%d[i], %sx0);\n", out,
                  cb_dtype_is_float(from) ? "" : "(int64_t)");
}

static void add_formula(const cb_cu_op *x) {
    const int out = cb_cu_out_param(x, 0);
    add_inputs(x);
    if (x->instr->code == CB_OP_DROPOUT) {
        add_dropout(x);
        return;
    }
    if (x->instr->code == CB_OP_BATCH_NORM_APPLY) {
        cb_cu_add(x->code, "narrow(&p%d[i], (x0 - x1) * x2 * x3 + x4);\n", out);
        return;
    }
    cb_cu_add(x->code, "narrow(&p%d[i], p_%s(x0%s));\n", out, cb_cu_op_name(x->instr->code),
              x->instr->n_in > 1 ? ", x1" : "");
}

void cb_cu_point(const cb_cu_op *x) {
    const int64_t n = cb_numel(&cb_cu_out(x, 0)->shape);
    if (n == 0 || cb_cu_turned_copy(x)) return;
    cb_cu_each(x, n);
    switch (x->instr->code) {
        case CB_OP_FULL: add_constant(x, x->instr->attrs.f[0]); break;
        case CB_OP_IOTA: add_iota(x); break;
        case CB_OP_UNIFORM: add_uniform(x); break;
        case CB_OP_CONTIGUOUS:
        case CB_OP_WHERE:
        case CB_OP_TRIL: add_moved(x); break;
        case CB_OP_CAST: add_cast(x); break;
        default: add_formula(x);
    }
    cb_cu_end_each(x, n);
}

/* ---- concat and pad -------------------------------------------------------------------------- */

/* Writes a kernel for each input, which copies its elements to the result, from `begin` of the axis
 * on. */
static void concat(const cb_cu_op *x) {
    const cb_shape *s = &cb_cu_out(x, 0)->shape;
    const int64_t axis = x->instr->attrs.i[0], outer = cb_numel_of(s, 0, axis),
                  inner = cb_numel_of(s, axis + 1, s->rank), whole = s->dim[axis] * inner;
    int64_t begin = 0;
    for (uint32_t k = 0; k < x->instr->n_in; k++) {
        const int64_t dim = cb_cu_in(x, k)->shape.dim[axis], part = dim * inner, n = outer * part;
        if (n > 0) {
            cb_cu_each(x, n);
            cb_cu_in_offset(x, k, "o0", "i");
            const int in = cb_cu_in_param(x, k), out = cb_cu_out_param(x, 0);
            cb_cu_add(x->code, "p%d[i / (I)%lld * (I)%lld + (I)%lld + i %% (I)%lld] = p%d[o0];\n",
                      out, (long long)part, (long long)whole, (long long)(begin * inner),
                      (long long)part, in);
            cb_cu_end_each(x, n);
        }
        begin += dim;
    }
}

static void pad(const cb_cu_op *x) {
    const cb_attrs *a = &x->instr->attrs;
    const cb_operand *in = cb_cu_in(x, 0), *out = cb_cu_out(x, 0);
    const int64_t inner = cb_numel_of(&out->shape, a->i[0] + 1, out->shape.rank);
    const long long dim = (long long)out->shape.dim[a->i[0]],
                    of = (long long)in->shape.dim[a->i[0]], step = (long long)a->i[3] + 1;
    const int64_t n = cb_numel(&out->shape);
    if (n == 0) return;
    cb_cu_each(x, n);
    cb_cu_add(x->code, "const int64_t along = (int64_t)(i / (I)%lld %% (I)%lld) - (int64_t)%lld;\n",
              (long long)inner, dim, (long long)a->i[1]);
    cb_cu_add(x->code, "if (along < 0 || along %% %lld || along / %lld >= %lld) {\n", step, step,
              of);
    add_constant(x, a->f[0]);
    cb_cu_add(x->code, "return;\n}\n");
    cb_cu_add(x->code,
              "const I from = (i / (I)%lld * (I)%lld + (I)(along / %lld)) * (I)%lld + i %% "
              "(I)%lld;\n",
              (long long)inner * dim, of, step, (long long)inner, (long long)inner);
    cb_cu_in_offset(x, 0, "o0", "from");
    const int from = cb_cu_in_param(x, 0);
    cb_cu_add(x->code, "p%d[i] = p%d[o0];\n", cb_cu_out_param(x, 0), from);
    cb_cu_end_each(x, n);
}

void cb_cu_move(const cb_cu_op *x) {
    if (x->instr->code == CB_OP_CONCAT) concat(x);
    else pad(x);
}
