/* ADOPT (Taniguchi et al. 2024), with the clipping of its second version: Adam that divides by the
 * root of v before it takes the mean, and by a v that has not seen the gradient.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p, or decoupled: p <- p (1 - lr weight_decay)
 *     t = 1: v <- g^2, and nothing else; from then on
 *     u = g / max(sqrt(v), eps), with clip within (t - 1)^(1/4) of 0
 *     m <- beta1 m + (1 - beta1) u         p <- p - lr m
 *     v <- beta2 v + (1 - beta2) g^2 */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, DECOUPLED, CLIP, MAXIMIZE, N_HYPER };

static const char *const states[] = {"m", "v"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [DECOUPLED] = CB_HYPER_FLAG("decoupled_weight_decay"),
    [CLIP] = CB_HYPER_FLAG("clip"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static void factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_ADOPT_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], hyper[DECOUPLED] != 0.0);
    f[CB_ADOPT_B1] = hyper[BETA1];
    f[CB_ADOPT_A1] = 1.0 - hyper[BETA1];
    f[CB_ADOPT_B2] = hyper[BETA2];
    f[CB_ADOPT_A2] = 1.0 - hyper[BETA2];
    f[CB_ADOPT_RATE] = hyper[LR];
    f[CB_ADOPT_EPS] = hyper[EPS];
    f[CB_ADOPT_MOST] = hyper[CLIP] != 0.0 ? pow((double)(row->t - 1), 0.25) : (double)INFINITY;
    f[CB_ADOPT_IS_FIRST] = row->t == 1;
}

CB_ELEMENTWISE(adopt, CB_FORMULA_ADOPT, factors_of, states, hypers);
