/* formula_factors.h: the formulas by name, and the meaning of their factors. Includes nothing of
 * the core, because kernels for a GPU include it too. */
#ifndef CB_OPTIM_FORMULA_FACTORS_H
#define CB_OPTIM_FORMULA_FACTORS_H

#include <math.h>
#include <stdint.h>

#define CB_MAX_FACTORS 16

/* Factors are the constants of a formula: the same for all elements of a row. The first two belong
 * to every formula. Below, `grad` is grad_scale * gradient + weight_decay * param. */
enum { CB_GRAD_SCALE = 0, CB_WEIGHT_DECAY, CB_FIRST };

/* exp_avg = beta1 exp_avg + one_minus_beta1 grad, computed as an interpolation (CB_LERP);
 * exp_avg_sq = beta2 exp_avg_sq + (one_minus_beta2 grad) grad;
 * with amsgrad, max_exp_avg_sq = max(max_exp_avg_sq, exp_avg_sq) replaces exp_avg_sq below;
 * param = param param_scale - step_size exp_avg / (sqrt(exp_avg_sq) root_correction + eps). */
enum {
    CB_ADAM_PARAM_SCALE = CB_FIRST,
    CB_ADAM_BETA1,
    CB_ADAM_ONE_MINUS_BETA1,
    CB_ADAM_BETA2,
    CB_ADAM_ONE_MINUS_BETA2,
    CB_ADAM_STEP_SIZE,
    CB_ADAM_ROOT_CORRECTION,
    CB_ADAM_EPS,
    CB_ADAM_AMSGRAD
};

/* momentum_buffer = momentum momentum_buffer + one_minus_dampening grad, or grad at the first step;
 * grad = grad + momentum momentum_buffer with nesterov, else momentum_buffer;
 * param = param + negative_learning_rate grad. There is no buffer if momentum is 0. */
enum {
    CB_SGD_NEGATIVE_LEARNING_RATE = CB_FIRST,
    CB_SGD_MOMENTUM,
    CB_SGD_ONE_MINUS_DAMPENING,
    CB_SGD_IS_FIRST,
    CB_SGD_NESTEROV
};

/* exp_avg and exp_avg_sq as above;
 * param = param param_scale - step_size exp_avg / (sqrt(exp_avg_sq) + eps), or
 * param = param param_scale - step_size exp_avg where the variance is not yet rectified. */
enum {
    CB_RADAM_PARAM_SCALE = CB_FIRST,
    CB_RADAM_BETA1,
    CB_RADAM_ONE_MINUS_BETA1,
    CB_RADAM_BETA2,
    CB_RADAM_ONE_MINUS_BETA2,
    CB_RADAM_STEP_SIZE,
    CB_RADAM_EPS,
    CB_RADAM_RECTIFIED
};

/* exp_avg as above; exp_inf = max(beta2 exp_inf, |grad| + eps);
 * param = param - step_size exp_avg / exp_inf. */
enum {
    CB_ADAMAX_BETA1 = CB_FIRST,
    CB_ADAMAX_ONE_MINUS_BETA1,
    CB_ADAMAX_BETA2,
    CB_ADAMAX_STEP_SIZE,
    CB_ADAMAX_EPS
};

/* sum = sum + initial_accumulator + grad grad;
 * param = param - learning_rate grad / (sqrt(sum) + eps). */
enum { CB_ADAGRAD_INITIAL_ACCUMULATOR = CB_FIRST, CB_ADAGRAD_LEARNING_RATE, CB_ADAGRAD_EPS };

/* square_avg = rho square_avg + (one_minus_rho grad) grad;
 * delta = sqrt(acc_delta + eps) / sqrt(square_avg + eps) grad;
 * acc_delta = rho acc_delta + (one_minus_rho delta) delta;
 * param = param - learning_rate delta. */
enum {
    CB_ADADELTA_RHO = CB_FIRST,
    CB_ADADELTA_ONE_MINUS_RHO,
    CB_ADADELTA_LEARNING_RATE,
    CB_ADADELTA_EPS
};

