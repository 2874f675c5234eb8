/* model.h: the small model shared by the tests of this layer: two dense layers with GELU, dropout,
 * a view, and a running mean as state.
 *
 *     h = x @ w1 + b1;  a = dropout(gelu(h));  y = reshape(a) @ w2;  loss = mean(y * y);  s' = 0.9
 * s + 0.1 mean(h) */
#ifndef CB_TESTS_LOWER_MODEL_H
#define CB_TESTS_LOWER_MODEL_H

#include "ad/joint.h"
#include "ir/builder.h"
#include "ir/work.h"
#include "lower/annotate.h"
#include "lower/program.h"
#include "lower/split.h"

#include "check.h"
#include "plan/planner.h"

/* Returns a plausible workspace: partial sums for sums over columns, two of them for backwards of
 * norms. */
static uint64_t model_workspace(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const bool is_norm = op->code == CB_OP_LAYER_NORM_BWD || op->code == CB_OP_RMS_NORM_BWD;
    if (!is_norm && op->code != CB_OP_SUM && op->code != CB_OP_MEAN) return 0;
    const cb_value *in = &g->values.at[cb_op_ins(g, id)[0]],
                   *out = &g->values.at[op->out_begin + (is_norm ? 1 : 0)];
    const int64_t columns = cb_numel(&out->shape), all = cb_numel(&in->shape);
    const int64_t blocks = cb_row_blocks(columns ? all / columns : 0, columns);
    return blocks == 1 ? 0 : (uint64_t)(blocks * columns) * (is_norm ? 8 : 4);
}
#define MODEL_BACKEND .alignment = 64, .workspace = model_workspace

/* Stands for a backend that runs every part of a group. */
static inline bool fuses_all(cb_opcode code, cb_part part, const cb_domain *domain,
                             const cb_dtype *in, uint32_t n_in, const cb_dtype *out,
                             uint32_t n_out) {
    (void)code, (void)domain, (void)in, (void)n_in, (void)out, (void)n_out;
    return part != CB_PART_NONE;
}

/* Lowers a plan to a program without fusion. */
static inline cb_status lower_single(const cb_graph *joint, const cb_problem *p,
                                     const cb_plan *plan, cb_fuses_fn fuses, cb_alloc *alloc,
                                     cb_program **out, cb_error *e) {
    const cb_lowered of = {.joint = joint, .single = p, .p = p, .fuses = fuses};
    cb_expanded expanded;
    cb_arena arena;
    cb_arena_init(&arena, alloc);
    const cb_status status = cb_lower_plan(&of, plan, &arena, &expanded, out, e);
    cb_arena_free(&arena);
    return status;
}

typedef struct model {
    cb_graph *forward, *joint;
    cb_problem *problem;
    cb_plan *plan;
    cb_value_id h, a, flat; /* in the forward graph */
} model;

