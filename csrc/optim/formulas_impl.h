/* formulas_impl.h: the formulas for one type, `real`; included by kern_formulas.c once for each.
 *
 * A formula is one loop over all that it can do; what differs between groups is a constant of an
 * inlined copy, so that the compiler drops what a group does not ask for and vectorises the rest.
 */

/* What the formulas are written with: names of a call's arguments are the same in all of them. */
#define INPUTS                                                \
    real *restrict p = (real *)row->param + at;               \
    const real *restrict grad = (const real *)row->grad + at; \
    const real scale = FACTOR(CB_GRAD_SCALE), decay = FACTOR(CB_DECAY)
#define STATE(k) NAME(array)(row->state[k], at)
#define FACTOR(k) (real) f[k]
#define GRADIENT (decay != 0 ? scale * grad[i] + decay * p[i] : scale * grad[i])

/* A mean's way of a share `a` to x, b = 1 - a: from the nearer end, as PyTorch's lerp goes. At
 * a = 1 it is x itself; an infinite mean is none once a number follows. */
#define LERP(m, x, a, b) ((a) + (a) < 1 ? (m) + (a) * ((x) - (m)) : (x) - (b) * ((x) - (m)))

INLINE real *NAME(array)(void *data, int64_t at) { return data ? (real *)data + at : NULL; }

/* ---- Adam ------------------------------------------------------------------------------------ */

INLINE void NAME(adam_loop)(const double *f, const cb_optim_row *row, int64_t at, int64_t n,
                            bool decays, bool ams) {
    INPUTS;
    real *restrict m = STATE(0), *restrict v = STATE(1), *restrict w = STATE(2);
    const real keep = FACTOR(CB_ADAM_KEEP), rate = FACTOR(CB_ADAM_RATE);
    const real b1 = FACTOR(CB_ADAM_B1), a1 = FACTOR(CB_ADAM_A1);
    const real b2 = FACTOR(CB_ADAM_B2), a2 = FACTOR(CB_ADAM_A2);
    const real root = FACTOR(CB_ADAM_ROOT), eps = FACTOR(CB_ADAM_EPS);
    for (int64_t i = 0; i < n; i++) {
        real g = decays ? scale * grad[i] + decay * p[i] : scale * grad[i];
        real m_new = LERP(m[i], g, a1, b1);
        real v_new = b2 * v[i] + a2 * g * g;
        m[i] = m_new;
        v[i] = v_new;
        if (ams) { /* NaN stays, wherever it comes from */
            v_new = w[i] > v_new || w[i] != w[i] ? w[i] : v_new;
            w[i] = v_new;
        }
        p[i] = p[i] * keep - rate * m_new / (square_root(v_new) * root + eps);
    }
}

static void NAME(adam)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    const bool decays = f[CB_DECAY] != 0.0, ams = f[CB_ADAM_AMS] != 0.0;
    if (decays && ams) {
        NAME(adam_loop)(f, row, at, n, true, true);
    } else if (decays) {
        NAME(adam_loop)(f, row, at, n, true, false);
    } else if (ams) {
        NAME(adam_loop)(f, row, at, n, false, true);
    } else {
        NAME(adam_loop)(f, row, at, n, false, false);
    }
}

/* ---- SGD ------------------------------------------------------------------------------------- */

INLINE void NAME(sgd_loop)(const double *f, const cb_optim_row *row, int64_t at, int64_t n,
                           bool decays, bool moves, bool is_first, bool ahead) {
    INPUTS;
    real *restrict b = STATE(0);
    const real rate = FACTOR(CB_SGD_RATE), kept = FACTOR(CB_SGD_KEPT);
    const real added = FACTOR(CB_SGD_ADDED);
    for (int64_t i = 0; i < n; i++) {
        real g = decays ? scale * grad[i] + decay * p[i] : scale * grad[i];
        if (moves) {
            real b_new = is_first ? g : kept * b[i] + added * g;
            b[i] = b_new;
            g = ahead ? g + kept * b_new : b_new;
        }
        p[i] += rate * g;
    }
}

