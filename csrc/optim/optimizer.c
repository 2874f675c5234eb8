/* The checks that all optimizers share. An optimizer adds only a few relations between
 * hyper-parameters. After the checks a step cannot fail, so no step is ever left half done. */
#include "optimizer.h"

uint32_t cb_optimizer_n_used(const cb_optimizer *o, const double *hyper) {
    return o->n_used ? o->n_used(hyper) : o->n_state;
}

void cb_optimizer_count_on(const cb_optimizer *o, const double *hyper, int64_t t, double *number) {
    if (o->count_on) o->count_on(hyper, t, number);
}

/* False for NaN. */
static bool is_within(double x, const cb_hyper *h) {
    return x >= h->low && (h->below ? x < h->high : x <= h->high);
}

static cb_status check_group(const cb_optimizer *o, const double *hyper, uint32_t group,
                             cb_error *err) {
    for (uint32_t i = 0; i < o->n_hyper; i++) {
        const cb_hyper *h = &o->hyper[i];
        if (is_within(hyper[i], h)) continue;
        if (h->low == -CB_HYPER_MOST) {
            return cb_fail(err, CB_INVALID, "%s: group %u has %s=%g; it must be finite", o->name,
                           group, h->name, hyper[i]);
        }
        if (h->high == CB_HYPER_MOST) {
            return cb_fail(err, CB_INVALID, "%s: group %u has %s=%g; it must be finite and >= %g",
                           o->name, group, h->name, hyper[i], h->low);
        }
        return cb_fail(err, CB_INVALID, "%s: group %u has %s=%g; it must be in [%g, %g%c", o->name,
                       group, h->name, hyper[i], h->low, h->high, h->below ? ')' : ']');
    }
    return o->check ? o->check(hyper, group, err) : CB_OK;
}

cb_status cb_optimizer_check(const cb_optimizer *o, const double *hyper, uint32_t n_groups,
                             cb_error *err) {
    for (uint32_t i = 0; i < n_groups; i++)
        CB_TRY(check_group(o, hyper + (size_t)i * o->n_hyper, i, err));
    return CB_OK;
}

size_t cb_optim_state_align(const cb_optimizer *o, uint32_t i, const cb_optim_row *row) {
    const cb_state_kind kind = o->kind ? o->kind[i] : CB_STATE_ALIKE;
    return kind == CB_STATE_CODES    ? 1
           : kind == CB_STATE_SCALES ? sizeof(float)
                                     : cb_dtype_size(cb_optim_dtype(row));
}

/* Returns the number of elements of two square matrices with this side; 0 if the side is too long.
 */
static int64_t squares_of(const cb_optimizer *o, const double *hyper, int64_t side) {
    return (double)side <= hyper[o->most_side] ? 2 * side * side : 0;
}

int64_t cb_optimizer_state_size(const cb_optimizer *o, uint32_t i, const double *hyper,
                                const cb_optim_row *row) {
    const bool is_matrix = row->height > 0 && row->width > 0;
    switch (o->kind ? o->kind[i] : CB_STATE_ALIKE) {
        case CB_STATE_SCALES: return (row->n + CB_STATE_BLOCK - 1) / CB_STATE_BLOCK * 2;
        case CB_STATE_ROWS: return is_matrix ? row->n / row->width : 0;
        case CB_STATE_COLUMNS: return is_matrix ? row->n / row->height : 0;
        case CB_STATE_LEFT: return is_matrix ? squares_of(o, hyper, row->height) : 0;
        case CB_STATE_RIGHT: return is_matrix ? squares_of(o, hyper, row->width) : 0;
        case CB_STATE_WHOLE: return is_matrix ? 0 : row->n;
        default: return row->n;
    }
}

uint64_t cb_optim_state_bytes(const cb_optimizer *o, uint32_t i, const double *hyper,
                              const cb_optim_row *row) {
    return (uint64_t)cb_optimizer_state_size(o, i, hyper, row) * cb_optim_state_align(o, i, row);
}

size_t cb_optim_rest_size(const cb_optim_row *row) {
    static const size_t size[CB_HALF_FORM_COUNT] = {
        [CB_HALF_MASTER] = sizeof(float), [CB_HALF_REMAINDER] = sizeof(uint16_t)};
    return cb_optim_is_half(row->dtype) ? size[row->half] : 0;
}

const char *cb_optim_rest_name(const cb_optim_row *row) {
    return row->half == CB_HALF_REMAINDER ? "remainder" : "master";
}

typedef struct part { /* an array of a row */
    const char *name;
    const void *data;
    size_t align;
    uint64_t bytes;
} part;

static part part_of(const char *name, const void *data, size_t size, int64_t n) {
    return (part){.name = name, .data = data, .align = size, .bytes = (uint64_t)n * size};
}

static uint32_t list_parts(const cb_optimizer *o, const double *hyper, const cb_optim_row *row,
                           part *out) {
    const uint32_t n_used = cb_optimizer_n_used(o, hyper);
    const size_t size = cb_dtype_size(row->dtype), rest = cb_optim_rest_size(row);
    uint32_t n = 0;
    out[n++] = part_of("param", row->param, size, row->n);
    out[n++] = part_of("grad", row->grad, size, row->n);
    for (uint32_t k = 0; k < n_used; k++) {
        if (!cb_optimizer_state_size(o, k, hyper, row)) continue;
        out[n] = part_of(o->state[k], row->state[k], cb_optim_state_align(o, k, row), 0);
        out[n++].bytes = cb_optim_state_bytes(o, k, hyper, row);
    }
    if (rest) out[n++] = part_of(cb_optim_rest_name(row), row->rest, rest, row->n);
    return n;
}

