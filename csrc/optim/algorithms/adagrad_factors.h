/* adagrad_factors.h: the hyper-parameters of Adagrad and the factors of its formula, for the CPU
 * and for the kernel that computes them on a GPU. Includes nothing, because device code includes
 * it. */
#ifndef CB_OPTIM_ADAGRAD_FACTORS_H
#define CB_OPTIM_ADAGRAD_FACTORS_H

enum {
    LEARNING_RATE,
    LEARNING_RATE_DECAY,
    WEIGHT_DECAY,
    INITIAL_ACCUMULATOR,
    EPS,
    MAXIMIZE,
    N_HYPER
};

static inline void cb_adagrad_factors(const double *hyper, int64_t t, const double *number,
                                      double *factor) {
    (void)number;
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_WEIGHT_DECAY] = hyper[WEIGHT_DECAY];
    factor[CB_ADAGRAD_INITIAL_ACCUMULATOR] = t == 1 ? hyper[INITIAL_ACCUMULATOR] : 0.0;
    factor[CB_ADAGRAD_LEARNING_RATE] =
        hyper[LEARNING_RATE] / (1.0 + (double)(t - 1) * hyper[LEARNING_RATE_DECAY]);
    factor[CB_ADAGRAD_EPS] = hyper[EPS];
}

#endif