/* square_avg = alpha square_avg + (one_minus_alpha grad) grad;
 * centered: grad_avg = alpha grad_avg + one_minus_alpha grad, computed as an interpolation, and
 * square_avg - grad_avg grad_avg replaces square_avg below;
 * update = grad / (sqrt(square_avg) + eps);
 * with momentum, momentum_buffer = momentum momentum_buffer + update replaces update;
 * param = param - learning_rate update.
 * States: square_avg, momentum_buffer; centered: square_avg, grad_avg, momentum_buffer. */
enum {
    CB_RMSPROP_ALPHA = CB_FIRST,
    CB_RMSPROP_ONE_MINUS_ALPHA,
    CB_RMSPROP_LEARNING_RATE,
    CB_RMSPROP_EPS,
    CB_RMSPROP_MOMENTUM
};

/* param = param param_scale - learning_rate sign(beta1 exp_avg + one_minus_beta1 grad);
 * exp_avg = beta2 exp_avg + one_minus_beta2 grad. */
enum {
    CB_LION_PARAM_SCALE = CB_FIRST,
    CB_LION_BETA1,
    CB_LION_ONE_MINUS_BETA1,
    CB_LION_BETA2,
    CB_LION_ONE_MINUS_BETA2,
    CB_LION_LEARNING_RATE
};

/* exp_avg and exp_avg_sq as above;
 * param = param param_scale - (grad_step_size grad + exp_avg_step_size exp_avg)
 *                             / (sqrt(exp_avg_sq) root_correction + eps). */
enum {
    CB_NADAM_PARAM_SCALE = CB_FIRST,
    CB_NADAM_BETA1,
    CB_NADAM_ONE_MINUS_BETA1,
    CB_NADAM_BETA2,
    CB_NADAM_ONE_MINUS_BETA2,
    CB_NADAM_GRAD_STEP_SIZE,
    CB_NADAM_EXP_AVG_STEP_SIZE,
    CB_NADAM_ROOT_CORRECTION,
    CB_NADAM_EPS
};

/* exp_avg_fast = beta1 exp_avg_fast + one_minus_beta1 grad;
 * exp_avg_slow = beta3 exp_avg_slow + one_minus_beta3 grad; exp_avg_sq as above;
 * param = param param_scale - (fast_step_size exp_avg_fast + slow_step_size exp_avg_slow)
 *                             / (sqrt(exp_avg_sq) root_correction + eps). */
enum {
    CB_ADEMAMIX_PARAM_SCALE = CB_FIRST,
    CB_ADEMAMIX_BETA1,
    CB_ADEMAMIX_ONE_MINUS_BETA1,
    CB_ADEMAMIX_BETA2,
    CB_ADEMAMIX_ONE_MINUS_BETA2,
    CB_ADEMAMIX_BETA3,
    CB_ADEMAMIX_ONE_MINUS_BETA3,
    CB_ADEMAMIX_FAST_STEP_SIZE,
    CB_ADEMAMIX_SLOW_STEP_SIZE,
    CB_ADEMAMIX_ROOT_CORRECTION,
    CB_ADEMAMIX_EPS
};

/* update = grad / max(sqrt(exp_avg_sq), eps), clamped to -clip_value .. clip_value;
 * exp_avg = beta1 exp_avg + one_minus_beta1 update;
 * param = param param_scale - learning_rate exp_avg; then exp_avg_sq as above.
 * The first step only sets exp_avg_sq = grad grad. */
enum {
    CB_ADOPT_PARAM_SCALE = CB_FIRST,
    CB_ADOPT_BETA1,
    CB_ADOPT_ONE_MINUS_BETA1,
    CB_ADOPT_BETA2,
    CB_ADOPT_ONE_MINUS_BETA2,
    CB_ADOPT_LEARNING_RATE,
    CB_ADOPT_EPS,
    CB_ADOPT_CLIP_VALUE,
    CB_ADOPT_IS_FIRST
};

/* param = param param_scale - eta grad; ax = param where mu is 1, else ax + (param - ax) mu. */
enum { CB_ASGD_PARAM_SCALE = CB_FIRST, CB_ASGD_ETA, CB_ASGD_MU };

/* step_size, which starts as initial_step_size where that is not 0, is multiplied by eta_plus where
 * grad prev > 0 and by eta_minus where grad prev < 0, then clamped to step_size_min ..
 * step_size_max; grad = 0 where grad prev < 0; param = param - step_size sign(grad);
 * prev = grad. */
