/* formulas_impl.h: the formulas for one type, `real`. kern_formulas.c includes it once per type.
 *
 * A formula is one loop that covers all of its options. Options are constants of inlined copies, so
 * the compiler removes the code of unused options and vectorises the rest.
 */

/* Shorthands of the formulas, which all use the same argument names. */
#define CB_FORMULA_INPUTS                                      \
    real *restrict param = (real *)row->param + at;            \
    const real *restrict input = (const real *)row->grad + at; \
    const real grad_scale = CB_FACTOR(CB_GRAD_SCALE), weight_decay = CB_FACTOR(CB_WEIGHT_DECAY)
#define CB_STATE(k) CB_TYPED(array)(row->state[k], at)
#define CB_FACTOR(k) (real) factor[k]
/* The decay of a moving average, and the next factor, which is one minus the decay. */
#define CB_DECAY(name, k) const real name = CB_FACTOR(k), one_minus_##name = CB_FACTOR((k) + 1)
/* The gradient of element i, scaled and decayed. */
#define CB_GRADIENT \
    (weight_decay != 0 ? grad_scale * input[i] + weight_decay * param[i] : grad_scale * input[i])

/* Moves `average` by `share` of the way to x, starting from the nearer end as PyTorch's lerp does;
 * `rest` is 1 - share. With a share of 1 the result is exactly x. An average that is infinite
 * becomes NaN at the next finite x, as in PyTorch. */
#define CB_LERP(average, x, share, rest)                             \
    ((share) + (share) < 1 ? (average) + (share) * ((x) - (average)) \
                           : (x) - (rest) * ((x) - (average)))

CB_INLINE real *CB_TYPED(array)(void *data, int64_t at) { return data ? (real *)data + at : NULL; }

/* ---- Adam ------------------------------------------------------------------------------------ */

/* Makes one step of Adam or AdamW for one element. All element loops on CPU and GPU use it.
 * `factor` has the type of the row; `max_exp_avg_sq` is used only with amsgrad. */
CB_INLINE void CB_TYPED(adam_element)(const real *factor, real *param, real input, real *exp_avg,
                                      real *exp_avg_sq, real *max_exp_avg_sq, bool decays,
                                      bool amsgrad) {
    const real scaled = factor[CB_GRAD_SCALE] * input;
    const real decayed = scaled + factor[CB_WEIGHT_DECAY] * *param;
    const real grad = decays ? decayed : scaled;
    const real average =
        CB_LERP(*exp_avg, grad, factor[CB_ADAM_ONE_MINUS_BETA1], factor[CB_ADAM_BETA1]);
    real square =
        factor[CB_ADAM_BETA2] * *exp_avg_sq + factor[CB_ADAM_ONE_MINUS_BETA2] * grad * grad;
    *exp_avg = average;
    *exp_avg_sq = square;
    if (amsgrad) { /* the result is NaN if either operand is */
        const real *most = max_exp_avg_sq;
        square = *most > square || *most != *most ? *most : square;
        *max_exp_avg_sq = square;
    }
    *param = *param * factor[CB_ADAM_PARAM_SCALE] -
             factor[CB_ADAM_STEP_SIZE] * average /
                 (square_root(square) * factor[CB_ADAM_ROOT_CORRECTION] + factor[CB_ADAM_EPS]);
}

CB_INLINE void CB_TYPED(adam_loop)(const double *factor, const cb_optim_row *row, int64_t at,
                                   int64_t n, bool decays, bool amsgrad) {
    real adam[CB_ADAM_AMSGRAD];
    for (int k = 0; k < CB_ADAM_AMSGRAD; k++) adam[k] = CB_FACTOR(k);
    real *restrict param = (real *)row->param + at;
    const real *restrict input = (const real *)row->grad + at;
    real *restrict exp_avg = CB_STATE(0), *restrict exp_avg_sq = CB_STATE(1);
    real *restrict max_exp_avg_sq = CB_STATE(2);
    for (int64_t i = 0; i < n; i++) {
        CB_TYPED(adam_element)(adam, &param[i], input[i], &exp_avg[i], &exp_avg_sq[i],
                               amsgrad ? &max_exp_avg_sq[i] : NULL, decays, amsgrad);
    }
}

