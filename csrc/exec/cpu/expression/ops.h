/* ops.h: the operations of an expression's nodes. On arrays an op is the executor's; on numbers it
 * is computed in double, from the doubles x, y and z. */
#ifndef CB_EXEC_EXPRESSION_OPS_H
#define CB_EXEC_EXPRESSION_OPS_H

/* clang-format off */
/* The leaves of an expression: the arrays of a row, and numbers: a hyper-parameter of the row's
 * group, the row's count of steps, its number of elements, and constants. */
#define CB_E_LEAVES(X) \
    X(PARAM, param)    \
    X(GRAD, grad)      \
    X(STATE, state)    \
    X(HYPER, hyper)    \
    X(T, t)            \
    X(SIZE, size)      \
    X(CONSTANT, constant)

/* (id, name, operands, the executor's op, the expression on numbers) */
#define CB_E_OPS(X)                                                        \
    X(ADD, add, 2, CB_X_ADD, x + y)                                        \
    X(SUB, sub, 2, CB_X_SUB, x - y)                                        \
    X(MUL, mul, 2, CB_X_MUL, x * y)                                        \
    X(DIV, div, 2, CB_X_DIV, x / y)                                        \
    X(MAXIMUM, maximum, 2, CB_X_MAXIMUM, x > y || x != x ? x : y)          \
    X(MINIMUM, minimum, 2, CB_X_MINIMUM, x < y || x != x ? x : y)          \
    X(EQ, eq, 2, CB_X_EQ, x == y)                                          \
    X(NE, ne, 2, CB_X_NE, x != y)                                          \
    X(LT, lt, 2, CB_X_LT, x < y)                                           \
    X(LE, le, 2, CB_X_LE, x <= y)                                          \
    X(GT, gt, 2, CB_X_GT, x > y)                                           \
    X(GE, ge, 2, CB_X_GE, x >= y)                                          \
    X(AND, logical_and, 2, CB_X_AND, x != 0 && y != 0)                     \
    X(OR, logical_or, 2, CB_X_OR, x != 0 || y != 0)                        \
    X(NOT, logical_not, 1, CB_X_NOT, x == 0)                               \
    X(NEG, neg, 1, CB_X_NEG, -x)                                           \
    X(ABS, abs, 1, CB_X_ABS, fabs(x))                                      \
    X(SIGN, sign, 1, CB_X_SIGN, x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x)   \
    X(FLOOR, floor, 1, CB_X_FLOOR, floor(x))                               \
    X(EXP, exp, 1, CB_X_EXP, exp(x))                                       \
    X(LOG, log, 1, CB_X_LOG, log(x))                                       \
    X(LOG1P, log1p, 1, CB_X_LOG1P, log1p(x))                               \
    X(SQRT, sqrt, 1, CB_X_SQRT, sqrt(x))                                   \
    X(TANH, tanh, 1, CB_X_TANH, tanh(x))                                   \
    X(SIGMOID, sigmoid, 1, CB_X_SIGMOID, 1 / (1 + exp(-x)))                \
    X(ERF, erf, 1, CB_X_ERF, erf(x))                                       \
    X(WHERE, where, 3, CB_X_SELECT, x != 0 ? y : z)                        \
    X(POW, pow, 2, CB_X_OP_COUNT, pow(x, y)) /* only on numbers */        \
    X(SUM, sum, 1, CB_X_ACC, x) /* sums the elements of a row to a number */
/* clang-format on */

#define CB_E_LEAF_ID(id, name) CB_E_##id,
#define CB_E_OP_ID(id, name, ...) CB_E_##id,
typedef enum cb_e_op { CB_E_LEAVES(CB_E_LEAF_ID) CB_E_OPS(CB_E_OP_ID) CB_E_OP_COUNT } cb_e_op;

#endif
