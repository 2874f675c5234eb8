/* adam_factors.h: the hyper-parameters of Adam and AdamW and the factors of their formula, for the
 * CPU and for the kernel that computes them on a GPU. Includes nothing, because device code
 * includes it. */
#ifndef CB_OPTIM_ADAM_FACTORS_H
#define CB_OPTIM_ADAM_FACTORS_H

enum { LEARNING_RATE, BETA1, BETA2, EPS, WEIGHT_DECAY, AMSGRAD, MAXIMIZE, N_HYPER };

static inline void cb_adam_factors(const double *hyper, int64_t t, const double *number,
                                   double *factor) {
    (void)number;
    const double beta1_correction = 1.0 - cb_power(hyper[BETA1], t);
    const double beta2_correction = 1.0 - cb_power(hyper[BETA2], t);
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_ADAM_PARAM_SCALE] =
        cb_set_weight_decay(factor, hyper[LEARNING_RATE], hyper[WEIGHT_DECAY], false);
    cb_set_decay(&factor[CB_ADAM_BETA1], hyper[BETA1]);
    cb_set_decay(&factor[CB_ADAM_BETA2], hyper[BETA2]);
    factor[CB_ADAM_STEP_SIZE] = hyper[LEARNING_RATE] / beta1_correction;
    factor[CB_ADAM_ROOT_CORRECTION] = 1.0 / sqrt(beta2_correction);
    factor[CB_ADAM_EPS] = hyper[EPS];
    factor[CB_ADAM_AMSGRAD] = hyper[AMSGRAD];
}

static inline void cb_adamw_factors(const double *hyper, int64_t t, const double *number,
                                    double *factor) {
    cb_adam_factors(hyper, t, number, factor);
    factor[CB_ADAM_PARAM_SCALE] =
        cb_set_weight_decay(factor, hyper[LEARNING_RATE], hyper[WEIGHT_DECAY], true);
}

/* Of AdamW with 8-bit moments; its hyper-parameters are Adam's without AMSGRAD. */
enum { EIGHT_MAXIMIZE = AMSGRAD, N_EIGHT };
static inline void cb_adamw_8bit_factors(const double *hyper, int64_t t, const double *number,
                                         double *factor) {
    const double least_eps = 0x1p-126;
    double adam[N_HYPER] = {0};
    for (int i = 0; i < AMSGRAD; i++) adam[i] = hyper[i];
    adam[MAXIMIZE] = hyper[EIGHT_MAXIMIZE];
    cb_adamw_factors(adam, t, number, factor);
    /* With eps = 0, the update of an element that never had a gradient would be 0 / 0. */
    if (!(factor[CB_ADAM_EPS] > least_eps)) factor[CB_ADAM_EPS] = least_eps;
    factor[CB_ADAMW_8BIT_NOISE_SEED] = (double)((uint32_t)t * 0x9E3779B9u);
}

#endif
