/* lion_factors.h: hyper-parameters of Lion, and the factors of its formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_LION_FACTORS_H
#define CB_OPTIM_LION_FACTORS_H

enum { LR, BETA1, BETA2, WEIGHT_DECAY, MAXIMIZE, N_HYPER };

static inline void cb_lion_factors(const double *hyper, int64_t t, const double *number,
                                   double *f) {
    (void)t, (void)number;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_LION_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], true);
    f[CB_LION_B1] = hyper[BETA1];
    f[CB_LION_A1] = 1.0 - hyper[BETA1];
    f[CB_LION_B2] = hyper[BETA2];
    f[CB_LION_A2] = 1.0 - hyper[BETA2];
    f[CB_LION_RATE] = hyper[LR];
}

#endif
