/* adopt_factors.h: the hyper-parameters of ADOPT and the factors of its formula, for the CPU and
 * for the kernel that computes them on a GPU. Includes nothing, because device code includes it. */
#ifndef CB_OPTIM_ADOPT_FACTORS_H
#define CB_OPTIM_ADOPT_FACTORS_H

enum { LEARNING_RATE, BETA1, BETA2, EPS, WEIGHT_DECAY, DECOUPLED, CLIP, MAXIMIZE, N_HYPER };

static inline void cb_adopt_factors(const double *hyper, int64_t t, const double *number,
                                    double *factor) {
    (void)number;
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_ADOPT_PARAM_SCALE] = cb_set_weight_decay(
        factor, hyper[LEARNING_RATE], hyper[WEIGHT_DECAY], hyper[DECOUPLED] != 0.0);
    cb_set_decay(&factor[CB_ADOPT_BETA1], hyper[BETA1]);
    cb_set_decay(&factor[CB_ADOPT_BETA2], hyper[BETA2]);
    factor[CB_ADOPT_LEARNING_RATE] = hyper[LEARNING_RATE];
    factor[CB_ADOPT_EPS] = hyper[EPS];
    factor[CB_ADOPT_CLIP_VALUE] =
        hyper[CLIP] != 0.0 ? pow((double)(t - 1), 0.25) : (double)INFINITY;
    factor[CB_ADOPT_IS_FIRST] = t == 1;
}

#endif
