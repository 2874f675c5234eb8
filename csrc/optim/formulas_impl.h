/* formulas_impl.h: the formulas for one type, `real`; included by kern_formulas.c once for each.
 *
 * A formula is one loop over all that it can do; what differs between groups is a constant of an
 * inlined copy, so that the compiler drops what a group does not ask for and vectorises the rest.
 */

INLINE real *NAME(array)(void *data, int64_t at) { return data ? (real *)data + at : NULL; }

/* ---- Adam ------------------------------------------------------------------------------------ */

INLINE void NAME(adam_loop)(const double *f, const cb_optim_row *row, int64_t at, int64_t n,
                            bool decays, bool ams) {
    real *restrict p = (real *)row->param + at, *restrict m = (real *)row->state[0] + at;
    real *restrict v = (real *)row->state[1] + at, *restrict w = NAME(array)(row->state[2], at);
    const real *restrict grad = (const real *)row->grad + at;
    const real scale = (real)f[CB_GRAD_SCALE], decay = (real)f[CB_ADAM_DECAY];
    const real keep = (real)f[CB_ADAM_KEEP], rate = (real)f[CB_ADAM_RATE];
    const real b1 = (real)f[CB_ADAM_B1], a1 = (real)f[CB_ADAM_A1];
    const real b2 = (real)f[CB_ADAM_B2], a2 = (real)f[CB_ADAM_A2];
    const real root = (real)f[CB_ADAM_ROOT], eps = (real)f[CB_ADAM_EPS];
    for (int64_t i = 0; i < n; i++) {
        real g = scale * grad[i];
        if (decays) g += decay * p[i];
        real m_new = b1 * m[i] + a1 * g;
        real v_new = b2 * v[i] + a2 * g * g;
        m[i] = m_new;
        v[i] = v_new;
        if (ams) { /* NaN stays, wherever it comes from */
            v_new = w[i] > v_new || w[i] != w[i] ? w[i] : v_new;
            w[i] = v_new;
        }
        p[i] = p[i] * keep - rate * m_new / (square_root(v_new) * root + eps);
    }
}

static void NAME(adam)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    const bool decays = f[CB_ADAM_DECAY] != 0.0, ams = f[CB_ADAM_AMS] != 0.0;
    if (decays && ams) {
        NAME(adam_loop)(f, row, at, n, true, true);
    } else if (decays) {
        NAME(adam_loop)(f, row, at, n, true, false);
    } else if (ams) {
        NAME(adam_loop)(f, row, at, n, false, true);
    } else {
        NAME(adam_loop)(f, row, at, n, false, false);
    }
}

/* ---- SGD ------------------------------------------------------------------------------------- */

INLINE void NAME(sgd_loop)(const double *f, const cb_optim_row *row, int64_t at, int64_t n,
                           bool decays, bool moves, bool is_first, bool ahead) {
    real *restrict p = (real *)row->param + at, *restrict b = NAME(array)(row->state[0], at);
    const real *restrict grad = (const real *)row->grad + at;
    const real scale = (real)f[CB_GRAD_SCALE], decay = (real)f[CB_SGD_DECAY];
    const real rate = (real)f[CB_SGD_RATE], kept = (real)f[CB_SGD_KEPT];
    const real added = (real)f[CB_SGD_ADDED];
    for (int64_t i = 0; i < n; i++) {
        real g = scale * grad[i];
        if (decays) g += decay * p[i];
        if (moves) {
            real b_new = is_first ? g : kept * b[i] + added * g;
            b[i] = b_new;
            g = ahead ? g + kept * b_new : b_new;
        }
        p[i] += rate * g;
    }
}

