/* Every element is updated on its own, so any way of cutting the work gives the same bits. The rows
 * are seen as one long run of elements, cut into tasks of a fixed size: a thousand biases share a
 * few tasks and one large matrix is spread over many.
 *
 *     rows    |---- w0 ----|b0|---- w1 ----|b1|
 *     tasks   |......|......|......|......|...
 *
 * What is the same for all elements of a row is computed once, in double. */
#include "adamw.h"

#include <math.h>

#define TASK_ELEMENTS ((int64_t)1 << 14) /* 4 arrays of f32: 256 KiB, in a second-level cache */
#define ANCHORS 256u                     /* where tasks begin to look for their first row */

typedef struct table {
    const cb_adamw_group *groups;
    const cb_adamw_row *rows;
    uint32_t n_rows;
    int64_t t;
    int64_t total;             /* elements of all rows */
    uint32_t n_anchor, stride; /* anchor a is row a * stride ... */
    int64_t anchor[ANCHORS];   /* ... and so many elements come before it */
} table;

/* The update as it is computed:
 *     m = b1 m + a1 g;  v = b2 v + (a2 g) g;  p = p keep - rate m / (sqrt(v) root + eps) */
typedef struct factors {
    double keep, b1, a1, b2, a2, rate, root, eps;
} factors;

static factors factors_of(const cb_adamw_group *group, int64_t t) {
    double correction1 = 1.0 - pow(group->beta1, (double)t);
    double correction2 = 1.0 - pow(group->beta2, (double)t);
    return (factors){
        .keep = 1.0 - group->lr * group->weight_decay,
        .b1 = group->beta1,
        .a1 = 1.0 - group->beta1,
        .b2 = group->beta2,
        .a2 = 1.0 - group->beta2,
        .rate = group->lr / correction1,
        .root = 1.0 / sqrt(correction2),
        .eps = group->eps,
    };
}

#define DEFINE_UPDATE(name, real, square_root)                                                 \
    static void name(const factors *f, int64_t n, real *restrict p, const real *restrict g,    \
                     real *restrict m, real *restrict v) {                                     \
        const real keep = (real)f->keep, b1 = (real)f->b1, a1 = (real)f->a1, b2 = (real)f->b2; \
        const real a2 = (real)f->a2, rate = (real)f->rate, root = (real)f->root,               \
                   eps = (real)f->eps;                                                         \
        for (int64_t i = 0; i < n; i++) {                                                      \
            real m_new = b1 * m[i] + a1 * g[i];                                                \
            real v_new = b2 * v[i] + a2 * g[i] * g[i];                                         \
            m[i] = m_new;                                                                      \
            v[i] = v_new;                                                                      \
            p[i] = p[i] * keep - rate * m_new / (square_root(v_new) * root + eps);             \
        }                                                                                      \
    }
DEFINE_UPDATE(update_f32, float, sqrtf)
DEFINE_UPDATE(update_f64, double, sqrt)

static void update_row(const cb_adamw_row *row, const factors *f, int64_t begin, int64_t n) {
    if (row->dtype == CB_F32) {
        update_f32(f, n, (float *)row->param + begin, (const float *)row->grad + begin,
                   (float *)row->m + begin, (float *)row->v + begin);
    } else {
        update_f64(f, n, (double *)row->param + begin, (const double *)row->grad + begin,
                   (double *)row->m + begin, (double *)row->v + begin);
    }
}

static void run_task(void *user, int64_t task, int thread) {
    const table *x = user;
    (void)thread;
    int64_t begin = task * TASK_ELEMENTS, end = begin + TASK_ELEMENTS;
    if (end > x->total) end = x->total;
    uint32_t a = x->n_anchor - 1;
    while (x->anchor[a] > begin) a--;
    int64_t before = x->anchor[a]; /* elements of the rows before `r` */
    factors f = {0};
    uint32_t group = CB_NONE;
    for (uint32_t r = a * x->stride; before < end; before += x->rows[r++].n) {
        const cb_adamw_row *row = &x->rows[r];
        int64_t from = begin > before ? begin - before : 0;
        int64_t to = end - before < row->n ? end - before : row->n;
        if (from >= to) continue;
        if (group != row->group) f = factors_of(&x->groups[row->group], x->t);
        group = row->group;
        update_row(row, &f, from, to - from);
    }
}

/* Also false for NaN. */
static bool is_within(double x, double low, double high) { return x >= low && x <= high; }