static cb_status model_ops(cb_graph *g, bool with_state, model *m, cb_error *e) {
    const cb_shape x_shape = {3, {2, 4, 8}}, w1_shape = {2, {8, 16}}, b_shape = {1, {16}},
                   w2_shape = {2, {16, 4}}, none = {0};
    const cb_shape flat = {2, {8, 16}};
    cb_value_id x, w1, b1, w2, s, y, loss, part, scaled, factor, all;
    CB_TRY(cb_graph_append_input(g, "x", CB_ROLE_DATA, CB_F32, &x_shape, &x, e));
    CB_TRY(cb_graph_append_input(g, "w1", CB_ROLE_PARAM, CB_F32, &w1_shape, &w1, e));
    CB_TRY(cb_graph_append_input(g, "b1", CB_ROLE_PARAM, CB_F32, &b_shape, &b1, e));
    CB_TRY(cb_graph_append_input(g, "w2", CB_ROLE_PARAM, CB_F32, &w2_shape, &w2, e));
    CB_TRY(cb_graph_append_input(g, "s", CB_ROLE_STATE, CB_F32, &none, &s, e));
    CB_TRY(cb_graph_intern(g, "model.py:7", &g->location, e));
    CB_TRY(cb_build_matmul(g, x, w1, &m->h, e));
    CB_TRY(cb_build2(g, CB_OP_ADD, m->h, b1, &m->h, e));
    g->location = CB_NONE;
    CB_TRY(cb_build1(g, CB_OP_GELU, m->h, &m->a, e));
    const cb_attrs dropout = {.f = {0.25}, .i = {3}};
    CB_TRY(cb_build(g, CB_OP_DROPOUT, 1, &m->a, &dropout, &m->a, e));
    CB_TRY(cb_build_reshape(g, m->a, &flat, &m->flat, e));
    CB_TRY(cb_build_matmul(g, m->flat, w2, &y, e));
    CB_TRY(cb_build2(g, CB_OP_MUL, y, y, &y, e));
    CB_TRY(cb_build_sum(g, y, 0, NULL, false, &loss, e));
    CB_TRY(cb_graph_append_output(g, loss, "loss", CB_OUTPUT_RESULT, CB_NONE, e));
    if (!with_state) return CB_OK;
    CB_TRY(cb_build_sum(g, m->h, 0, NULL, false, &all, e));
    CB_TRY(cb_build_full(g, &none, CB_F32, 0.1, &factor, e));
    CB_TRY(cb_build2(g, CB_OP_MUL, all, factor, &part, e));
    CB_TRY(cb_build_full(g, &none, CB_F32, 0.9, &factor, e));
    CB_TRY(cb_build2(g, CB_OP_MUL, s, factor, &scaled, e));
    CB_TRY(cb_build2(g, CB_OP_ADD, scaled, part, &all, e));
    return cb_graph_append_output(g, all, "s", CB_OUTPUT_STATE, 4, e);
}

static cb_status model_joint(cb_alloc *alloc, bool with_state, model *m, cb_error *e) {
    static const uint32_t wrt[] = {1, 2, 3};
    const cb_joint_options options = {.wrt = wrt, .n_wrt = 3};
    CB_TRY(cb_graph_create(alloc, &m->forward, e));
    CB_TRY(model_ops(m->forward, with_state, m, e));
    return cb_joint_build(m->forward, &options, alloc, &m->joint, e);
}

static inline cb_status model_make(cb_alloc *alloc, bool with_state, bool keep_gradients,
                                   cb_preset preset, model *m, cb_error *e) {
    const cb_annotate_options annotate = {
        .keep_gradients = keep_gradients, .static_bytes = 1000, MODEL_BACKEND};
    const cb_plan_options plan = {.preset = preset};
    CB_TRY(model_joint(alloc, with_state, m, e));
    CB_TRY(cb_annotate(m->joint, &annotate, alloc, &m->problem, e));
    return cb_plan_make(m->problem, &plan, alloc, &m->plan, e);
}

static inline void model_free(model *m) {
    cb_plan_free(m->plan);
    cb_problem_free(m->problem);
    cb_graph_free(m->joint);
    cb_graph_free(m->forward);
    *m = (model){0};
}

/* Checks that lowering leaves nothing behind if any of its allocations fails. */
static inline void check_nomem(cb_alloc *alloc, const model *m, cb_fuses_fn fuses) {
    uint64_t before = cb_alloc_stats(alloc).live_bytes;
    cb_status status = CB_NOMEM;
    for (uint64_t n = 1; status == CB_NOMEM; n++) {
        cb_program *p = NULL;
        cb_alloc_fail(alloc, n);
        status = lower_single(m->joint, m->problem, m->plan, fuses, alloc, &p, &err);
        if (status == CB_OK) status = cb_program_verify(p, &err);
        cb_alloc_fail(alloc, 0);
        CHECK(status == CB_NOMEM || status == CB_OK);
        cb_program_free(p);
        CHECK(cb_alloc_stats(alloc).live_bytes == before);
    }
}

#endif
