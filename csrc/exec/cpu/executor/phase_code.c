#include "phase_code.h"

#include <string.h>

const cb_x_limits cb_x_record_limits = {CB_R_STREAMS, CB_R_SCALARS, CB_R_ACCS, true};

/* ---- preparation ----------------------------------------------------------------------------- */

static void touch(const cb_microcode *m, cb_x_phase *ph, int16_t id, bool reads, bool writes) {
    const cb_x_stream *s = &m->stream[id];
    /* tiles and vectors are padded at their end */
    if (s->tile >= 0 || s->source == CB_X_VECTORS) return;
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
        for (int j = 0; j < 3; j++)
            if (micro->in[j].kind == CB_X_IN_STREAM) touch(m, ph, micro->in[j].id, true, false);
        const cb_x_op op = micro->op;
        if (op == CB_X_STORE) touch(m, ph, micro->dst, false, true);
        if (op == CB_X_COLUMN) touch(m, ph, micro->dst, true, true);
    }
}

static cb_x_copied copied_by(const cb_microcode *m, int at) {
    const cb_micro *store = NULL;
    int n = 0;
    for (int k = 0; k < m->n_micro; k++) {
        if (m->micro[k].is_dead || m->micro[k].phase != at) continue;
        store = &m->micro[k];
        n++;
    }
    if (n != 1 || store->op != CB_X_STORE || store->in[0].kind != CB_X_IN_STREAM ||
        m->stream[store->dst].format != CB_X_REAL)
        return (cb_x_copied){0};
    const cb_x_ref from = store->in[0];
    for (int k = 0; k < m->n_micro; k++)
        for (int j = 0; j < 3 && !m->micro[k].is_dead && &m->micro[k] != store; j++)
            if (m->micro[k].in[j].kind == CB_X_IN_STREAM && m->micro[k].in[j].id == from.id)
                return (cb_x_copied){0};
    return (cb_x_copied){.is_all = true, .from = from.id, .to = store->dst};
}

/* Copies the records to `memory`. */
static cb_status keep(const cb_x_code *code, cb_arena *memory, cb_record **record,
                      cb_x_store **store, cb_error *err) {
    if (code->is_full)
        return cb_fail(err, CB_UNSUPPORTED, "executor: a phase needs too many slots");
    CB_TRY_NEW(*record, memory, (size_t)code->n, err);
    CB_TRY_NEW(*store, memory, (size_t)code->n, err);
    memcpy(*record, code->record, (size_t)code->n * sizeof **record);
    memcpy(*store, code->store, (size_t)code->n * sizeof **store);
    return CB_OK;
}