/* The flags are constants in each call, so no element tests them. */
static void CB_TYPED(adam)(const double *factor, const cb_optim_row *row, int64_t at, int64_t n) {
    const bool decays = factor[CB_WEIGHT_DECAY] != 0.0, amsgrad = factor[CB_ADAM_AMSGRAD] != 0.0;
    if (decays && amsgrad) {
        CB_TYPED(adam_loop)(factor, row, at, n, true, true);
    } else if (decays) {
        CB_TYPED(adam_loop)(factor, row, at, n, true, false);
    } else if (amsgrad) {
        CB_TYPED(adam_loop)(factor, row, at, n, false, true);
    } else {
        CB_TYPED(adam_loop)(factor, row, at, n, false, false);
    }
}

/* ---- SGD ------------------------------------------------------------------------------------- */

CB_INLINE void CB_TYPED(sgd_loop)(const double *factor, const cb_optim_row *row, int64_t at,
                                  int64_t n, bool decays, bool has_momentum, bool is_first,
                                  bool nesterov) {
    CB_FORMULA_INPUTS;
    real *restrict momentum_buffer = CB_STATE(0);
    const real negative_learning_rate = CB_FACTOR(CB_SGD_NEGATIVE_LEARNING_RATE);
    const real momentum = CB_FACTOR(CB_SGD_MOMENTUM);
    const real one_minus_dampening = CB_FACTOR(CB_SGD_ONE_MINUS_DAMPENING);
    for (int64_t i = 0; i < n; i++) {
        real grad =
            decays ? grad_scale * input[i] + weight_decay * param[i] : grad_scale * input[i];
        if (has_momentum) {
            const real moved =
                is_first ? grad : momentum * momentum_buffer[i] + one_minus_dampening * grad;
            momentum_buffer[i] = moved;
            grad = nesterov ? grad + momentum * moved : moved;
        }
        param[i] += negative_learning_rate * grad;
    }
}

CB_INLINE void CB_TYPED(sgd_decaying)(const double *factor, const cb_optim_row *row, int64_t at,
                                      int64_t n, bool decays) {
    const bool is_first = factor[CB_SGD_IS_FIRST] != 0.0;
    const bool nesterov = factor[CB_SGD_NESTEROV] != 0.0;
    if (factor[CB_SGD_MOMENTUM] == 0.0) {
        CB_TYPED(sgd_loop)(factor, row, at, n, decays, false, false, false);
    } else if (is_first) {
        CB_TYPED(sgd_loop)(factor, row, at, n, decays, true, true, nesterov);
    } else if (nesterov) {
        CB_TYPED(sgd_loop)(factor, row, at, n, decays, true, false, true);
    } else {
        CB_TYPED(sgd_loop)(factor, row, at, n, decays, true, false, false);
    }
}

static void CB_TYPED(sgd)(const double *factor, const cb_optim_row *row, int64_t at, int64_t n) {
    if (factor[CB_WEIGHT_DECAY] != 0.0) {
        CB_TYPED(sgd_decaying)(factor, row, at, n, true);
    } else {
        CB_TYPED(sgd_decaying)(factor, row, at, n, false);
    }
}

/* ---- others: the compiler hoists conditions on factors out of the loops ---------------------- */

