/* rprop_factors.h: the hyper-parameters of Rprop and the factors of its formula, for the CPU and
 * for the kernel that computes them on a GPU. Includes nothing, because device code includes it. */
#ifndef CB_OPTIM_RPROP_FACTORS_H
#define CB_OPTIM_RPROP_FACTORS_H

enum { LEARNING_RATE, ETA_MINUS, ETA_PLUS, STEP_SIZE_MIN, STEP_SIZE_MAX, MAXIMIZE, N_HYPER };

static inline void cb_rprop_factors(const double *hyper, int64_t t, const double *number,
                                    double *factor) {
    (void)number;
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_WEIGHT_DECAY] = 0.0;
    factor[CB_RPROP_INITIAL_STEP_SIZE] = t == 1 ? hyper[LEARNING_RATE] : 0.0;
    factor[CB_RPROP_ETA_MINUS] = hyper[ETA_MINUS];
    factor[CB_RPROP_ETA_PLUS] = hyper[ETA_PLUS];
    factor[CB_RPROP_STEP_SIZE_MIN] = hyper[STEP_SIZE_MIN];
    factor[CB_RPROP_STEP_SIZE_MAX] = hyper[STEP_SIZE_MAX];
}

#endif
