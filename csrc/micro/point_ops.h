/* point_ops.h: the formulas of pointwise ops, shared by all types and backends. They are
 * expressions in the elements `x` and `y` and their type `real`; CB_MATH(exp) is the exp of that
 * type. Integers wrap. plain_unary.c and plain_binary.c turn them into loops, exec/cuda into kernel
 * functions, so this file includes nothing. */
#ifndef CB_MICRO_POINT_OPS_H
#define CB_MICRO_POINT_OPS_H

/* clang-format off */
#define CB_UNARY_FLOAT(X)                                                  \
    X(NEG, -x)                                                             \
    X(ABS, CB_MATH(abs)(x))                                                \
    X(SIGN, x > 0 ? (real)1 : (x < 0 ? (real)-1 : (x == 0 ? (real)0 : x))) \
    X(FLOOR, CB_MATH(floor)(x))                                            \
    X(EXP, CB_MATH(exp)(x))                                                \
    X(LOG, CB_MATH(log)(x))                                                \
    X(LOG1P, CB_MATH(log1p)(x))                                            \
    X(SQRT, CB_MATH(sqrt)(x))                                              \
    X(RSQRT, (real)1 / CB_MATH(sqrt)(x))                                   \
    X(RECIPROCAL, (real)1 / x)                                             \
    X(SQUARE, x * x)                                                       \
    X(TANH, CB_MATH(tanh)(x))                                              \
    X(SIGMOID, CB_MATH(sigmoid)(x))                                        \
    X(ERF, CB_MATH(erf)(x))                                                \
    X(RELU, x < 0 ? (real)0 : x)                                           \
    X(GELU, CB_MATH(gelu)(x))                                              \
    X(GELU_TANH, CB_MATH(gelu_tanh)(x))                                    \
    X(SILU, CB_MATH(silu)(x))

#define CB_UNARY_INT(X)                                                    \
    X(NEG, (real)(0 - (uint64_t)x))                                        \
    X(ABS, (real)(x > 0 ? (uint64_t)x : 0 - (uint64_t)x))                  \
    X(SIGN, x > 0 ? (real)1 : (x == 0 ? (real)0 : (real)-1))               \
    X(SQUARE, (real)((uint64_t)x * (uint64_t)x))                           \
    X(RELU, x > 0 ? x : (real)0)

/* In gradients x is g, and y is the output (tanh, sigmoid, relu) or the input (the others) of the
 * forward op. */
#define CB_BINARY_FLOAT(X)                                                 \
    X(ADD, x + y)                                                          \
    X(SUB, x - y)                                                          \
    X(MUL, x * y)                                                          \
    X(DIV, x / y)                                                          \
    X(POW, CB_MATH(pow)(x, y))                                             \
    X(MAXIMUM, x > y || x != x ? x : y)                                    \
    X(MINIMUM, x < y || x != x ? x : y)                                    \
    X(TANH_BWD, x * ((real)1 - y * y))                                     \
    X(SIGMOID_BWD, x * (y * ((real)1 - y)))                                \
    X(RELU_BWD, y <= 0 ? (real)0 : x)                                      \
    X(GELU_BWD, x * CB_MATH(gelu_slope)(y))                                \
    X(GELU_TANH_BWD, x * CB_MATH(gelu_tanh_slope)(y))                      \
    X(SILU_BWD, x * CB_MATH(silu_slope)(y))

#define CB_BINARY_INT(X)                                                   \
    X(ADD, (real)((uint64_t)x + (uint64_t)y))                              \
    X(SUB, (real)((uint64_t)x - (uint64_t)y))                              \
    X(MUL, (real)((uint64_t)x * (uint64_t)y))                              \
    X(MAXIMUM, x > y ? x : y)                                              \
    X(MINIMUM, x < y ? x : y)                                              \
    X(RELU_BWD, y <= 0 ? (real)0 : x)

#define CB_COMPARE(X)                                                      \
    X(EQ, x == y)                                                          \
    X(NE, x != y)                                                          \
    X(LT, x < y)                                                           \
    X(LE, x <= y)                                                          \
    X(GT, x > y)                                                           \
    X(GE, x >= y)

#define CB_LOGICAL(X)                                                      \
    X(LOGICAL_AND, (x != 0) & (y != 0))                                    \
    X(LOGICAL_OR, (x != 0) | (y != 0))
/* clang-format on */

#endif