static void CB_TYPED(radam)(const double *factor, const cb_optim_row *row, int64_t at, int64_t n) {
    CB_FORMULA_INPUTS;
    real *restrict exp_avg = CB_STATE(0), *restrict exp_avg_sq = CB_STATE(1);
    const real param_scale = CB_FACTOR(CB_RADAM_PARAM_SCALE);
    const real step_size = CB_FACTOR(CB_RADAM_STEP_SIZE);
    CB_DECAY(beta1, CB_RADAM_BETA1);
    CB_DECAY(beta2, CB_RADAM_BETA2);
    const real eps = CB_FACTOR(CB_RADAM_EPS);
    const bool rectified = factor[CB_RADAM_RECTIFIED] != 0.0;
    for (int64_t i = 0; i < n; i++) {
        const real grad = CB_GRADIENT;
        exp_avg[i] = CB_LERP(exp_avg[i], grad, one_minus_beta1, beta1);
        exp_avg_sq[i] = beta2 * exp_avg_sq[i] + one_minus_beta2 * grad * grad;
        real step = step_size * exp_avg[i];
        step = rectified ? step / (square_root(exp_avg_sq[i]) + eps) : step;
        param[i] = param[i] * param_scale - step;
    }
}

static void CB_TYPED(adamax)(const double *factor, const cb_optim_row *row, int64_t at, int64_t n) {
    CB_FORMULA_INPUTS;
    real *restrict exp_avg = CB_STATE(0), *restrict exp_inf = CB_STATE(1);
    CB_DECAY(beta1, CB_ADAMAX_BETA1);
    const real beta2 = CB_FACTOR(CB_ADAMAX_BETA2);
    const real step_size = CB_FACTOR(CB_ADAMAX_STEP_SIZE), eps = CB_FACTOR(CB_ADAMAX_EPS);
    for (int64_t i = 0; i < n; i++) {
        const real grad = CB_GRADIENT;
        const real faded = beta2 * exp_inf[i], size = magnitude(grad) + eps;
        exp_avg[i] = CB_LERP(exp_avg[i], grad, one_minus_beta1, beta1);
        /* the result is NaN if either operand is */
        exp_inf[i] = faded > size || faded != faded ? faded : size;
        param[i] -= step_size * exp_avg[i] / exp_inf[i];
    }
}

static void CB_TYPED(adagrad)(const double *factor, const cb_optim_row *row, int64_t at,
                              int64_t n) {
    CB_FORMULA_INPUTS;
    real *restrict sum = CB_STATE(0);
    const real initial_accumulator = CB_FACTOR(CB_ADAGRAD_INITIAL_ACCUMULATOR);
    const real learning_rate = CB_FACTOR(CB_ADAGRAD_LEARNING_RATE);
    const real eps = CB_FACTOR(CB_ADAGRAD_EPS);
    for (int64_t i = 0; i < n; i++) {
        const real grad = CB_GRADIENT;
        sum[i] = sum[i] + initial_accumulator + grad * grad;
        param[i] -= learning_rate * grad / (square_root(sum[i]) + eps);
    }
}

static void CB_TYPED(adadelta)(const double *factor, const cb_optim_row *row, int64_t at,
                               int64_t n) {
    CB_FORMULA_INPUTS;
    real *restrict square_avg = CB_STATE(0), *restrict acc_delta = CB_STATE(1);
    CB_DECAY(rho, CB_ADADELTA_RHO);
    const real learning_rate = CB_FACTOR(CB_ADADELTA_LEARNING_RATE);
    const real eps = CB_FACTOR(CB_ADADELTA_EPS);
    for (int64_t i = 0; i < n; i++) {
        const real grad = CB_GRADIENT;
        square_avg[i] = rho * square_avg[i] + one_minus_rho * grad * grad;
        const real delta =
            square_root(acc_delta[i] + eps) / square_root(square_avg[i] + eps) * grad;
        acc_delta[i] = rho * acc_delta[i] + one_minus_rho * delta * delta;
        param[i] -= learning_rate * delta;
    }
}

