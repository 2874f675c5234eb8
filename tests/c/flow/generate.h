/* generate.h: networks for tests and benchmarks.
 *
 * Training graphs are generated from a short list of forward ops, each with bytes, time, inputs and
 * whether the backward reads its output. They have the planner's form:
 *
 *     source --inf--> in(op)           the op may not run again
 *     in(op) --bytes--> out(op)        cut: its output is saved
 *     out(op) --inf--> in(reader)      a reader that runs again needs it
 *     out(op) --inf--> sink            the backward reads it
 *
 * where time[in(op)] is the cost of a second run. The structure follows real models (which ops they
 * have, which op reads which, what the backward formulas read); the values do not. */
#ifndef CB_TESTS_FLOW_GENERATE_H
#define CB_TESTS_FLOW_GENERATE_H

#include "base/vec.h"
#include "flow/frontier.h"

typedef struct random_state {
    uint64_t at;
} random_state;

static inline uint64_t random_next(random_state *r) { /* splitmix64 */
    uint64_t z = r->at += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
static inline uint32_t random_below(random_state *r, uint32_t n) {
    return (uint32_t)((random_next(r) >> 32) * n >> 32);
}

typedef struct made_network {
    cb_arena *arena;
    uint32_t n_node, n_op, source, sink;
    CB_VEC(uint32_t) from;
    CB_VEC(uint32_t) to;
    CB_VEC(int64_t) bytes;
    CB_VEC(int64_t) time; /* [n_node] */
    random_state random;
    int64_t noise; /* op times vary by this many thousandths up or down */
    bool failed;
} made_network;

static inline void made_arc(made_network *g, uint32_t from, uint32_t to, int64_t bytes) {
    g->failed |= !CB_PUSH(g->arena, g->from, from) || !CB_PUSH(g->arena, g->to, to) ||
                 !CB_PUSH(g->arena, g->bytes, bytes);
}
static inline uint32_t made_node(made_network *g, int64_t time) {
    g->failed |= !CB_PUSH(g->arena, g->time, time);
    return g->n_node++;
}
static inline void made_init(made_network *g, cb_arena *arena, uint64_t seed) {
    *g = (made_network){.arena = arena, .random = {seed}, .source = 0, .sink = 1};
    made_node(g, 0);
    made_node(g, 0);
}
static inline cb_priced_network made_view(const made_network *g) {
    return (cb_priced_network){.n_node = g->n_node,
                               .n_arc = (uint32_t)g->from.len,
                               .source = g->source,
                               .sink = g->sink,
                               .from = g->from.at,
                               .to = g->to.at,
                               .bytes = g->bytes.at,
                               .time = g->time.at};
}

/* ---- ops ------------------------------------------------------------------------------------- */

enum { FREE_OP = 0, BANNED = 1, READ = 2, VIEW = 4 };
enum { NO_INPUT = UINT32_MAX };

/* Adds an op with up to two inputs; returns its number, which later ops may read. */
static inline uint32_t made_op(made_network *g, uint32_t a, uint32_t b, int64_t bytes, int64_t time,
                               int flags) {
    int64_t spread = g->noise ? time * g->noise / 1000 : 0;
    if (spread > 0)
        time += (int64_t)(random_next(&g->random) % (uint64_t)(2 * spread + 1)) - spread;
    uint32_t in = made_node(g, flags & BANNED ? 0 : time), out = made_node(g, 0);
    if (flags & BANNED) made_arc(g, g->source, in, CB_FLOW_INF);
    made_arc(g, in, out, flags & VIEW ? CB_FLOW_INF : bytes);
    if (a != NO_INPUT) made_arc(g, 2 * a + 3, in, CB_FLOW_INF);
    if (b != NO_INPUT) made_arc(g, 2 * b + 3, in, CB_FLOW_INF);
    if (flags & READ) made_arc(g, out, g->sink, CB_FLOW_INF);
    return g->n_op++;
}

/* These add one transformer block on x of t bytes, with eager attention of s bytes: 48 ops.
 * `matmul` is BANNED for a cut by memory traffic, FREE_OP for a frontier. */
static inline uint32_t made_norm(made_network *g, uint32_t x, int64_t t) {
    uint32_t gamma = made_op(g, NO_INPUT, NO_INPUT, 3072, 0, BANNED | READ);
    uint32_t mean = made_op(g, x, NO_INPUT, t / 768, t / 1000, FREE_OP);
    uint32_t centred = made_op(g, x, mean, t, t / 700, FREE_OP);
    uint32_t square = made_op(g, centred, NO_INPUT, t, t / 700, FREE_OP);
    uint32_t var = made_op(g, square, NO_INPUT, t / 768, t / 1000, FREE_OP);
    uint32_t rstd = made_op(g, var, NO_INPUT, t / 768, 30, READ);
    uint32_t hat = made_op(g, centred, rstd, t, t / 700, READ);
    return made_op(g, made_op(g, hat, gamma, t, t / 700, FREE_OP), NO_INPUT, t, t / 700, FREE_OP);
}
static inline uint32_t made_linear(made_network *g, uint32_t x, int64_t in, int64_t out,
                                   int matmul) {
    uint32_t w = made_op(g, NO_INPUT, NO_INPUT, in / 4, 0, BANNED | READ);
    uint32_t flat = made_op(g, x, NO_INPUT, in, 0, VIEW | READ);
    uint32_t product = made_op(g, flat, w, out, (in + out) / 40, matmul);
    return made_op(g, product, NO_INPUT, out, out / 700, FREE_OP); /* bias */
}
static inline uint32_t made_dropout(made_network *g, uint32_t x, int64_t t) {
    uint32_t mask = made_op(g, NO_INPUT, NO_INPUT, t / 4, t / 900, BANNED | READ);
    return made_op(g, x, mask, t, t / 700, FREE_OP);
}
static inline uint32_t made_block(made_network *g, uint32_t x, int64_t t, int64_t s, int matmul) {
    uint32_t normed = made_norm(g, x, t), head[3];
    uint32_t qkv = made_linear(g, normed, t, 3 * t, matmul);
    for (int i = 0; i < 3; i++) {
        uint32_t part = made_op(g, qkv, NO_INPUT, t, 0, VIEW);
        head[i] = made_op(g, part, NO_INPUT, t, t / 600, READ); /* transposed copy */
    }
    uint32_t scores = made_op(g, head[0], head[1], s, s / 50, matmul);
    uint32_t scaled = made_op(g, scores, NO_INPUT, s, s / 700, FREE_OP);
    uint32_t top = made_op(g, scaled, NO_INPUT, s / 128, s / 1000, FREE_OP);
    uint32_t power = made_op(g, scaled, top, s, s / 500, FREE_OP);
    uint32_t total = made_op(g, power, NO_INPUT, s / 128, s / 1000, FREE_OP);
    uint32_t weights = made_dropout(g, made_op(g, power, total, s, s / 700, READ), s);
    uint32_t mixed =
        made_op(g, made_op(g, weights, NO_INPUT, s, 0, VIEW | READ), head[2], t, t / 50, matmul);
    uint32_t joined = made_op(g, mixed, NO_INPUT, t, t / 600, FREE_OP);
    uint32_t attended = made_dropout(g, made_linear(g, joined, t, t, matmul), t);
    uint32_t middle = made_op(g, x, attended, t, t / 700, FREE_OP);
    uint32_t wide = made_linear(g, made_norm(g, middle, t), t, 4 * t, matmul);
    uint32_t cube = made_op(g, wide, NO_INPUT, 4 * t, t / 170, FREE_OP);
    uint32_t inner = made_op(g, cube, wide, 4 * t, t / 170, FREE_OP);
    uint32_t curve = made_op(g, inner, NO_INPUT, 4 * t, t / 150, READ); /* tanh */
    uint32_t gelu = made_op(g, wide, curve, 4 * t, t / 170, FREE_OP);
    made_arc(g, 2 * wide + 3, g->sink, CB_FLOW_INF); /* gelu's backward reads it */
    uint32_t narrow = made_dropout(g, made_linear(g, gelu, 4 * t, t, matmul), t);
    return made_op(g, middle, narrow, t, t / 700, FREE_OP);
}

/* Makes a GPT of about n_node nodes. */
static inline void make_gpt(made_network *g, uint32_t n_node, int matmul) {
    uint32_t x = made_op(g, NO_INPUT, NO_INPUT, 8 << 20, 9000, READ | BANNED);
    while (g->n_node + 60 < n_node) x = made_block(g, x, 24 << 20, 96 << 20, matmul);
    made_op(g, x, NO_INPUT, 64 << 20, 90000, matmul | READ);
}

/* These add bottleneck blocks: convolution, batch norm (saved statistics), relu; sizes shrink over
 * four stages. */
static inline uint32_t made_conv(made_network *g, uint32_t x, int64_t t, int matmul) {
    uint32_t w = made_op(g, NO_INPUT, NO_INPUT, t / 8, 0, BANNED | READ);
    uint32_t y = made_op(g, x, w, t, t / 12, matmul | READ);
    uint32_t gamma = made_op(g, NO_INPUT, NO_INPUT, 1024, 0, BANNED | READ);
    uint32_t mean = made_op(g, y, NO_INPUT, 1024, t / 1000, READ);
    uint32_t centred = made_op(g, y, mean, t, t / 700, FREE_OP);
    uint32_t var = made_op(g, centred, NO_INPUT, 1024, t / 1000, READ);
    uint32_t hat = made_op(g, centred, var, t, t / 700, FREE_OP);
    return made_op(g, hat, gamma, t, t / 700, FREE_OP);
}
static inline void make_resnet(made_network *g, uint32_t n_node, int matmul) {
    int64_t t = 96 << 20;
    uint32_t x = made_op(g, NO_INPUT, NO_INPUT, t, 0, READ | BANNED), stage = n_node / 4;
    while (g->n_node + 60 < n_node) {
        int64_t now = t >> (g->n_node / (stage + 1));
        uint32_t a =
            made_op(g, made_conv(g, x, now / 4, matmul), NO_INPUT, now / 4, now / 2800, READ);
        uint32_t b =
            made_op(g, made_conv(g, a, now / 4, matmul), NO_INPUT, now / 4, now / 2800, READ);
        uint32_t sum = made_op(g, x, made_conv(g, b, now, matmul), now, now / 700, FREE_OP);
        x = made_op(g, sum, NO_INPUT, now, now / 700, READ);
    }
}

/* Makes a random DAG with inputs from a window of earlier ops, unlike any neural network. */
static inline void make_random_dag(made_network *g, uint32_t n_node) {
    random_state *r = &g->random;
    while (g->n_node + 2 <= n_node) {
        uint32_t n = g->n_op, window = n < 64 ? n : 64;
        uint32_t a = n ? n - 1 - random_below(r, window) : NO_INPUT;
        uint32_t b = n && random_below(r, 2) ? n - 1 - random_below(r, window) : NO_INPUT;
        int flags = n == 0 || random_below(r, 20) == 0 ? BANNED : FREE_OP;
        if (random_below(r, 3) == 0) flags |= READ;
        made_op(g, a, b, 1 + random_below(r, 1 << 24), 1 + random_below(r, 1 << 20), flags);
    }
}

/* Makes parallel values that are mixed step by step, each from four random ones, which is hard for
 * local search. Only the first row has inputs, only the last is read, and sizes are nearly
 * equal. */
static inline void make_grid(made_network *g, uint32_t n_node, uint32_t width) {
    random_state *r = &g->random;
    uint32_t rows = n_node / 2 / width;
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t i = 0; i < width; i++) {
            int flags =
                (row == 0 ? BANNED : FREE_OP) | (row + 1 == rows || row % 9 == 5 ? READ : 0);
            uint32_t above = (row - 1) * width;
            uint32_t a = row ? above + i : NO_INPUT,
                     b = row ? above + random_below(r, width) : NO_INPUT;
            uint32_t op =
                made_op(g, a, b, 1000 + random_below(r, 1000), 10 + random_below(r, 90), flags);
            for (int k = 0; row && k < 2; k++) {
                made_arc(g, 2 * (above + random_below(r, width)) + 3, 2 * op + 2, CB_FLOW_INF);
            }
        }
    }
}

#endif
