/* adamax_factors.h: hyper-parameters of Adamax, and the factors of its formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_ADAMAX_FACTORS_H
#define CB_OPTIM_ADAMAX_FACTORS_H

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MAXIMIZE, N_HYPER };

static inline void cb_adamax_factors(const double *hyper, int64_t t, const double *number,
                                     double *f) {
    (void)number;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_ADAMAX_B1] = hyper[BETA1];
    f[CB_ADAMAX_A1] = 1.0 - hyper[BETA1];
    f[CB_ADAMAX_B2] = hyper[BETA2];
    f[CB_ADAMAX_RATE] = hyper[LR] / (1.0 - cb_power(hyper[BETA1], t));
    f[CB_ADAMAX_EPS] = hyper[EPS];
}

#endif