CB_INLINE void CB_TYPED(rmsprop_loop)(const double *factor, const cb_optim_row *row, int64_t at,
                                      int64_t n, bool centered, bool has_momentum) {
    CB_FORMULA_INPUTS;
    real *restrict square_avg = CB_STATE(0), *restrict grad_avg = CB_STATE(1);
    real *restrict momentum_buffer = CB_STATE(centered ? 2 : 1);
    CB_DECAY(alpha, CB_RMSPROP_ALPHA);
    const real learning_rate = CB_FACTOR(CB_RMSPROP_LEARNING_RATE);
    const real eps = CB_FACTOR(CB_RMSPROP_EPS), momentum = CB_FACTOR(CB_RMSPROP_MOMENTUM);
    for (int64_t i = 0; i < n; i++) {
        const real grad = CB_GRADIENT;
        real square = square_avg[i] = alpha * square_avg[i] + one_minus_alpha * grad * grad;
        if (centered) {
            grad_avg[i] = CB_LERP(grad_avg[i], grad, one_minus_alpha, alpha);
            square -= grad_avg[i] * grad_avg[i];
        }
        real update = grad / (square_root(square) + eps);
        if (has_momentum) update = momentum_buffer[i] = momentum * momentum_buffer[i] + update;
        param[i] -= learning_rate * update;
    }
}

static void CB_TYPED(rmsprop)(const double *factor, const cb_optim_row *row, int64_t at,
                              int64_t n) {
    if (factor[CB_RMSPROP_MOMENTUM] != 0.0) {
        CB_TYPED(rmsprop_loop)(factor, row, at, n, false, true);
    } else {
        CB_TYPED(rmsprop_loop)(factor, row, at, n, false, false);
    }
}

static void CB_TYPED(rmsprop_centered)(const double *factor, const cb_optim_row *row, int64_t at,
                                       int64_t n) {
    if (factor[CB_RMSPROP_MOMENTUM] != 0.0) {
        CB_TYPED(rmsprop_loop)(factor, row, at, n, true, true);
    } else {
        CB_TYPED(rmsprop_loop)(factor, row, at, n, true, false);
    }
}

static void CB_TYPED(lion)(const double *factor, const cb_optim_row *row, int64_t at, int64_t n) {
    CB_FORMULA_INPUTS;
    real *restrict exp_avg = CB_STATE(0);
    const real param_scale = CB_FACTOR(CB_LION_PARAM_SCALE);
    CB_DECAY(beta1, CB_LION_BETA1);
    CB_DECAY(beta2, CB_LION_BETA2);
    const real learning_rate = CB_FACTOR(CB_LION_LEARNING_RATE);
    for (int64_t i = 0; i < n; i++) {
        const real grad = CB_GRADIENT, update = beta1 * exp_avg[i] + one_minus_beta1 * grad;
        /* zeros and NaN are kept */
        const real sign = update > 0 ? (real)1 : (update < 0 ? (real)-1 : update);
        exp_avg[i] = beta2 * exp_avg[i] + one_minus_beta2 * grad;
        param[i] = param[i] * param_scale - learning_rate * sign;
    }
}

static void CB_TYPED(nadam)(const double *factor, const cb_optim_row *row, int64_t at, int64_t n) {
    CB_FORMULA_INPUTS;
    real *restrict exp_avg = CB_STATE(0), *restrict exp_avg_sq = CB_STATE(1);
    const real param_scale = CB_FACTOR(CB_NADAM_PARAM_SCALE);
    CB_DECAY(beta1, CB_NADAM_BETA1);
    CB_DECAY(beta2, CB_NADAM_BETA2);
    const real grad_step_size = CB_FACTOR(CB_NADAM_GRAD_STEP_SIZE);
    const real exp_avg_step_size = CB_FACTOR(CB_NADAM_EXP_AVG_STEP_SIZE);
    const real root_correction = CB_FACTOR(CB_NADAM_ROOT_CORRECTION);
    const real eps = CB_FACTOR(CB_NADAM_EPS);
    for (int64_t i = 0; i < n; i++) {
        const real grad = CB_GRADIENT;
        exp_avg[i] = CB_LERP(exp_avg[i], grad, one_minus_beta1, beta1);
        exp_avg_sq[i] = beta2 * exp_avg_sq[i] + one_minus_beta2 * grad * grad;
        const real step = grad_step_size * grad + exp_avg_step_size * exp_avg[i];
        param[i] =
            param[i] * param_scale - step / (square_root(exp_avg_sq[i]) * root_correction + eps);
    }
}

