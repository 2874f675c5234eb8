/* adagrad_factors.h: hyper-parameters of Adagrad, and the factors of its formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_ADAGRAD_FACTORS_H
#define CB_OPTIM_ADAGRAD_FACTORS_H

enum { LR, LR_DECAY, WEIGHT_DECAY, INITIAL, EPS, MAXIMIZE, N_HYPER };

static inline void cb_adagrad_factors(const double *hyper, int64_t t, const double *number,
                                      double *f) {
    (void)number;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_ADAGRAD_FIRST] = t == 1 ? hyper[INITIAL] : 0.0;
    f[CB_ADAGRAD_RATE] = hyper[LR] / (1.0 + (double)(t - 1) * hyper[LR_DECAY]);
    f[CB_ADAGRAD_EPS] = hyper[EPS];
}

#endif
