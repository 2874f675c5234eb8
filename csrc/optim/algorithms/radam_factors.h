/* radam_factors.h: the hyper-parameters of RAdam and the factors of its formula, for the CPU and
 * for the kernel that computes them on a GPU. Includes nothing, because device code includes it. */
#ifndef CB_OPTIM_RADAM_FACTORS_H
#define CB_OPTIM_RADAM_FACTORS_H

enum { LEARNING_RATE, BETA1, BETA2, EPS, WEIGHT_DECAY, DECOUPLED, MAXIMIZE, N_HYPER };

static inline void cb_radam_factors(const double *hyper, int64_t t, const double *number,
                                    double *factor) {
    (void)number;
    const double beta1_correction = 1.0 - cb_power(hyper[BETA1], t);
    const double beta2_correction = 1.0 - cb_power(hyper[BETA2], t);
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    const double rho_inf = 2.0 / (1.0 - hyper[BETA2]) - 1.0;
    const double rho = rho_inf - 2.0 * (double)t * cb_power(hyper[BETA2], t) / beta2_correction;
    const bool rectified = rho > 5.0;
    factor[CB_RADAM_PARAM_SCALE] = cb_set_weight_decay(
        factor, hyper[LEARNING_RATE], hyper[WEIGHT_DECAY], hyper[DECOUPLED] != 0.0);
    cb_set_decay(&factor[CB_RADAM_BETA1], hyper[BETA1]);
    cb_set_decay(&factor[CB_RADAM_BETA2], hyper[BETA2]);
    factor[CB_RADAM_STEP_SIZE] = hyper[LEARNING_RATE] / beta1_correction;
    factor[CB_RADAM_EPS] = hyper[EPS];
    factor[CB_RADAM_RECTIFIED] = rectified;
    if (rectified) {
        const double numerator = (rho - 4.0) * (rho - 2.0) * rho_inf;
        const double denominator = (rho_inf - 4.0) * (rho_inf - 2.0) * rho;
        factor[CB_RADAM_STEP_SIZE] *= sqrt(beta2_correction * numerator / denominator);
    }
}

#endif