static void CB_TYPED(ademamix)(const double *factor, const cb_optim_row *row, int64_t at,
                               int64_t n) {
    CB_FORMULA_INPUTS;
    real *restrict exp_avg_fast = CB_STATE(0), *restrict exp_avg_slow = CB_STATE(1);
    real *restrict exp_avg_sq = CB_STATE(2);
    const real param_scale = CB_FACTOR(CB_ADEMAMIX_PARAM_SCALE);
    CB_DECAY(beta1, CB_ADEMAMIX_BETA1);
    CB_DECAY(beta2, CB_ADEMAMIX_BETA2);
    CB_DECAY(beta3, CB_ADEMAMIX_BETA3);
    const real fast_step_size = CB_FACTOR(CB_ADEMAMIX_FAST_STEP_SIZE);
    const real slow_step_size = CB_FACTOR(CB_ADEMAMIX_SLOW_STEP_SIZE);
    const real root_correction = CB_FACTOR(CB_ADEMAMIX_ROOT_CORRECTION);
    const real eps = CB_FACTOR(CB_ADEMAMIX_EPS);
    for (int64_t i = 0; i < n; i++) {
        const real grad = CB_GRADIENT;
        exp_avg_fast[i] = beta1 * exp_avg_fast[i] + one_minus_beta1 * grad;
        exp_avg_slow[i] = beta3 * exp_avg_slow[i] + one_minus_beta3 * grad;
        exp_avg_sq[i] = beta2 * exp_avg_sq[i] + one_minus_beta2 * grad * grad;
        const real step = fast_step_size * exp_avg_fast[i] + slow_step_size * exp_avg_slow[i];
        param[i] =
            param[i] * param_scale - step / (square_root(exp_avg_sq[i]) * root_correction + eps);
    }
}

static void CB_TYPED(adopt)(const double *factor, const cb_optim_row *row, int64_t at, int64_t n) {
    CB_FORMULA_INPUTS;
    real *restrict exp_avg = CB_STATE(0), *restrict exp_avg_sq = CB_STATE(1);
    const real param_scale = CB_FACTOR(CB_ADOPT_PARAM_SCALE);
    CB_DECAY(beta1, CB_ADOPT_BETA1);
    CB_DECAY(beta2, CB_ADOPT_BETA2);
    const real learning_rate = CB_FACTOR(CB_ADOPT_LEARNING_RATE);
    const real eps = CB_FACTOR(CB_ADOPT_EPS), clip_value = CB_FACTOR(CB_ADOPT_CLIP_VALUE);
    if (factor[CB_ADOPT_IS_FIRST] != 0.0) {
        for (int64_t i = 0; i < n; i++) exp_avg_sq[i] = CB_GRADIENT * CB_GRADIENT;
        return;
    }
    for (int64_t i = 0; i < n; i++) { /* a NaN stays, since comparisons with it are false */
        const real grad = CB_GRADIENT, root = square_root(exp_avg_sq[i]);
        real update = grad / (root < eps ? eps : root);
        update = update > clip_value ? clip_value : (update < -clip_value ? -clip_value : update);
        exp_avg[i] = beta1 * exp_avg[i] + one_minus_beta1 * update;
        param[i] = param[i] * param_scale - learning_rate * exp_avg[i];
        exp_avg_sq[i] = beta2 * exp_avg_sq[i] + one_minus_beta2 * grad * grad;
    }
}

static void CB_TYPED(asgd)(const double *factor, const cb_optim_row *row, int64_t at, int64_t n) {
    CB_FORMULA_INPUTS;
    real *restrict ax = CB_STATE(0);
    const real param_scale = CB_FACTOR(CB_ASGD_PARAM_SCALE);
    const real eta = CB_FACTOR(CB_ASGD_ETA), mu = CB_FACTOR(CB_ASGD_MU);
    for (int64_t i = 0; i < n; i++) {
        const real grad = CB_GRADIENT;
        param[i] = param[i] * param_scale - eta * grad;
        ax[i] = mu == 1 ? param[i] : ax[i] + (param[i] - ax[i]) * mu;
    }
}

