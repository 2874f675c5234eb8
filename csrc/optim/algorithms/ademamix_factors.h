/* ademamix_factors.h: the hyper-parameters of AdEMAMix and the factors of its formula, for the CPU
 * and for the kernel that computes them on a GPU. Includes nothing, because device code includes
 * it. */
#ifndef CB_OPTIM_ADEMAMIX_FACTORS_H
#define CB_OPTIM_ADEMAMIX_FACTORS_H

enum {
    LEARNING_RATE,
    BETA1,
    BETA2,
    BETA3,
    ALPHA,
    EPS,
    WEIGHT_DECAY,
    ALPHA_WARMUP,
    BETA3_WARMUP,
    MAXIMIZE,
    N_HYPER
};

/* beta3 grows from beta1 such that the half-life of the average grows linearly. */
static inline double cb_ademamix_beta3_of(const double *hyper, int64_t t) {
    const double part = (double)t / hyper[BETA3_WARMUP];
    if (hyper[BETA3_WARMUP] == 0.0 || part >= 1.0 || hyper[BETA1] == 0.0 || hyper[BETA3] == 0.0)
        return hyper[BETA3];
    const double first = log(hyper[BETA1]), last = log(hyper[BETA3]);
    return fmin(exp(first * last / ((1.0 - part) * last + part * first)), hyper[BETA3]);
}

static inline void cb_ademamix_factors(const double *hyper, int64_t t, const double *number,
                                       double *factor) {
    (void)number;
    const double beta1_correction = 1.0 - cb_power(hyper[BETA1], t);
    const double beta2_correction = 1.0 - cb_power(hyper[BETA2], t);
    const double at = (double)t, beta3 = cb_ademamix_beta3_of(hyper, t);
    const double part = at < hyper[ALPHA_WARMUP] ? at / hyper[ALPHA_WARMUP] : 1.0;
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_ADEMAMIX_PARAM_SCALE] =
        cb_set_weight_decay(factor, hyper[LEARNING_RATE], hyper[WEIGHT_DECAY], true);
    cb_set_decay(&factor[CB_ADEMAMIX_BETA1], hyper[BETA1]);
    cb_set_decay(&factor[CB_ADEMAMIX_BETA2], hyper[BETA2]);
    cb_set_decay(&factor[CB_ADEMAMIX_BETA3], beta3);
    factor[CB_ADEMAMIX_FAST_STEP_SIZE] = hyper[LEARNING_RATE] / beta1_correction;
    factor[CB_ADEMAMIX_SLOW_STEP_SIZE] = hyper[LEARNING_RATE] * hyper[ALPHA] * part;
    factor[CB_ADEMAMIX_ROOT_CORRECTION] = 1.0 / sqrt(beta2_correction);
    factor[CB_ADEMAMIX_EPS] = hyper[EPS];
}

#endif
