/* ref_point.c: pointwise ops. Floating dtypes are computed in double, other dtypes in 64-bit
 * integers that wrap. */
#include "ref_ops.h"

#include "../../base/draw.h"

#include <math.h>

#define SQRT_2 1.4142135623730951
#define SQRT_2PI 2.5066282746310002
#define SQRT_2_OVER_PI 0.79788456080286536

static int64_t count_of(const cb_ref_call *c) { return cb_numel(&c->out[0].shape); }

/* ---- sources --------------------------------------------------------------------------------- */

void cb_ref_source(const cb_ref_call *c) {
    const int64_t n = count_of(c);
    for (int64_t i = 0; i < n; i++) {
        int64_t index[CB_MAX_RANK];
        cb_ref_index(&c->out[0].shape, i, index);
        switch (c->code) {
            case CB_OP_FULL: cb_ref_put(&c->out[0], i, c->attrs->f[0]); break;
            case CB_OP_IOTA: cb_ref_put_int(&c->out[0], i, index[c->attrs->i[0]]); break;
            default: { /* uniform */
                const uint32_t bits = cb_philox_u16(&c->random, (uint64_t)i);
                cb_ref_put(&c->out[0], i, (bits & cb_uniform_mask(c->out[0].dtype)) / 65536.0);
            }
        }
    }
}

/* ---- one input ------------------------------------------------------------------------------- */

static double sign(double x) { return isnan(x) ? x : (double)((x > 0) - (x < 0)); }
static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

static double gelu_tanh_inner(double x) { return SQRT_2_OVER_PI * (x + 0.044715 * x * x * x); }

static double unary(cb_opcode code, double x) {
    switch (code) {
        case CB_OP_NEG: return -x;
        case CB_OP_ABS: return fabs(x);
        case CB_OP_SIGN: return sign(x);
        case CB_OP_FLOOR: return floor(x);
        case CB_OP_EXP: return exp(x);
        case CB_OP_LOG: return log(x);
        case CB_OP_LOG1P: return log1p(x);
        case CB_OP_SQRT: return sqrt(x);
        case CB_OP_RSQRT: return 1.0 / sqrt(x);
        case CB_OP_RECIPROCAL: return 1.0 / x;
        case CB_OP_SQUARE: return x * x;
        case CB_OP_SIN: return sin(x);
        case CB_OP_COS: return cos(x);
        case CB_OP_TANH: return tanh(x);
        case CB_OP_SIGMOID: return sigmoid(x);
        case CB_OP_ERF: return erf(x);
        case CB_OP_RELU: return x <= 0 ? 0.0 : x; /* NaN is not <= 0 */
        case CB_OP_GELU: return x * 0.5 * erfc(-x / SQRT_2);
        case CB_OP_GELU_TANH: return 0.5 * x * (1.0 + tanh(gelu_tanh_inner(x)));
        default: return x * sigmoid(x); /* silu */
    }
}

static int64_t wrap(uint64_t x) { return (int64_t)x; }

static int64_t unary_int(cb_opcode code, int64_t x) {
    const uint64_t u = (uint64_t)x;
    switch (code) {
        case CB_OP_NEG: return wrap(0 - u);
        case CB_OP_ABS: return x < 0 ? wrap(0 - u) : x;
        case CB_OP_SIGN: return (x > 0) - (x < 0);
        case CB_OP_SQUARE: return wrap(u * u);
        case CB_OP_RELU: return x > 0 ? x : 0;
        default: return !x; /* logical_not */
    }
}

void cb_ref_unary(const cb_ref_call *c) {
    const bool is_float = cb_dtype_is_float(c->in[0].dtype);
    const int64_t n = count_of(c);
    for (int64_t i = 0; i < n; i++) {
        if (is_float) cb_ref_put(&c->out[0], i, unary(c->code, cb_ref_get(&c->in[0], i)));
        else cb_ref_put_int(&c->out[0], i, unary_int(c->code, cb_ref_get_int(&c->in[0], i)));
    }
}

static void copy_element(const cb_tensor *to, int64_t i, const cb_tensor *from, int64_t k) {
    if (cb_dtype_is_float(from->dtype)) cb_ref_put(to, i, cb_ref_get(from, k));
    else cb_ref_put_int(to, i, cb_ref_get_int(from, k));
}

void cb_ref_copy(const cb_ref_call *c) {
    const int64_t n = count_of(c);
    for (int64_t i = 0; i < n; i++) copy_element(&c->out[0], i, &c->in[0], i);
}

void cb_ref_dropout(const cb_ref_call *c) {
    const double p = c->attrs->f[0];
    const int64_t n = count_of(c);
    for (int64_t i = 0; i < n; i++) {
        const bool kept = cb_philox_u16(&c->random, (uint64_t)i) >= cb_dropout_threshold(p);
        cb_ref_put(&c->out[0], i, kept ? cb_ref_get(&c->in[0], i) * cb_dropout_scale(p) : 0.0);
    }
}

