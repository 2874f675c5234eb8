/* kern_scaled.h: records that do what two or three would: an operand times a number, an operation
 * on that and another operand, and a store of the result. Each rounds, as one after the other does.
 * Included by kern_executor.c, for f32.
 *
 * What a record costs is the jump to it, some three cycles however little it does, so formulas of
 * such terms take half the time where their arrays are in a cache. */
#ifndef CB_EXEC_CPU_EXECUTOR_KERN_SCALED_H
#define CB_EXEC_CPU_EXECUTOR_KERN_SCALED_H

#ifdef CB_X_WIDE
#define SCALED_TABLES
#else

#define SCALE const VEC scale = VM(of)(c->FIELD(s)[s->c]);

#define SCALED_LANES(q, d, form) v##d##q = FROM_##form(from, d, q) * scale;
#define SCALED(d, form) \
    OP(scaled_##d##_##form) { BEGIN SCALE OPEN_##form(from, b) EACH(SCALED_LANES, d, form) NEXT; }
SCALED(0, OTHER)
SCALED(0, STREAM)
SCALED(0, SLOT)
SCALED(1, OTHER)
SCALED(1, STREAM)
SCALED(1, SLOT)

#define OF_SCALED_LANES(q, d, fx, fy, expression)                            \
    {                                                                        \
        VEC x = FROM_##fx(scaled, d, q) * scale, y = FROM_##fy(other, d, q); \
        v##d##q = expression;                                                \
    }
#define OF_SCALED(fx, fy, id, d, expression)                   \
    OP(scaled_##id##_##d##_##fx##_##fy) {                      \
        BEGIN SCALE OPEN_##fx(scaled, b) OPEN_##fy(other, dst) \
            EACH(OF_SCALED_LANES, d, fx, fy, expression) NEXT; \
    }
#define STORE_SCALED(fx, fy, id, d, expression)                                             \
    OP(store_scaled_##id##_##d##_##fx##_##fy) {                                             \
        BEGIN SCALE OPEN_##fx(scaled, b) OPEN_##fy(other, dst)                              \
            EACH(OF_SCALED_LANES, d, fx, fy, expression) char *to = c->p[s->to] + i * SIZE; \
        EACH(STORE_LANES, d)                                                                \
        NEXT;                                                                               \
    }

/* The forms of what is scaled, and of the other operand. */
#define STORED_PAIRS(X, ...)       \
    X(SELF, OTHER, __VA_ARGS__)    \
    X(SELF, STREAM, __VA_ARGS__)   \
    X(STREAM, OTHER, __VA_ARGS__)  \
    X(STREAM, STREAM, __VA_ARGS__) \
    X(SLOT, OTHER, __VA_ARGS__)    \
    X(SLOT, STREAM, __VA_ARGS__)
#define PAIRS(X, ...)              \
    STORED_PAIRS(X, __VA_ARGS__)   \
    X(SELF, SLOT, __VA_ARGS__)     \
    X(SELF, SCALAR, __VA_ARGS__)   \
    X(STREAM, SCALAR, __VA_ARGS__) \
    X(SLOT, SCALAR, __VA_ARGS__)

#define OF_SCALED_BOTH(id, expression)  \
    PAIRS(OF_SCALED, id, 0, expression) \
    PAIRS(OF_SCALED, id, 1, expression)
#define STORE_SCALED_BOTH(id, expression)         \
    STORED_PAIRS(STORE_SCALED, id, 0, expression) \
    STORED_PAIRS(STORE_SCALED, id, 1, expression)
CB_X_SUMS(OF_SCALED_BOTH)
CB_X_PRODUCTS(OF_SCALED_BOTH)
CB_X_SUMS(STORE_SCALED_BOTH)

/* Of streams alone (executor/join.h). */
#define OPEN_SUM_OF                                                             \
    const char *x = c->p[s->b] + i * SIZE, *y = c->p[s->dst & 0xFF] + i * SIZE; \
    const VEC first = VM(of)(c->FIELD(s)[s->c & 0xFF]), then = VM(of)(c->FIELD(s)[s->c >> 8]);
#define OPEN_THIRD const char *z = c->p[s->dst >> 8] + i * SIZE;
#define AT(u, q) VM(load)(u + q * LANES * SIZE)
#define SUM_OF_2(q, d) v##d##q = AT(x, q) * first + AT(y, q) * then;
#define SUM_OF_3(q, d) v##d##q = AT(x, q) * first + AT(y, q) * then * AT(z, q);
#define SUMS_OF(d)                                                                        \
    OP(sum_of_2_##d) { BEGIN OPEN_SUM_OF EACH(SUM_OF_2, d) NEXT; }                        \
    OP(sum_of_3_##d) { BEGIN OPEN_SUM_OF OPEN_THIRD EACH(SUM_OF_3, d) NEXT; }             \
    OP(store_sum_of_2_##d) {                                                              \
        BEGIN OPEN_SUM_OF EACH(SUM_OF_2, d) char *to = c->p[s->to] + i * SIZE;            \
        EACH(STORE_LANES, d) NEXT;                                                        \
    }                                                                                     \
    OP(store_sum_of_3_##d) {                                                              \
        BEGIN OPEN_SUM_OF OPEN_THIRD EACH(SUM_OF_3, d) char *to = c->p[s->to] + i * SIZE; \
        EACH(STORE_LANES, d) NEXT;                                                        \
    }
SUMS_OF(0)
SUMS_OF(1)

#define SCALED_ROOT_LANES(q, d) v##d##q = VM(sqrt)(v##d##q) * scale + more;
#define SCALED_ROOT(d)                                            \
    OP(scaled_root_##d) {                                         \
        BEGIN SCALE const VEC more = VM(of)(c->FIELD(s)[s->dst]); \
        EACH(SCALED_ROOT_LANES, d) NEXT;                          \
    }
SCALED_ROOT(0)
SCALED_ROOT(1)

#define SCALED_ROW(d)                                                                   \
    {                                                                                   \
        [CB_X_OTHER] = FN(scaled_##d##_OTHER), [CB_X_STREAM] = FN(scaled_##d##_STREAM), \
        [CB_X_SLOT] = FN(scaled_##d##_SLOT)                                             \
    }
#define OF_SCALED_FN(fx, fy, id, d) [CB_X_##fx][CB_X_##fy] = FN(scaled_##id##_##d##_##fx##_##fy),
#define STORE_SCALED_FN(fx, fy, id, d) \
    [CB_X_##fx][CB_X_##fy] = FN(store_scaled_##id##_##d##_##fx##_##fy),
#define OF_SCALED_ROWS(id, expression) \
    [CB_X_##id] = {{PAIRS(OF_SCALED_FN, id, 0)}, {PAIRS(OF_SCALED_FN, id, 1)}},
#define STORE_SCALED_ROWS(id, expression) \
    [CB_X_##id] = {{STORED_PAIRS(STORE_SCALED_FN, id, 0)}, {STORED_PAIRS(STORE_SCALED_FN, id, 1)}},
#define SCALED_TABLES                                                               \
    .scaled = {SCALED_ROW(0), SCALED_ROW(1)},                                       \
    .of_scaled = {CB_X_SUMS(OF_SCALED_ROWS) CB_X_PRODUCTS(OF_SCALED_ROWS)},         \
    .store_scaled = {CB_X_SUMS(STORE_SCALED_ROWS)},                                 \
    .sum_of = {{FN(sum_of_2_0), FN(sum_of_2_1)}, {FN(sum_of_3_0), FN(sum_of_3_1)}}, \
    .store_sum_of = {{FN(store_sum_of_2_0), FN(store_sum_of_2_1)},                  \
                     {FN(store_sum_of_3_0), FN(store_sum_of_3_1)}},                 \
    .scaled_root = {FN(scaled_root_0), FN(scaled_root_1)},

#endif

#endif
