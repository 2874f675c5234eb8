/* random.h: makes random joint graphs with rows: pointwise ops, norms, reductions over rows,
 * columns and everything, products and views, on matrices of one size. */
#ifndef CB_TESTS_LOWER_RANDOM_H
#define CB_TESTS_LOWER_RANDOM_H

#include "model.h"

#define RANDOM_VALUES 64

typedef struct random_graph {
    cb_graph *g;
    uint32_t state, n, n_small;
    cb_shape shape, row, one;
    cb_value_id value[RANDOM_VALUES]; /* [rows, columns] */
    cb_value_id small[RANDOM_VALUES]; /* [rows, 1], [1, columns], [1, 1] */
    cb_value_id weight, square;       /* [columns], [columns, columns] */
} random_graph;

static uint32_t below(random_graph *r, uint32_t n) {
    r->state = r->state * 1664525u + 1013904223u;
    return (r->state >> 8) % n;
}

static cb_value_id pick(random_graph *r) {
    return r->value[below(r, 2) ? below(r, r->n) : r->n - 1 - below(r, r->n < 4 ? r->n : 4)];
}

static cb_status random_reduction(random_graph *r, cb_value_id x, cb_value_id *out, cb_error *e) {
    static const cb_opcode codes[] = {CB_OP_SUM, CB_OP_MEAN, CB_OP_AMAX};
    cb_attrs attrs = {.i = {1}};
    const uint32_t axes = below(r, 4);
    cb_opcode code = codes[below(r, 3)];
    if (axes < 2) attrs.dims = (cb_shape){1, {1}};
    if (axes == 2) attrs.dims = (cb_shape){1, {0}};
    if (axes > 2 && code == CB_OP_AMAX) code = CB_OP_MEAN;
    cb_value_id small;
    CB_TRY(cb_build(r->g, code, 1, &x, &attrs, &small, e));
    if (below(r, 2)) CB_TRY(cb_build1(r->g, CB_OP_SQUARE, small, &small, e));
    r->small[r->n_small++] = small;
    return cb_build2(r->g, below(r, 2) ? CB_OP_ADD : CB_OP_MUL, x, small, out, e);
}

static cb_status random_rows(random_graph *r, cb_value_id x, cb_value_id *out, cb_error *e) {
    const cb_value_id in[3] = {x, r->weight, r->weight};
    const cb_attrs eps = {.f = {1e-3}};
    cb_value_id outs[3];
    switch (below(r, 4)) {
        case 0: return cb_build1(r->g, CB_OP_SOFTMAX, x, out, e);
        case 1: return cb_build1(r->g, CB_OP_LOG_SOFTMAX, x, out, e);
        case 2: CB_TRY(cb_build(r->g, CB_OP_LAYER_NORM, 3, in, &eps, outs, e)); break;
        default: CB_TRY(cb_build(r->g, CB_OP_RMS_NORM, 2, in, &eps, outs, e)); break;
    }
    *out = outs[0];
    return CB_OK;
}

static cb_status random_other(random_graph *r, cb_value_id x, cb_value_id *out, cb_error *e) {
    const cb_attrs dropout = {.f = {0.25}, .i = {r->n}}, tril = {.f = {0.5}};
    cb_value_id half, mask;
    switch (below(r, 5)) {
        case 0: return cb_build(r->g, CB_OP_DROPOUT, 1, &x, &dropout, out, e);
        case 1: return cb_build_matmul(r->g, x, r->square, out, e);
        case 2: return cb_build(r->g, CB_OP_TRIL, 1, &x, &tril, out, e);
        case 3:
            CB_TRY(cb_build_cast(r->g, x, below(r, 2) ? CB_BF16 : CB_F64, &half, e));
            CB_TRY(cb_build1(r->g, CB_OP_SQUARE, half, &half, e));
            CB_TRY(cb_build1(r->g, CB_OP_NEG, x, &mask, e)); /* in f32, between ops in 16 bits */
            CB_TRY(cb_build_cast(r->g, half, CB_F32, &half, e));
            return cb_build2(r->g, CB_OP_ADD, half, mask, out, e);
        default: {
            CB_TRY(cb_build2(r->g, CB_OP_GT, x, pick(r), &mask, e));
            const cb_value_id in[3] = {mask, x, pick(r)};
            return cb_build(r->g, CB_OP_WHERE, 3, in, &(cb_attrs){0}, out, e);
        }
    }
}

