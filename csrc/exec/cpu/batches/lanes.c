/* Sums are in the same order as in kern_reduce.c: elements in runs of CB_RUN_ROWS, runs in blocks
 * (cb_row_blocks), and blocks one after another, each from zero. */
#include "lanes.h"

#include <string.h>

#include "../../../ir/work.h"
#include "../../../micro/across.h"
#include "../../../micro/together.h"
#include "../executor/numbers.h"
#include "../executor/scalar.h"

char *cb_x_lane_vector(const cb_x_lanes *l, int k) {
    return l->vector + (int64_t)k * l->f->pitch * l->f->real;
}

#define CB_REAL float
#define NUM_KEY int32_t
#define NUM_KEY_MIN INT32_MIN
#define CB_TYPED(name) name##_f32
#define NUM_FIELD(name) name
#define NUM_SCALAR cb_x_scalar
#include "lanes_of.h"

#undef CB_REAL
#undef NUM_KEY
#undef NUM_KEY_MIN
#undef CB_TYPED
#undef NUM_FIELD
#undef NUM_SCALAR
#define CB_REAL double
#define NUM_KEY int64_t
#define NUM_KEY_MIN INT64_MIN
#define CB_TYPED(name) name##_f64
#define NUM_FIELD(name) name##64
#define NUM_SCALAR cb_x_scalar64
#include "lanes_of.h"

static bool is_of_lines(cb_x_acc_kind kind) {
    return kind == CB_X_LINE_SUM || kind == CB_X_TOTAL_SUM;
}

void cb_x_lanes_clear(const cb_x_lanes *l) {
    const cb_microcode *m = &l->f->m;
    for (int k = 0; k < m->n_acc; k++)
        if (m->acc_lanes[k] >= 0 && !is_of_lines(m->acc_kind[k]))
            (m->is_wide ? clear_f64 : clear_f32)(l, k);
}

/* Adds n elements of the vector `from` to the next one, and resets it. */
static void join_next(const cb_x_lanes *l, int from, int64_t n) {
    l->f->table->add(cb_x_lane_vector(l, from + 1), cb_x_lane_vector(l, from), n);
    memset(cb_x_lane_vector(l, from), 0, (size_t)(l->f->pitch * l->f->real));
}

/* Adds the groups of a block, one for each line of a band. */
static void join_groups(const cb_x_lanes *l, int block) {
    char *to = cb_x_lane_vector(l, block);
    for (int64_t k = 1; k < l->f->band_lines; k++)
        l->f->table->add(to, to + k * l->n * l->f->real, l->n);
}

void cb_x_lanes_copy_rest(const cb_x_lanes *l, int64_t n, cb_x_lanes_rest *rest, bool is_back) {
    const cb_microcode *m = &l->f->m;
    const size_t bytes = (size_t)((-n & (CB_X_LANES - 1)) * l->f->real);
    for (int k = 0; k < m->n_acc; k++) {
        if (m->acc_lanes[k] < 0 || is_of_lines(m->acc_kind[k])) continue;
        char *lanes = cb_x_lane_vector(l, m->acc_lanes[k]) + n * l->f->real;
        memcpy(is_back ? lanes : rest->acc[k], is_back ? rest->acc[k] : lanes, bytes);
    }
}

int64_t cb_x_lanes_fold(const cb_x_lanes *l, int phase, int64_t done) {
    const cb_x_fused *f = l->f;
    const int64_t in_block = done % f->bands_in_block,
                  next =
                      min_i64(done + min_i64(CB_RUN_ROWS, f->bands_in_block - in_block), f->bands);
    const bool ends_block = in_block == 0 || done == f->bands;
    if (done == 0) return next;
    for (int k = f->first_number[phase + 1]; k < f->first_number[phase + 2]; k++) {
        const cb_x_number *number = &f->m.number[f->order[k]];
        if (number->op != CB_X_ACC) continue;
        const int first = f->m.acc_lanes[number->a];
        join_next(l, first + CB_X_RUN, l->n * f->band_lines);
        if (!ends_block) continue;
        join_groups(l, first + CB_X_BLOCK);
        join_next(l, first + CB_X_BLOCK, l->n);
    }
    return next;
}

#define PREFETCHED ((int64_t)2048) /* bytes */

/* Returns the number of rows that are summed between prefetches: all of them, unless the sums are
 * the first to read an array. If a phase has records, the records prefetch. */
