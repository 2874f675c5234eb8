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
