/* ref_norm.c: softmax, norms and cross-entropy. */
#include "ref_ops.h"

#include <inttypes.h>
#include <math.h>

/* ---- softmax --------------------------------------------------------------------------------- */

/* Return the number of columns (the size of the last axis) and of rows. */
static int64_t columns_of(const cb_tensor *t) { return t->shape.dim[t->shape.rank - 1]; }

static int64_t rows_of(const cb_tensor *t) {
    int64_t rows = 1;
    for (int32_t i = 0; i < t->shape.rank - 1; i++) rows *= t->shape.dim[i];
    return rows;
}

/* Returns log(sum(exp(row))), computed relative to the largest element so that nothing overflows.
 * The result is NaN if all elements are -inf or one is +inf or NaN, as in the kernels. */
static double log_sum_exp(const cb_tensor *t, int64_t row, double *largest) {
    const int64_t n = columns_of(t);
    double sum = 0.0;
    *largest = -INFINITY;
    for (int64_t k = 0; k < n; k++) {
        const double x = cb_ref_get(t, row * n + k);
        if (isnan(x) || x > *largest) *largest = x;
        if (isnan(*largest)) return *largest;
    }
    for (int64_t k = 0; k < n; k++) sum += exp(cb_ref_get(t, row * n + k) - *largest);
    return *largest + log(sum);
}

void cb_ref_softmax(const cb_ref_call *c) {
    const int64_t rows = rows_of(&c->in[0]), n = columns_of(&c->in[0]);
    for (int64_t r = 0; r < rows; r++) {
        double largest, sum = 0.0;
        (void)log_sum_exp(&c->in[0], r, &largest);
        for (int64_t k = 0; k < n; k++) sum += exp(cb_ref_get(&c->in[0], r * n + k) - largest);
        for (int64_t k = 0; k < n; k++) {
            const double above = cb_ref_get(&c->in[0], r * n + k) - largest;
            cb_ref_put(&c->out[0], r * n + k,
                       c->code == CB_OP_SOFTMAX ? exp(above) / sum : above - log(sum));
        }
    }
}

void cb_ref_softmax_bwd(const cb_ref_call *c) {
    const int64_t rows = rows_of(&c->in[0]), n = columns_of(&c->in[0]);
    const bool logs = c->code == CB_OP_LOG_SOFTMAX_BWD;
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0.0;
        for (int64_t k = 0; k < n; k++) {
            const double g = cb_ref_get(&c->in[0], r * n + k), y = cb_ref_get(&c->in[1], r * n + k);
            sum += logs ? g : g * y;
        }
        for (int64_t k = 0; k < n; k++) {
            const double g = cb_ref_get(&c->in[0], r * n + k), y = cb_ref_get(&c->in[1], r * n + k);
            cb_ref_put(&c->out[0], r * n + k, logs ? g - exp(y) * sum : y * (g - sum));
        }
    }
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* The elements that share statistic `s`: a row of the last axis or, for batch norm, channel s of
 * every image. Their k-th element is x[number], and weight[channel] scales it. */
typedef struct sample {
    bool batch;
    int64_t n_stats, size;   /* number of statistics; elements of each */
    int64_t channels, inner; /* batch norm: x is [size / inner, channels, inner] */
} sample;

static sample sample_of(const cb_ref_call *c, const cb_tensor *x) {
    const bool batch = c->code == CB_OP_BATCH_NORM || c->code == CB_OP_BATCH_NORM_BWD ||
                       c->code == CB_OP_BATCH_NORM_STATS;
    sample s = {.batch = batch, .inner = 1};
    if (!batch) {
        s.n_stats = rows_of(x);
        s.size = s.channels = columns_of(x);
        return s;
    }
    s.n_stats = s.channels = x->shape.dim[1];
    for (int32_t i = 2; i < x->shape.rank; i++) s.inner *= x->shape.dim[i];
    s.size = x->shape.dim[0] * s.inner;
    return s;
}

static int64_t number(const sample *s, int64_t stat, int64_t k) {
    return s->batch ? (k / s->inner * s->channels + stat) * s->inner + k % s->inner
                    : stat * s->size + k;
}

