/* Assigns operations to phases. A vector operation runs in the first phase in which all its
 * operands are available. If only later phases read its value and its operands are in memory, it
 * runs in the first of those instead. A value that crosses phases gets a tile, unless it is stored
 * anyway. */
#include "phases.h"

#include "across.h"
#include "together.h"

/* Marks operations as dead if nothing reads their values. They read only values of earlier ones, so
 * one pass backwards is enough. */
static void drop_dead(cb_translation *x) {
    bool used[CB_X_VALUES] = {0};
    for (int k = x->m->n_micro - 1; k >= 0; k--) {
        cb_micro *micro = &x->m->micro[k];
        micro->is_dead |=
            micro->value >= 0 && !used[micro->value] && (micro->second < 0 || !used[micro->second]);
        for (int j = 0; j < 3 && !micro->is_dead; j++)
            if (micro->in[j].kind == CB_X_VALUE) used[micro->in[j].id] = true;
    }
}

/* Combines the sine and the cosine of the same operand into one operation: both reduce the operand
 * in the same way. */
static void pair_sines(cb_translation *x) {
    for (int k = 0; k < x->m->n_micro; k++) {
        cb_micro *a = &x->m->micro[k];
        if (a->is_dead || (a->op != CB_X_SIN && a->op != CB_X_COS)) continue;
        for (int j = k + 1; j < x->m->n_micro; j++) {
            cb_micro *b = &x->m->micro[j];
            bool other = b->op == (a->op == CB_X_SIN ? CB_X_COS : CB_X_SIN);
            if (b->is_dead || !other || !cb_t_same_ref(a->in[0], b->in[0])) continue;
            b->is_dead = true;
            a->second = a->op == CB_X_SIN ? b->value : a->value;
            a->value = a->op == CB_X_SIN ? a->value : b->value;
            a->op = CB_X_SIN_COS;
            break;
        }
    }
}

/* Moves an operation that only later phases read to the first of them if that needs no tile: each
 * of its operands is in memory, or is also read in that phase or later. */
static void sink(cb_translation *x) {
    int16_t first[CB_X_VALUES], last[CB_X_VALUES];
    for (int k = 0; k < x->m->n_value; k++) first[k] = INT16_MAX, last[k] = -1;
    for (int k = x->m->n_micro - 1; k >= 0; k--) {
        cb_micro *micro = &x->m->micro[k];
        if (micro->is_dead) continue;
        int16_t wanted = micro->value >= 0 ? first[micro->value] : micro->phase;
        if (micro->second >= 0 && first[micro->second] < wanted) wanted = first[micro->second];
        bool moves = wanted > micro->phase && wanted < INT16_MAX;
        for (int j = 0; j < 3 && moves; j++)
            if (micro->in[j].kind == CB_X_VALUE) moves = last[micro->in[j].id] >= wanted;
        if (moves) micro->phase = wanted;
        if (micro->value >= 0) x->phase_of[micro->value] = micro->phase;
        if (micro->second >= 0) x->phase_of[micro->second] = micro->phase;
        for (int j = 0; j < 3; j++) {
            if (micro->in[j].kind != CB_X_VALUE) continue;
            int16_t v = micro->in[j].id;
            if (micro->phase < first[v]) first[v] = micro->phase;
            if (micro->phase > last[v]) last[v] = micro->phase;
        }
    }
}

/* True if storing `from` in this format preserves value v, which operation `maker` computes. Bools
 * are 0 or 1, and a store rounds like the rounding operation. */
static bool keeps(cb_x_format format, cb_x_ref from, int16_t v, const cb_micro *maker) {
    if (format == CB_X_REAL || format == CB_X_BYTE) return from.kind == CB_X_VALUE && from.id == v;
    const cb_x_op rounds = format == CB_X_BF16 ? CB_X_ROUND_BF16 : CB_X_ROUND_F16;
    return maker->op == rounds && cb_t_same_ref(maker->in[0], from);
}

/* Returns the stream from which later phases read value v: a stream that it is stored to anyway,
 * otherwise a tile. */
static int16_t home_of(cb_translation *x, int16_t v, int maker) {
    for (int k = 0; k < x->m->n_micro; k++) {
        const cb_micro *micro = &x->m->micro[k];
        if (micro->op == CB_X_STORE && micro->phase == x->phase_of[v] &&
            keeps(x->m->stream[micro->dst].format, micro->in[0], v, &x->m->micro[maker]))
            return micro->dst;
    }
    int16_t id = cb_t_new_stream(x, CB_X_TILE, 0, cb_t_real(x));
    x->m->stream[id].is_written = true;
    cb_micro *store =
        cb_t_emit(x, CB_X_STORE, (cb_x_ref){CB_X_VALUE, v}, CB_T_NOTHING, CB_T_NOTHING);
    store->dst = id;
    store->phase = x->m->micro[maker].phase;
    return id;
}

