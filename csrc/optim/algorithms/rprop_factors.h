/* rprop_factors.h: hyper-parameters of Rprop, and the factors of its formula: for the
 * CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_RPROP_FACTORS_H
#define CB_OPTIM_RPROP_FACTORS_H

enum { LR, ETAMINUS, ETAPLUS, LEAST, MOST, MAXIMIZE, N_HYPER };

static inline void cb_rprop_factors(const double *hyper, int64_t t, const double *number,
                                    double *f) {
    (void)number;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = 0.0;
    f[CB_RPROP_BEGIN] = t == 1 ? hyper[LR] : 0.0;
    f[CB_RPROP_DOWN] = hyper[ETAMINUS];
    f[CB_RPROP_UP] = hyper[ETAPLUS];
    f[CB_RPROP_LEAST] = hyper[LEAST];
    f[CB_RPROP_MOST] = hyper[MOST];
}

#endif
