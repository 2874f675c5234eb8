/* RAdam (Liu et al. 2020): Adam whose step is not divided by the root of v until v is known well
 * enough, and from then on is shortened by how well.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p, or decoupled: p <- p (1 - lr weight_decay)
 *     m <- beta1 m + (1 - beta1) g         v <- beta2 v + (1 - beta2) g^2
 *     rho_inf = 2 / (1 - beta2) - 1        rho = rho_inf - 2 t beta2^t / (1 - beta2^t)
 *     r = sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho))
 *     rho > 5:  p <- p - lr m / (1 - beta1^t) r sqrt(1 - beta2^t) / (sqrt(v) + eps)
 *     else      p <- p - lr m / (1 - beta1^t) */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, DECOUPLED, MAXIMIZE, N_HYPER };

static const char *const states[] = {"m", "v"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [DECOUPLED] = CB_HYPER_FLAG("decoupled_weight_decay"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static void factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    const double correction = 1.0 - pow(hyper[BETA2], (double)row->t);
    const double most = 2.0 / (1.0 - hyper[BETA2]) - 1.0;
    const double rho = most - 2.0 * (double)row->t * pow(hyper[BETA2], (double)row->t) / correction;
    const bool rectified = rho > 5.0;
    f[CB_RADAM_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], hyper[DECOUPLED] != 0.0);
    f[CB_RADAM_B1] = hyper[BETA1];
    f[CB_RADAM_A1] = 1.0 - hyper[BETA1];
    f[CB_RADAM_B2] = hyper[BETA2];
    f[CB_RADAM_A2] = 1.0 - hyper[BETA2];
    f[CB_RADAM_RATE] = hyper[LR] / (1.0 - pow(hyper[BETA1], (double)row->t));
    f[CB_RADAM_EPS] = hyper[EPS];
    f[CB_RADAM_RECTIFIED] = rectified;
    if (rectified) {
        const double short_by = (rho - 4.0) * (rho - 2.0) * most;
        f[CB_RADAM_RATE] *= sqrt(correction * short_by / ((most - 4.0) * (most - 2.0) * rho));
    }
}

CB_ELEMENTWISE(radam, CB_FORMULA_RADAM, factors_of, states, hypers);
