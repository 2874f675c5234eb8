/* adam_factors.h: hyper-parameters of Adam and AdamW, and the factors of their formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_ADAM_FACTORS_H
#define CB_OPTIM_ADAM_FACTORS_H

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, AMSGRAD, MAXIMIZE, N_HYPER };

static inline void cb_adam_factors(const double *hyper, int64_t t, const double *number,
                                   double *f) {
    (void)number;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_ADAM_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], false);
    f[CB_ADAM_B1] = hyper[BETA1];
    f[CB_ADAM_A1] = 1.0 - hyper[BETA1];
    f[CB_ADAM_B2] = hyper[BETA2];
    f[CB_ADAM_A2] = 1.0 - hyper[BETA2];
    f[CB_ADAM_RATE] = hyper[LR] / (1.0 - cb_power(hyper[BETA1], t));
    f[CB_ADAM_ROOT] = 1.0 / sqrt(1.0 - cb_power(hyper[BETA2], t));
    f[CB_ADAM_EPS] = hyper[EPS];
    f[CB_ADAM_AMS] = hyper[AMSGRAD];
}

static inline void cb_adamw_factors(const double *hyper, int64_t t, const double *number,
                                    double *f) {
    cb_adam_factors(hyper, t, number, f);
    f[CB_ADAM_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], true);
}

#endif