static void CB_TYPED(rprop)(const double *factor, const cb_optim_row *row, int64_t at, int64_t n) {
    CB_FORMULA_INPUTS;
    real *restrict prev = CB_STATE(0), *restrict step_size = CB_STATE(1);
    const real initial_step_size = CB_FACTOR(CB_RPROP_INITIAL_STEP_SIZE);
    const real eta_minus = CB_FACTOR(CB_RPROP_ETA_MINUS), eta_plus = CB_FACTOR(CB_RPROP_ETA_PLUS);
    const real step_size_min = CB_FACTOR(CB_RPROP_STEP_SIZE_MIN);
    const real step_size_max = CB_FACTOR(CB_RPROP_STEP_SIZE_MAX);
    for (int64_t i = 0; i < n; i++) {
        real grad = CB_GRADIENT;
        const real agreement = grad * prev[i];
        const real eta = agreement > 0 ? eta_plus : (agreement < 0 ? eta_minus : (real)1);
        real size = (initial_step_size != 0 ? initial_step_size : step_size[i]) * eta;
        /* NaN stays */
        size = size < step_size_min ? step_size_min : (size > step_size_max ? step_size_max : size);
        grad = agreement < 0 ? (real)0 : grad;
        /* NaN has no sign, as in PyTorch */
        param[i] -= (grad > 0 ? size : (grad < 0 ? -size : (real)0));
        step_size[i] = size;
        prev[i] = grad;
    }
}

static void CB_TYPED(schedule_free)(const double *factor, const cb_optim_row *row, int64_t at,
                                    int64_t n) {
    CB_FORMULA_INPUTS;
    real *restrict z = CB_STATE(0), *restrict exp_avg_sq = CB_STATE(1);
    const real decoupled_decay = CB_FACTOR(CB_SCHEDULE_FREE_DECOUPLED_DECAY);
    const real average_weight = CB_FACTOR(CB_SCHEDULE_FREE_AVERAGE_WEIGHT);
    CB_DECAY(beta2, CB_SCHEDULE_FREE_BETA2);
    const real root_correction = CB_FACTOR(CB_SCHEDULE_FREE_ROOT_CORRECTION);
    const real eps = CB_FACTOR(CB_SCHEDULE_FREE_EPS);
    const real param_step_size = CB_FACTOR(CB_SCHEDULE_FREE_PARAM_STEP_SIZE);
    const real learning_rate = CB_FACTOR(CB_SCHEDULE_FREE_LEARNING_RATE);
    const bool is_first = factor[CB_SCHEDULE_FREE_IS_FIRST] != 0.0;
    for (int64_t i = 0; i < n; i++) {
        const real grad = CB_GRADIENT, y = param[i], old_z = is_first ? y : z[i];
        exp_avg_sq[i] = beta2 * exp_avg_sq[i] + one_minus_beta2 * grad * grad;
        const real update =
            grad / (square_root(exp_avg_sq[i]) * root_correction + eps) + decoupled_decay * y;
        param[i] = y + (old_z - y) * average_weight + param_step_size * update;
        z[i] = old_z - learning_rate * update;
    }
}

#ifndef CB_ELEMENTS_ALONE

/* ---- Adam in 8 bits: a block is updated, then encoded with scales computed from its new values */

/* This is not adam_element with a decoder around it. Codes represent the update and the root, not
 * the moments, so the quotient is rounded before it is multiplied by the step size, and the results
 * differ in the last place. */

/* A block of decoded values. Codes are widened to the width of the numbers before decoding and
 * narrowed after encoding, because loops of one width vectorise best. Magnitudes are compared by
 * their bits, which have the same order, with NaN above all other values. */
typedef struct CB_TYPED(cb_block) {
    int32_t m_code[CB_BLOCK_ROOM], v_code[CB_BLOCK_ROOM];
    real update[CB_BLOCK_ROOM]; /* exp_avg / (sqrt(exp_avg_sq) root_correction + eps) */
    float root[CB_BLOCK_ROOM];  /* sqrt(exp_avg_sq) */
    uint32_t update_most, root_most, root_least;
} CB_TYPED(cb_block);