INLINE void NAME(sgd_decaying)(const double *f, const cb_optim_row *row, int64_t at, int64_t n,
                               bool decays) {
    const bool is_first = f[CB_SGD_IS_FIRST] != 0.0, ahead = f[CB_SGD_AHEAD] != 0.0;
    if (f[CB_SGD_KEPT] == 0.0) {
        NAME(sgd_loop)(f, row, at, n, decays, false, false, false);
    } else if (is_first) {
        NAME(sgd_loop)(f, row, at, n, decays, true, true, ahead);
    } else if (ahead) {
        NAME(sgd_loop)(f, row, at, n, decays, true, false, true);
    } else {
        NAME(sgd_loop)(f, row, at, n, decays, true, false, false);
    }
}

static void NAME(sgd)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    if (f[CB_SGD_DECAY] != 0.0) {
        NAME(sgd_decaying)(f, row, at, n, true);
    } else {
        NAME(sgd_decaying)(f, row, at, n, false);
    }
}

/* ---- others: conditions on factors are the same for all elements, and leave the loops -------- */

static void NAME(radam)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    real *restrict p = (real *)row->param + at, *restrict m = (real *)row->state[0] + at;
    real *restrict v = (real *)row->state[1] + at;
    const real *restrict grad = (const real *)row->grad + at;
    const real scale = (real)f[CB_GRAD_SCALE], decay = (real)f[CB_RADAM_DECAY];
    const real keep = (real)f[CB_RADAM_KEEP], rate = (real)f[CB_RADAM_RATE];
    const real b1 = (real)f[CB_RADAM_B1], a1 = (real)f[CB_RADAM_A1];
    const real b2 = (real)f[CB_RADAM_B2], a2 = (real)f[CB_RADAM_A2];
    const real eps = (real)f[CB_RADAM_EPS];
    const bool rectified = f[CB_RADAM_RECTIFIED] != 0.0;
    for (int64_t i = 0; i < n; i++) {
        real g = scale * grad[i];
        g = decay != 0 ? g + decay * p[i] : g;
        m[i] = b1 * m[i] + a1 * g;
        v[i] = b2 * v[i] + a2 * g * g;
        real step = rate * m[i];
        step = rectified ? step / (square_root(v[i]) + eps) : step;
        p[i] = p[i] * keep - step;
    }
}

static void NAME(adamax)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    real *restrict p = (real *)row->param + at, *restrict m = (real *)row->state[0] + at;
    real *restrict u = (real *)row->state[1] + at;
    const real *restrict grad = (const real *)row->grad + at;
    const real scale = (real)f[CB_GRAD_SCALE], decay = (real)f[CB_ADAMAX_DECAY];
    const real b1 = (real)f[CB_ADAMAX_B1], a1 = (real)f[CB_ADAMAX_A1];
    const real b2 = (real)f[CB_ADAMAX_B2], rate = (real)f[CB_ADAMAX_RATE];
    const real eps = (real)f[CB_ADAMAX_EPS];
    for (int64_t i = 0; i < n; i++) {
        real g = scale * grad[i];
        g = decay != 0 ? g + decay * p[i] : g;
        real old = b2 * u[i], now = magnitude(g) + eps;
        m[i] = b1 * m[i] + a1 * g;
        u[i] = old > now || old != old ? old : now; /* NaN stays, wherever it comes from */
        p[i] -= rate * m[i] / u[i];
    }
}

static void NAME(adagrad)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    real *restrict p = (real *)row->param + at, *restrict s = (real *)row->state[0] + at;
    const real *restrict grad = (const real *)row->grad + at;
    const real scale = (real)f[CB_GRAD_SCALE], decay = (real)f[CB_ADAGRAD_DECAY];
    const real first = (real)f[CB_ADAGRAD_FIRST], rate = (real)f[CB_ADAGRAD_RATE];
    const real eps = (real)f[CB_ADAGRAD_EPS];
    for (int64_t i = 0; i < n; i++) {
        real g = scale * grad[i];
        g = decay != 0 ? g + decay * p[i] : g;
        s[i] = s[i] + first + g * g;
        p[i] -= rate * g / (square_root(s[i]) + eps);
    }
}

