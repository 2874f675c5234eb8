/* radam_factors.h: hyper-parameters of RAdam, and the factors of its formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_RADAM_FACTORS_H
#define CB_OPTIM_RADAM_FACTORS_H

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, DECOUPLED, MAXIMIZE, N_HYPER };

static inline void cb_radam_factors(const double *hyper, int64_t t, const double *number,
                                    double *f) {
    (void)number;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    const double correction = 1.0 - cb_power(hyper[BETA2], t);
    const double most = 2.0 / (1.0 - hyper[BETA2]) - 1.0;
    const double rho = most - 2.0 * (double)t * cb_power(hyper[BETA2], t) / correction;
    const bool rectified = rho > 5.0;
    f[CB_RADAM_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], hyper[DECOUPLED] != 0.0);
    f[CB_RADAM_B1] = hyper[BETA1];
    f[CB_RADAM_A1] = 1.0 - hyper[BETA1];
    f[CB_RADAM_B2] = hyper[BETA2];
    f[CB_RADAM_A2] = 1.0 - hyper[BETA2];
    f[CB_RADAM_RATE] = hyper[LR] / (1.0 - cb_power(hyper[BETA1], t));
    f[CB_RADAM_EPS] = hyper[EPS];
    f[CB_RADAM_RECTIFIED] = rectified;
    if (rectified) {
        const double short_by = (rho - 4.0) * (rho - 2.0) * most;
        f[CB_RADAM_RATE] *= sqrt(correction * short_by / ((most - 4.0) * (most - 2.0) * rho));
    }
}

#endif
