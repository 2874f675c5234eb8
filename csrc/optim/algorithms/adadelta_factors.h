/* adadelta_factors.h: the hyper-parameters of Adadelta and the factors of its formula, for the CPU
 * and for the kernel that computes them on a GPU. Includes nothing, because device code includes
 * it. */
#ifndef CB_OPTIM_ADADELTA_FACTORS_H
#define CB_OPTIM_ADADELTA_FACTORS_H

enum { LEARNING_RATE, RHO, EPS, WEIGHT_DECAY, MAXIMIZE, N_HYPER };

static inline void cb_adadelta_factors(const double *hyper, int64_t t, const double *number,
                                       double *factor) {
    (void)t, (void)number;
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_WEIGHT_DECAY] = hyper[WEIGHT_DECAY];
    cb_set_decay(&factor[CB_ADADELTA_RHO], hyper[RHO]);
    factor[CB_ADADELTA_LEARNING_RATE] = hyper[LEARNING_RATE];
    factor[CB_ADADELTA_EPS] = hyper[EPS];
}

#endif