static int64_t channel(const sample *s, int64_t stat, int64_t k) { return s->batch ? stat : k; }

typedef struct moments {
    double mean, var; /* var is biased, and about zero if the norm does not centre */
} moments;

static moments moments_of(const cb_tensor *x, const sample *s, int64_t stat, bool centred) {
    moments m = {0};
    for (int64_t k = 0; k < s->size && centred; k++) m.mean += cb_ref_get(x, number(s, stat, k));
    if (centred) m.mean /= (double)s->size; /* size 0 gives NaN, as in NumPy */
    for (int64_t k = 0; k < s->size; k++) {
        const double d = cb_ref_get(x, number(s, stat, k)) - m.mean;
        m.var += d * d;
    }
    m.var /= (double)s->size;
    return m;
}

/* Computes (y, mean, rstd), (y, rstd) or (y, mean, var, rstd). An RMS norm has no mean or bias. */
void cb_ref_norm(const cb_ref_call *c) {
    const cb_tensor *x = &c->in[0];
    const sample s = sample_of(c, x);
    const bool centred = c->code != CB_OP_RMS_NORM;
    for (int64_t i = 0; i < s.n_stats; i++) {
        const moments m = moments_of(x, &s, i, centred);
        const double rstd = 1.0 / sqrt(m.var + c->attrs->f[0]);
        for (int64_t k = 0; k < s.size; k++) {
            const int64_t at = number(&s, i, k), p = channel(&s, i, k);
            const double y = (cb_ref_get(x, at) - m.mean) * rstd * cb_ref_get(&c->in[1], p);
            cb_ref_put(&c->out[0], at, centred ? y + cb_ref_get(&c->in[2], p) : y);
        }
        if (centred) cb_ref_put(&c->out[1], i, m.mean);
        if (c->code == CB_OP_BATCH_NORM) cb_ref_put(&c->out[2], i, m.var);
        cb_ref_put(&c->out[c->n_out - 1], i, rstd);
    }
}

/* Computes (mean, var, rstd). */
void cb_ref_batch_stats(const cb_ref_call *c) {
    const sample s = sample_of(c, &c->in[0]);
    for (int64_t i = 0; i < s.n_stats; i++) {
        const moments m = moments_of(&c->in[0], &s, i, true);
        cb_ref_put(&c->out[0], i, m.mean);
        cb_ref_put(&c->out[1], i, m.var);
        cb_ref_put(&c->out[2], i, 1.0 / sqrt(m.var + c->attrs->f[0]));
    }
}

/* Applies statistics. The inputs are x, mean, rstd, weight and bias. */
void cb_ref_batch_apply(const cb_ref_call *c) {
    const int64_t n = cb_numel(&c->out[0].shape);
    for (int64_t i = 0; i < n; i++) {
        const double h =
            (cb_ref_get(&c->in[0], i) - cb_ref_get(&c->in[1], i)) * cb_ref_get(&c->in[2], i);
        cb_ref_put(&c->out[0], i, h * cb_ref_get(&c->in[3], i) + cb_ref_get(&c->in[4], i));
    }
}

/* Returns element k of statistic `stat`, normalized. The inputs are g, x, weight, (mean,) rstd. */
static double normed(const cb_ref_call *c, const sample *s, int64_t stat, int64_t k) {
    const double mean = c->n_in == 5 ? cb_ref_get(&c->in[3], stat) : 0.0;
    return (cb_ref_get(&c->in[1], number(s, stat, k)) - mean) *
           cb_ref_get(&c->in[c->n_in - 1], stat);
}

static double weighted(const cb_ref_call *c, const sample *s, int64_t stat, int64_t k) {
    return cb_ref_get(&c->in[0], number(s, stat, k)) * cb_ref_get(&c->in[2], channel(s, stat, k));
}