INLINE void NAME(sgd_decaying)(const double *f, const cb_optim_row *row, int64_t at, int64_t n,
                               bool decays) {
    const bool is_first = f[CB_SGD_IS_FIRST] != 0.0, ahead = f[CB_SGD_AHEAD] != 0.0;
    if (f[CB_SGD_KEPT] == 0.0) {
        NAME(sgd_loop)(f, row, at, n, decays, false, false, false);
    } else if (is_first) {
        NAME(sgd_loop)(f, row, at, n, decays, true, true, ahead);
    } else if (ahead) {
        NAME(sgd_loop)(f, row, at, n, decays, true, false, true);
    } else {
        NAME(sgd_loop)(f, row, at, n, decays, true, false, false);
    }
}

static void NAME(sgd)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    if (f[CB_DECAY] != 0.0) {
        NAME(sgd_decaying)(f, row, at, n, true);
    } else {
        NAME(sgd_decaying)(f, row, at, n, false);
    }
}

/* ---- others: conditions on factors are the same for all elements, and leave the loops -------- */

static void NAME(radam)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    INPUTS;
    real *restrict m = STATE(0), *restrict v = STATE(1);
    const real keep = FACTOR(CB_RADAM_KEEP), rate = FACTOR(CB_RADAM_RATE);
    const real b1 = FACTOR(CB_RADAM_B1), a1 = FACTOR(CB_RADAM_A1);
    const real b2 = FACTOR(CB_RADAM_B2), a2 = FACTOR(CB_RADAM_A2);
    const real eps = FACTOR(CB_RADAM_EPS);
    const bool rectified = f[CB_RADAM_RECTIFIED] != 0.0;
    for (int64_t i = 0; i < n; i++) {
        real g = GRADIENT;
        m[i] = LERP(m[i], g, a1, b1);
        v[i] = b2 * v[i] + a2 * g * g;
        real step = rate * m[i];
        step = rectified ? step / (square_root(v[i]) + eps) : step;
        p[i] = p[i] * keep - step;
    }
}

static void NAME(adamax)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    INPUTS;
    real *restrict m = STATE(0), *restrict u = STATE(1);
    const real b1 = FACTOR(CB_ADAMAX_B1), a1 = FACTOR(CB_ADAMAX_A1);
    const real b2 = FACTOR(CB_ADAMAX_B2), rate = FACTOR(CB_ADAMAX_RATE);
    const real eps = FACTOR(CB_ADAMAX_EPS);
    for (int64_t i = 0; i < n; i++) {
        real g = GRADIENT;
        real old = b2 * u[i], now = magnitude(g) + eps;
        m[i] = LERP(m[i], g, a1, b1);
        u[i] = old > now || old != old ? old : now; /* NaN stays, wherever it comes from */
        p[i] -= rate * m[i] / u[i];
    }
}

static void NAME(adagrad)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    INPUTS;
    real *restrict s = STATE(0);
    const real first = FACTOR(CB_ADAGRAD_FIRST), rate = FACTOR(CB_ADAGRAD_RATE);
    const real eps = FACTOR(CB_ADAGRAD_EPS);
    for (int64_t i = 0; i < n; i++) {
        real g = GRADIENT;
        s[i] = s[i] + first + g * g;
        p[i] -= rate * g / (square_root(s[i]) + eps);
    }
}

static void NAME(adadelta)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    INPUTS;
    real *restrict s = STATE(0), *restrict a = STATE(1);
    const real rho = FACTOR(CB_ADADELTA_RHO), rest = FACTOR(CB_ADADELTA_REST);
    const real rate = FACTOR(CB_ADADELTA_RATE), eps = FACTOR(CB_ADADELTA_EPS);
    for (int64_t i = 0; i < n; i++) {
        real g = GRADIENT;
        s[i] = rho * s[i] + rest * g * g;
        real d = square_root(a[i] + eps) / square_root(s[i] + eps) * g;
        a[i] = rho * a[i] + rest * d * d;
        p[i] -= rate * d;
    }
}