static int64_t rows_once(const cb_x_lanes *l, int stream, int phase) {
    const cb_microcode *m = &l->f->m;
    const cb_x_stream *s = &m->stream[stream];
    if (phase != 0 || l->f->phase[0].has_work || s->source != CB_X_ARRAY) return l->n;
    return div_up(PREFETCHED, m->columns * l->f->real * CB_X_BATCH_ROWS) * CB_X_BATCH_ROWS;
}

/* Reduces a stream over each row of a batch (micro/together.h). */
static void over_rows(const cb_x_lanes *l, const cb_x_number *number, int phase) {
    const cb_microcode *m = &l->f->m;
    const cb_x_table *table = l->f->table;
    const int stream = m->acc_lanes[number->a];
    const char *terms = l->c->p[stream];
    char *to = cb_x_lane_vector(l, m->number_lanes[number->dst]);
    const int64_t once = rows_once(l, stream, phase), row = m->columns * l->f->real;
    for (int64_t n, left = l->n; left > 0; left -= n, to += n * l->f->real, terms += n * row) {
        n = min_i64(once, left);
        for (int64_t at = n * row; once < l->n && at < 2 * n * row; at += CB_ALIGN)
            __builtin_prefetch(terms + at);
        if (number->op == CB_X_ACC) table->row_sums(to, terms, n, m->columns);
        else table->row_largest(to, terms, n, m->columns, number->op == CB_X_AMIN);
    }
}

static bool is_over_row(cb_x_op op) { return op == CB_X_ACC || op == CB_X_AMAX || op == CB_X_AMIN; }

void cb_x_lanes_after(const cb_x_lanes *l, int phase) {
    const cb_x_fused *f = l->f;
    const bool is_wide = f->m.is_wide;
    for (int k = f->first_number[phase + 1]; k < f->first_number[phase + 2]; k++) {
        const cb_x_number *number = &f->m.number[f->order[k]];
        if (is_over_row(number->op) && !f->m.inner) over_rows(l, number, phase);
        else if (is_over_row(number->op)) (is_wide ? finish_f64 : finish_f32)(l, number);
        else (is_wide ? compute_f64 : compute_f32)(l, number);
        cb_x_lanes_repeat(l, number->dst);
    }
}

void cb_x_lanes_repeat(const cb_x_lanes *l, int number) {
    const int vector = l->f->m.number_lanes[number];
    if (l->f->band_lines == 1 || vector < 0) return;
    char *at = cb_x_lane_vector(l, vector);
    const int64_t bytes = l->n * l->f->real, all = bytes * l->f->band_lines;
    for (int64_t done = bytes; done < all; done *= 2)
        memcpy(at + done, at, (size_t)min_i64(done, all - done));
}

static bool is_real(const cb_x_lanes *l, const cb_tensor *t) {
    return t->dtype == (l->f->m.is_wide ? CB_F64 : CB_F32);
}

void cb_x_lanes_load(const cb_x_lanes *l, int number, const cb_x_row_value *v, const cb_tensor *t,
                     int64_t element) {
    const cb_microcode *m = &l->f->m;
    const size_t real = (size_t)l->f->real;
    char *to = cb_x_lane_vector(l, m->number_lanes[number]);
    if (is_real(l, t)) {
        memcpy(to, cb_at(t, element), (size_t)l->n * real);
        return;
    }
    for (int64_t i = 0; i < l->n; i++) {
        cb_x_load_number(m, l->c, v, t, element + i);
        memcpy(to + (size_t)i * real,
               m->is_wide ? (const void *)&l->c->s64[number] : (const void *)&l->c->s[number],
               real);
    }
}

