/* Schedule-free AdamW (Defazio et al. 2024): no schedule of the learning rate, but a mean x of the
 * points z that plain steps reach; gradients are taken at y = (1 - beta1) z + beta1 x, which is
 * what the parameter is while it is trained.
 *
 *     g <- -g with maximize;  z begins with y
 *     gamma = lr min(1, t / warmup_steps)
 *     weight = t^r max(gamma so far)^weight_lr_power         c = weight / (sum of weights)
 *     v <- beta2 v + (1 - beta2) g^2
 *     u = g / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay y
 *     y <- (1 - c) y + c z + gamma (beta1 (1 - c) - 1) u     z <- z - gamma u */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, WARMUP, R, POWER, MAXIMIZE, N_HYPER };
enum { WEIGHT_SUM, LR_MAX };

static const char *const states[] = {"z", "v"}, *const numbers[] = {"weight_sum", "lr_max"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [WARMUP] = CB_HYPER_LEAST_0("warmup_steps"),
    [R] = CB_HYPER_LEAST_0("r"),
    [POWER] = CB_HYPER_LEAST_0("weight_lr_power"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static double rate_of(const double *hyper, int64_t t) {
    const double warm = hyper[WARMUP];
    return (double)t < warm ? hyper[LR] * (double)t / warm : hyper[LR];
}

static void count_on(const double *hyper, int64_t t, double *number) {
    if (t == 0) number[WEIGHT_SUM] = number[LR_MAX] = 0.0;
    if (t == 0) return;
    number[LR_MAX] = fmax(number[LR_MAX], rate_of(hyper, t));
    number[WEIGHT_SUM] += pow((double)t, hyper[R]) * pow(number[LR_MAX], hyper[POWER]);
}

static void factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    const double rate = rate_of(hyper, row->t);
    const double before = row->number[WEIGHT_SUM];
    double number[] = {before, row->number[LR_MAX]};
    count_on(hyper, row->t, number);
    const double sum = number[WEIGHT_SUM], share = sum > 0.0 ? (sum - before) / sum : 0.0;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = 0.0;
    f[CB_SCHEDULE_FREE_STILL] = hyper[WEIGHT_DECAY];
    f[CB_SCHEDULE_FREE_B2] = hyper[BETA2];
    f[CB_SCHEDULE_FREE_A2] = 1.0 - hyper[BETA2];
    f[CB_SCHEDULE_FREE_ROOT] = 1.0 / sqrt(1.0 - pow(hyper[BETA2], (double)row->t));
    f[CB_SCHEDULE_FREE_EPS] = hyper[EPS];
    f[CB_SCHEDULE_FREE_SHARE] = share;
    f[CB_SCHEDULE_FREE_BACK] = rate * (hyper[BETA1] * (1.0 - share) - 1.0);
    f[CB_SCHEDULE_FREE_RATE] = rate;
    f[CB_SCHEDULE_FREE_IS_FIRST] = row->t == 1;
}

CB_ELEMENTWISE(schedule_free, CB_FORMULA_SCHEDULE_FREE, factors_of, states, hypers,
               .count_on = count_on, .n_number = 2, .number = numbers);