/* Checks that the arrays of a row are not NULL, are aligned and do not overlap. */
static cb_status check_arrays(const cb_optimizer *o, const double *hyper, const cb_optim_row *row,
                              uint32_t i, cb_error *err) {
    part all[3 + CB_MAX_STATES];
    const uint32_t n = list_parts(o, hyper, row, all);
    for (uint32_t k = 0; k < n; k++) {
        const uintptr_t at = (uintptr_t)all[k].data;
        if (!at)
            return cb_fail(err, CB_INVALID, "%s: row %u has no %s (NULL)", o->name, i, all[k].name);
        if (at % all[k].align) {
            return cb_fail(err, CB_INVALID, "%s: row %u: %s is not aligned to %zu bytes", o->name,
                           i, all[k].name, all[k].align);
        }
        for (uint32_t j = 0; j < k; j++) {
            const uintptr_t other = (uintptr_t)all[j].data;
            if (other >= at + all[k].bytes || at >= other + all[j].bytes) continue;
            return cb_fail(err, CB_INVALID, "%s: row %u: %s and %s share memory", o->name, i,
                           all[j].name, all[k].name);
        }
    }
    return CB_OK;
}

static cb_status check_dtype(const cb_optimizer *o, const cb_optim_row *row, uint32_t i,
                             cb_error *err) {
    const bool is_half = cb_optim_is_half(row->dtype);
    const char *name = cb_dtype_name(row->dtype);
    if (row->dtype != CB_F32 && row->dtype != CB_F64 && !is_half) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s: row %u is %s; only f32, f64, f16 and bf16 parameters can be stepped",
                       o->name, i, name);
    }
    if (o->is_f32 && row->dtype != CB_F32) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s: row %u is %s; a recorded optimizer steps only f32 parameters", o->name,
                       i, name);
    }
    if (is_half && !o->factors && !o->has_halves) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s: row %u is %s; it steps only f32 and f64 parameters", o->name, i, name);
    }
    if (!is_half) return CB_OK;
    if (row->half >= CB_HALF_FORM_COUNT) {
        return cb_fail(err, CB_INVALID, "%s: row %u has half=%d; it must be below %d", o->name, i,
                       (int)row->half, (int)CB_HALF_FORM_COUNT);
    }
    if (row->dtype == CB_F16 && row->half != CB_HALF_MASTER) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s: row %u is f16, which needs a master copy (CB_HALF_MASTER); remainders "
                       "and noise are for bf16",
                       o->name, i);
    }
    return CB_OK;
}

/* True if the elements of the row form matrices that the optimizer accepts. */
static bool is_seen(const cb_optimizer *o, const cb_optim_row *row) {
    const int64_t height = row->height, width = row->width;
    if (o->axes == CB_AXES_NONE) return true;
    if (height == 0 && width == 0) return o->axes != CB_AXES_TWO;
    if (height < 1 || width < 1 || row->n % width || row->n / width % height) return false;
    return o->axes != CB_AXES_TWO || row->n / width == height;
}

cb_status cb_optim_check_row(const cb_optimizer *o, const cb_optim_table *x, uint32_t i,
                             cb_error *err) {
    const cb_optim_row *row = &x->rows[i];
    CB_TRY(check_dtype(o, row, i, err));
    if (row->group >= x->n_groups) {
        return cb_fail(err, CB_INVALID, "%s: row %u is in group %u, but there are only %u groups",
                       o->name, i, row->group, x->n_groups);
    }
    if (row->t < 1) {
        return cb_fail(err, CB_INVALID, "%s: row %u has step number t=%lld; it counts from 1",
                       o->name, i, (long long)row->t);
    }
    if (row->n == 0) return CB_OK;
    if (!is_seen(o, row)) {
        return cb_fail(err, CB_INVALID,
                       "%s: row %u has %lld elements, which do not form matrices of %lld x %lld",
                       o->name, i, (long long)row->n, (long long)row->height,
                       (long long)row->width);
    }
    const double *hyper = x->hyper + (size_t)row->group * x->n_hyper;
    return check_arrays(o, hyper, row, i, err);
}

cb_status cb_optim_check_sizes(const cb_optimizer *o, const cb_optim_table *x, cb_error *err) {
    int64_t left = INT64_MAX / 64;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        if (x->rows[i].n < 0 || x->rows[i].n > left) {
            return cb_fail(
                err, CB_INVALID, "%s: row %u has %lld elements%s", o->name, i,
                (long long)x->rows[i].n,
                x->rows[i].n < 0 ? "" : "; the elements of all rows together cannot be counted");
        }
        left -= x->rows[i].n;
    }
    return CB_OK;
}

cb_status cb_optim_check_scratch(const cb_optim_table *x, cb_error *err) {
    if (x->scratch || !cb_optim_scratch(x->optimizer, x->hyper, x->rows, x->n_rows)) return CB_OK;
    return cb_fail(err, CB_UNSUPPORTED, "%s needs scratch memory, but the table has none",
                   x->optimizer->name);
}

cb_status cb_optim_step(const cb_optim_table *x, cb_threads *pool, cb_error *err) {
    const cb_optimizer *o = x->optimizer;
    CB_TRY(cb_optimizer_check(o, x->hyper, x->n_groups, err));
    CB_TRY(cb_optim_check_sizes(o, x, err));
    for (uint32_t i = 0; i < x->n_rows; i++) CB_TRY(cb_optim_check_row(o, x, i, err));
    CB_TRY(cb_optim_check_scratch(x, err));
    o->step(x, pool);
    return CB_OK;
}