CB_INLINE void CB_TYPED(moments_8bit)(const double *factor, const cb_optim_row *row, int64_t at,
                                      int32_t n, CB_TYPED(cb_block) * block) {
    const real *restrict input = (const real *)row->grad + at;
    const float *m_scale = (const float *)row->state[2] + at / CB_STATE_BLOCK * 2;
    const float *v_scale = (const float *)row->state[3] + at / CB_STATE_BLOCK * 2;
    const cb_root_codes codes = root_codes_of(v_scale[0], v_scale[1]);
    const real grad_scale = CB_FACTOR(CB_GRAD_SCALE);
    CB_DECAY(beta1, CB_ADAM_BETA1);
    CB_DECAY(beta2, CB_ADAM_BETA2);
    const real root_correction = CB_FACTOR(CB_ADAM_ROOT_CORRECTION), eps = CB_FACTOR(CB_ADAM_EPS);
    const real slope = beta1 * (real)m_scale[0], offset = beta1 * (real)m_scale[1];
    uint32_t update_most = 0, root_most = 0, root_least = UINT32_MAX;
    for (int32_t i = 0; i < n; i++) {
        const real grad = grad_scale * input[i]; /* weight decay is always decoupled */
        const real old_root = (real)root_of(codes, block->v_code[i]);
        const real exp_avg =
            (real)block->m_code[i] * (old_root * slope + offset) + one_minus_beta1 * grad;
        const real root =
            square_root(beta2 * (old_root * old_root) + one_minus_beta2 * grad * grad);
        const real update = exp_avg / (root * root_correction + eps);
        const uint32_t update_size = cb_bits_of_f32(fabsf((float)update));
        const uint32_t root_size = cb_bits_of_f32((float)root);
        update_most = update_size > update_most ? update_size : update_most;
        root_most = root_size > root_most ? root_size : root_most;
        root_least = root_size < root_least ? root_size : root_least;
        block->update[i] = update;
        block->root[i] = (float)root;
    }
    block->update_most = CB_MOST_ACROSS(update_most);
    block->root_most = CB_MOST_ACROSS(root_most);
    block->root_least = CB_LEAST_ACROSS(root_least);
}

/* Writes the parameters and the codes. */
CB_INLINE void CB_TYPED(encode_8bit)(const double *factor, const cb_optim_row *row, int64_t at,
                                     int32_t n, cb_block_scales scales, bool low,
                                     CB_TYPED(cb_block) * block) {
    real *restrict param = (real *)row->param + at;
    const real param_scale = CB_FACTOR(CB_ADAM_PARAM_SCALE);
    const real step_size = CB_FACTOR(CB_ADAM_STEP_SIZE);
    const cb_root_codes codes = root_codes_of(scales.v[0], scales.v[1]);
    const float v_inverse = 1 / (float)codes.step;
    const uint32_t noise = noise_at(
        noise_of((uint32_t)(at / CB_STATE_BLOCK) + (uint32_t)factor[CB_ADAMW_8BIT_NOISE_SEED]),
        (int32_t)(at % CB_STATE_BLOCK));
    for (int32_t i = 0; i < n; i++) {
        const uint32_t here = noise_at(noise, i);
        const float update = (float)block->update[i];
        param[i] = param[i] * param_scale - step_size * block->update[i];
        block->m_code[i] = rounded_signed(update * scales.m_inverse, here);
        block->v_code[i] = code_of_root(codes, v_inverse, block->root[i], low, here);
    }
}

/* Computes the ranges of a block without its outliers, and clamps their roots to the largest root
 * of the other elements. */
