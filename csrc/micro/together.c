#include "together.h"

#include <string.h>

/* A batch has about this number of elements, so that its tiles fit the L2 cache. */
#define BATCH_ELEMENTS 4096
/* Rows of at least SHORT_ROW elements run together only if they are not whole iterations; rows
 * longer than LONGEST_ROW run one by one. */
#define SHORT_ROW 256
#define LONGEST_ROW 1024

static bool accumulates(const cb_micro *micro) {
    return micro->op == CB_X_ACC || micro->op == CB_X_AMAX || micro->op == CB_X_AMIN;
}

/* True if an operation accesses its row by index, which works only on one row at a time. */
static bool has_positions(const cb_microcode *m) {
    bool has = false;
    for (int k = 0; k < m->n_micro; k++)
        has |= m->micro[k].op == CB_X_TAKE || m->micro[k].op == CB_X_ADD_AT;
    for (int k = 0; k < m->n_load; k++) has |= m->load[k].is_index;
    return has;
}

static bool is_of_row(const cb_translation *x, cb_x_ref in) {
    return in.kind == CB_X_NUMBER && x->when[in.id] == CB_X_OF_ROW;
}

/* True if there is room for the streams of batches. */
static bool has_room(const cb_translation *x) {
    const cb_microcode *m = x->m;
    bool is_read[CB_X_SCALARS] = {false};
    int n = m->n_stream + m->n_acc + m->n_columns;
    for (int k = 0; k < m->n_micro; k++)
        for (int j = 0; j < 3 && !m->micro[k].is_dead; j++)
            if (is_of_row(x, m->micro[k].in[j])) is_read[m->micro[k].in[j].id] = true;
    for (int k = 0; k < m->n_scalar; k++) n += is_read[k];
    return n <= x->limits->streams;
}

static int64_t rows_together(const cb_translation *x) {
    const cb_microcode *m = x->m;
    const bool gains = m->columns < SHORT_ROW || m->columns % CB_X_LANES != 0;
    if (!gains || m->columns > LONGEST_ROW || has_positions(m) || !has_room(x)) return 1;
    return max_i64(BATCH_ELEMENTS / m->columns / CB_X_BATCH_ROWS, 1) * CB_X_BATCH_ROWS;
}

/* True if a result overwrites the stream's array. */
static bool is_overwritten(const cb_microcode *m, int16_t id) {
    bool is = false;
    for (int k = 0; k < m->n_stream; k++) is |= m->stream[k].over == id;
    return is;
}

/* Returns the stream that holds `ref` as real numbers once this phase has run; -1 if there is
 * none. */
static int16_t home_of(const cb_microcode *m, cb_x_ref ref, int16_t phase) {
    if (ref.kind == CB_X_IN_STREAM && m->stream[ref.id].format == CB_X_REAL &&
        !is_overwritten(m, ref.id))
        return ref.id;
    for (int k = 0; k < m->n_micro; k++) {
        const cb_micro *micro = &m->micro[k];
        if (micro->op == CB_X_STORE && !micro->is_dead && micro->phase == phase &&
            cb_t_same_ref(micro->in[0], ref) && m->stream[micro->dst].format == CB_X_REAL &&
            !is_overwritten(m, micro->dst))
            return micro->dst;
    }
    return -1;
}

/* Replaces a sum by a store of its terms, unless a stream has them already. Returns the stream. */
static int16_t keep_terms(cb_translation *x, cb_micro *micro) {
    cb_microcode *m = x->m;
    int16_t home = home_of(m, micro->in[0], micro->phase);
    if (home >= 0) {
        micro->is_dead = true;
    } else {
        home = cb_t_new_stream(x, CB_X_TILE, 0, cb_t_real(x));
        micro->op = CB_X_STORE;
        micro->dst = home;
        m->stream[home].is_written = true;
    }
    m->stream[home].is_read = m->stream[home].is_read_later = true;
    return home;
}

static void keep_total(cb_translation *x, int16_t acc, int16_t phase) {
    cb_microcode *m = x->m;
    const int16_t at = cb_t_add(x, &m->n_line_sum, CB_X_ACCS);
    m->line_sum[at] = (cb_x_line_sum){.acc = acc, .phase = phase};
    for (int16_t k = 0; k < m->n_total; k++)
        if (m->total[k].acc == acc) m->line_sum[at].total = k;
}

