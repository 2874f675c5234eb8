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

#endif