void cb_ref_tril(const cb_ref_call *c) {
    const cb_shape *s = &c->out[0].shape;
    const int64_t n = count_of(c);
    for (int64_t i = 0; i < n; i++) {
        int64_t index[CB_MAX_RANK];
        cb_ref_index(s, i, index);
        const bool kept = index[s->rank - 1] <= index[s->rank - 2] + c->attrs->i[0];
        if (kept) copy_element(&c->out[0], i, &c->in[0], i);
        else cb_ref_put(&c->out[0], i, c->attrs->f[0]);
    }
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Returns the derivative, as a function of the output y or the input x, whichever the op reads. */
static double slope(cb_opcode code, double x) {
    switch (code) {
        case CB_OP_TANH_BWD: return 1.0 - x * x;
        case CB_OP_SIGMOID_BWD: return x * (1.0 - x);
        case CB_OP_GELU_BWD: return 0.5 * erfc(-x / SQRT_2) + x * exp(-0.5 * x * x) / SQRT_2PI;
        case CB_OP_GELU_TANH_BWD: {
            const double t = tanh(gelu_tanh_inner(x)),
                         du = SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044715 * x * x);
            return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du;
        }
        default: { /* silu */ const double s = sigmoid(x); return s * (1.0 + x * (1.0 - s));
        }
    }
}

void cb_ref_point_bwd(const cb_ref_call *c) {
    const int64_t n = count_of(c);
    for (int64_t i = 0; i < n; i++) {
        const double g = cb_ref_get(&c->in[0], i), x = cb_ref_get(&c->in[1], i);
        if (c->code == CB_OP_RELU_BWD) cb_ref_put(&c->out[0], i, x <= 0 ? 0.0 : g);
        else cb_ref_put(&c->out[0], i, g * slope(c->code, x));
    }
}

/* ---- two and three inputs -------------------------------------------------------------------- */

static double binary(cb_opcode code, double x, double y) {
    switch (code) {
        case CB_OP_ADD: return x + y;
        case CB_OP_SUB: return x - y;
        case CB_OP_MUL: return x * y;
        case CB_OP_DIV: return x / y;
        case CB_OP_POW: return pow(x, y);
        case CB_OP_MAXIMUM: return isnan(x) || x > y ? x : y;
        default: return isnan(x) || x < y ? x : y; /* minimum */
    }
}

static int64_t binary_int(cb_opcode code, int64_t x, int64_t y) {
    switch (code) {
        case CB_OP_ADD: return wrap((uint64_t)x + (uint64_t)y);
        case CB_OP_SUB: return wrap((uint64_t)x - (uint64_t)y);
        case CB_OP_MUL: return wrap((uint64_t)x * (uint64_t)y);
        case CB_OP_MAXIMUM: return x > y ? x : y;
        default: return x < y ? x : y; /* minimum */
    }
}

void cb_ref_binary(const cb_ref_call *c) {
    const bool is_float = cb_dtype_is_float(c->in[0].dtype);
    const cb_tensor *a = &c->in[0], *b = &c->in[1];
    const int64_t n = count_of(c);
    for (int64_t i = 0; i < n; i++) {
        if (is_float)
            cb_ref_put(&c->out[0], i, binary(c->code, cb_ref_get(a, i), cb_ref_get(b, i)));
        else
            cb_ref_put_int(&c->out[0], i,
                           binary_int(c->code, cb_ref_get_int(a, i), cb_ref_get_int(b, i)));
    }
}

/* Decides the comparison from x < y, x == y and x > y, which are all false if x or y is NaN. */
static bool compare(cb_opcode code, bool less, bool equal, bool more) {
    switch (code) {
        case CB_OP_EQ: return equal;
        case CB_OP_NE: return !equal;
        case CB_OP_LT: return less;
        case CB_OP_LE: return less || equal;
        case CB_OP_GT: return more;
        default: return more || equal; /* ge */
    }
}

void cb_ref_compare(const cb_ref_call *c) {
    const bool is_float = cb_dtype_is_float(c->in[0].dtype);
    const cb_tensor *a = &c->in[0], *b = &c->in[1];
    const int64_t n = count_of(c);
    for (int64_t i = 0; i < n; i++) {
        bool result;
        if (is_float) {
            const double x = cb_ref_get(a, i), y = cb_ref_get(b, i);
            result = compare(c->code, x < y, x == y, x > y);
        } else {
            const int64_t x = cb_ref_get_int(a, i), y = cb_ref_get_int(b, i);
            result = compare(c->code, x < y, x == y, x > y);
        }
        cb_ref_put_int(&c->out[0], i, result);
    }
}

void cb_ref_logical(const cb_ref_call *c) {
    const int64_t n = count_of(c);
    for (int64_t i = 0; i < n; i++) {
        const bool x = cb_ref_get_int(&c->in[0], i), y = cb_ref_get_int(&c->in[1], i);
        cb_ref_put_int(&c->out[0], i, c->code == CB_OP_LOGICAL_AND ? x && y : x || y);
    }
}

void cb_ref_where(const cb_ref_call *c) {
    const int64_t n = count_of(c);
    for (int64_t i = 0; i < n; i++)
        copy_element(&c->out[0], i, &c->in[cb_ref_get_int(&c->in[0], i) ? 1 : 2], i);
}
