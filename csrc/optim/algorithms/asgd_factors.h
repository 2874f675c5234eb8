/* asgd_factors.h: hyper-parameters of ASGD, and the factors of its formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_ASGD_FACTORS_H
#define CB_OPTIM_ASGD_FACTORS_H

enum { LR, LAMBD, ALPHA, T0, WEIGHT_DECAY, MAXIMIZE, N_HYPER };
enum { ETA, MU };

static inline void cb_asgd_count_on(const double *hyper, int64_t t, double *number) {
    number[ETA] = hyper[LR] / pow(1.0 + hyper[LAMBD] * hyper[LR] * (double)t, hyper[ALPHA]);
    number[MU] = 1.0 / fmax(1.0, (double)t - hyper[T0]);
}

static inline void cb_asgd_factors(const double *hyper, int64_t t, const double *number,
                                   double *f) {
    (void)t;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_ASGD_KEEP] = 1.0 - hyper[LAMBD] * number[ETA];
    f[CB_ASGD_RATE] = number[ETA];
    f[CB_ASGD_SHARE] = number[MU];
}

#endif
