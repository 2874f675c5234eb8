/* asgd_factors.h: the hyper-parameters of ASGD and the factors of its formula, for the CPU and for
 * the kernel that computes them on a GPU. Includes nothing, because device code includes it. */
#ifndef CB_OPTIM_ASGD_FACTORS_H
#define CB_OPTIM_ASGD_FACTORS_H

enum { LEARNING_RATE, LAMBD, ALPHA, T0, WEIGHT_DECAY, MAXIMIZE, N_HYPER };
enum { ETA, MU };

static inline void cb_asgd_count_on(const double *hyper, int64_t t, double *number) {
    number[ETA] = hyper[LEARNING_RATE] /
                  pow(1.0 + hyper[LAMBD] * hyper[LEARNING_RATE] * (double)t, hyper[ALPHA]);
    number[MU] = 1.0 / fmax(1.0, (double)t - hyper[T0]);
}

static inline void cb_asgd_factors(const double *hyper, int64_t t, const double *number,
                                   double *factor) {
    (void)t;
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_WEIGHT_DECAY] = hyper[WEIGHT_DECAY];
    factor[CB_ASGD_PARAM_SCALE] = 1.0 - hyper[LAMBD] * number[ETA];
    factor[CB_ASGD_ETA] = number[ETA];
    factor[CB_ASGD_MU] = number[MU];
}

#endif