/* Computes dweight and dbias of parameter p, as sums over all elements that it scales. */
static void parameter_gradient(const cb_ref_call *c, const sample *s, int64_t p) {
    double dweight = 0.0, dbias = 0.0;
    const int64_t n = s->batch ? s->size : s->n_stats;
    for (int64_t i = 0; i < n; i++) {
        const int64_t stat = s->batch ? p : i, k = s->batch ? i : p;
        const double g = cb_ref_get(&c->in[0], number(s, stat, k));
        dweight += g * normed(c, s, stat, k);
        dbias += g;
    }
    cb_ref_put(&c->out[1], p, dweight);
    if (c->n_out == 3) cb_ref_put(&c->out[2], p, dbias);
}

/* Computes dx = rstd (k - average(k) - h average(k h)), where h is the normed x and k = g
 * weight. */
void cb_ref_norm_bwd(const cb_ref_call *c) {
    const sample s = sample_of(c, &c->in[1]);
    for (int64_t i = 0; i < s.n_stats; i++) {
        double along = 0.0, level = 0.0;
        for (int64_t k = 0; k < s.size; k++) {
            along += weighted(c, &s, i, k) * normed(c, &s, i, k) / (double)s.size;
            if (c->n_in == 5) level += weighted(c, &s, i, k) / (double)s.size;
        }
        for (int64_t k = 0; k < s.size; k++) {
            const double dx = weighted(c, &s, i, k) - level - normed(c, &s, i, k) * along;
            cb_ref_put(&c->out[0], number(&s, i, k), dx * cb_ref_get(&c->in[c->n_in - 1], i));
        }
    }
    for (int64_t p = 0; p < s.channels; p++) parameter_gradient(c, &s, p);
}

/* ---- cross-entropy --------------------------------------------------------------------------- */

/* Reads and checks the class of row r; -1 if the row is ignored. */
static cb_status label_of(const cb_ref_call *c, const cb_tensor *labels, int64_t r, int64_t classes,
                          int64_t *out, cb_error *err) {
    *out = cb_ref_get_int(labels, r);
    if (*out == c->attrs->i[0]) {
        *out = -1;
        return CB_OK;
    }
    if (*out >= 0 && *out < classes) return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: label %" PRId64 " out of range for %" PRId64 " classes",
                   cb_op_def_of(c->code)->name, *out, classes);
}

/* Checks all labels before anything is written. */
static cb_status check_labels(const cb_ref_call *c, const cb_tensor *labels, int64_t rows,
                              int64_t classes, cb_error *err) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t label;
        CB_TRY(label_of(c, labels, r, classes, &label, err));
    }
    return CB_OK;
}

cb_status cb_ref_cross_entropy(const cb_ref_call *c, cb_error *err) {
    const int64_t rows = rows_of(&c->in[0]), n = columns_of(&c->in[0]);
    CB_TRY(check_labels(c, &c->in[1], rows, n, err));
    for (int64_t r = 0; r < rows; r++) {
        int64_t label;
        double largest;
        CB_TRY(label_of(c, &c->in[1], r, n, &label, err));
        const double lse = log_sum_exp(&c->in[0], r, &largest);
        cb_ref_put(&c->out[0], r, label < 0 ? 0.0 : lse - cb_ref_get(&c->in[0], r * n + label));
        cb_ref_put(&c->out[1], r, lse);
    }
    return CB_OK;
}

/* Computes the gradient. The inputs are g, logits and label. */
cb_status cb_ref_cross_entropy_bwd(const cb_ref_call *c, cb_error *err) {
    const int64_t rows = rows_of(&c->in[1]), n = columns_of(&c->in[1]);
    CB_TRY(check_labels(c, &c->in[2], rows, n, err));
    for (int64_t r = 0; r < rows; r++) {
        int64_t label;
        double largest;
        CB_TRY(label_of(c, &c->in[2], r, n, &label, err));
        const double g = cb_ref_get(&c->in[0], r), lse = log_sum_exp(&c->in[1], r, &largest);
        for (int64_t k = 0; k < n; k++) {
            const double p = exp(cb_ref_get(&c->in[1], r * n + k) - lse);
            cb_ref_put(&c->out[0], r * n + k, label < 0 ? 0.0 : g * (p - (k == label ? 1.0 : 0.0)));
        }
    }
    return CB_OK;
}