static cb_status check_group(const cb_adamw_group *group, uint32_t i, cb_error *err) {
    const double most = 1e30;
    if (!is_within(group->lr, 0.0, most)) {
        return cb_fail(err, CB_INVALID, "adamw: group %u has lr=%g; it must be finite and >= 0", i,
                       group->lr);
    }
    if (!is_within(group->eps, 0.0, most)) {
        return cb_fail(err, CB_INVALID, "adamw: group %u has eps=%g; it must be finite and >= 0", i,
                       group->eps);
    }
    if (!is_within(group->weight_decay, 0.0, most)) {
        return cb_fail(err, CB_INVALID,
                       "adamw: group %u has weight_decay=%g; it must be finite and >= 0", i,
                       group->weight_decay);
    }
    if (!is_within(group->beta1, 0.0, 1.0) || group->beta1 == 1.0) {
        return cb_fail(err, CB_INVALID, "adamw: group %u has beta1=%g; it must be in [0, 1)", i,
                       group->beta1);
    }
    if (!is_within(group->beta2, 0.0, 1.0) || group->beta2 == 1.0) {
        return cb_fail(err, CB_INVALID, "adamw: group %u has beta2=%g; it must be in [0, 1)", i,
                       group->beta2);
    }
    return CB_OK;
}

cb_status cb_adamw_check(const cb_adamw_group *groups, uint32_t n_groups, cb_error *err) {
    for (uint32_t i = 0; i < n_groups; i++) CB_TRY(check_group(&groups[i], i, err));
    return CB_OK;
}

static cb_status check_row(const cb_adamw_row *row, uint32_t i, uint32_t n_groups, cb_error *err) {
    static const char *const names[4] = {"param", "grad", "m", "v"};
    if (row->dtype != CB_F32 && row->dtype != CB_F64) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "adamw: row %u is %s; only f32 and f64 parameters can be stepped", i,
                       cb_dtype_name(row->dtype));
    }
    if (row->group >= n_groups) {
        return cb_fail(err, CB_INVALID, "adamw: row %u is in group %u, and there are %u groups", i,
                       row->group, n_groups);
    }
    if (row->n < 0 || row->n > INT64_MAX / 64) {
        return cb_fail(err, CB_INVALID, "adamw: row %u has %lld elements", i, (long long)row->n);
    }
    if (row->n == 0) return CB_OK;
    const uintptr_t at[4] = {(uintptr_t)row->param, (uintptr_t)row->grad, (uintptr_t)row->m,
                             (uintptr_t)row->v};
    size_t size = cb_dtype_size(row->dtype), bytes = (size_t)row->n * size;
    for (int k = 0; k < 4; k++) {
        if (!at[k]) return cb_fail(err, CB_INVALID, "adamw: row %u has no %s (NULL)", i, names[k]);
        if (at[k] % size) {
            return cb_fail(err, CB_INVALID, "adamw: row %u: %s is not aligned to %zu bytes", i,
                           names[k], size);
        }
        for (int j = 0; j < k; j++) {
            if (at[j] >= at[k] + bytes || at[k] >= at[j] + bytes) continue;
            return cb_fail(err, CB_INVALID, "adamw: row %u: %s and %s share memory", i, names[j],
                           names[k]);
        }
    }
    return CB_OK;
}

/* Fills the anchors and the total. */
static cb_status measure(table *x, cb_error *err) {
    x->stride = x->n_rows / ANCHORS + 1;
    for (uint32_t r = 0; r < x->n_rows; r++) {
        if (r % x->stride == 0) x->anchor[x->n_anchor++] = x->total;
        if (x->rows[r].n > INT64_MAX / 64 - x->total) {
            return cb_fail(err, CB_INVALID, "adamw: too many elements");
        }
        x->total += x->rows[r].n;
    }
    return CB_OK;
}

cb_status cb_adamw_step(cb_threads *pool, const cb_adamw_group *groups, uint32_t n_groups,
                        const cb_adamw_row *rows, uint32_t n_rows, int64_t t, cb_error *err) {
    if (t < 1) {
        return cb_fail(err, CB_INVALID, "adamw: step number t=%lld; it counts from 1",
                       (long long)t);
    }
    CB_TRY(cb_adamw_check(groups, n_groups, err));
    for (uint32_t i = 0; i < n_rows; i++) CB_TRY(check_row(&rows[i], i, n_groups, err));
    table x = {.groups = groups, .rows = rows, .n_rows = n_rows, .t = t};
    CB_TRY(measure(&x, err));
    if (x.total == 0) return CB_OK;
    cb_parallel(pool, (x.total + TASK_ELEMENTS - 1) / TASK_ELEMENTS, run_task, &x);
    return CB_OK;
}
