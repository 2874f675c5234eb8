/* Makes groups ready: their records, how streams move from row to row, how rows are cut into
 * tasks. */
#include "prepare.h"

#include <string.h>

#include "../../../ir/work.h"
#include "decompose.h"

static cb_walk walk_of(const cb_tensor *t) {
    const cb_tensor *one[1] = {t};
    return cb_walk_of(one, 1);
}

static void touch(const cb_microcode *m, cb_x_phase *ph, int16_t id, bool reads, bool writes) {
    const cb_x_stream *s = &m->stream[id];
    if (s->tile >= 0) return;
    int j = 0;
    while (j < ph->n_touched && ph->touched[j].stream != id) j++;
    if (j == ph->n_touched)
        ph->touched[ph->n_touched++] = (cb_x_touched){.stream = id, .size = s->size};
    ph->touched[j].is_read |= reads;
    ph->touched[j].is_written |= writes;
}

static void list_touched(const cb_microcode *m, int at, cb_x_phase *ph) {
    for (int k = 0; k < m->n_micro; k++) {
        const cb_micro *micro = &m->micro[k];
        if (micro->is_dead || micro->phase != at) continue;
        for (int j = 0; j < 3; j++) {
            if (micro->in[j].kind == CB_X_IN_STREAM) touch(m, ph, micro->in[j].id, true, false);
        }
        const cb_x_op op = micro->op;
        if (op == CB_X_STORE) touch(m, ph, micro->dst, false, true);
        if (op == CB_X_COLUMN) touch(m, ph, micro->dst, true, true);
    }
}

static cb_status assemble(const cb_x_table *table, cb_x_fused *f, cb_arena *memory, cb_error *err) {
    cb_record record[4 * CB_X_MICROS];
    cb_x_store store[4 * CB_X_MICROS];
    for (int k = 0; k < f->m.n_phase; k++) {
        for (int masked = 0; masked < 2; masked++) {
            cb_x_code code = {.room = 4 * CB_X_MICROS, .record = record, .store = store};
            cb_assemble_phase(&f->m, k, masked, table, &code);
            if (code.is_full)
                return cb_fail(err, CB_UNSUPPORTED, "executor: a phase needs too many slots");
            cb_record *kept = CB_NEW(memory, cb_record, (size_t)code.n);
            cb_x_store *kept_store = CB_NEW(memory, cb_x_store, (size_t)code.n);
            if (!kept || !kept_store) return cb_no_memory(err);
            memcpy(kept, record, (size_t)code.n * sizeof *kept);
            memcpy(kept_store, store, (size_t)code.n * sizeof *kept_store);
            if (masked) {
                f->phase[k].masked = kept;
                continue;
            }
            cb_x_phase *ph = &f->phase[k];
            *ph = (cb_x_phase){.code = kept, .store = kept_store, .n_record = code.n};
            list_touched(&f->m, k, ph);
            cb_sums_of(&f->m, k, CB_X_ROW_SUM, &ph->first_sum, &ph->n_sum);
            cb_sums_of(&f->m, k, CB_X_TOTAL_SUM, &ph->first_total, &ph->n_total);
        }
    }
    return CB_OK;
}

static void order_numbers(cb_x_fused *f) {
    int16_t n = 0;
    for (int after = -1; after < f->m.n_phase; after++) {
        f->first_number[after + 1] = n;
        for (int16_t k = 0; k < f->m.n_number; k++) {
            const cb_x_number *number = &f->m.number[k];
            if (number->when == CB_X_OF_ROW && number->after == after) f->order[n++] = k;
        }
    }
    f->first_number[f->m.n_phase + 1] = n;
}

/* Tasks are cut by shape alone. */
static void cut(cb_x_fused *f) {
    const cb_microcode *m = &f->m;
    f->chunks = 1;
    f->rows_in_task = 1;
    if (m->n_columns) {
        int64_t blocks = cb_row_blocks(m->rows, m->columns);
        f->rows_in_task = div_up(m->rows, blocks);
    } else if (m->columns <= CB_X_CHUNK || m->has_rows) {
        f->rows_in_task = max_i64(CB_X_CHUNK / max_i64(m->columns, 1), 1);
        while (m->n_total && f->rows_in_task * m->columns % CB_X_LEAF) f->rows_in_task++;
    } else {
        f->chunks = div_up(m->columns, CB_X_CHUNK);
    }
    f->n_task = div_up(m->rows, f->rows_in_task) * f->chunks;
}

static void make_walks(const cb_executable *x, cb_x_fused *f) {
    const cb_microcode *m = &f->m;
    for (int k = 0; k < m->n_stream; k++) {
        const cb_tensor *t = &x->tensor[m->stream[k].tensor];
        if (m->stream[k].source == CB_X_TILE) continue;
        f->walk[k] = walk_of(t);
        f->is_whole[k] = cb_is_contiguous(&t->shape, t->stride);
        /* A vector of one element a column is the same in every row. */
        if (cb_numel(&t->shape) != m->rows * m->columns) f->walk[k] = (cb_walk){.rank = 0};
    }
    for (int k = 0; k < m->n_stream; k++) {
        const cb_x_source source = m->stream[k].source;
        bool is_array = source == CB_X_ARRAY;
        bool moves = is_array && f->walk[k].rank > 0;
        bool is_found =
            moves ? f->is_whole[k] : is_array || source == CB_X_TILE || source == CB_X_SUMS;
        f->step[k] = !is_found ? CB_X_ANEW : (moves ? m->columns * m->stream[k].size : 0);
    }
    for (int k = 0; k < m->n_pieces; k++) {
        const int16_t id = m->pieces[k].stream;
        f->step[id] = (m->columns >> m->pieces[k].log_length) * m->stream[id].size;
    }
    for (int k = 0; k < m->n_load; k++) {
        const cb_tensor *t = &x->tensor[m->load[k].tensor];
        f->load_walk[k] = walk_of(t);
        f->one_a_row[k] =
            f->load_walk[k].count == m->rows && cb_is_contiguous(&t->shape, t->stride);
    }
}

static cb_status make_sums(const cb_executable *x, cb_x_fused *f, cb_arena *memory, cb_error *err) {
    const cb_microcode *m = &f->m;
    for (int k = 0; k < m->n_total; k++) {
        f->leaf[k] = CB_NEW(memory, float, (size_t)div_up(m->rows * m->columns, CB_X_LEAF));
        if (!f->leaf[k]) return cb_no_memory(err);
    }
    for (int k = 0; k < m->n_columns; k++) {
        if (f->n_task > 1 || x->tensor[m->column[k].tensor].dtype == CB_F32) continue;
        float **sums = &f->column[m->column[k].stream];
        *sums = CB_NEW(memory, float, (size_t)m->columns);
        if (!*sums) return cb_no_memory(err);
    }
    return CB_OK;
}

cb_status cb_x_prepare(const cb_executable *x, const cb_x_table *table, uint32_t group,
                       cb_arena *memory, cb_x_fused **out, cb_error *err) {
    cb_x_fused *f = CB_NEW(memory, cb_x_fused, 1);
    *out = NULL;
    if (!f) return cb_no_memory(err);
    cb_status status = cb_microcode_of(x->program, group, &f->m, err);
    if (status == CB_OK) status = assemble(table, f, memory, err);
    if (status == CB_UNSUPPORTED) return CB_OK;
    if (status != CB_OK) return status;
    make_walks(x, f);
    order_numbers(f);
    cut(f);
    CB_TRY(make_sums(x, f, memory, err));
    *out = f;
    return CB_OK;
}
