/* Schedule-free AdamW (Defazio et al. 2024) replaces the learning-rate schedule by an average x of
 * the points z that plain steps reach. Gradients are taken at y = (1 - beta1) z + beta1 x, which is
 * the value of the parameter during training.
 *
 *     g <- -g with maximize;  z starts at y
 *     gamma = lr min(1, t / warmup_steps)
 *     weight = t^r max(gamma so far)^weight_lr_power         c = weight / (sum of weights)
 *     v <- beta2 v + (1 - beta2) g^2
 *     u = g / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay y
 *     y <- (1 - c) y + c z + gamma (beta1 (1 - c) - 1) u     z <- z - gamma u */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

#include "schedule_free_factors.h"

static const char *const states[] = {"z", "v"}, *const numbers[] = {"weight_sum", "lr_max"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [WARMUP_STEPS] = CB_HYPER_LEAST_0("warmup_steps"),
    [TIME_POWER] = CB_HYPER_LEAST_0("r"),
    [WEIGHT_LR_POWER] = CB_HYPER_LEAST_0("weight_lr_power"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

CB_ELEMENTWISE(schedule_free, CB_FORMULA_SCHEDULE_FREE, cb_schedule_free_factors, states, hypers,
               .count_on = cb_schedule_free_count_on, .n_number = 2, .number = numbers);
