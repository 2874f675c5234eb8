/* ops.h: the formula of each microcode operation, shared by all backends, for f32 and f64. Formulas
 * are expressions in x and y that use CB_SELECT(condition, a, b), ONE_WHERE(condition), CB_ZERO,
 * CB_ONE and CB_MATH(exp). These are defined for vectors (kern_executor.c) and for scalars
 * (scalar.c, cuda/text/prelude.cuh). True is 1, false is 0. */
#ifndef CB_MICRO_OPS_H
#define CB_MICRO_OPS_H

/* clang-format off */
/* An instruction overwrites the register of its first operand, so an op that is not commutative has
 * a reversed variant (R). */
#define CB_X_SUMS(X)                                         \
    X(ADD, x + y)                                            \
    X(SUB, x - y)                                            \
    X(RSUB, y - x)
#define CB_X_PRODUCTS(X)                                     \
    X(MUL, x * y)                                            \
    X(DIV, x / y)                                            \
    X(RDIV, y / x)
#define CB_X_BINARY(X)                                       \
    CB_X_SUMS(X)                                             \
    CB_X_PRODUCTS(X)                                         \
    X(MAXIMUM, CB_SELECT((x > y) | (x != x), x, y))          \
    X(RMAXIMUM, CB_SELECT((y > x) | (y != y), y, x))         \
    X(MINIMUM, CB_SELECT((x < y) | (x != x), x, y))          \
    X(RMINIMUM, CB_SELECT((y < x) | (y != y), y, x))         \
    X(EQ, ONE_WHERE(x == y))                                 \
    X(NE, ONE_WHERE(x != y))                                 \
    X(LT, ONE_WHERE(x < y))                                  \
    X(LE, ONE_WHERE(x <= y))                                 \
    X(GT, ONE_WHERE(x > y))                                  \
    X(GE, ONE_WHERE(x >= y))                                 \
    X(AND, ONE_WHERE((x != 0.0f) & (y != 0.0f)))             \
    X(OR, ONE_WHERE((x != 0.0f) | (y != 0.0f)))              \
    X(RELU_BWD, CB_SELECT(y <= 0.0f, CB_ZERO, x))            \
    X(RRELU_BWD, CB_SELECT(x <= 0.0f, CB_ZERO, y))           \
    X(KEEP, CB_SELECT(x != 0.0f, y, CB_ZERO))                \
    X(RKEEP, CB_SELECT(y != 0.0f, x, CB_ZERO))               \
    X(GELU_TANH_SLOPE, CB_MATH(gelu_tanh_slope_of)(x, y))    \
    X(RGELU_TANH_SLOPE, CB_MATH(gelu_tanh_slope_of)(y, x))

#define CB_X_UNARY(X)                                        \
    X(NEG, -x)                                               \
    X(ABS, CB_MATH(abs)(x))                                  \
    X(SIGN, CB_SELECT(x > 0.0f, CB_ONE,                      \
                      CB_SELECT(x < 0.0f, -CB_ONE, CB_SELECT(x == 0.0f, CB_ZERO, x)))) \
    X(FLOOR, CB_MATH(floor)(x))                              \
    X(SQRT, CB_MATH(sqrt)(x))                                \
    X(RSQRT, 1.0f / CB_MATH(sqrt)(x))                        \
    X(RECIPROCAL, 1.0f / x)                                  \
    X(TANH_SLOPE, 1.0f - x * x)                              \
    X(SIGMOID_SLOPE, x * (1.0f - x))                         \
    X(RELU, CB_SELECT(x < 0.0f, CB_ZERO, x))                 \
    X(NOT, ONE_WHERE(x == 0.0f))                             \
    X(TRUTH, ONE_WHERE(x != 0.0f))

/* Elementary functions (vecmath.h). */
#define CB_X_MATH(X)                                         \
    X(EXP, CB_MATH(exp)(x))                                  \
    X(LOG, CB_MATH(log)(x))                                  \
    X(LOG1P, CB_MATH(log1p)(x))                              \
    X(TANH, CB_MATH(tanh)(x))                                \
    X(SIGMOID, CB_MATH(sigmoid)(x))                          \
    X(ERF, CB_MATH(erf)(x))                                  \
    X(GELU_TANH_PART, CB_MATH(gelu_tanh_part)(x))

/* f32 only: rounds to a 16-bit float, returned as an f32. */
#define CB_X_HALF(X)                                         \
    X(ROUND_BF16, CB_MATH(round_bf16)(x))                    \
    X(ROUND_F16, CB_MATH(round_f16)(x))

/* The f32 vector forms handle arguments up to CB_SIN_MAX_F32. */
#define CB_X_ROUND(X)                                        \
    X(SIN, sin)                                              \
    X(COS, cos)
/* clang-format on */

/* Operations with one operand and two results: the first overwrites the operand's register, the
 * second goes to another register. NORMAL: the probability below x, and e^(-x^2 / 2). */
#define CB_X_PAIR(X) \
    X(NORMAL)        \
    X(SIN_COS)

#define CB_X_ID(id, ...) CB_X_##id,
typedef enum cb_x_op {
    CB_X_BINARY(CB_X_ID) CB_X_BINARY_END,
    CB_X_UNARY_BEGIN = CB_X_BINARY_END - 1,
    CB_X_UNARY(CB_X_ID) CB_X_MATH(CB_X_ID) CB_X_ROUND(CB_X_ID) CB_X_HALF(CB_X_ID) CB_X_UNARY_END,
    CB_X_PAIR_BEGIN = CB_X_UNARY_END - 1,
    CB_X_PAIR(CB_X_ID) CB_X_PAIR_END,
    CB_X_SELECT = CB_X_PAIR_END, /* x where the condition is not 0, else y */
    CB_X_ACC,                    /* adds to an accumulator */
    CB_X_AMAX,
    CB_X_AMIN,
    CB_X_COLUMN, /* adds to the column sums */
    CB_X_COLUMN_MAX,
    CB_X_COLUMN_MIN,
    CB_X_TAKE,   /* copies the element at a position of the row to a number */
    CB_X_ADD_AT, /* adds a number to the element at a position of the row */
    CB_X_STORE,
    CB_X_OP_COUNT
} cb_x_op;

#define CB_X_N_SUMS (CB_X_RSUB + 1)
#define CB_X_N_MADE (CB_X_MUL + 1)
#define CB_X_N_OF_SCALED (CB_X_RDIV + 1)
#define CB_X_N_BINARY CB_X_BINARY_END
#define CB_X_N_UNARY (CB_X_UNARY_END - CB_X_BINARY_END)
#define CB_X_N_PAIR (CB_X_PAIR_END - CB_X_UNARY_END)
#define CB_X_UNARY_INDEX(op) ((op) - CB_X_BINARY_END)
#define CB_X_PAIR_INDEX(op) ((op) - CB_X_UNARY_END)

#endif
