/* Computes numbers between the passes over a row, and before and after all rows.
 *
 * A position is stored like any other number: rows have at most CB_ROW_LONGEST elements, which f32
 * represents exactly. If several instructions have the same indices, only the first one's copy is
 * in the list and read. */
#include "numbers.h"

#include "../index/indices.h"
#include "scalar.h"

static void put_row(const cb_tensor *t, int64_t at, int64_t n, const float *row) {
    if (is_half(t->dtype)) half_narrow(t->dtype, row, cb_at(t, at), n);
    else memcpy(cb_at(t, at), row, (size_t)n * sizeof *row);
}

#define CB_REAL float
#define NUM_KEY int32_t
#define NUM_KEY_MIN INT32_MIN
#define CB_TYPED(name) name##_f32
#define NUM_FIELD(name) name
#define NUM_SCALAR cb_x_scalar
#define NUM_PUSH cb_x_push
#define NUM_PUT_ROW put_row
#define NUM_SUM_OF cb_x_sum_of
#include "numbers_of.h"

#undef CB_REAL
#undef NUM_KEY
#undef NUM_KEY_MIN
#undef CB_TYPED
#undef NUM_FIELD
#undef NUM_SCALAR
#undef NUM_PUSH
#undef NUM_PUT_ROW
#undef NUM_SUM_OF
#define CB_REAL double
#define NUM_KEY int64_t
#define NUM_KEY_MIN INT64_MIN
#define CB_TYPED(name) name##_f64
#define NUM_FIELD(name) name##64
#define NUM_SCALAR cb_x_scalar64
#define NUM_PUSH cb_x_push64
#define NUM_SUM_OF cb_x_sum_of64
#define NUM_PUT_ROW(t, at, n, row) memcpy(cb_at(t, at), row, (size_t)(n) * sizeof(CB_REAL))
#include "numbers_of.h"

/* ---- elements -------------------------------------------------------------------------------- */

static float float_at(const cb_tensor *t, int64_t element) {
    const void *at = cb_at(t, element);
    switch (t->dtype) {
        case CB_BOOL: return (float)*(const uint8_t *)at;
        case CB_F32: return *(const float *)at;
        default: return half_load(t->dtype, at);
    }
}

cb_status cb_x_take_indices(const cb_executable *x, const cb_microcode *m, cb_error *err) {
    for (int k = 0; k < m->n_load; k++) {
        if (!m->load[k].is_index) continue;
        const cb_instr *instr = &x->program->instr[m->load[k].instr];
        char *scratch = instr->scratch == CB_NONE ? NULL : x->address[instr->scratch];
        (void)cb_copy_indices(x->program, instr, x->tensor + instr->in_begin, scratch);
        const cb_status status = cb_check_indices(instr->code, &instr->attrs,
                                                  &x->tensor[m->load[k].tensor], m->columns, err);
        if (status == CB_OK) continue;
        cb_add_location(err, instr->location);
        return status;
    }
    return CB_OK;
}

void cb_x_load_number(const cb_microcode *m, cb_x_context *c, const cb_x_row_value *v,
                      const cb_tensor *t, int64_t element) {
    if (v->is_index) {
        const int64_t index = cb_index_at(t, element), position = index == v->ignored ? -1 : index;
        if (m->is_wide) c->s64[v->number] = (double)position;
        else c->s[v->number] = (float)position;
    } else if (!m->is_wide) {
        c->s[v->number] = float_at(t, element);
    } else if (t->dtype == CB_BOOL) {
        c->s64[v->number] = (double)*(const uint8_t *)cb_at(t, element);
    } else {
        c->s64[v->number] = *(const double *)cb_at(t, element);
    }
}

void cb_x_store_number(const cb_microcode *m, const cb_x_context *c, int id, const cb_tensor *t,
                       int64_t element) {
    void *at = cb_at(t, element);
    switch (t->dtype) {
        case CB_BOOL: *(uint8_t *)at = (m->is_wide ? c->s64[id] : (double)c->s[id]) != 0; break;
        case CB_F32: *(float *)at = c->s[id]; break;
        case CB_F64: *(double *)at = c->s64[id]; break;
        default: half_store(t->dtype, at, c->s[id]);
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */

void cb_x_set_constants(const cb_microcode *m, cb_x_context *c) {
    for (int k = 0; k < m->n_scalar; k++) {
        if (m->is_wide) c->s64[k] = m->constant[k];
        else c->s[k] = (float)m->constant[k];
    }
}

void cb_x_start(const cb_microcode *m, cb_x_context *c, const cb_x_context *shared) {
    for (int k = 0; k < m->n_acc; k++) c->sum[k] = (cb_x_pairs){.count = 0};
    (m->is_wide ? start_f64 : start_f32)(m, c, shared);
    c->n_mask = 0;
}

void cb_x_shared_numbers(const cb_x_fused *f, cb_x_context *c, int when) {
    for (int k = 0; k < f->m.n_number; k++) {
        if ((int)f->m.number[k].when == when)
            (f->m.is_wide ? compute_f64 : compute_f32)(f->table, &f->m.number[k], c);
    }
}

void cb_x_numbers_after(const cb_x_fused *f, cb_x_context *c, int after) {
    for (int k = f->first_number[after + 1]; k < f->first_number[after + 2]; k++)
        (f->m.is_wide ? compute_f64 : compute_f32)(f->table, &f->m.number[f->order[k]], c);
}

/* ---- sums ------------------------------------------------------------------------------------ */

void cb_x_sum_up(const cb_microcode *m, cb_x_context *c, const cb_x_total *total, const void *leaf,
                 int64_t count, cb_dtype dtype) {
    if (m->is_wide) {
        const double sum = total_of_f64(leaf, count);
        c->s64[total->number] = total->is_mean ? sum / (double)count : sum;
        return;
    }
    float sum = total_of_f32(leaf, count);
    if (total->is_mean) sum /= (float)count;
    if (dtype == CB_BF16) sum = cb_x_scalar(CB_X_ROUND_BF16, sum, 0, 0);
    if (dtype == CB_F16) sum = cb_x_scalar(CB_X_ROUND_F16, sum, 0, 0);
    c->s[total->number] = sum;
}

void cb_x_combine(const cb_x_fused *f, const cb_tensor *out, int64_t at, int64_t n,
                  const char *from, bool is_mean) {
    const int64_t divisor = is_mean ? f->m.rows : 0;
    if (f->m.is_wide) combine_f64(f, out, at, n, from, (double)divisor);
    else combine_f32(f, out, at, n, from, (float)divisor);
}

void cb_x_put_sums(const cb_x_fused *f, const cb_tensor *out, int64_t at, int64_t n, void *sums,
                   int64_t divisor) {
    if (f->m.is_wide) put_sums_f64(out, at, n, sums, (double)divisor);
    else put_sums_f32(out, at, n, sums, (float)divisor);
}

void cb_x_sum_long(const cb_x_fused *f, cb_x_context *c, int acc, const void *elements, int64_t n,
                   void *sum) {
    f->table->to_lanes(c, acc, 0, elements, n);
    if (n & (CB_X_LEAF - 1)) f->table->fold(c, acc, 1);
    if (f->m.is_wide) *(double *)sum = cb_x_sum_of64(&c->sum[acc]);
    else *(float *)sum = cb_x_sum_of(&c->sum[acc]);
}