void cb_x_lanes_store(const cb_x_lanes *l, int number, const cb_tensor *t, int64_t element) {
    const cb_microcode *m = &l->f->m;
    const size_t real = (size_t)l->f->real;
    const int vector = m->number_lanes[number];
    if (vector >= 0 && is_real(l, t)) {
        memcpy(cb_at(t, element), cb_x_lane_vector(l, vector), (size_t)l->n * real);
        return;
    }
    for (int64_t i = 0; i < l->n; i++) {
        void *to = m->is_wide ? (void *)&l->c->s64[number] : (void *)&l->c->s[number];
        if (vector >= 0) memcpy(to, cb_x_lane_vector(l, vector) + (size_t)i * real, real);
        cb_x_store_number(m, l->c, number, t, element + i);
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

static int64_t count_of(const cb_x_fused *f) { return f->m.rows * f->m.columns; }

/* Returns the number of elements of every task except the last. */
static int64_t task_elements(const cb_x_fused *f) {
    return f->rows_in_task * f->m.columns * max_i64(f->m.inner, 1);
}

/* Returns the stored elements of the leaf that contains the first element of a task, if two tasks
 * share it. */
static char *shared_leaf(const cb_x_fused *f, int total, int64_t task) {
    return (char *)f->shared[total] + (task - 1) * CB_X_LEAF * f->real;
}

/* Return the first element of the first leaf that begins in the task, and the end of the last leaf
 * that ends in it. The final leaf, which may be short, ends with the last element. */
static int64_t first_leaf(const cb_x_lines *l) { return div_up(l->begin, CB_X_LEAF) * CB_X_LEAF; }
static int64_t last_leaf(const cb_x_lines *l) {
    return l->end == count_of(l->lanes.f) ? l->end : l->end & ~(int64_t)(CB_X_LEAF - 1);
}

void cb_x_lines_total(const cb_x_lines *l, const cb_x_line_sum *s, int64_t first, int64_t n,
                      const char *kept) {
    const cb_x_fused *f = l->lanes.f;
    const int64_t from = first_leaf(l), to = last_leaf(l), task = l->begin / task_elements(f);
    for (int64_t some, at = first, end = first + n; at < end; at += some) {
        const bool is_before = at < from, is_behind = !is_before && at >= to;
        some = is_before ? min_i64(end, from) - at : is_behind ? end - at : min_i64(end, to) - at;
        const char *elements = kept + (at - first) * f->real;
        if (is_before || is_behind)
            memcpy(shared_leaf(f, s->total, task + is_behind) + (at & (CB_X_LEAF - 1)) * f->real,
                   elements, (size_t)(some * f->real));
        else f->table->to_lanes(l->lanes.c, s->acc, at, elements, some);
    }
}

static void store_sum(const cb_x_lines *l, const cb_x_line_sum *s, int64_t line,
                      const char *elements) {
    const cb_x_fused *f = l->lanes.f;
    cb_x_context *c = l->lanes.c;
    const int64_t n = l->lanes.n;
    f->table->to_lanes(c, s->acc, 0, elements, n);
    if (n & (CB_X_LEAF - 1)) f->table->fold(c, s->acc, 1);
    if (f->m.is_wide)
        c->s64[s->number] = cb_x_sum_of64(&c->sum[s->acc]) / (s->is_mean ? (double)n : 1.0);
    else c->s[s->number] = cb_x_sum_of(&c->sum[s->acc]) / (s->is_mean ? (float)n : 1.0f);
    cb_x_store_number(&f->m, c, s->number, &l->tensor[s->tensor], line);
}

void cb_x_lines_add(const cb_x_lines *l, int phase, int64_t first, int64_t n) {
    const cb_microcode *m = &l->lanes.f->m;
    for (int k = 0; k < m->n_line_sum; k++) {
        const cb_x_line_sum *s = &m->line_sum[k];
        if (s->phase != phase) continue;
        const char *kept = cb_x_lane_vector(&l->lanes, m->acc_lanes[s->acc]);
        if (s->total >= 0) cb_x_lines_total(l, s, first, n * m->inner, kept);
        for (int64_t i = 0; s->total < 0 && i < n; i++)
            store_sum(l, s, first / m->inner + i, kept + i * m->inner * l->lanes.f->real);
    }
}

void cb_x_lines_end(const cb_x_lines *l) {
    const cb_x_fused *f = l->lanes.f;
    const int64_t count = count_of(f), rest = count & (CB_X_LEAF - 1);
    if (l->end != count || rest == 0 || count - rest < first_leaf(l)) return;
    for (int k = 0; k < f->m.n_line_sum; k++)
        if (f->m.line_sum[k].total >= 0) f->table->fold(l->lanes.c, f->m.line_sum[k].acc, 1);
}

void cb_x_lines_join(const cb_x_fused *f, cb_x_context *c) {
    const int64_t count = count_of(f);
    for (int k = 0; k < f->m.n_line_sum; k++) {
        const cb_x_line_sum *s = &f->m.line_sum[k];
        for (int64_t task = 1; s->total >= 0 && task < f->n_task; task++) {
            const int64_t begin = task * task_elements(f), leaf = begin / CB_X_LEAF,
                          n = min_i64(CB_X_LEAF, count - leaf * CB_X_LEAF);
            if (begin % CB_X_LEAF == 0) continue;
            c->sum[s->acc].leaves = (char *)f->leaf[s->total] + leaf * f->real;
            f->table->to_lanes(c, s->acc, 0, shared_leaf(f, s->total, task), n);
            if (n < CB_X_LEAF) f->table->fold(c, s->acc, 1);
        }
    }
}