INLINE void NAME(rmsprop_loop)(const double *f, const cb_optim_row *row, int64_t at, int64_t n,
                               bool centered, bool moves) {
    INPUTS;
    real *restrict s = STATE(0), *restrict h = STATE(1);
    real *restrict b = STATE(centered ? 2 : 1);
    const real alpha = FACTOR(CB_RMSPROP_ALPHA), rest = FACTOR(CB_RMSPROP_REST);
    const real rate = FACTOR(CB_RMSPROP_RATE), eps = FACTOR(CB_RMSPROP_EPS);
    const real kept = FACTOR(CB_RMSPROP_KEPT);
    for (int64_t i = 0; i < n; i++) {
        real g = GRADIENT;
        real spread = s[i] = alpha * s[i] + rest * g * g;
        if (centered) {
            h[i] = LERP(h[i], g, rest, alpha);
            spread -= h[i] * h[i];
        }
        real q = g / (square_root(spread) + eps);
        if (moves) q = b[i] = kept * b[i] + q;
        p[i] -= rate * q;
    }
}

static void NAME(rmsprop)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    if (f[CB_RMSPROP_KEPT] != 0.0) {
        NAME(rmsprop_loop)(f, row, at, n, false, true);
    } else {
        NAME(rmsprop_loop)(f, row, at, n, false, false);
    }
}

static void NAME(rmsprop_centered)(const double *f, const cb_optim_row *row, int64_t at,
                                   int64_t n) {
    if (f[CB_RMSPROP_KEPT] != 0.0) {
        NAME(rmsprop_loop)(f, row, at, n, true, true);
    } else {
        NAME(rmsprop_loop)(f, row, at, n, true, false);
    }
}

static void NAME(lion)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    INPUTS;
    real *restrict m = STATE(0);
    const real keep = FACTOR(CB_LION_KEEP);
    const real b1 = FACTOR(CB_LION_B1), a1 = FACTOR(CB_LION_A1);
    const real b2 = FACTOR(CB_LION_B2), a2 = FACTOR(CB_LION_A2);
    const real rate = FACTOR(CB_LION_RATE);
    for (int64_t i = 0; i < n; i++) {
        real g = GRADIENT, u = b1 * m[i] + a1 * g;
        real sign = u > 0 ? (real)1 : (u < 0 ? (real)-1 : u); /* zeros and NaN as they are */
        m[i] = b2 * m[i] + a2 * g;
        p[i] = p[i] * keep - rate * sign;
    }
}

static void NAME(nadam)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    INPUTS;
    real *restrict m = STATE(0), *restrict v = STATE(1);
    const real b1 = FACTOR(CB_NADAM_B1), a1 = FACTOR(CB_NADAM_A1), keep = FACTOR(CB_NADAM_KEEP);
    const real b2 = FACTOR(CB_NADAM_B2), a2 = FACTOR(CB_NADAM_A2), eps = FACTOR(CB_NADAM_EPS);
    const real now = FACTOR(CB_NADAM_NOW), past = FACTOR(CB_NADAM_PAST);
    const real root = FACTOR(CB_NADAM_ROOT);
    for (int64_t i = 0; i < n; i++) {
        real g = GRADIENT;
        m[i] = LERP(m[i], g, a1, b1);
        v[i] = b2 * v[i] + a2 * g * g;
        p[i] = p[i] * keep - (now * g + past * m[i]) / (square_root(v[i]) * root + eps);
    }
}

static void NAME(ademamix)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    INPUTS;
    real *restrict m = STATE(0), *restrict l = STATE(1), *restrict v = STATE(2);
    const real b1 = FACTOR(CB_ADEMAMIX_B1), a1 = FACTOR(CB_ADEMAMIX_A1);
    const real b2 = FACTOR(CB_ADEMAMIX_B2), a2 = FACTOR(CB_ADEMAMIX_A2);
    const real b3 = FACTOR(CB_ADEMAMIX_B3), a3 = FACTOR(CB_ADEMAMIX_A3);
    const real now = FACTOR(CB_ADEMAMIX_NOW), past = FACTOR(CB_ADEMAMIX_PAST);
    const real root = FACTOR(CB_ADEMAMIX_ROOT), eps = FACTOR(CB_ADEMAMIX_EPS);
    const real keep = FACTOR(CB_ADEMAMIX_KEEP);
    for (int64_t i = 0; i < n; i++) {
        real g = GRADIENT;
        m[i] = b1 * m[i] + a1 * g;
        l[i] = b3 * l[i] + a3 * g;
        v[i] = b2 * v[i] + a2 * g * g;
        p[i] = p[i] * keep - (now * m[i] + past * l[i]) / (square_root(v[i]) * root + eps);
    }
}

