/* sgd_factors.h: the hyper-parameters of SGD and the factors of its formula, for the CPU and for
 * the kernel that computes them on a GPU. Includes nothing, because device code includes it. */
#ifndef CB_OPTIM_SGD_FACTORS_H
#define CB_OPTIM_SGD_FACTORS_H

enum { LEARNING_RATE, MOMENTUM, DAMPENING, WEIGHT_DECAY, NESTEROV, MAXIMIZE, N_HYPER };

static inline void cb_sgd_factors(const double *hyper, int64_t t, const double *number,
                                  double *factor) {
    (void)number;
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_WEIGHT_DECAY] = hyper[WEIGHT_DECAY];
    factor[CB_SGD_NEGATIVE_LEARNING_RATE] = -hyper[LEARNING_RATE];
    factor[CB_SGD_MOMENTUM] = hyper[MOMENTUM];
    factor[CB_SGD_ONE_MINUS_DAMPENING] = 1.0 - hyper[DAMPENING];
    factor[CB_SGD_IS_FIRST] = t == 1;
    factor[CB_SGD_NESTEROV] = hyper[NESTEROV];
}

#endif