CB_INLINE void CB_TYPED(leave_out_8bit)(int32_t n, CB_TYPED(cb_block) * block) {
    uint32_t update_most = 0, root_most = 0, root_least = UINT32_MAX;
    for (int32_t i = 0; i < n; i++) {
        const uint32_t update_size = cb_bits_of_f32(fabsf((float)block->update[i]));
        const uint32_t root_size = cb_bits_of_f32(block->root[i]);
        if (update_size < CB_UPDATE_LIMIT_BITS && update_size > update_most)
            update_most = update_size;
        if (root_size < CB_INFINITE_BITS && root_size > root_most) root_most = root_size;
    }
    update_most = CB_MOST_ACROSS(update_most);
    root_most = CB_MOST_ACROSS(root_most);
    for (int32_t i = 0; i < n; i++) {
        uint32_t root_size = cb_bits_of_f32(block->root[i]);
        if (root_size >= CB_INFINITE_BITS) root_size = root_most;
        if (root_size < root_least) root_least = root_size;
        block->root[i] = cb_f32_of_bits(root_size);
    }
    block->update_most = update_most;
    block->root_most = root_most;
    block->root_least = CB_LEAST_ACROSS(root_least);
}

CB_INLINE void CB_TYPED(update_8bit)(const double *factor, const cb_optim_row *row, int64_t at,
                                     int32_t n, CB_TYPED(cb_block) * block) {
    const bool outliers =
        block->update_most >= CB_UPDATE_LIMIT_BITS || block->root_most >= CB_INFINITE_BITS;
    if (outliers) CB_TYPED(leave_out_8bit)(n, block);
    uint32_t least = block->root_least;
    if (least == 0) least = least_but_0(block->root, n);
    const cb_block_scales scales = scales_of(block->update_most, least, block->root_most);
    if (block->root_least == 0 || block->root_least < cb_bits_of_f32(scales.v[0])) {
        CB_TYPED(encode_8bit)(factor, row, at, n, scales, true, block);
    } else {
        CB_TYPED(encode_8bit)(factor, row, at, n, scales, false, block);
    }
    for (int32_t i = 0; outliers && i < n; i++) {
        const float size = fabsf((float)block->update[i]);
        if (cb_bits_of_f32(size) >= CB_UPDATE_LIMIT_BITS) block->m_code[i] = 0;
    }
    if (!CB_WRITES_SCALES) return;
    float *m_scale = (float *)row->state[2] + at / CB_STATE_BLOCK * 2;
    float *v_scale = (float *)row->state[3] + at / CB_STATE_BLOCK * 2;
    m_scale[0] = scales.unit * (float)factor[CB_ADAM_ROOT_CORRECTION];
    m_scale[1] = scales.unit * (float)factor[CB_ADAM_EPS];
    v_scale[0] = scales.v[0];
    v_scale[1] = scales.v[1];
}

CB_INLINE void CB_TYPED(adamw_8bit_block)(const double *factor, const cb_optim_row *row, int64_t at,
                                          int32_t n) {
    int8_t *restrict m = (int8_t *)row->state[0] + at;
    uint8_t *restrict v = (uint8_t *)row->state[1] + at;
    CB_TYPED(cb_block) block;
    for (int32_t i = 0; i < n; i++) block.m_code[i] = m[i];
    for (int32_t i = 0; i < n; i++) block.v_code[i] = v[i];
    CB_TYPED(moments_8bit)(factor, row, at, n, &block);
    CB_TYPED(update_8bit)(factor, row, at, n, &block);
    for (int32_t i = 0; i < n; i++) m[i] = (int8_t)block.m_code[i];
    for (int32_t i = 0; i < n; i++) v[i] = (uint8_t)block.v_code[i];
}

static void CB_TYPED(adamw_8bit)(const double *factor, const cb_optim_row *row, int64_t at,
                                 int64_t n) {
    int64_t done = 0;
    for (; n - done >= CB_STATE_BLOCK; done += CB_STATE_BLOCK)
        CB_TYPED(adamw_8bit_block)(factor, row, at + done, CB_STATE_BLOCK);
    if (done < n) CB_TYPED(adamw_8bit_block)(factor, row, at + done, (int32_t)(n - done));
}

#endif