static void NAME(adopt)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    INPUTS;
    real *restrict m = STATE(0), *restrict v = STATE(1);
    const real b1 = FACTOR(CB_ADOPT_B1), a1 = FACTOR(CB_ADOPT_A1), keep = FACTOR(CB_ADOPT_KEEP);
    const real b2 = FACTOR(CB_ADOPT_B2), a2 = FACTOR(CB_ADOPT_A2), rate = FACTOR(CB_ADOPT_RATE);
    const real eps = FACTOR(CB_ADOPT_EPS), most = FACTOR(CB_ADOPT_MOST);
    if (f[CB_ADOPT_IS_FIRST] != 0.0) {
        for (int64_t i = 0; i < n; i++) v[i] = GRADIENT * GRADIENT;
        return;
    }
    for (int64_t i = 0; i < n; i++) { /* NaN passes both comparisons */
        real g = GRADIENT, spread = square_root(v[i]);
        real u = g / (spread < eps ? eps : spread);
        u = u > most ? most : (u < -most ? -most : u);
        m[i] = b1 * m[i] + a1 * u;
        p[i] = p[i] * keep - rate * m[i];
        v[i] = b2 * v[i] + a2 * g * g;
    }
}

static void NAME(asgd)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    INPUTS;
    real *restrict x = STATE(0);
    const real keep = FACTOR(CB_ASGD_KEEP), rate = FACTOR(CB_ASGD_RATE);
    const real share = FACTOR(CB_ASGD_SHARE);
    for (int64_t i = 0; i < n; i++) {
        real g = GRADIENT;
        p[i] = p[i] * keep - rate * g;
        x[i] = share == 1 ? p[i] : x[i] + (p[i] - x[i]) * share;
    }
}

static void NAME(rprop)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    INPUTS;
    real *restrict q = STATE(0), *restrict s = STATE(1);
    const real begin = FACTOR(CB_RPROP_BEGIN), down = FACTOR(CB_RPROP_DOWN);
    const real up = FACTOR(CB_RPROP_UP), least = FACTOR(CB_RPROP_LEAST);
    const real most = FACTOR(CB_RPROP_MOST);
    for (int64_t i = 0; i < n; i++) {
        real g = GRADIENT, turn = g * q[i];
        real factor = turn > 0 ? up : (turn < 0 ? down : (real)1);
        real size = (begin != 0 ? begin : s[i]) * factor; /* NaN stays */
        size = size < least ? least : (size > most ? most : size);
        g = turn < 0 ? (real)0 : g;
        p[i] -= (g > 0 ? size : (g < 0 ? -size : (real)0)); /* NaN has no sign, as in PyTorch */
        s[i] = size;
        q[i] = g;
    }
}

static void NAME(schedule_free)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    INPUTS;
    real *restrict z = STATE(0), *restrict v = STATE(1);
    const real still = FACTOR(CB_SCHEDULE_FREE_STILL), share = FACTOR(CB_SCHEDULE_FREE_SHARE);
    const real b2 = FACTOR(CB_SCHEDULE_FREE_B2), a2 = FACTOR(CB_SCHEDULE_FREE_A2);
    const real root = FACTOR(CB_SCHEDULE_FREE_ROOT), eps = FACTOR(CB_SCHEDULE_FREE_EPS);
    const real back = FACTOR(CB_SCHEDULE_FREE_BACK), rate = FACTOR(CB_SCHEDULE_FREE_RATE);
    const bool is_first = f[CB_SCHEDULE_FREE_IS_FIRST] != 0.0;
    for (int64_t i = 0; i < n; i++) {
        real g = GRADIENT, y = p[i], old = is_first ? y : z[i];
        v[i] = b2 * v[i] + a2 * g * g;
        real u = g / (square_root(v[i]) * root + eps) + still * y;
        p[i] = y + (old - y) * share + back * u;
        z[i] = old - rate * u;
    }
}

