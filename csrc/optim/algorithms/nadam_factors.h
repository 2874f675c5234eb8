/* nadam_factors.h: hyper-parameters of NAdam, and the factors of its formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_NADAM_FACTORS_H
#define CB_OPTIM_NADAM_FACTORS_H

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MOMENTUM_DECAY, DECOUPLED, MAXIMIZE, N_HYPER };

static inline double cb_nadam_mu_of(const double *hyper, int64_t t) {
    return hyper[BETA1] * (1.0 - 0.5 * pow(0.96, (double)t * hyper[MOMENTUM_DECAY]));
}

static inline void cb_nadam_count_on(const double *hyper, int64_t t, double *number) {
    number[0] = t == 0 ? 1.0 : number[0] * cb_nadam_mu_of(hyper, t);
}

static inline void cb_nadam_factors(const double *hyper, int64_t t, const double *number,
                                    double *f) {
    const double mu = cb_nadam_mu_of(hyper, t), next = cb_nadam_mu_of(hyper, t + 1);
    const double product = number[0] * mu;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_NADAM_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], hyper[DECOUPLED] != 0.0);
    f[CB_NADAM_B1] = hyper[BETA1];
    f[CB_NADAM_A1] = 1.0 - hyper[BETA1];
    f[CB_NADAM_B2] = hyper[BETA2];
    f[CB_NADAM_A2] = 1.0 - hyper[BETA2];
    f[CB_NADAM_NOW] = hyper[LR] * (1.0 - mu) / (1.0 - product);
    f[CB_NADAM_PAST] = hyper[LR] * next / (1.0 - product * next);
    f[CB_NADAM_ROOT] = 1.0 / sqrt(1.0 - cb_power(hyper[BETA2], t));
    f[CB_NADAM_EPS] = hyper[EPS];
}

#endif
