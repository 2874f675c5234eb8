/* Stochastic gradient descent, with momentum and Nesterov's as PyTorch defines them.
 *
 *     g <- -g with maximize
 *     g <- g + weight_decay p
 *     b <- g at the first step, momentum b + (1 - dampening) g from then on
 *     g <- g + momentum b with nesterov, else b
 *     p <- p - lr g
 *
 * Without momentum there is no b. A weight decay of 0 adds nothing: 0 times infinity is NaN. */
#include "elements.h"
#include "optimizers.h"

enum { LR, MOMENTUM, DAMPENING, WEIGHT_DECAY, NESTEROV, MAXIMIZE, N_HYPER };
enum { RATE, KEPT, ADDED, DECAY, SIGN, IS_FIRST, LOOKS_AHEAD };

static const char *const states[] = {"momentum_buffer"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = {"lr", 0.0, CB_HYPER_MOST, false},
    [MOMENTUM] = {"momentum", 0.0, CB_HYPER_MOST, false},
    [DAMPENING] = {"dampening", -CB_HYPER_MOST, CB_HYPER_MOST, false},
    [WEIGHT_DECAY] = {"weight_decay", 0.0, CB_HYPER_MOST, false},
    [NESTEROV] = {"nesterov", 0.0, 1.0, false},
    [MAXIMIZE] = {"maximize", 0.0, 1.0, false},
};

static uint32_t n_used(const double *hyper) { return hyper[MOMENTUM] != 0.0; }

static cb_status check(const double *hyper, uint32_t group, cb_error *err) {
    if (hyper[NESTEROV] == 0.0 || (hyper[MOMENTUM] > 0.0 && hyper[DAMPENING] == 0.0)) return CB_OK;
    return cb_fail(err, CB_INVALID,
                   "sgd: group %u has momentum=%g and dampening=%g; nesterov needs a momentum and "
                   "no dampening",
                   group, hyper[MOMENTUM], hyper[DAMPENING]);
}

static void factors_of(const double *hyper, int64_t t, double *f) {
    f[RATE] = -hyper[LR];
    f[KEPT] = hyper[MOMENTUM];
    f[ADDED] = 1.0 - hyper[DAMPENING];
    f[DECAY] = hyper[WEIGHT_DECAY];
    f[SIGN] = hyper[MAXIMIZE] != 0.0 ? -1.0 : 1.0;
    f[IS_FIRST] = t == 1;
    f[LOOKS_AHEAD] = hyper[NESTEROV];
}

#define DEFINE_UPDATES(real)                                                                     \
    static void plain_##real(const double *f, int64_t n, real *restrict p,                       \
                             const real *restrict g) {                                           \
        const real rate = (real)f[RATE], decay = (real)f[DECAY], sign = (real)f[SIGN];           \
        for (int64_t i = 0; i < n; i++) {                                                        \
            real d = sign * g[i];                                                                \
            if (decay != 0) d += decay * p[i];                                                   \
            p[i] += rate * d;                                                                    \
        }                                                                                        \
    }                                                                                            \
    static void momentum_##real(const double *f, int64_t n, real *restrict p,                    \
                                const real *restrict g, real *restrict b) {                      \
        const real rate = (real)f[RATE], decay = (real)f[DECAY], sign = (real)f[SIGN];           \
        const real kept = (real)f[KEPT], added = (real)f[ADDED];                                 \
        const bool is_first = f[IS_FIRST] != 0.0, looks_ahead = f[LOOKS_AHEAD] != 0.0;           \
        for (int64_t i = 0; i < n; i++) {                                                        \
            real d = sign * g[i];                                                                \
            if (decay != 0) d += decay * p[i];                                                   \
            real b_new = is_first ? d : kept * b[i] + added * d;                                 \
            b[i] = b_new;                                                                        \
            p[i] += rate * (looks_ahead ? d + kept * b_new : b_new);                             \
        }                                                                                        \
    }                                                                                            \
    static void update_##real(const double *f, const cb_optim_row *row, int64_t at, int64_t n) { \
        real *p = (real *)row->param + at;                                                       \
        const real *g = (const real *)row->grad + at;                                            \
        if (f[KEPT] == 0.0) {                                                                    \
            plain_##real(f, n, p, g);                                                            \
        } else {                                                                                 \
            momentum_##real(f, n, p, g, (real *)row->state[0] + at);                             \
        }                                                                                        \
    }
DEFINE_UPDATES(float)
DEFINE_UPDATES(double)

static void update(const double *f, const cb_optim_row *row, int64_t begin, int64_t n) {
    if (row->dtype == CB_F32) {
        update_float(f, row, begin, n);
    } else {
        update_double(f, row, begin, n);
    }
}

static void step(const cb_optim_table *table, cb_threads *pool) {
    cb_step_elements(table, pool, factors_of, update);
}

const cb_optimizer cb_optimizer_sgd = {.name = "sgd",
                                       .n_state = 1,
                                       .n_hyper = N_HYPER,
                                       .state = states,
                                       .hyper = hypers,
                                       .n_used = n_used,
                                       .check = check,
                                       .step = step};