enum {
    CB_RPROP_INITIAL_STEP_SIZE = CB_FIRST,
    CB_RPROP_ETA_MINUS,
    CB_RPROP_ETA_PLUS,
    CB_RPROP_STEP_SIZE_MIN,
    CB_RPROP_STEP_SIZE_MAX
};

/* z starts as param; exp_avg_sq as above;
 * update = grad / (sqrt(exp_avg_sq) root_correction + eps) + decoupled_decay param;
 * param = param + (z - param) average_weight + param_step_size update;
 * z = z - learning_rate update. */
enum {
    CB_SCHEDULE_FREE_DECOUPLED_DECAY = CB_FIRST,
    CB_SCHEDULE_FREE_BETA2,
    CB_SCHEDULE_FREE_ONE_MINUS_BETA2,
    CB_SCHEDULE_FREE_ROOT_CORRECTION,
    CB_SCHEDULE_FREE_EPS,
    CB_SCHEDULE_FREE_AVERAGE_WEIGHT,
    CB_SCHEDULE_FREE_PARAM_STEP_SIZE,
    CB_SCHEDULE_FREE_LEARNING_RATE,
    CB_SCHEDULE_FREE_IS_FIRST
};

/* For Adam with 8-bit moments: Adam's factors, and the seed of the rounding noise. */
enum { CB_ADAMW_8BIT_NOISE_SEED = CB_ADAM_AMSGRAD + 1 };

/* clang-format off */
/* Formulas that step each element separately, then those that step blocks of CB_STATE_BLOCK. */
#define CB_ELEMENT_FORMULAS(X)                            \
    X(ADAM, adam)                                         \
    X(SGD, sgd)                                           \
    X(RADAM, radam)                                       \
    X(ADAMAX, adamax)                                     \
    X(ADAGRAD, adagrad)                                   \
    X(ADADELTA, adadelta)                                 \
    X(RMSPROP, rmsprop)                                   \
    X(RMSPROP_CENTERED, rmsprop_centered)                 \
    X(LION, lion)                                         \
    X(NADAM, nadam)                                       \
    X(ADEMAMIX, ademamix)                                 \
    X(ADOPT, adopt)                                       \
    X(ASGD, asgd)                                         \
    X(RPROP, rprop)                                       \
    X(SCHEDULE_FREE, schedule_free)
#define CB_FORMULAS(X)                                    \
    CB_ELEMENT_FORMULAS(X)                                \
    X(ADAMW_8BIT, adamw_8bit)
/* clang-format on */

/* x^n for n >= 0, computed by the same products on every machine. */
static inline double cb_power(double x, int64_t n) {
    double power = 1.0;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1) power *= x;
    return power;
}

/* Sets the weight decay that is added to the gradient, which is 0 if the decay is decoupled.
 * Returns the factor of the parameter. */
static inline double cb_set_weight_decay(double *factor, double learning_rate, double weight_decay,
                                         int decoupled) {
    factor[CB_WEIGHT_DECAY] = decoupled ? 0.0 : weight_decay;
    return decoupled ? 1.0 - learning_rate * weight_decay : 1.0;
}

/* Sets factor[0] to the decay of a moving average and factor[1] to one minus the decay. */
static inline void cb_set_decay(double *factor, double decay) {
    factor[0] = decay;
    factor[1] = 1.0 - decay;
}

static inline double cb_sign_of(double maximize) { return maximize != 0.0 ? -1.0 : 1.0; }

/* ---- Muon and NorMuon (orthogonal.h) --------------------------------------------------------- */

/* Their hyper-parameters. */
enum {
    CB_MUON_LEARNING_RATE,
    CB_MUON_WEIGHT_DECAY,
    CB_MUON_MOMENTUM,
    CB_MUON_NESTEROV,
    CB_MUON_COEFFICIENT_A,
    CB_MUON_COEFFICIENT_B,
    CB_MUON_COEFFICIENT_C,
    CB_MUON_EPS,
    CB_MUON_NS_STEPS,
    CB_MUON_SCALES_TO_RMS,
    CB_N_MUON
};
enum { CB_NORMUON_BETA2 = CB_MUON_SCALES_TO_RMS, CB_NORMUON_ROW_EPS, CB_N_NORMUON };

