/* adopt_factors.h: hyper-parameters of ADOPT, and the factors of its formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_ADOPT_FACTORS_H
#define CB_OPTIM_ADOPT_FACTORS_H

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, DECOUPLED, CLIP, MAXIMIZE, N_HYPER };

static inline void cb_adopt_factors(const double *hyper, int64_t t, const double *number,
                                    double *f) {
    (void)number;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_ADOPT_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], hyper[DECOUPLED] != 0.0);
    f[CB_ADOPT_B1] = hyper[BETA1];
    f[CB_ADOPT_A1] = 1.0 - hyper[BETA1];
    f[CB_ADOPT_B2] = hyper[BETA2];
    f[CB_ADOPT_A2] = 1.0 - hyper[BETA2];
    f[CB_ADOPT_RATE] = hyper[LR];
    f[CB_ADOPT_EPS] = hyper[EPS];
    f[CB_ADOPT_MOST] = hyper[CLIP] != 0.0 ? pow((double)(t - 1), 0.25) : (double)INFINITY;
    f[CB_ADOPT_IS_FIRST] = t == 1;
}

#endif
