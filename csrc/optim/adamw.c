/* AdamW (Loshchilov, Hutter 2019).
 *
 *     p <- p * (1 - lr * weight_decay)
 *     m <- beta1 m + (1 - beta1) g         v <- beta2 v + (1 - beta2) g^2
 *     p <- p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 *
 * as it is computed:
 *     m = b1 m + a1 g;  v = b2 v + (a2 g) g;  p = p keep - rate m / (sqrt(v) root + eps) */
#include "elements.h"
#include "optimizers.h"

#include <math.h>

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, N_HYPER };
enum { KEEP, B1, A1, B2, A2, RATE, ROOT, ADDED };

static const char *const states[] = {"m", "v"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = {"lr", 0.0, CB_HYPER_MOST, false},
    [BETA1] = {"beta1", 0.0, 1.0, true},
    [BETA2] = {"beta2", 0.0, 1.0, true},
    [EPS] = {"eps", 0.0, CB_HYPER_MOST, false},
    [WEIGHT_DECAY] = {"weight_decay", 0.0, CB_HYPER_MOST, false},
};

static uint32_t n_used(const double *hyper) {
    (void)hyper;
    return 2;
}

static void factors_of(const double *hyper, int64_t t, double *f) {
    f[KEEP] = 1.0 - hyper[LR] * hyper[WEIGHT_DECAY];
    f[B1] = hyper[BETA1];
    f[A1] = 1.0 - hyper[BETA1];
    f[B2] = hyper[BETA2];
    f[A2] = 1.0 - hyper[BETA2];
    f[RATE] = hyper[LR] / (1.0 - pow(hyper[BETA1], (double)t));
    f[ROOT] = 1.0 / sqrt(1.0 - pow(hyper[BETA2], (double)t));
    f[ADDED] = hyper[EPS];
}

#define DEFINE_UPDATE(name, real, square_root)                                             \
    static void name(const double *f, int64_t n, real *restrict p, const real *restrict g, \
                     real *restrict m, real *restrict v) {                                 \
        const real keep = (real)f[KEEP], b1 = (real)f[B1], a1 = (real)f[A1];               \
        const real b2 = (real)f[B2], a2 = (real)f[A2], rate = (real)f[RATE];               \
        const real root = (real)f[ROOT], eps = (real)f[ADDED];                             \
        for (int64_t i = 0; i < n; i++) {                                                  \
            real m_new = b1 * m[i] + a1 * g[i];                                            \
            real v_new = b2 * v[i] + a2 * g[i] * g[i];                                     \
            m[i] = m_new;                                                                  \
            v[i] = v_new;                                                                  \
            p[i] = p[i] * keep - rate * m_new / (square_root(v_new) * root + eps);         \
        }                                                                                  \
    }
DEFINE_UPDATE(update_f32, float, sqrtf)
DEFINE_UPDATE(update_f64, double, sqrt)

static void update(const double *f, const cb_optim_row *row, int64_t begin, int64_t n) {
    if (row->dtype == CB_F32) {
        update_f32(f, n, (float *)row->param + begin, (const float *)row->grad + begin,
                   (float *)row->state[0] + begin, (float *)row->state[1] + begin);
    } else {
        update_f64(f, n, (double *)row->param + begin, (const double *)row->grad + begin,
                   (double *)row->state[0] + begin, (double *)row->state[1] + begin);
    }
}

static void step(const cb_optim_table *table, cb_threads *pool) {
    cb_step_elements(table, pool, factors_of, update);
}

const cb_optimizer cb_optimizer_adamw = {.name = "adamw",
                                         .n_state = 2,
                                         .n_hyper = N_HYPER,
                                         .state = states,
                                         .hyper = hypers,
                                         .n_used = n_used,
                                         .step = step};
