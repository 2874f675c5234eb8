/* The order of sums is that of kern_reduce.c: elements in runs of CB_RUN_ROWS, runs in blocks
 * (cb_row_blocks), and blocks one after another, each from zero. */
#include "lanes.h"

#include <string.h>

#include "../../../ir/work.h"
#include "../../../micro/across.h"
#include "numbers.h"
#include "scalar.h"

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

void cb_x_lanes_clear(const cb_x_lanes *l) {
    const cb_microcode *m = &l->f->m;
    for (int k = 0; k < m->n_acc; k++)
        if (m->acc_lanes[k] >= 0) (m->is_wide ? clear_f64 : clear_f32)(l, k);
}

/* The vector `from` joins the next one, and starts again. */
static void join_next(const cb_x_lanes *l, int from) {
    l->f->table->add(cb_x_lane_vector(l, from + 1), cb_x_lane_vector(l, from), l->n);
    memset(cb_x_lane_vector(l, from), 0, (size_t)(l->f->pitch * l->f->real));
}

void cb_x_lanes_fold(const cb_x_lanes *l, int phase, int64_t done) {
    const cb_x_fused *f = l->f;
    const int64_t in_block = (done - 1) % f->rows_in_block + 1;
    const bool ends_block = in_block == f->rows_in_block || done == f->m.columns;
    if (!ends_block && in_block % CB_RUN_ROWS) return;
    for (int k = f->first_number[phase + 1]; k < f->first_number[phase + 2]; k++) {
        const cb_x_number *number = &f->m.number[f->order[k]];
        if (number->op != CB_X_ACC) continue;
        join_next(l, f->m.acc_lanes[number->a] + CB_X_RUN);
        if (ends_block) join_next(l, f->m.acc_lanes[number->a] + CB_X_BLOCK);
    }
}

static bool is_over_row(cb_x_op op) { return op == CB_X_ACC || op == CB_X_AMAX || op == CB_X_AMIN; }

void cb_x_lanes_after(const cb_x_lanes *l, int phase) {
    const cb_x_fused *f = l->f;
    const bool is_wide = f->m.is_wide;
    for (int k = f->first_number[phase + 1]; k < f->first_number[phase + 2]; k++) {
        const cb_x_number *number = &f->m.number[f->order[k]];
        if (is_over_row(number->op)) (is_wide ? finish_f64 : finish_f32)(l, number);
        else (is_wide ? compute_f64 : compute_f32)(l, number);
    }
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