#ifndef CB_ELEMENTS_ALONE

/* ---- 8 bits: a block is updated, then encoded with scales computed from its new values ------- */

/* A block of decoded values. Codes are widened to the width of the numbers before they are decoded
 * and narrowed after they are encoded, because the vectoriser wants loops of one width. Magnitudes
 * are compared by their bits, which have the same order, with NaN above everything else. */
typedef struct NAME(cb_block) {
    int32_t m_code[CB_STATE_BLOCK], v_code[CB_STATE_BLOCK];
    real update[CB_STATE_BLOCK];  /* m / (sqrt(v) root + eps) */
    float spread[CB_STATE_BLOCK]; /* sqrt(v) */
    uint32_t update_most, spread_most, spread_least;
} NAME(cb_block);

INLINE void NAME(moments_8bit)(const double *f, const cb_optim_row *row, int64_t at, int32_t n,
                               NAME(cb_block) * block) {
    const real *restrict grad = (const real *)row->grad + at;
    const float *m_scale = (const float *)row->state[2] + at / CB_STATE_BLOCK * 2;
    const float *v_scale = (const float *)row->state[3] + at / CB_STATE_BLOCK * 2;
    const cb_root_codes codes = root_codes_of(v_scale[0], v_scale[1]);
    const real scale = FACTOR(CB_GRAD_SCALE);
    const real b1 = FACTOR(CB_ADAM_B1), a1 = FACTOR(CB_ADAM_A1);
    const real b2 = FACTOR(CB_ADAM_B2), a2 = FACTOR(CB_ADAM_A2);
    const real root = FACTOR(CB_ADAM_ROOT), eps = FACTOR(CB_ADAM_EPS);
    const real slope = b1 * (real)m_scale[0], offset = b1 * (real)m_scale[1];
    uint32_t update_most = 0, spread_most = 0, spread_least = UINT32_MAX;
    for (int32_t i = 0; i < n; i++) {
        const real g = scale * grad[i]; /* decay is apart, always */
        const real old = (real)root_of(codes, block->v_code[i]);
        const real m = (real)block->m_code[i] * (old * slope + offset) + a1 * g;
        const real spread = square_root(b2 * (old * old) + a2 * g * g);
        const real update = m / (spread * root + eps);
        const uint32_t update_size = cb_bits_of_f32(fabsf((float)update));
        const uint32_t spread_size = cb_bits_of_f32((float)spread);
        update_most = update_size > update_most ? update_size : update_most;
        spread_most = spread_size > spread_most ? spread_size : spread_most;
        spread_least = spread_size < spread_least ? spread_size : spread_least;
        block->update[i] = update;
        block->spread[i] = (float)spread;
    }
    block->update_most = update_most;
    block->spread_most = spread_most;
    block->spread_least = spread_least;
}

/* Writes the parameters and the codes. */
INLINE void NAME(encode_8bit)(const double *f, const cb_optim_row *row, int64_t at, int32_t n,
                              cb_block_scales scales, bool low, NAME(cb_block) * block) {
    real *restrict p = (real *)row->param + at;
    const real keep = FACTOR(CB_ADAM_KEEP), rate = FACTOR(CB_ADAM_RATE);
    const cb_root_codes codes = root_codes_of(scales.v[0], scales.v[1]);
    const float v_inverse = 1 / (float)codes.step;
    const uint32_t noise =
        noise_of((uint32_t)(at / CB_STATE_BLOCK) + (uint32_t)f[CB_ADAMW_8BIT_SEED]);
    for (int32_t i = 0; i < n; i++) {
        const uint32_t here = noise_at(noise, i);
        const float update = (float)block->update[i];
        p[i] = p[i] * keep - rate * block->update[i];
        block->m_code[i] = rounded_signed(update * scales.m_inverse, here);
        block->v_code[i] = code_of_root(codes, v_inverse, block->spread[i], low, here);
    }
}

