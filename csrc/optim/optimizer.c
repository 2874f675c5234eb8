/* The checks that all optimizers share: what one adds of its own is a few relations between
 * hyper-parameters. After them a step cannot fail, so nothing is ever half stepped. */
#include "optimizer.h"

uint32_t cb_optimizer_n_used(const cb_optimizer *o, const double *hyper) {
    return o->n_used ? o->n_used(hyper) : o->n_state;
}

void cb_optimizer_count_on(const cb_optimizer *o, const double *hyper, int64_t t, double *number) {
    if (o->count_on) o->count_on(hyper, t, number);
}

/* Also false for NaN. */
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
                                     : cb_dtype_size(row->dtype);
}

uint64_t cb_optim_state_bytes(const cb_optimizer *o, uint32_t i, const cb_optim_row *row) {
    const bool scales = o->kind && o->kind[i] == CB_STATE_SCALES;
    const int64_t n = scales ? (row->n + CB_STATE_BLOCK - 1) / CB_STATE_BLOCK : row->n;
    return (uint64_t)n * cb_optim_state_align(o, i, row);
}

static const char *array_name(const cb_optimizer *o, uint32_t k) {
    return k == 0 ? "param" : k == 1 ? "grad" : o->state[k - 2];
}

/* The arrays of a row of elements: there, aligned, and none in the memory of another. */
static cb_status check_arrays(const cb_optimizer *o, const cb_optim_row *row, uint32_t n_used,
                              uint32_t i, cb_error *err) {
    uintptr_t at[2 + CB_MAX_STATES] = {(uintptr_t)row->param, (uintptr_t)row->grad};
    const size_t whole = cb_dtype_size(row->dtype);
    size_t size[2 + CB_MAX_STATES] = {whole, whole};
    uint64_t bytes[2 + CB_MAX_STATES] = {(uint64_t)row->n * whole, (uint64_t)row->n * whole};
    for (uint32_t k = 0; k < n_used; k++) {
        at[2 + k] = (uintptr_t)row->state[k];
        size[2 + k] = cb_optim_state_align(o, k, row);
        bytes[2 + k] = cb_optim_state_bytes(o, k, row);
    }
    for (uint32_t k = 0; k < 2 + n_used; k++) {
        const char *name = array_name(o, k);
        if (!at[k]) {
            return cb_fail(err, CB_INVALID, "%s: row %u has no %s (NULL)", o->name, i, name);
        }
        if (at[k] % size[k]) {
            return cb_fail(err, CB_INVALID, "%s: row %u: %s is not aligned to %zu bytes", o->name,
                           i, name, size[k]);
        }
        for (uint32_t j = 0; j < k; j++) {
            if (at[j] >= at[k] + bytes[k] || at[k] >= at[j] + bytes[j]) continue;
            return cb_fail(err, CB_INVALID, "%s: row %u: %s and %s share memory", o->name, i,
                           array_name(o, j), name);
        }
    }
    return CB_OK;
}

cb_status cb_optim_check_row(const cb_optimizer *o, const cb_optim_table *x, uint32_t i,
                             cb_error *err) {
    const cb_optim_row *row = &x->rows[i];
    if (row->dtype != CB_F32 && row->dtype != CB_F64) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s: row %u is %s; only f32 and f64 parameters can be stepped", o->name, i,
                       cb_dtype_name(row->dtype));
    }
    if (o->is_f32 && row->dtype != CB_F32) {
        return cb_fail(
            err, CB_UNSUPPORTED,
            "%s: row %u is %s; an optimizer that was recorded steps f32 parameters alone", o->name,
            i, cb_dtype_name(row->dtype));
    }
    if (row->group >= x->n_groups) {
        return cb_fail(err, CB_INVALID, "%s: row %u is in group %u, and there are %u groups",
                       o->name, i, row->group, x->n_groups);
    }
    if (row->t < 1) {
        return cb_fail(err, CB_INVALID, "%s: row %u has step number t=%lld; it counts from 1",
                       o->name, i, (long long)row->t);
    }
    if (row->n == 0) return CB_OK;
    const double *hyper = x->hyper + (size_t)row->group * x->n_hyper;
    return check_arrays(o, row, cb_optimizer_n_used(o, hyper), i, err);
}

cb_status cb_optim_check_sizes(const cb_optimizer *o, const cb_optim_table *x, cb_error *err) {
    int64_t left = INT64_MAX / 64;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        if (x->rows[i].n < 0 || x->rows[i].n > left) {
            return cb_fail(err, CB_INVALID, "%s: row %u has %lld elements%s", o->name, i,
                           (long long)x->rows[i].n,
                           x->rows[i].n < 0 ? "" : "; those of all rows cannot be counted");
        }
        left -= x->rows[i].n;
    }
    return CB_OK;
}

cb_status cb_optimizer_step(const cb_optimizer *o, cb_threads *pool, const double *hyper,
                            uint32_t n_groups, const cb_optim_row *rows, uint32_t n_rows,
                            cb_error *err) {
    const cb_optim_table x = {.optimizer = o,
                              .grad_factor = 1,
                              .rows = rows,
                              .hyper = hyper,
                              .n_rows = n_rows,
                              .n_groups = n_groups,
                              .n_hyper = o->n_hyper};
    CB_TRY(cb_optimizer_check(o, hyper, n_groups, err));
    CB_TRY(cb_optim_check_sizes(o, &x, err));
    for (uint32_t i = 0; i < n_rows; i++) CB_TRY(cb_optim_check_row(o, &x, i, err));
    if (cb_optim_scratch(o, rows, n_rows)) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s sums over parameters of more elements than run at once; it steps arrays "
                       "outside of compiled steps",
                       o->name);
    }
    o->step(&x, pool);
    return CB_OK;
}
