/* adadelta_factors.h: hyper-parameters of Adadelta, and the factors of its formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_ADADELTA_FACTORS_H
#define CB_OPTIM_ADADELTA_FACTORS_H

enum { LR, RHO, EPS, WEIGHT_DECAY, MAXIMIZE, N_HYPER };

static inline void cb_adadelta_factors(const double *hyper, int64_t t, const double *number,
                                       double *f) {
    (void)t, (void)number;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_ADADELTA_RHO] = hyper[RHO];
    f[CB_ADADELTA_REST] = 1.0 - hyper[RHO];
    f[CB_ADADELTA_RATE] = hyper[LR];
    f[CB_ADADELTA_EPS] = hyper[EPS];
}

#endif
