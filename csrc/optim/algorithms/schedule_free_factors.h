/* schedule_free_factors.h: hyper-parameters of schedule-free AdamW, and the factors of its formula:
 * for the CPU, and for the kernel that works them out on a GPU. Nothing is included. */
#ifndef CB_OPTIM_SCHEDULE_FREE_FACTORS_H
#define CB_OPTIM_SCHEDULE_FREE_FACTORS_H

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, WARMUP, R, POWER, MAXIMIZE, N_HYPER };
enum { WEIGHT_SUM, LR_MAX };

static inline double cb_schedule_free_rate_of(const double *hyper, int64_t t) {
    const double warm = hyper[WARMUP];
    return (double)t < warm ? hyper[LR] * (double)t / warm : hyper[LR];
}

static inline void cb_schedule_free_count_on(const double *hyper, int64_t t, double *number) {
    if (t == 0) number[WEIGHT_SUM] = number[LR_MAX] = 0.0;
    if (t == 0) return;
    number[LR_MAX] = fmax(number[LR_MAX], cb_schedule_free_rate_of(hyper, t));
    number[WEIGHT_SUM] += pow((double)t, hyper[R]) * pow(number[LR_MAX], hyper[POWER]);
}

static inline void cb_schedule_free_factors(const double *hyper, int64_t t, const double *number,
                                            double *f) {
    const double rate = cb_schedule_free_rate_of(hyper, t);
    const double before = number[WEIGHT_SUM];
    double after[] = {before, number[LR_MAX]};
    cb_schedule_free_count_on(hyper, t, after);
    const double sum = after[WEIGHT_SUM], share = sum > 0.0 ? (sum - before) / sum : 0.0;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = 0.0;
    f[CB_SCHEDULE_FREE_STILL] = hyper[WEIGHT_DECAY];
    f[CB_SCHEDULE_FREE_B2] = hyper[BETA2];
    f[CB_SCHEDULE_FREE_A2] = 1.0 - hyper[BETA2];
    f[CB_SCHEDULE_FREE_ROOT] = 1.0 / sqrt(1.0 - cb_power(hyper[BETA2], t));
    f[CB_SCHEDULE_FREE_EPS] = hyper[EPS];
    f[CB_SCHEDULE_FREE_SHARE] = share;
    f[CB_SCHEDULE_FREE_BACK] = rate * (hyper[BETA1] * (1.0 - share) - 1.0);
    f[CB_SCHEDULE_FREE_RATE] = rate;
    f[CB_SCHEDULE_FREE_IS_FIRST] = t == 1;
}

#endif
