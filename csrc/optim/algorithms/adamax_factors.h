/* adamax_factors.h: the hyper-parameters of Adamax and the factors of its formula, for the CPU and
 * for the kernel that computes them on a GPU. Includes nothing, because device code includes it. */
#ifndef CB_OPTIM_ADAMAX_FACTORS_H
#define CB_OPTIM_ADAMAX_FACTORS_H

enum { LEARNING_RATE, BETA1, BETA2, EPS, WEIGHT_DECAY, MAXIMIZE, N_HYPER };

static inline void cb_adamax_factors(const double *hyper, int64_t t, const double *number,
                                     double *factor) {
    (void)number;
    const double beta1_correction = 1.0 - cb_power(hyper[BETA1], t);
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_WEIGHT_DECAY] = hyper[WEIGHT_DECAY];
    cb_set_decay(&factor[CB_ADAMAX_BETA1], hyper[BETA1]);
    factor[CB_ADAMAX_BETA2] = hyper[BETA2];
    factor[CB_ADAMAX_STEP_SIZE] = hyper[LEARNING_RATE] / beta1_correction;
    factor[CB_ADAMAX_EPS] = hyper[EPS];
}

#endif
