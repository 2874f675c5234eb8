/* kern_made.h: records that do what two or three would: load an operand, apply an operation to it
 * and another one, and store the result. Included by kern_executor.c, for f32 (kern_scaled.h). */
#ifndef CB_EXEC_CPU_EXECUTOR_KERN_MADE_H
#define CB_EXEC_CPU_EXECUTOR_KERN_MADE_H

#ifdef CB_X_WIDE
#define MADE_TABLES
#else

/* v = op(x, y), for operands of any form. If both are the same operand, y has the form TWIN. */
#define OPEN_TWIN(u, field)
#define FROM_TWIN(u, d, q) x
#define CB_X_TWIN CB_X_SELF

#define MADE_LANES(q, d, fx, fy, expression) \
    {                                        \
        VEC x = FROM_##fx(first, d, q);      \
        VEC y = FROM_##fy(second, d, q);     \
        v##d##q = expression;                \
    }
#define MADE_OF(fx, fy, id, d, expression)                      \
    EX_OP(made_##id##_##d##_##fx##_##fy) {                      \
        EX_BEGIN OPEN_##fx(first, b) OPEN_##fy(second, c)       \
            EX_EACH(MADE_LANES, d, fx, fy, expression) EX_NEXT; \
    }
#define STORE_MADE(fx, fy, id, d, expression)                                                \
    EX_OP(store_made_##id##_##d##_##fx##_##fy) {                                             \
        EX_BEGIN OPEN_##fx(first, b) OPEN_##fy(second, c)                                    \
            EX_EACH(MADE_LANES, d, fx, fy, expression) char *to = c->p[s->to] + i * EX_SIZE; \
        EX_EACH(STORE_LANES, d)                                                              \
        EX_NEXT;                                                                             \
    }

#define LOADED_PAIRS(X, ...)       \
    X(STREAM, OTHER, __VA_ARGS__)  \
    X(STREAM, TWIN, __VA_ARGS__)   \
    X(STREAM, STREAM, __VA_ARGS__) \
    X(STREAM, SLOT, __VA_ARGS__)   \
    X(STREAM, SCALAR, __VA_ARGS__) \
    X(SLOT, OTHER, __VA_ARGS__)    \
    X(SLOT, TWIN, __VA_ARGS__)     \
    X(SLOT, STREAM, __VA_ARGS__)   \
    X(SLOT, SLOT, __VA_ARGS__)     \
    X(SLOT, SCALAR, __VA_ARGS__)   \
    X(OTHER, TWIN, __VA_ARGS__)    \
    X(OTHER, STREAM, __VA_ARGS__)  \
    X(OTHER, SLOT, __VA_ARGS__)    \
    X(OTHER, SCALAR, __VA_ARGS__)
#define MADE_PAIRS(X, ...)       \
    LOADED_PAIRS(X, __VA_ARGS__) \
    X(SELF, OTHER, __VA_ARGS__)  \
    X(SELF, TWIN, __VA_ARGS__)   \
    X(SELF, STREAM, __VA_ARGS__) \
    X(SELF, SLOT, __VA_ARGS__)   \
    X(SELF, SCALAR, __VA_ARGS__)

#define CB_X_MADE(X) \
    CB_X_SUMS(X)     \
    X(MUL, x *y)

#define MADE_BOTH(id, expression)             \
    LOADED_PAIRS(MADE_OF, id, 0, expression)  \
    LOADED_PAIRS(MADE_OF, id, 1, expression)  \
    MADE_PAIRS(STORE_MADE, id, 0, expression) \
    MADE_PAIRS(STORE_MADE, id, 1, expression)
CB_X_MADE(MADE_BOTH)

#define MADE_FN(fx, fy, id, d) [CB_X_##fx][CB_X_##fy] = EX_FN(made_##id##_##d##_##fx##_##fy),
#define STORE_MADE_FN(fx, fy, id, d) \
    [CB_X_##fx][CB_X_##fy] = EX_FN(store_made_##id##_##d##_##fx##_##fy),
#define MADE_ROWS(id, expression) \
    [CB_X_##id] = {{LOADED_PAIRS(MADE_FN, id, 0)}, {LOADED_PAIRS(MADE_FN, id, 1)}},
#define STORE_MADE_ROWS(id, expression) \
    [CB_X_##id] = {{MADE_PAIRS(STORE_MADE_FN, id, 0)}, {MADE_PAIRS(STORE_MADE_FN, id, 1)}},
#define MADE_TABLES .made = {CB_X_MADE(MADE_ROWS)}, .store_made = {CB_X_MADE(STORE_MADE_ROWS)},

#endif

#endif
