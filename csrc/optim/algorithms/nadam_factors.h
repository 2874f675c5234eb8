/* nadam_factors.h: the hyper-parameters of NAdam and the factors of its formula, for the CPU and
 * for the kernel that computes them on a GPU. Includes nothing, because device code includes it. */
#ifndef CB_OPTIM_NADAM_FACTORS_H
#define CB_OPTIM_NADAM_FACTORS_H

enum {
    LEARNING_RATE,
    BETA1,
    BETA2,
    EPS,
    WEIGHT_DECAY,
    MOMENTUM_DECAY,
    DECOUPLED,
    MAXIMIZE,
    N_HYPER
};

static inline double cb_nadam_mu_of(const double *hyper, int64_t t) {
    return hyper[BETA1] * (1.0 - 0.5 * pow(0.96, (double)t * hyper[MOMENTUM_DECAY]));
}

static inline void cb_nadam_count_on(const double *hyper, int64_t t, double *number) {
    number[0] = t == 0 ? 1.0 : number[0] * cb_nadam_mu_of(hyper, t);
}

static inline void cb_nadam_factors(const double *hyper, int64_t t, const double *number,
                                    double *factor) {
    const double mu = cb_nadam_mu_of(hyper, t), next_mu = cb_nadam_mu_of(hyper, t + 1);
    const double mu_product = number[0] * mu;
    const double beta2_correction = 1.0 - cb_power(hyper[BETA2], t);
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_NADAM_PARAM_SCALE] = cb_set_weight_decay(
        factor, hyper[LEARNING_RATE], hyper[WEIGHT_DECAY], hyper[DECOUPLED] != 0.0);
    cb_set_decay(&factor[CB_NADAM_BETA1], hyper[BETA1]);
    cb_set_decay(&factor[CB_NADAM_BETA2], hyper[BETA2]);
    factor[CB_NADAM_GRAD_STEP_SIZE] = hyper[LEARNING_RATE] * (1.0 - mu) / (1.0 - mu_product);
    factor[CB_NADAM_EXP_AVG_STEP_SIZE] =
        hyper[LEARNING_RATE] * next_mu / (1.0 - mu_product * next_mu);
    factor[CB_NADAM_ROOT_CORRECTION] = 1.0 / sqrt(beta2_correction);
    factor[CB_NADAM_EPS] = hyper[EPS];
}

#endif
