/* sgd_factors.h: hyper-parameters of SGD, and the factors of its formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_SGD_FACTORS_H
#define CB_OPTIM_SGD_FACTORS_H

enum { LR, MOMENTUM, DAMPENING, WEIGHT_DECAY, NESTEROV, MAXIMIZE, N_HYPER };

static inline void cb_sgd_factors(const double *hyper, int64_t t, const double *number, double *f) {
    (void)number;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_SGD_RATE] = -hyper[LR];
    f[CB_SGD_KEPT] = hyper[MOMENTUM];
    f[CB_SGD_ADDED] = 1.0 - hyper[DAMPENING];
    f[CB_SGD_IS_FIRST] = t == 1;
    f[CB_SGD_AHEAD] = hyper[NESTEROV];
}

#endif
