/* If rows are side by side, a number of a row becomes an element of a vector, which operations
 * access as a stream. Sums and extremes of rows become sums and extremes of columns, which add one
 * element of each row at a time. Elements that are summed over lines are stored line by line. */
#include "across.h"

static int16_t new_vectors(cb_translation *x, int16_t first) {
    const int16_t id = cb_t_new_stream(x, CB_X_VECTORS, 0, cb_t_real(x));
    x->m->stream[id].part = first;
    return id;
}

static cb_x_op over_columns(cb_x_op op) {
    return op == CB_X_ACC ? CB_X_COLUMN : op == CB_X_AMAX ? CB_X_COLUMN_MAX : CB_X_COLUMN_MIN;
}

/* Stores the elements of a sum over lines until some lines are complete. */
static void keep_line(cb_translation *x, cb_micro *micro) {
    cb_microcode *m = x->m;
    const int16_t acc = micro->dst;
    int16_t at = 0;
    while (at < m->n_line_sum && m->line_sum[at].acc != acc) at++;
    if (at == m->n_line_sum) {
        at = cb_t_add(x, &m->n_line_sum, CB_X_ACCS);
        m->line_sum[at] = (cb_x_line_sum){.acc = acc};
        for (int16_t k = 0; k < m->n_total; k++)
            if (m->total[k].acc == acc) m->line_sum[at].total = k;
    }
    m->line_sum[at].phase = micro->phase;
    const int64_t band = cb_band_lines(m->inner) * m->inner,
                  elements = cb_x_bands_kept(m->inner) * band + CB_X_LANES,
                  vector = div_up(band, CB_X_LANES) * CB_X_LANES;
    m->acc_lanes[acc] = (int16_t)m->n_lanes;
    m->n_lanes += (int)div_up(elements, vector);
    micro->dst = new_vectors(x, m->acc_lanes[acc]);
    micro->op = CB_X_STORE;
    m->stream[micro->dst].is_written = m->stream[micro->dst].is_line = true;
}

static void lay_accumulator(cb_translation *x, cb_micro *micro) {
    cb_microcode *m = x->m;
    const int16_t acc = micro->dst;
    const cb_x_acc_kind kind = m->acc_kind[acc];
    if (kind == CB_X_LINE_SUM || (kind == CB_X_TOTAL_SUM && cb_x_cuts_lanes(m))) {
        keep_line(x, micro);
        return;
    }
    if (kind != CB_X_ROW_SUM && kind != CB_X_LARGEST) return;
    m->acc_lanes[acc] = (int16_t)m->n_lanes;
    m->n_lanes += kind == CB_X_ROW_SUM ? CB_X_SUM_VECTORS : 1;
    micro->dst = new_vectors(x, m->acc_lanes[acc]);
    micro->op = over_columns(micro->op);
    x->m->stream[micro->dst].is_read = x->m->stream[micro->dst].is_written = true;
}

static void read_vectors(cb_translation *x, cb_micro *micro, int16_t *stream) {
    for (int j = 0; j < 3; j++) {
        const int16_t id = micro->in[j].id;
        if (micro->in[j].kind != CB_X_NUMBER || x->m->number_lanes[id] < 0) continue;
        if (stream[id] < 0) stream[id] = new_vectors(x, x->m->number_lanes[id]);
        x->m->stream[stream[id]].is_read = true;
        micro->in[j] = (cb_x_ref){CB_X_IN_STREAM, stream[id]};
    }
}

void cb_t_lay_across(cb_translation *x) {
    cb_microcode *m = x->m;
    int16_t stream[CB_X_SCALARS];
    for (int k = 0; k < m->n_acc; k++) m->acc_lanes[k] = -1;
    for (int k = 0; k < m->n_scalar; k++) stream[k] = m->number_lanes[k] = -1;
    for (int k = 0; k < m->n_scalar && m->inner; k++)
        if (x->when[k] == CB_X_OF_ROW) m->number_lanes[k] = (int16_t)m->n_lanes++;
    for (int k = 0; k < m->n_micro && m->inner; k++) {
        cb_micro *micro = &m->micro[k];
        if (micro->is_dead) continue;
        if (micro->op == CB_X_ACC || micro->op == CB_X_AMAX || micro->op == CB_X_AMIN)
            lay_accumulator(x, micro);
        read_vectors(x, micro, stream);
    }
}