/* Their factors, which do not depend on a parameter's shape: fields of cb_orthogonal. */
enum {
    CB_MUON_REST = CB_FIRST,
    CB_MUON_AHEAD,
    CB_MUON_A,
    CB_MUON_B,
    CB_MUON_C,
    CB_MUON_LEAST,
    CB_MUON_KEEP,
    CB_MUON_RATE,
    CB_MUON_MATCH_RMS,
    CB_MUON_BETA,
    CB_MUON_ROW_EPS
};

static inline void cb_orthogonal_factors(const double *hyper, double *factor) {
    factor[CB_GRAD_SCALE] = 1;
    factor[CB_MUON_REST] = 1 - hyper[CB_MUON_MOMENTUM];
    factor[CB_MUON_AHEAD] = hyper[CB_MUON_NESTEROV];
    factor[CB_MUON_A] = hyper[CB_MUON_COEFFICIENT_A];
    factor[CB_MUON_B] = hyper[CB_MUON_COEFFICIENT_B];
    factor[CB_MUON_C] = hyper[CB_MUON_COEFFICIENT_C];
    factor[CB_MUON_LEAST] = hyper[CB_MUON_EPS];
    factor[CB_MUON_KEEP] = 1 - hyper[CB_MUON_LEARNING_RATE] * hyper[CB_MUON_WEIGHT_DECAY];
    factor[CB_MUON_RATE] = hyper[CB_MUON_LEARNING_RATE];
}

static inline void cb_muon_factors(const double *hyper, int64_t t, const double *number,
                                   double *factor) {
    (void)t, (void)number;
    cb_orthogonal_factors(hyper, factor);
    factor[CB_MUON_MATCH_RMS] = hyper[CB_MUON_SCALES_TO_RMS];
}

static inline void cb_normuon_factors(const double *hyper, int64_t t, const double *number,
                                      double *factor) {
    (void)t, (void)number;
    cb_orthogonal_factors(hyper, factor);
    factor[CB_MUON_BETA] = hyper[CB_NORMUON_BETA2];
    factor[CB_MUON_ROW_EPS] = hyper[CB_NORMUON_ROW_EPS];
}

/* ---- Adafactor (factored.h) ------------------------------------------------------------------ */

enum {
    CB_ADAFACTOR_LR,
    CB_ADAFACTOR_BETA2_DECAY,
    CB_ADAFACTOR_EPS1,
    CB_ADAFACTOR_EPS2,
    CB_ADAFACTOR_D,
    CB_ADAFACTOR_WEIGHT_DECAY,
    CB_ADAFACTOR_MAXIMIZE,
    CB_N_ADAFACTOR
};
/* Fields of cb_factored; a negative `least` stands for the machine epsilon of the row's type. */
enum {
    CB_ADAFACTOR_SHARE = CB_FIRST,
    CB_ADAFACTOR_LEAST,
    CB_ADAFACTOR_KEEP,
    CB_ADAFACTOR_RATE,
    CB_ADAFACTOR_LEAST_SIZE,
    CB_ADAFACTOR_MOST
};

static inline void cb_adafactor_factors(const double *hyper, int64_t t, const double *number,
                                        double *factor) {
    const double lr = hyper[CB_ADAFACTOR_LR];
    (void)number;
    factor[CB_GRAD_SCALE] = cb_sign_of(hyper[CB_ADAFACTOR_MAXIMIZE]);
    factor[CB_ADAFACTOR_SHARE] = pow((double)t, hyper[CB_ADAFACTOR_BETA2_DECAY]);
    factor[CB_ADAFACTOR_LEAST] = hyper[CB_ADAFACTOR_EPS1];
    factor[CB_ADAFACTOR_KEEP] = 1 - lr * hyper[CB_ADAFACTOR_WEIGHT_DECAY];
    factor[CB_ADAFACTOR_RATE] = fmin(lr, 1 / sqrt((double)t));
    factor[CB_ADAFACTOR_LEAST_SIZE] = hyper[CB_ADAFACTOR_EPS2];
    factor[CB_ADAFACTOR_MOST] = hyper[CB_ADAFACTOR_D];
}

#endif
