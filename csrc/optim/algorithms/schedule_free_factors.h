/* schedule_free_factors.h: the hyper-parameters of schedule-free AdamW and the factors of its
 * formula, for the CPU and for the kernel that computes them on a GPU. Includes nothing, because
 * device code includes it. */
#ifndef CB_OPTIM_SCHEDULE_FREE_FACTORS_H
#define CB_OPTIM_SCHEDULE_FREE_FACTORS_H

enum {
    LEARNING_RATE,
    BETA1,
    BETA2,
    EPS,
    WEIGHT_DECAY,
    WARMUP_STEPS,
    TIME_POWER,
    WEIGHT_LR_POWER,
    MAXIMIZE,
    N_HYPER
};
enum { WEIGHT_SUM, LR_MAX };

static inline double cb_schedule_free_learning_rate_of(const double *hyper, int64_t t) {
    const double warmup_steps = hyper[WARMUP_STEPS];
    return (double)t < warmup_steps ? hyper[LEARNING_RATE] * (double)t / warmup_steps
                                    : hyper[LEARNING_RATE];
}

static inline void cb_schedule_free_count_on(const double *hyper, int64_t t, double *number) {
    if (t == 0) number[WEIGHT_SUM] = number[LR_MAX] = 0.0;
    if (t == 0) return;
    number[LR_MAX] = fmax(number[LR_MAX], cb_schedule_free_learning_rate_of(hyper, t));
    number[WEIGHT_SUM] +=
        pow((double)t, hyper[TIME_POWER]) * pow(number[LR_MAX], hyper[WEIGHT_LR_POWER]);
}

static inline void cb_schedule_free_factors(const double *hyper, int64_t t, const double *number,
                                            double *factor) {
    const double beta2_correction = 1.0 - cb_power(hyper[BETA2], t);
    const double learning_rate = cb_schedule_free_learning_rate_of(hyper, t);
    const double before = number[WEIGHT_SUM];
    double after[] = {before, number[LR_MAX]};
    cb_schedule_free_count_on(hyper, t, after);
    const double sum = after[WEIGHT_SUM], average_weight = sum > 0.0 ? (sum - before) / sum : 0.0;
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    factor[CB_WEIGHT_DECAY] = 0.0;
    factor[CB_SCHEDULE_FREE_DECOUPLED_DECAY] = hyper[WEIGHT_DECAY];
    cb_set_decay(&factor[CB_SCHEDULE_FREE_BETA2], hyper[BETA2]);
    factor[CB_SCHEDULE_FREE_ROOT_CORRECTION] = 1.0 / sqrt(beta2_correction);
    factor[CB_SCHEDULE_FREE_EPS] = hyper[EPS];
    factor[CB_SCHEDULE_FREE_AVERAGE_WEIGHT] = average_weight;
    factor[CB_SCHEDULE_FREE_PARAM_STEP_SIZE] =
        learning_rate * (hyper[BETA1] * (1.0 - average_weight) - 1.0);
    factor[CB_SCHEDULE_FREE_LEARNING_RATE] = learning_rate;
    factor[CB_SCHEDULE_FREE_IS_FIRST] = t == 1;
}

#endif
