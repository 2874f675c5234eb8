/* RAdam (Liu et al. 2020): Adam whose step is not divided by the root of v until v is known well
 * enough, and from then on is shortened by how well.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p, or decoupled: p <- p (1 - lr weight_decay)
 *     m <- beta1 m + (1 - beta1) g         v <- beta2 v + (1 - beta2) g^2
 *     rho_inf = 2 / (1 - beta2) - 1        rho = rho_inf - 2 t beta2^t / (1 - beta2^t)
 *     r = sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho))
 *     rho > 5:  p <- p - lr m / (1 - beta1^t) r sqrt(1 - beta2^t) / (sqrt(v) + eps)
 *     else      p <- p - lr m / (1 - beta1^t) */
#include "elements.h"
#include "optimizers.h"

#include <math.h>

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, DECOUPLED, MAXIMIZE, N_HYPER };

static const char *const states[] = {"m", "v"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = {"lr", 0.0, CB_HYPER_MOST, false},
    [BETA1] = {"beta1", 0.0, 1.0, true},
    [BETA2] = {"beta2", 0.0, 1.0, true},
    [EPS] = {"eps", 0.0, CB_HYPER_MOST, false},
    [WEIGHT_DECAY] = {"weight_decay", 0.0, CB_HYPER_MOST, false},
    [DECOUPLED] = {"decoupled_weight_decay", 0.0, 1.0, false},
    [MAXIMIZE] = {"maximize", 0.0, 1.0, false},
};

static uint32_t n_used(const double *hyper) {
    (void)hyper;
    return 2;
}

static void factors_of(const double *hyper, int64_t t, double *f) {
    f[CB_GRAD_SCALE] = hyper[MAXIMIZE] != 0.0 ? -1.0 : 1.0;
    const double correction = 1.0 - pow(hyper[BETA2], (double)t);
    const double most = 2.0 / (1.0 - hyper[BETA2]) - 1.0;
    const double rho = most - 2.0 * (double)t * pow(hyper[BETA2], (double)t) / correction;
    const bool decoupled = hyper[DECOUPLED] != 0.0, rectified = rho > 5.0;
    f[CB_RADAM_DECAY] = decoupled ? 0.0 : hyper[WEIGHT_DECAY];
    f[CB_RADAM_KEEP] = decoupled ? 1.0 - hyper[LR] * hyper[WEIGHT_DECAY] : 1.0;
    f[CB_RADAM_B1] = hyper[BETA1];
    f[CB_RADAM_A1] = 1.0 - hyper[BETA1];
    f[CB_RADAM_B2] = hyper[BETA2];
    f[CB_RADAM_A2] = 1.0 - hyper[BETA2];
    f[CB_RADAM_RATE] = hyper[LR] / (1.0 - pow(hyper[BETA1], (double)t));
    f[CB_RADAM_EPS] = hyper[EPS];
    f[CB_RADAM_RECTIFIED] = rectified;
    if (rectified) {
        const double short_by = (rho - 4.0) * (rho - 2.0) * most;
        f[CB_RADAM_RATE] *= sqrt(correction * short_by / ((most - 4.0) * (most - 2.0) * rho));
    }
}

static void step(const cb_optim_table *table, cb_threads *pool) {
    cb_step_elements(table, pool, factors_of, CB_FORMULA_RADAM);
}

const cb_optimizer cb_optimizer_radam = {.name = "radam",
                                         .n_state = 2,
                                         .n_hyper = N_HYPER,
                                         .state = states,
                                         .hyper = hypers,
                                         .n_used = n_used,
                                         .step = step};
