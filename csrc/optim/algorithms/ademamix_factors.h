/* ademamix_factors.h: hyper-parameters of AdEMAMix, and the factors of its formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_ADEMAMIX_FACTORS_H
#define CB_OPTIM_ADEMAMIX_FACTORS_H

enum { LR, BETA1, BETA2, BETA3, ALPHA, EPS, WEIGHT_DECAY, T_ALPHA, T_BETA3, MAXIMIZE, N_HYPER };

/* From beta1 on, so that the half-life of the mean grows evenly. */
static inline double cb_ademamix_beta3_of(const double *hyper, int64_t t) {
    const double part = (double)t / hyper[T_BETA3];
    if (hyper[T_BETA3] == 0.0 || part >= 1.0 || hyper[BETA1] == 0.0 || hyper[BETA3] == 0.0)
        return hyper[BETA3];
    const double first = log(hyper[BETA1]), last = log(hyper[BETA3]);
    return fmin(exp(first * last / ((1.0 - part) * last + part * first)), hyper[BETA3]);
}

static inline void cb_ademamix_factors(const double *hyper, int64_t t, const double *number,
                                       double *f) {
    (void)number;
    const double at = (double)t, beta3 = cb_ademamix_beta3_of(hyper, t);
    const double part = at < hyper[T_ALPHA] ? at / hyper[T_ALPHA] : 1.0;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_ADEMAMIX_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], true);
    f[CB_ADEMAMIX_B1] = hyper[BETA1];
    f[CB_ADEMAMIX_A1] = 1.0 - hyper[BETA1];
    f[CB_ADEMAMIX_B2] = hyper[BETA2];
    f[CB_ADEMAMIX_A2] = 1.0 - hyper[BETA2];
    f[CB_ADEMAMIX_B3] = beta3;
    f[CB_ADEMAMIX_A3] = 1.0 - beta3;
    f[CB_ADEMAMIX_NOW] = hyper[LR] / (1.0 - cb_power(hyper[BETA1], t));
    f[CB_ADEMAMIX_PAST] = hyper[LR] * hyper[ALPHA] * part;
    f[CB_ADEMAMIX_ROOT] = 1.0 / sqrt(1.0 - cb_power(hyper[BETA2], t));
    f[CB_ADEMAMIX_EPS] = hyper[EPS];
}

#endif
