/* AdEMAMix (Pagliardini, Ablin, Grangier 2024): Adam with a second, slow mean of gradients, whose
 * share and slowness grow over warm-ups of T_a and T_b steps (0: they are there at once).
 *
 *     g <- -g with maximize
 *     alpha_t = alpha min(1, t / T_a)
 *     beta3_t = min(beta3, exp(ln beta1 ln beta3 / ((1 - t / T_b) ln beta3 + t / T_b ln beta1)))
 *     m <- beta1 m + (1 - beta1) g         l <- beta3_t l + (1 - beta3_t) g
 *     v <- beta2 v + (1 - beta2) g^2
 *     p <- p (1 - lr weight_decay)
 *     p <- p - lr (m / (1 - beta1^t) + alpha_t l) / (sqrt(v / (1 - beta2^t)) + eps) */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

enum { LR, BETA1, BETA2, BETA3, ALPHA, EPS, WEIGHT_DECAY, T_ALPHA, T_BETA3, MAXIMIZE, N_HYPER };

static const char *const states[] = {"m", "l", "v"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = CB_HYPER_LEAST_0("lr"),
    [BETA1] = CB_HYPER_BELOW_1("beta1"),
    [BETA2] = CB_HYPER_BELOW_1("beta2"),
    [BETA3] = CB_HYPER_BELOW_1("beta3"),
    [ALPHA] = CB_HYPER_LEAST_0("alpha"),
    [EPS] = CB_HYPER_LEAST_0("eps"),
    [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [T_ALPHA] = CB_HYPER_LEAST_0("alpha_warmup"),
    [T_BETA3] = CB_HYPER_LEAST_0("beta3_warmup"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

/* From beta1 on, so that the half-life of the mean grows evenly. */
static double beta3_of(const double *hyper, int64_t t) {
    const double part = (double)t / hyper[T_BETA3];
    if (hyper[T_BETA3] == 0.0 || part >= 1.0 || hyper[BETA1] == 0.0 || hyper[BETA3] == 0.0)
        return hyper[BETA3];
    const double first = log(hyper[BETA1]), last = log(hyper[BETA3]);
    return fmin(exp(first * last / ((1.0 - part) * last + part * first)), hyper[BETA3]);
}

static void factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    const double t = (double)row->t, beta3 = beta3_of(hyper, row->t);
    const double part = t < hyper[T_ALPHA] ? t / hyper[T_ALPHA] : 1.0;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_ADEMAMIX_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], true);
    f[CB_ADEMAMIX_B1] = hyper[BETA1];
    f[CB_ADEMAMIX_A1] = 1.0 - hyper[BETA1];
    f[CB_ADEMAMIX_B2] = hyper[BETA2];
    f[CB_ADEMAMIX_A2] = 1.0 - hyper[BETA2];
    f[CB_ADEMAMIX_B3] = beta3;
    f[CB_ADEMAMIX_A3] = 1.0 - beta3;
    f[CB_ADEMAMIX_NOW] = hyper[LR] / (1.0 - pow(hyper[BETA1], t));
    f[CB_ADEMAMIX_PAST] = hyper[LR] * hyper[ALPHA] * part;
    f[CB_ADEMAMIX_ROOT] = 1.0 / sqrt(1.0 - pow(hyper[BETA2], t));
    f[CB_ADEMAMIX_EPS] = hyper[EPS];
}

CB_ELEMENTWISE(ademamix, CB_FORMULA_ADEMAMIX, factors_of, states, hypers);