/* Computes the ranges of a block without its outliers, and clamps the roots of these to the largest
 * of the others. */
INLINE void NAME(leave_out_8bit)(int32_t n, NAME(cb_block) * block) {
    uint32_t update_most = 0, spread_most = 0, spread_least = UINT32_MAX;
    for (int32_t i = 0; i < n; i++) {
        const uint32_t update_size = cb_bits_of_f32(fabsf((float)block->update[i]));
        const uint32_t spread_size = cb_bits_of_f32(block->spread[i]);
        if (update_size < UPDATE_LIMIT && update_size > update_most) update_most = update_size;
        if (spread_size < INFINITE && spread_size > spread_most) spread_most = spread_size;
    }
    for (int32_t i = 0; i < n; i++) {
        uint32_t spread_size = cb_bits_of_f32(block->spread[i]);
        if (spread_size >= INFINITE) spread_size = spread_most;
        if (spread_size < spread_least) spread_least = spread_size;
        block->spread[i] = cb_f32_of_bits(spread_size);
    }
    block->update_most = update_most;
    block->spread_most = spread_most;
    block->spread_least = spread_least;
}

INLINE void NAME(update_8bit)(const double *f, const cb_optim_row *row, int64_t at, int32_t n,
                              NAME(cb_block) * block) {
    const bool outliers = block->update_most >= UPDATE_LIMIT || block->spread_most >= INFINITE;
    if (outliers) NAME(leave_out_8bit)(n, block);
    uint32_t least = block->spread_least;
    if (least == 0) least = least_but_0(block->spread, n);
    const cb_block_scales scales = scales_of(block->update_most, least, block->spread_most);
    if (block->spread_least == 0 || block->spread_least < cb_bits_of_f32(scales.v[0])) {
        NAME(encode_8bit)(f, row, at, n, scales, true, block);
    } else {
        NAME(encode_8bit)(f, row, at, n, scales, false, block);
    }
    for (int32_t i = 0; outliers && i < n; i++) {
        const float size = fabsf((float)block->update[i]);
        if (cb_bits_of_f32(size) >= UPDATE_LIMIT) block->m_code[i] = 0;
    }
    float *m_scale = (float *)row->state[2] + at / CB_STATE_BLOCK * 2;
    float *v_scale = (float *)row->state[3] + at / CB_STATE_BLOCK * 2;
    m_scale[0] = scales.unit * (float)f[CB_ADAM_ROOT];
    m_scale[1] = scales.unit * (float)f[CB_ADAM_EPS];
    v_scale[0] = scales.v[0];
    v_scale[1] = scales.v[1];
}

INLINE void NAME(adamw_8bit_block)(const double *f, const cb_optim_row *row, int64_t at,
                                   int32_t n) {
    int8_t *restrict m = (int8_t *)row->state[0] + at;
    uint8_t *restrict v = (uint8_t *)row->state[1] + at;
    NAME(cb_block) block;
    for (int32_t i = 0; i < n; i++) block.m_code[i] = m[i];
    for (int32_t i = 0; i < n; i++) block.v_code[i] = v[i];
    NAME(moments_8bit)(f, row, at, n, &block);
    NAME(update_8bit)(f, row, at, n, &block);
    for (int32_t i = 0; i < n; i++) m[i] = (int8_t)block.m_code[i];
    for (int32_t i = 0; i < n; i++) v[i] = (uint8_t)block.v_code[i];
}

static void NAME(adamw_8bit)(const double *f, const cb_optim_row *row, int64_t at, int64_t n) {
    int64_t done = 0;
    for (; n - done >= CB_STATE_BLOCK; done += CB_STATE_BLOCK) {
        NAME(adamw_8bit_block)(f, row, at + done, CB_STATE_BLOCK);
    }
    if (done < n) NAME(adamw_8bit_block)(f, row, at + done, (int32_t)(n - done));
}

#endif