static cb_x_pieces *pieces_of(const cb_microcode *m, int16_t acc) {
    int k = 0;
    while (m->pieces[k].acc != acc) k++;
    return &m->pieces[k];
}

/* True if rows or pieces cut the lanes of a sum: then even a batch of one row adds up its terms
 * after the phase. */
static bool is_cut(const cb_microcode *m, int16_t acc) {
    if (m->acc_kind[acc] == CB_X_TOTAL_SUM) return m->columns % CB_X_LANES != 0;
    if (m->acc_kind[acc] != CB_X_PIECE_SUM) return false;
    return !pieces_of(m, acc)->is_whole;
}

static void lay_sum(cb_translation *x, cb_micro *micro) {
    cb_microcode *m = x->m;
    const int16_t acc = micro->dst, phase = micro->phase;
    if (m->together == 1 && !is_cut(m, acc)) return;
    if (m->acc_kind[acc] == CB_X_TOTAL_SUM) keep_total(x, acc, phase);
    if (m->acc_kind[acc] == CB_X_PIECE_SUM) pieces_of(m, acc)->phase = phase;
    m->acc_lanes[acc] = keep_terms(x, micro);
}

static void lay_column(cb_translation *x, cb_micro *micro) {
    cb_x_columns *column = x->m->column;
    while (column->stream != micro->dst) column++;
    column->phase = micro->phase;
    column->terms = keep_terms(x, micro);
}

/* Makes an operation read the numbers of rows from tiles. */
static void read_spread(cb_translation *x, cb_micro *micro, int16_t *stream) {
    for (int j = 0; j < 3; j++) {
        const cb_x_ref in = micro->in[j];
        if (!is_of_row(x, in)) continue;
        if (stream[in.id] < 0) {
            stream[in.id] = cb_t_new_stream(x, CB_X_SPREAD, 0, cb_t_real(x));
            x->m->stream[stream[in.id]].part = in.id;
            x->m->stream[stream[in.id]].is_read = true;
        }
        cb_x_stream *s = &x->m->stream[stream[in.id]];
        if (s->first_phase < 0 || micro->phase < s->first_phase) s->first_phase = micro->phase;
        micro->in[j] = (cb_x_ref){CB_X_IN_STREAM, stream[in.id]};
    }
}

/* Copies arrays whose rows are equal, or are not adjacent, to tiles. */
static void read_arrays(cb_translation *x) {
    cb_microcode *m = x->m;
    for (int k = 0; k < m->n_stream; k++) {
        cb_x_stream *s = &m->stream[k];
        if (s->source != CB_X_ARRAY || s->is_written) continue;
        const cb_operand *o = cb_t_operand(x, s->tensor);
        const bool repeats = cb_numel(&o->shape) != m->rows * m->columns;
        if (!repeats && cb_t_is_whole(o)) continue;
        s->source = repeats ? CB_X_REPEATED : CB_X_GATHERED;
        s->tile = m->n_tile++;
    }
}

static bool needs_batches(const cb_microcode *m) {
    bool needs = false;
    for (int k = 0; k < m->n_micro; k++)
        needs |= !m->micro[k].is_dead && accumulates(&m->micro[k]) && is_cut(m, m->micro[k].dst);
    return needs;
}

void cb_t_lay_together(cb_translation *x) {
    cb_microcode *m = x->m;
    int16_t stream[CB_X_SCALARS];
    const int n = m->n_micro;
    if (m->inner || !m->has_rows) return;
    m->together = rows_together(x);
    if (m->together == 1 && !needs_batches(m)) m->together = 0;
    if (m->together == 0) return;
    for (int k = 0; k < n; k++)
        if (!m->micro[k].is_dead && accumulates(&m->micro[k])) lay_sum(x, &m->micro[k]);
    if (m->together == 1) return;
    for (int k = 0; k < n; k++)
        if (!m->micro[k].is_dead && m->micro[k].op == CB_X_COLUMN) lay_column(x, &m->micro[k]);
    memset(stream, 0xFF, sizeof stream);
    for (int k = 0; k < n; k++)
        if (!m->micro[k].is_dead) read_spread(x, &m->micro[k], stream);
    for (int k = 0; k < m->n_scalar; k++)
        if (is_of_row(x, cb_t_number_ref((int16_t)k))) m->number_lanes[k] = (int16_t)m->n_lanes++;
    read_arrays(x);
}