static cb_status random_op(random_graph *r, cb_error *e) {
    static const cb_opcode unary[] = {CB_OP_TANH, CB_OP_GELU, CB_OP_RELU, CB_OP_SQUARE, CB_OP_SILU},
                           binary[] = {CB_OP_ADD, CB_OP_MUL, CB_OP_SUB, CB_OP_MAXIMUM};
    const cb_value_id x = pick(r);
    cb_value_id out;
    switch (below(r, 8)) {
        case 0:
        case 1: CB_TRY(cb_build1(r->g, unary[below(r, 5)], x, &out, e)); break;
        case 2:
        case 3: CB_TRY(cb_build2(r->g, binary[below(r, 4)], x, pick(r), &out, e)); break;
        case 4:
        case 5: CB_TRY(random_reduction(r, x, &out, e)); break;
        case 6: CB_TRY(random_rows(r, x, &out, e)); break;
        default: CB_TRY(random_other(r, x, &out, e)); break;
    }
    if (r->n_small && below(r, 4) == 0) {
        const cb_value_id small = r->small[below(r, r->n_small)];
        CB_TRY(cb_build2(r->g, CB_OP_ADD, out, small, &out, e));
    }
    r->value[r->n++] = out;
    return CB_OK;
}

static cb_status random_forward(random_graph *r, cb_error *e) {
    static const int64_t columns[] = {32, 40, 36, 20, 1024};
    const int64_t c = columns[below(r, 5)];
    r->shape = (cb_shape){2, {c == 1024 ? 2 + below(r, 3) : 2 + below(r, 40), c}};
    const cb_shape weight = {1, {c}}, square = {2, {c, c}};
    cb_value_id loss, other;
    CB_TRY(cb_graph_append_input(r->g, "x", CB_ROLE_DATA, CB_F32, &r->shape, &r->value[0], e));
    CB_TRY(cb_graph_append_input(r->g, "y", CB_ROLE_PARAM, CB_F32, &r->shape, &r->value[1], e));
    CB_TRY(cb_graph_append_input(r->g, "w", CB_ROLE_PARAM, CB_F32, &weight, &r->weight, e));
    CB_TRY(cb_graph_append_input(r->g, "s", CB_ROLE_PARAM, CB_F32, &square, &r->square, e));
    r->n = 2;
    for (uint32_t k = 6 + below(r, 30); k-- > 0;) CB_TRY(random_op(r, e));
    CB_TRY(cb_build_sum(r->g, r->value[r->n - 1], 0, NULL, false, &loss, e));
    CB_TRY(cb_build_sum(r->g, pick(r), 0, NULL, false, &other, e));
    CB_TRY(cb_build2(r->g, CB_OP_ADD, loss, other, &loss, e));
    CB_TRY(cb_graph_append_output(r->g, loss, "loss", CB_OUTPUT_RESULT, CB_NONE, e));
    return cb_graph_append_output(r->g, pick(r), "value", CB_OUTPUT_RESULT, CB_NONE, e);
}

/* Makes a random model without named values; every other seed keeps its gradients inside. */
static inline cb_status random_make(cb_alloc *alloc, uint32_t seed, const cb_plan_options *plan,
                                    model *m, cb_error *e) {
    static const uint32_t wrt[] = {1, 2, 3};
    const cb_joint_options joint = {.wrt = wrt, .n_wrt = 3};
    const cb_annotate_options annotate = {.keep_gradients = seed % 2 == 0, MODEL_BACKEND};
    random_graph r = {.state = seed};
    CB_TRY(cb_graph_create(alloc, &m->forward, e));
    r.g = m->forward;
    CB_TRY(random_forward(&r, e));
    CB_TRY(cb_joint_build(m->forward, &joint, alloc, &m->joint, e));
    CB_TRY(cb_annotate(m->joint, &annotate, alloc, &m->problem, e));
    return cb_plan_make(m->problem, plan, alloc, &m->plan, e);
}

#endif
