/* lion_factors.h: the hyper-parameters of Lion and the factors of its formula, for the CPU and for
 * the kernel that computes them on a GPU. Includes nothing, because device code includes it. */
#ifndef CB_OPTIM_LION_FACTORS_H
#define CB_OPTIM_LION_FACTORS_H

enum { LEARNING_RATE, BETA1, BETA2, WEIGHT_DECAY, MAXIMIZE, N_HYPER };

static inline void cb_lion_factors(const double *hyper, int64_t t, const double *number,
                                   double *factor) {
    (void)t, (void)number;
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_LION_PARAM_SCALE] =
        cb_set_weight_decay(factor, hyper[LEARNING_RATE], hyper[WEIGHT_DECAY], true);
    cb_set_decay(&factor[CB_LION_BETA1], hyper[BETA1]);
    cb_set_decay(&factor[CB_LION_BETA2], hyper[BETA2]);
    factor[CB_LION_LEARNING_RATE] = hyper[LEARNING_RATE];
}

#endif
