/* kern_scaled.h: records that do what two or three would: an operand times a number, an operation
 * on that and another operand, and a store of the result. Each operation rounds, as separate
 * records do. Included by kern_executor.c, for f32.
 *
 * A record costs at least the jump to it, about three cycles. So formulas of such terms take half
 * the time if their arrays are in a cache. */
#ifndef CB_EXEC_CPU_EXECUTOR_KERN_SCALED_H
#define CB_EXEC_CPU_EXECUTOR_KERN_SCALED_H

#ifdef CB_X_WIDE
#define SCALED_TABLES
#else

#define EX_SCALE const VEC scale = EX_VM(of)(c->EX_FIELD(s)[s->c]);

#define SCALED_LANES(q, d, form) v##d##q = FROM_##form(from, d, q) * scale;
#define EX_SCALED(d, form)                                                             \
    EX_OP(scaled_##d##_##form) {                                                       \
        EX_BEGIN EX_SCALE OPEN_##form(from, b) EX_EACH(SCALED_LANES, d, form) EX_NEXT; \
    }
EX_SCALED(0, OTHER)
EX_SCALED(0, STREAM)
EX_SCALED(0, SLOT)
EX_SCALED(1, OTHER)
EX_SCALED(1, STREAM)
EX_SCALED(1, SLOT)

#define OF_SCALED_LANES(q, d, fx, fy, expression)                            \
    {                                                                        \
        VEC x = FROM_##fx(scaled, d, q) * scale, y = FROM_##fy(other, d, q); \
        v##d##q = expression;                                                \
    }
#define OF_SCALED(fx, fy, id, d, expression)                         \
    EX_OP(scaled_##id##_##d##_##fx##_##fy) {                         \
        EX_BEGIN EX_SCALE OPEN_##fx(scaled, b) OPEN_##fy(other, dst) \
            EX_EACH(OF_SCALED_LANES, d, fx, fy, expression) EX_NEXT; \
    }
#define STORE_SCALED(fx, fy, id, d, expression)                                                   \
    EX_OP(store_scaled_##id##_##d##_##fx##_##fy) {                                                \
        EX_BEGIN EX_SCALE OPEN_##fx(scaled, b) OPEN_##fy(other, dst)                              \
            EX_EACH(OF_SCALED_LANES, d, fx, fy, expression) char *to = c->p[s->to] + i * EX_SIZE; \
        EX_EACH(STORE_LANES, d)                                                                   \
        EX_NEXT;                                                                                  \
    }

/* The forms of the scaled operand and of the other operand. */
#define STORED_PAIRS(X, ...)       \
    X(SELF, OTHER, __VA_ARGS__)    \
    X(SELF, STREAM, __VA_ARGS__)   \
    X(STREAM, OTHER, __VA_ARGS__)  \
    X(STREAM, STREAM, __VA_ARGS__) \
    X(SLOT, OTHER, __VA_ARGS__)    \
    X(SLOT, STREAM, __VA_ARGS__)
#define EX_PAIRS(X, ...)           \
    STORED_PAIRS(X, __VA_ARGS__)   \
    X(SELF, SLOT, __VA_ARGS__)     \
    X(SELF, SCALAR, __VA_ARGS__)   \
    X(STREAM, SCALAR, __VA_ARGS__) \
    X(SLOT, SCALAR, __VA_ARGS__)

#define OF_SCALED_BOTH(id, expression)     \
    EX_PAIRS(OF_SCALED, id, 0, expression) \
    EX_PAIRS(OF_SCALED, id, 1, expression)
#define STORE_SCALED_BOTH(id, expression)         \
    STORED_PAIRS(STORE_SCALED, id, 0, expression) \
    STORED_PAIRS(STORE_SCALED, id, 1, expression)
CB_X_SUMS(OF_SCALED_BOTH)
CB_X_PRODUCTS(OF_SCALED_BOTH)
CB_X_SUMS(STORE_SCALED_BOTH)

/* Adds streams, without registers as operands (executor/join.h). */
#define OPEN_SUM_OF                                                                   \
    const char *x = c->p[s->b] + i * EX_SIZE, *y = c->p[s->dst & 0xFF] + i * EX_SIZE; \
    const VEC first = EX_VM(of)(c->EX_FIELD(s)[s->c & 0xFF]),                         \
              then = EX_VM(of)(c->EX_FIELD(s)[s->c >> 8]);
