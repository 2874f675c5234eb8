/* rmsprop_factors.h: the hyper-parameters of RMSprop and the factors of its formula, for the CPU
 * and for the kernel that computes them on a GPU. Includes nothing, because device code includes
 * it. */
#ifndef CB_OPTIM_RMSPROP_FACTORS_H
#define CB_OPTIM_RMSPROP_FACTORS_H

enum { LEARNING_RATE, ALPHA, EPS, WEIGHT_DECAY, MOMENTUM, MAXIMIZE, N_HYPER };

static inline void cb_rmsprop_factors(const double *hyper, int64_t t, const double *number,
                                      double *factor) {
    (void)t, (void)number;
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_WEIGHT_DECAY] = hyper[WEIGHT_DECAY];
    cb_set_decay(&factor[CB_RMSPROP_ALPHA], hyper[ALPHA]);
    factor[CB_RMSPROP_LEARNING_RATE] = hyper[LEARNING_RATE];
    factor[CB_RMSPROP_EPS] = hyper[EPS];
    factor[CB_RMSPROP_MOMENTUM] = hyper[MOMENTUM];
}

static inline void cb_rmsprop_centered_factors(const double *hyper, int64_t t, const double *number,
                                               double *factor) {
    cb_rmsprop_factors(hyper, t, number, factor);
}

#endif
