/* rmsprop_factors.h: hyper-parameters of RMSprop, and the factors of its formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_RMSPROP_FACTORS_H
#define CB_OPTIM_RMSPROP_FACTORS_H

enum { LR, ALPHA, EPS, WEIGHT_DECAY, MOMENTUM, MAXIMIZE, N_HYPER };

static inline void cb_rmsprop_factors(const double *hyper, int64_t t, const double *number,
                                      double *f) {
    (void)t, (void)number;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_RMSPROP_ALPHA] = hyper[ALPHA];
    f[CB_RMSPROP_REST] = 1.0 - hyper[ALPHA];
    f[CB_RMSPROP_RATE] = hyper[LR];
    f[CB_RMSPROP_EPS] = hyper[EPS];
    f[CB_RMSPROP_KEPT] = hyper[MOMENTUM];
}

static inline void cb_rmsprop_centered_factors(const double *hyper, int64_t t, const double *number,
                                               double *f) {
    cb_rmsprop_factors(hyper, t, number, f);
}

#endif