cb_status cb_x_phase_make(const cb_microcode *m, int at, const cb_x_table *table, cb_arena *memory,
                          cb_x_phase *out, cb_error *err) {
    cb_record record[4 * CB_X_MICROS], *code, *masked;
    cb_x_store store[4 * CB_X_MICROS], *kept, *unused;
    cb_x_code whole = {.room = 4 * CB_X_MICROS, .record = record, .store = store}, rest = whole;
    cb_assemble_phase(m, at, false, table, &whole);
    CB_TRY(keep(&whole, memory, &code, &kept, err));
    cb_assemble_phase(m, at, true, table, &rest);
    CB_TRY(keep(&rest, memory, &masked, &unused, err));
    cb_x_touched touched[CB_R_STREAMS];
    *out = (cb_x_phase){.code = code,
                        .masked = masked,
                        .store = kept,
                        .n_record = whole.n,
                        .n_prefetch = whole.n_prefetch,
                        .has_work = whole.n > whole.n_prefetch + 2,
                        .copied = copied_by(m, at),
                        .touched = touched};
    list_touched(m, at, out);
    CB_TRY_NEW(out->touched, memory, (size_t)out->n_touched, err);
    memcpy(out->touched, touched, (size_t)out->n_touched * sizeof *touched);
    cb_sums_of(m, at, CB_X_ROW_SUM, &out->first_sum, &out->n_sum);
    cb_sums_of(m, at, CB_X_TOTAL_SUM, &out->first_total, &out->n_total);
    return CB_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

#define SUM_OF(name, real, level)                      \
    real name(cb_x_pairs *p) {                         \
        real total = 0;                                \
        int k = 0;                                     \
        for (uint64_t c = p->count; c; c >>= 1, k++) { \
            if (c & 1) total = p->level[k] + total;    \
        }                                              \
        p->count = 0;                                  \
        return total;                                  \
    }
SUM_OF(cb_x_sum_of, float, level)
SUM_OF(cb_x_sum_of64, double, level64)

static void set_mask(const cb_x_table *table, cb_x_context *c, int64_t n) {
    if (c->n_mask == n) return;
    memset(c->mask64, 0, sizeof c->mask64);
    memset(c->mask64, 0xFF, (size_t)n * (table->is_wide ? sizeof(double) : sizeof(float)));
    c->n_mask = n;
}

/* Shorter phases do not prefetch: hardware prefetching is enough for them. */
#define SHORT_PHASE 4096

typedef char aside[CB_X_LANES * sizeof(double)]; /* holds 64 elements of a stream */

/* Runs the last elements of a row, fewer than 64, on padded copies of the arrays that the phase
 * touches. Tiles are padded at their end, so excess elements do no harm there. */
static void run_rest(const cb_x_table *table, cb_x_context *c, const cb_x_phase *ph, int64_t first,
                     int64_t n) {
    _Alignas(64) aside copy[CB_R_STREAMS];
    char *kept[CB_R_STREAMS];
    const size_t lanes = CB_X_LANES;
    for (int j = 0; j < ph->n_touched; j++) {
        const cb_x_touched *t = &ph->touched[j];
        const int64_t at = first * (int64_t)t->size;
        const size_t bytes = (size_t)n * t->size;
        kept[j] = c->p[t->stream];
        c->p[t->stream] = copy[j] - at;
        if (!t->is_read) continue;
        memcpy(copy[j], kept[j] + at, bytes);
        memset(copy[j] + bytes, 0, lanes * t->size - bytes);
    }
    set_mask(table, c, n);
    c->end = first + CB_X_LANES;
    table->run(c, ph->masked, first);
    for (int j = 0; j < ph->n_touched; j++) {
        const cb_x_touched *t = &ph->touched[j];
        const int64_t at = first * (int64_t)t->size;
        if (t->is_written) memcpy(kept[j] + at, copy[j], (size_t)n * t->size);
        c->p[t->stream] = kept[j];
    }
}

void cb_x_phase_run(const cb_x_table *table, cb_x_context *c, const cb_x_phase *ph, int64_t first,
                    int64_t last, bool is_end) {
    int64_t whole = first + ((last - first) & ~(int64_t)(CB_X_LANES - 1));
    c->end = whole;
    if (whole > first) table->run(c, ph->code, first);
    if (whole < last) run_rest(table, c, ph, whole, last - whole);
    int64_t end = whole < last ? whole + CB_X_LANES : whole;
    if (ph->n_sum && (end & (CB_X_LEAF - 1))) table->fold(c, ph->first_sum, ph->n_sum);
    if (ph->n_total && is_end && ((end + c->leaf) & (CB_X_LEAF - 1)))
        table->fold(c, ph->first_total, ph->n_total);
}

/* Runs the last 64 elements of a part; the other iterations cover all but n of them. Reads them in
 * place, before anything is written there, and writes to `copy`. */
static void run_last(const cb_x_table *table, cb_x_context *c, const cb_x_phase *ph, int64_t last,
                     aside *copy) {
    const int64_t first = last - CB_X_LANES;
    char *kept[CB_R_STREAMS];
    for (int j = 0; j < ph->n_touched; j++) {
        const cb_x_touched *t = &ph->touched[j];
        if (!t->is_written) continue;
        kept[j] = c->p[t->stream];
        c->p[t->stream] = copy[j] - first * t->size;
    }
    c->end = last;
    table->run(c, ph->code + ph->n_prefetch, first);
    for (int j = 0; j < ph->n_touched; j++)
        if (ph->touched[j].is_written) c->p[ph->touched[j].stream] = kept[j];
}

/* Copies a few bytes without a call to memcpy, which would take longer. */
static void copy_few(char *restrict to, const char *restrict from, int64_t n) {
    typedef struct piece {
        char byte[16];
    } piece;
    int64_t at = 0;
    for (; at + (int64_t)sizeof(piece) <= n; at += (int64_t)sizeof(piece))
        memcpy(to + at, from + at, sizeof(piece));
    for (; at < n; at++) to[at] = from[at];
}

/* Copies the results of run_last for the n remaining elements. */
static void take_last(const cb_x_context *c, const cb_x_phase *ph, int64_t last, int64_t n,
                      aside *copy) {
    for (int j = 0; j < ph->n_touched; j++) {
        const cb_x_touched *t = &ph->touched[j];
        if (!t->is_written) continue;
        copy_few(c->p[t->stream] + (last - n) * t->size, copy[j] + (CB_X_LANES - n) * t->size,
                 n * t->size);
    }
}

/* Iterations begin with the first element, so that they are aligned where arrays are. */
void cb_x_phase_run_over(const cb_x_table *table, cb_x_context *c, const cb_x_phase *ph,
                         int64_t first, int64_t last) {
    const int64_t rest = (last - first) & (CB_X_LANES - 1);
    _Alignas(64) aside copy[CB_R_STREAMS];
    if (last - first < CB_X_LANES) {
        run_rest(table, c, ph, first, rest);
        return;
    }
    if (rest) run_last(table, c, ph, last, copy);
    c->end = last - rest;
    table->run(c, ph->code + (last - first < SHORT_PHASE ? ph->n_prefetch : 0), first);
    if (rest) take_last(c, ph, last, rest, copy);
}
