/* Numbers between the passes over a row, and before and after all rows.
 *
 * A position is a number like others: rows have at most CB_ROW_MAX elements, which f32 counts. Of
 * several instructions with the same indices only those are read that are in the list: the copy of
 * the first. */
#include "numbers.h"

#include "../indices.h"
#include "scalar.h"

static float largest_of(cb_x_context *c, int acc, bool is_min) {
    int32_t key[CB_X_LANES], best = INT32_MIN;
    memcpy(key, c->acc[acc], sizeof key);
    for (int k = 0; k < CB_X_LANES; k++) {
        best = key[k] > best ? key[k] : best;
        key[k] = INT32_MIN;
    }
    memcpy(c->acc[acc], key, sizeof key);
    int32_t bits = best ^ ((best >> 31) & INT32_MAX);
    float x;
    memcpy(&x, &bits, sizeof x);
    return is_min ? -x : x;
}

static void compute_number(const cb_x_number *n, cb_x_context *c) {
    switch ((int)n->op) {
        case CB_X_ACC: c->s[n->dst] = cb_x_sum_of(&c->sum[n->a]); break;
        case CB_X_AMAX: c->s[n->dst] = largest_of(c, n->a, false); break;
        case CB_X_AMIN: c->s[n->dst] = largest_of(c, n->a, true); break;
        default: c->s[n->dst] = cb_x_scalar(n->op, c->s[n->a], c->s[n->b], c->s[n->c]);
    }
}

void cb_x_shared_numbers(const cb_microcode *m, cb_x_context *c, int when) {
    for (int k = 0; k < m->n_number; k++) {
        if ((int)m->number[k].when == when) compute_number(&m->number[k], c);
    }
}

void cb_x_numbers_after(const cb_x_fused *f, cb_x_context *c, int after) {
    for (int k = f->first_number[after + 1]; k < f->first_number[after + 2]; k++)
        compute_number(&f->m.number[f->order[k]], c);
}

float cb_x_number_at(const cb_tensor *t, int64_t element) {
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
        cb_add_location(instr, err);
        return status;
    }
    return CB_OK;
}

float cb_x_load_number(const cb_x_row_value *v, const cb_tensor *t, int64_t element) {
    if (!v->is_index) return cb_x_number_at(t, element);
    const int64_t index = cb_index_at(t, element);
    return index == v->ignored ? -1.0f : (float)index;
}

void cb_x_put_number(const cb_tensor *t, int64_t element, float x) {
    void *at = cb_at(t, element);
    switch (t->dtype) {
        case CB_BOOL: *(uint8_t *)at = (uint8_t)x; break;
        case CB_F32: *(float *)at = x; break;
        default: half_store(t->dtype, at, x);
    }
}

float cb_x_total_of(const float *leaf, int64_t count) {
    const int64_t segment = cb_segment_of(count);
    cb_x_pairs all = {.count = 0};
    for (int64_t first = 0; first < count; first += segment) {
        cb_x_pairs part = {.count = 0};
        for (int64_t at = first; at < min_i64(first + segment, count); at += CB_X_LEAF)
            cb_x_push(&part, leaf[at / CB_X_LEAF]);
        if (count <= segment) return cb_x_sum_of(&part);
        cb_x_push(&all, cb_x_sum_of(&part));
    }
    return cb_x_sum_of(&all);
}