static void NAME(adadelta)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    real *restrict p = (real *)row->param + at, *restrict s = (real *)row->state[0] + at;
    real *restrict a = (real *)row->state[1] + at;
    const real *restrict grad = (const real *)row->grad + at;
    const real scale = (real)f[CB_GRAD_SCALE], decay = (real)f[CB_ADADELTA_DECAY];
    const real rho = (real)f[CB_ADADELTA_RHO], rest = (real)f[CB_ADADELTA_REST];
    const real rate = (real)f[CB_ADADELTA_RATE], eps = (real)f[CB_ADADELTA_EPS];
    for (int64_t i = 0; i < n; i++) {
        real g = scale * grad[i];
        g = decay != 0 ? g + decay * p[i] : g;
        s[i] = rho * s[i] + rest * g * g;
        real d = square_root(a[i] + eps) / square_root(s[i] + eps) * g;
        a[i] = rho * a[i] + rest * d * d;
        p[i] -= rate * d;
    }
}

INLINE void NAME(rmsprop_loop)(const double *f, const cb_optim_row *row, int64_t at, int64_t n,
                               bool centered, bool moves) {
    real *restrict p = (real *)row->param + at, *restrict s = (real *)row->state[0] + at;
    real *restrict h = NAME(array)(row->state[1], at);
    real *restrict b = NAME(array)(row->state[centered ? 2 : 1], at);
    const real *restrict grad = (const real *)row->grad + at;
    const real scale = (real)f[CB_GRAD_SCALE], decay = (real)f[CB_RMSPROP_DECAY];
    const real alpha = (real)f[CB_RMSPROP_ALPHA], rest = (real)f[CB_RMSPROP_REST];
    const real rate = (real)f[CB_RMSPROP_RATE], eps = (real)f[CB_RMSPROP_EPS];
    const real kept = (real)f[CB_RMSPROP_KEPT];
    for (int64_t i = 0; i < n; i++) {
        real g = scale * grad[i];
        g = decay != 0 ? g + decay * p[i] : g;
        real spread = s[i] = alpha * s[i] + rest * g * g;
        if (centered) {
            h[i] = alpha * h[i] + rest * g;
            spread -= h[i] * h[i];
        }
        real q = g / (square_root(spread) + eps);
        if (moves) q = b[i] = kept * b[i] + q;
        p[i] -= rate * q;
    }
}

static void NAME(rmsprop)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    if (f[CB_RMSPROP_KEPT] != 0.0) {
        NAME(rmsprop_loop)(f, row, at, n, false, true);
    } else {
        NAME(rmsprop_loop)(f, row, at, n, false, false);
    }
}

static void NAME(rmsprop_centered)(const double *f, const cb_optim_row *row, int64_t at,
                                   int64_t n) {
    if (f[CB_RMSPROP_KEPT] != 0.0) {
        NAME(rmsprop_loop)(f, row, at, n, true, true);
    } else {
        NAME(rmsprop_loop)(f, row, at, n, true, false);
    }
}

static void NAME(lion)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    real *restrict p = (real *)row->param + at, *restrict m = (real *)row->state[0] + at;
    const real *restrict grad = (const real *)row->grad + at;
    const real scale = (real)f[CB_GRAD_SCALE], keep = (real)f[CB_LION_KEEP];
    const real b1 = (real)f[CB_LION_B1], a1 = (real)f[CB_LION_A1];
    const real b2 = (real)f[CB_LION_B2], a2 = (real)f[CB_LION_A2];
    const real rate = (real)f[CB_LION_RATE];
    for (int64_t i = 0; i < n; i++) {
        real g = scale * grad[i], u = b1 * m[i] + a1 * g;
        real sign = u > 0 ? (real)1 : (u < 0 ? (real)-1 : u); /* zeros and NaN as they are */
        m[i] = b2 * m[i] + a2 * g;
        p[i] = p[i] * keep - rate * sign;
    }
}