/* Makes later phases read value v, which operation `maker` computes, from memory. */
static void cross(cb_translation *x, int maker, int16_t v, int n) {
    int16_t home = -1;
    for (int j = 0; j < n; j++) {
        cb_micro *reader = &x->m->micro[j];
        if (reader->is_dead || reader->phase == x->m->micro[maker].phase) continue;
        for (int i = 0; i < 3; i++) {
            if (reader->in[i].kind != CB_X_VALUE || reader->in[i].id != v) continue;
            if (home < 0) home = home_of(x, v, maker);
            reader->in[i] = (cb_x_ref){CB_X_IN_STREAM, home};
            x->m->stream[home].is_read = x->m->stream[home].is_read_later = true;
        }
    }
}

static void cross_phases(cb_translation *x) {
    int n = x->m->n_micro;
    for (int k = 0; k < n; k++) {
        const cb_micro *micro = &x->m->micro[k];
        if (micro->is_dead) continue;
        if (micro->value >= 0) cross(x, k, micro->value, n);
        if (micro->second >= 0) cross(x, k, micro->second, n);
    }
}

static void note_phases(cb_translation *x) {
    x->m->n_phase = 1;
    for (int k = 0; k < x->m->n_micro; k++) {
        const cb_micro *micro = &x->m->micro[k];
        if (micro->is_dead) continue;
        if (micro->phase + 1 > x->m->n_phase) x->m->n_phase = micro->phase + 1;
        for (int j = 0; j < 3; j++) {
            if (micro->in[j].kind != CB_X_IN_STREAM) continue;
            cb_x_stream *s = &x->m->stream[micro->in[j].id];
            if (s->first_phase < 0 || micro->phase < s->first_phase) s->first_phase = micro->phase;
        }
    }
}

/* True if a phase after that of the store `micro` reads the array that it overwrites. */
static bool is_read_too_late(const cb_microcode *m, const cb_micro *micro) {
    const int16_t over = micro->op == CB_X_STORE ? m->stream[micro->dst].over : -1;
    bool is = false;
    for (int k = 0; k < m->n_micro && over >= 0; k++) {
        const cb_micro *reader = &m->micro[k];
        for (int j = 0; j < 3 && !reader->is_dead && reader->phase > micro->phase; j++)
            is |= reader->in[j].kind == CB_X_IN_STREAM && reader->in[j].id == over;
    }
    return is;
}

/* Rejects groups that read an array after it was overwritten; their ops run one by one. */
static void check_overwritten(cb_translation *x) {
    for (int k = 0; k < x->m->n_micro; k++)
        x->is_full |= !x->m->micro[k].is_dead && is_read_too_late(x->m, &x->m->micro[k]);
}

static cb_x_acc_kind kind_of(const cb_microcode *m, const cb_micro *micro) {
    if (micro->op != CB_X_ACC) return CB_X_LARGEST;
    for (int k = 0; k < m->n_total; k++)
        if (m->total[k].acc == micro->dst) return CB_X_TOTAL_SUM;
    for (int k = 0; k < m->n_pieces; k++)
        if (m->pieces[k].acc == micro->dst) return CB_X_PIECE_SUM;
    for (int k = 0; k < m->n_line_sum; k++)
        if (m->line_sum[k].acc == micro->dst) return CB_X_LINE_SUM;
    return CB_X_ROW_SUM;
}

static bool accumulates(cb_x_op op) { return op == CB_X_ACC || op == CB_X_AMAX || op == CB_X_AMIN; }

/* Numbers accumulators by phase and kind, so that those of one kind in a phase are a range. */
static void number_accumulators(cb_translation *x) {
    cb_microcode *m = x->m;
    int16_t new_id[CB_X_ACCS] = {0}, next = 0;
    for (int key = 0; key < CB_X_ACC_KIND_COUNT * m->n_phase; key++) {
        for (int k = 0; k < m->n_micro; k++) {
            if (!accumulates(m->micro[k].op)) continue;
            cb_x_acc_kind kind = kind_of(m, &m->micro[k]);
            if (m->micro[k].phase * CB_X_ACC_KIND_COUNT + (int)kind != key) continue;
            m->acc_kind[next] = kind;
            new_id[m->micro[k].dst] = next++;
        }
    }
    for (int k = 0; k < m->n_micro; k++)
        if (accumulates(m->micro[k].op)) m->micro[k].dst = new_id[m->micro[k].dst];
    for (int k = 0; k < m->n_number; k++)
        if (accumulates(m->number[k].op)) m->number[k].a = new_id[m->number[k].a];
    for (int k = 0; k < m->n_total; k++) m->total[k].acc = new_id[m->total[k].acc];
    for (int k = 0; k < m->n_pieces; k++) m->pieces[k].acc = new_id[m->pieces[k].acc];
    for (int k = 0; k < m->n_line_sum; k++) m->line_sum[k].acc = new_id[m->line_sum[k].acc];
}

void cb_t_arrange(cb_translation *x) {
    drop_dead(x);
    pair_sines(x);
    sink(x);
    cross_phases(x);
    drop_dead(x); /* roundings whose results are now read from memory */
    note_phases(x);
    check_overwritten(x);
    if (x->is_full) return;
    number_accumulators(x);
    cb_t_lay_across(x);
    if (x->limits->together) cb_t_lay_together(x);
}