#define OPEN_THIRD const char *z = c->p[s->dst >> 8] + i * EX_SIZE;
#define SUM_OF_2(q, d) v##d##q = EX_LOAD_AT(x, q) * first + EX_LOAD_AT(y, q) * then;
#define SUM_OF_3(q, d) \
    v##d##q = EX_LOAD_AT(x, q) * first + EX_LOAD_AT(y, q) * then * EX_LOAD_AT(z, q);
#define SUMS_OF(d)                                                                                 \
    EX_OP(sum_of_2_##d) { EX_BEGIN OPEN_SUM_OF EX_EACH(SUM_OF_2, d) EX_NEXT; }                     \
    EX_OP(sum_of_3_##d) { EX_BEGIN OPEN_SUM_OF OPEN_THIRD EX_EACH(SUM_OF_3, d) EX_NEXT; }          \
    EX_OP(store_sum_of_2_##d) {                                                                    \
        EX_BEGIN OPEN_SUM_OF EX_EACH(SUM_OF_2, d) char *to = c->p[s->to] + i * EX_SIZE;            \
        EX_EACH(STORE_LANES, d) EX_NEXT;                                                           \
    }                                                                                              \
    EX_OP(store_sum_of_3_##d) {                                                                    \
        EX_BEGIN OPEN_SUM_OF OPEN_THIRD EX_EACH(SUM_OF_3, d) char *to = c->p[s->to] + i * EX_SIZE; \
        EX_EACH(STORE_LANES, d) EX_NEXT;                                                           \
    }
SUMS_OF(0)
SUMS_OF(1)

#define SCALED_ROOT_LANES(q, d) v##d##q = EX_VM(sqrt)(v##d##q) * scale + more;
#define SCALED_ROOT(d)                                                        \
    EX_OP(scaled_root_##d) {                                                  \
        EX_BEGIN EX_SCALE const VEC more = EX_VM(of)(c->EX_FIELD(s)[s->dst]); \
        EX_EACH(SCALED_ROOT_LANES, d) EX_NEXT;                                \
    }
SCALED_ROOT(0)
SCALED_ROOT(1)

#define SCALED_ROW(d)                            \
    {[CB_X_OTHER] = EX_FN(scaled_##d##_OTHER),   \
     [CB_X_STREAM] = EX_FN(scaled_##d##_STREAM), \
     [CB_X_SLOT] = EX_FN(scaled_##d##_SLOT)}
#define OF_SCALED_FN(fx, fy, id, d) [CB_X_##fx][CB_X_##fy] = EX_FN(scaled_##id##_##d##_##fx##_##fy),
#define STORE_SCALED_FN(fx, fy, id, d) \
    [CB_X_##fx][CB_X_##fy] = EX_FN(store_scaled_##id##_##d##_##fx##_##fy),
#define OF_SCALED_ROWS(id, expression) \
    [CB_X_##id] = {{EX_PAIRS(OF_SCALED_FN, id, 0)}, {EX_PAIRS(OF_SCALED_FN, id, 1)}},
#define STORE_SCALED_ROWS(id, expression) \
    [CB_X_##id] = {{STORED_PAIRS(STORE_SCALED_FN, id, 0)}, {STORED_PAIRS(STORE_SCALED_FN, id, 1)}},
#define SCALED_TABLES                                                                           \
    .scaled = {SCALED_ROW(0), SCALED_ROW(1)},                                                   \
    .of_scaled = {CB_X_SUMS(OF_SCALED_ROWS) CB_X_PRODUCTS(OF_SCALED_ROWS)},                     \
    .store_scaled = {CB_X_SUMS(STORE_SCALED_ROWS)},                                             \
    .sum_of = {{EX_FN(sum_of_2_0), EX_FN(sum_of_2_1)}, {EX_FN(sum_of_3_0), EX_FN(sum_of_3_1)}}, \
    .store_sum_of = {{EX_FN(store_sum_of_2_0), EX_FN(store_sum_of_2_1)},                        \
                     {EX_FN(store_sum_of_3_0), EX_FN(store_sum_of_3_1)}},                       \
    .scaled_root = {EX_FN(scaled_root_0), EX_FN(scaled_root_1)},

#endif

#endif
