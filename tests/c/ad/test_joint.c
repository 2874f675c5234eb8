/* The joint graph: what is differentiated, which outputs own their storage, phases, errors, and one
 * golden text. */
#include "ad/joint.h"

#include <stdlib.h>

#include "ir/ir.h"
#include "oom.h"

static cb_graph *build_joint(const cb_graph *g, uint32_t n_wrt, const uint32_t *wrt) {
    cb_graph *out = NULL;
    const cb_joint_options options = {.wrt = wrt, .n_wrt = n_wrt};
    CHECK_OK(cb_joint_build(g, &options, &ir_alloc, &out, &err));
    return out;
}
#define WRT(...) \
    (uint32_t)(sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)), (uint32_t[]) { __VA_ARGS__ }

static cb_value_id named(cb_graph *g, const char *name, cb_role role, cb_dtype dtype,
                         cb_shape shape) {
    cb_value_id id = 0;
    CHECK_OK(cb_graph_append_input(g, name, role, dtype, &shape, &id, &err));
    return id;
}

static cb_value_id unary(cb_graph *g, cb_opcode code, cb_value_id x) {
    cb_value_id out = 0;
    CHECK_OK(cb_build1(g, code, x, &out, &err));
    return out;
}

static cb_value_id binary(cb_graph *g, cb_opcode code, cb_value_id x, cb_value_id y) {
    cb_value_id out = 0;
    CHECK_OK(cb_build2(g, code, x, y, &out, &err));
    return out;
}

static void result(cb_graph *g, cb_value_id value, const char *name) {
    CHECK_OK(cb_graph_append_output(g, value, name, CB_OUTPUT_RESULT, CB_NONE, &err));
}

static size_t count(const cb_graph *g, cb_opcode code) {
    size_t n = 0;
    for (size_t i = 0; i < g->ops.len; i++) n += g->ops.at[i].code == code;
    return n;
}

static const cb_op *producer(const cb_graph *g, size_t output) {
    return &g->ops.at[g->values.at[g->outputs.at[output].value].producer];
}

/* ---- the text -------------------------------------------------------------------------------- */

/* Builds x[4,3] @ w1[3,5] + b1 -> relu -> dropout -> @ w2[5,2] -> cross_entropy -> mean. */
static cb_status mlp(cb_alloc *alloc, cb_graph **out) {
    cb_graph *g = NULL;
    cb_value_id x, label, w1, b1, w2, h, pair[2];
    const cb_attrs drop = {.f = {0.25}, .i = {1}}, ignore = {.i = {-100}};
    uint32_t line;
    cb_status status;
    CB_TRY(cb_graph_create(alloc, &g, &err));
    CB_TRY_DONE(cb_graph_append_input(g, "x", CB_ROLE_DATA, CB_F32, &DIMS(4, 3), &x, &err));
    CB_TRY_DONE(cb_graph_append_input(g, "label", CB_ROLE_DATA, CB_I64, &DIMS(4), &label, &err));
    CB_TRY_DONE(cb_graph_append_input(g, "w1", CB_ROLE_PARAM, CB_F32, &DIMS(3, 5), &w1, &err));
    CB_TRY_DONE(cb_graph_append_input(g, "b1", CB_ROLE_PARAM, CB_F32, &DIMS(5), &b1, &err));
    CB_TRY_DONE(cb_graph_append_input(g, "w2", CB_ROLE_PARAM, CB_F32, &DIMS(5, 2), &w2, &err));
    CB_TRY_DONE(cb_graph_intern(g, "mlp.py:3", &line, &err));
    g->location = line;
    CB_TRY_DONE(cb_build_matmul(g, x, w1, &h, &err));
    CB_TRY_DONE(cb_build2(g, CB_OP_ADD, h, b1, &h, &err));
    CB_TRY_DONE(cb_graph_append_region(g, "hidden", CB_NONE, UINT64_MAX, &g->region, &err));
    g->constraint = CB_MUST_RECOMPUTE;
    CB_TRY_DONE(cb_build1(g, CB_OP_RELU, h, &h, &err));
    CB_TRY_DONE(cb_build(g, CB_OP_DROPOUT, 1, &h, &drop, &h, &err));
    g->region = CB_NONE;
    g->constraint = CB_FREE;
    CB_TRY_DONE(cb_graph_intern(g, "mlp.py:5", &line, &err));
    g->location = line;
    CB_TRY_DONE(cb_build_matmul(g, h, w2, &h, &err));
    CB_TRY_DONE(cb_build(g, CB_OP_CROSS_ENTROPY, INS(h, label), &ignore, pair, &err));
    CB_TRY_DONE(cb_build(g, CB_OP_MEAN, 1, pair, NULL, &h, &err));
    CB_TRY_DONE(cb_graph_append_output(g, h, "loss", CB_OUTPUT_RESULT, CB_NONE, &err));
done:
    if (status == CB_OK) *out = g;
    else cb_graph_free(g);
    return status;
}

/* Compares the text with a golden file; CUTBACK_UPDATE_GOLDEN=1 rewrites the file. */
static void check_golden(const char *name, const char *text) {
    char path[1024], have[16384] = {0};
    snprintf(path, sizeof path, CB_GOLDEN "/ad/%s", name);
    const bool update = getenv("CUTBACK_UPDATE_GOLDEN") != NULL;
    FILE *f = fopen(path, update ? "w" : "r");
    CHECK(f);
    if (!f) return;
    if (update) fputs(text, f);
    else {
        CHECK(fread(have, 1, sizeof have - 1, f) > 0);
        CHECK(strcmp(have, text) == 0);
        if (strcmp(have, text) != 0) printf("%s is now:\n%s", path, text);
    }
    fclose(f);
}

TEST(text) {
    cb_graph *g = NULL, *joint;
    cb_arena arena;
    cb_arena_init(&arena, &ir_alloc);
    CHECK_OK(mlp(&ir_alloc, &g));
    joint = build_joint(g, WRT(2, 3, 4));
    check_golden("mlp.txt", ir_text(joint, &arena));
    cb_graph_free(joint);
    cb_graph_free(g);
    cb_arena_free(&arena);
}

/* ---- what is computed ------------------------------------------------------------------------ */

TEST(only_what_is_asked) {
    cb_graph *g = ir_graph();
    const cb_attrs conv = {.i = {1, 1, 1, 1, 1, 1, 1}};
    cb_value_id x = named(g, "x", CB_ROLE_DATA, CB_F32, DIMS(2, 3, 8, 8)), y;
    cb_value_id w1 = named(g, "w1", CB_ROLE_PARAM, CB_F32, DIMS(4, 3, 3, 3));
    cb_value_id w2 = named(g, "w2", CB_ROLE_PARAM, CB_F32, DIMS(4, 4, 3, 3));
    CHECK_OK(cb_build(g, CB_OP_CONV2D, INS(x, w1), &conv, &y, &err));
    y = unary(g, CB_OP_RELU, y);
    CHECK_OK(cb_build(g, CB_OP_CONV2D, INS(y, w2), &conv, &y, &err));
    result(g, unary(g, CB_OP_SUM, unary(g, CB_OP_SQUARE, y)), "loss");
    cb_graph *joint = build_joint(g, WRT(1, 2));
    CHECK(count(joint, CB_OP_CONV2D_DGRAD) == 1);
    CHECK(count(joint, CB_OP_CONV2D_WGRAD) == 2);
    CHECK(count(joint, CB_OP_RELU_BWD) == 1);
    cb_graph_free(joint);
    joint = build_joint(g, WRT(2));
    CHECK(count(joint, CB_OP_CONV2D_DGRAD) == 0);
    CHECK(count(joint, CB_OP_RELU_BWD) == 0);
    cb_graph_free(joint);
    cb_graph_free(g);
}

TEST(matrix_gradients_copy_nothing) {
    cb_graph *g = ir_graph();
    cb_value_id x = named(g, "x", CB_ROLE_PARAM, CB_F32, DIMS(2, 4, 3)), y;
    cb_value_id w = named(g, "w", CB_ROLE_PARAM, CB_F32, DIMS(3, 5));
    CHECK_OK(cb_build_matmul(g, x, w, &y, &err));
    result(g, unary(g, CB_OP_SUM, unary(g, CB_OP_SQUARE, y)), "loss");
    cb_graph *joint = build_joint(g, WRT(0, 1));
    CHECK(count(joint, CB_OP_MATMUL) == 3);
    CHECK(count(joint, CB_OP_CONTIGUOUS) == 0);
    cb_graph_free(joint);
    cb_graph_free(g);
}

static cb_value_id slice(cb_graph *g, cb_value_id x, int64_t axis, int64_t start, int64_t stop) {
    const cb_attrs attrs = {.i = {axis, start, stop, 1}};
    cb_value_id out = 0;
    CHECK_OK(cb_build(g, CB_OP_SLICE, 1, &x, &attrs, &out, &err));
    return out;
}

/* Builds the joint graph of the sum of squares of slices [start, stop) of x[8, 6]. */
static cb_graph *of_slices(size_t n, const int64_t (*part)[3]) {
    cb_graph *g = ir_graph();
    const cb_value_id x = named(g, "x", CB_ROLE_PARAM, CB_F32, DIMS(8, 6));
    cb_value_id sum = CB_NONE;
    for (size_t k = 0; k < n; k++) {
        cb_value_id y = slice(g, x, part[k][0], part[k][1], part[k][2]);
        y = unary(g, CB_OP_SUM, unary(g, CB_OP_SQUARE, y));
        sum = k ? binary(g, CB_OP_ADD, sum, y) : y;
    }
    result(g, sum, "loss");
    cb_graph *joint = build_joint(g, WRT(0));
    cb_graph_free(g);
    return joint;
}

TEST(gradients_of_slices_are_concatenated) {
    const int64_t all[][3] = {{0, 5, 8}, {0, 0, 2}, {0, 2, 5}};
    cb_graph *joint = of_slices(3, all);
    CHECK(count(joint, CB_OP_CONCAT) == 1 && count(joint, CB_OP_PAD) == 0);
    CHECK(producer(joint, 1)->code == CB_OP_CONCAT);
    cb_graph_free(joint);
    const int64_t some[][3] = {{1, 4, 5}, {1, 1, 2}}; /* zeros between, before and after */
    joint = of_slices(2, some);
    CHECK(count(joint, CB_OP_CONCAT) == 1 && count(joint, CB_OP_PAD) == 2);
    cb_graph_free(joint);
    const int64_t over[][3] = {{0, 0, 4}, {0, 4, 8}, {0, 3, 5}, {1, 0, 3}, {1, 3, 6}};
    joint = of_slices(5, over); /* both halves, along each axis, and slices that overlap them */
    CHECK(count(joint, CB_OP_CONCAT) == 2 && count(joint, CB_OP_PAD) == 1);
    cb_graph_free(joint);
}

/* x @ weight.T + bias */
TEST(linear_gradients_copy_nothing) {
    cb_graph *g = ir_graph();
    cb_value_id x = named(g, "x", CB_ROLE_PARAM, CB_F32, DIMS(2, 4, 3)), y;
    cb_value_id w = named(g, "weight", CB_ROLE_PARAM, CB_F32, DIMS(5, 3));
    cb_value_id b = named(g, "bias", CB_ROLE_PARAM, CB_F32, DIMS(5));
    CHECK_OK(cb_build_swap_last(g, w, &y, &err));
    CHECK_OK(cb_build_matmul(g, x, y, &y, &err));
    result(g, unary(g, CB_OP_SUM, unary(g, CB_OP_SQUARE, binary(g, CB_OP_ADD, y, b))), "loss");
    cb_graph *joint = build_joint(g, WRT(0, 1, 2));
    CHECK(count(joint, CB_OP_MATMUL) == 3);
    CHECK(count(joint, CB_OP_CONTIGUOUS) == 0);
    cb_graph_free(joint);
    cb_graph_free(g);
}

TEST(phases_follow_tangents) {
    cb_graph *g = ir_graph();
    cb_value_id x = named(g, "x", CB_ROLE_PARAM, CB_F32, DIMS(6));
    result(g, unary(g, CB_OP_SUM, unary(g, CB_OP_ABS, x)), "loss");
    cb_graph *joint = build_joint(g, WRT(0));
    CHECK(joint->backward_starts == 3);
    size_t helpers = 0;
    for (cb_op_id i = 0; i < joint->ops.len; i++) {
        const cb_op *op = &joint->ops.at[i];
        if (op->code == CB_OP_SIGN) {
            helpers++;
            CHECK(i >= joint->backward_starts && op->phase == CB_FORWARD);
        }
        if (op->code == CB_OP_FULL || op->code == CB_OP_MUL) CHECK(op->phase == CB_BACKWARD);
    }
    CHECK(helpers == 1);
    cb_graph_free(joint);
    cb_graph_free(g);
}

TEST(gradient_ops_have_the_forward_place_alone) {
    cb_graph *g = NULL;
    CHECK_OK(mlp(&ir_alloc, &g));
    cb_graph *joint = build_joint(g, WRT(2, 3, 4));
    size_t found = 0;
    for (cb_op_id i = joint->backward_starts; i < joint->ops.len; i++) {
        const cb_op *op = &joint->ops.at[i];
        CHECK(op->region == CB_NONE && op->constraint == CB_FREE);
        if (op->code != CB_OP_RELU_BWD) continue;
        found++;
        CHECK(strcmp(cb_graph_name(joint, op->location), "mlp.py:3") == 0);
    }
    CHECK(found == 1);
    cb_graph_free(joint);
    cb_graph_free(g);
}

/* ---- outputs --------------------------------------------------------------------------------- */

TEST(unused_input_gets_zeros) {
    cb_graph *g = ir_graph();
    cb_value_id x = named(g, "x", CB_ROLE_PARAM, CB_F32, DIMS(2));
    named(g, "unused", CB_ROLE_PARAM, CB_BF16, DIMS(2, 3));
    result(g, unary(g, CB_OP_SUM, x), "loss");
    cb_graph *joint = build_joint(g, WRT(1, 0));
    CHECK(joint->outputs.len == 3);
    CHECK(producer(joint, 1)->code == CB_OP_FULL);
    CHECK(joint->outputs.at[1].kind == CB_OUTPUT_GRAD && joint->outputs.at[1].input == 1);
    CHECK(strcmp(cb_graph_name(joint, joint->outputs.at[1].name), "unused") == 0);
    CHECK(ir_shape_is(joint, joint->outputs.at[1].value, DIMS(2, 3)));
    CHECK(joint->values.at[joint->outputs.at[1].value].dtype == CB_BF16);
    cb_graph_free(joint);
    cb_graph_free(g);
}

/* The verifier checks that every output owns its storage; the test tries every way to violate
 * that. */
TEST(outputs_own_their_storage) {
    cb_graph *g = ir_graph();
    cb_value_id x = named(g, "x", CB_ROLE_PARAM, CB_F32, DIMS(2, 3)), view;
    cb_value_id y = named(g, "y", CB_ROLE_PARAM, CB_F32, DIMS(2, 3));
    cb_value_id sum = binary(g, CB_OP_ADD, x, y), loss = unary(g, CB_OP_SUM, sum);
    CHECK_OK(cb_build_swap_last(g, sum, &view, &err));
    result(g, loss, "loss");
    result(g, loss, "again");
    result(g, x, "input");
    result(g, view, "view");
    result(g, sum, "root");
    cb_graph *joint = build_joint(g, WRT(0, 1, 0)); /* one gradient, requested three times */
    CHECK(joint->outputs.len == 8);
    CHECK(producer(joint, 0)->code == CB_OP_SUM && producer(joint, 1)->code == CB_OP_CONTIGUOUS);
    CHECK(producer(joint, 2)->code == CB_OP_CONTIGUOUS &&
          producer(joint, 3)->code == CB_OP_CONTIGUOUS);
    CHECK(producer(joint, 4)->code == CB_OP_ADD);
    for (size_t i = 0; i < 5; i++) CHECK(producer(joint, i)->phase == CB_FORWARD);
    cb_graph_free(joint);
    joint = build_joint(g, 0, NULL);
    CHECK(joint->outputs.len == 5 && joint->backward_starts == joint->ops.len);
    cb_graph_free(joint);
    cb_graph_free(g);
}

TEST(loss_may_be_an_input) {
    cb_graph *g = ir_graph();
    result(g, named(g, "x", CB_ROLE_PARAM, CB_F64, DIMS(1, 1)), "loss");
    cb_graph *joint = build_joint(g, WRT(0));
    CHECK(producer(joint, 1)->code == CB_OP_FULL && producer(joint, 1)->phase == CB_BACKWARD);
    cb_graph_free(joint);
    cb_graph_free(g);
}

TEST(states_stay_outputs) {
    cb_graph *g = ir_graph();
    cb_value_id x = named(g, "x", CB_ROLE_PARAM, CB_F32, DIMS(4));
    cb_value_id state = named(g, "running", CB_ROLE_STATE, CB_F32, DIMS(4));
    result(g, unary(g, CB_OP_SUM, unary(g, CB_OP_EXP, x)), "loss");
    CHECK_OK(cb_graph_append_output(g, binary(g, CB_OP_ADD, state, x), "running", CB_OUTPUT_STATE,
                                    1, &err));
    cb_graph *joint = build_joint(g, WRT(0));
    CHECK(joint->outputs.at[1].kind == CB_OUTPUT_STATE && joint->outputs.at[1].input == 1);
    CHECK(joint->outputs.at[2].kind == CB_OUTPUT_GRAD);
    cb_graph_free(joint);
    cb_graph_free(g);
}

TEST(tangent_inputs) {
    cb_graph *g = ir_graph(), *joint = NULL;
    cb_value_id x = named(g, "x", CB_ROLE_PARAM, CB_F32, DIMS(3)), best;
    const uint32_t wrt[] = {0};
    const cb_joint_options options = {.wrt = wrt, .n_wrt = 1, .tangent_inputs = true};
    CHECK_OK(cb_build(g, CB_OP_ARGMAX, 1, &x, NULL, &best, &err));
    result(g, unary(g, CB_OP_EXP, x), "e");
    result(g, best, "best"); /* integers have no tangent */
    result(g, unary(g, CB_OP_SIN, x), "s");
    CHECK_OK(cb_joint_build(g, &options, &ir_alloc, &joint, &err));
    CHECK(joint->inputs.len == 3);
    for (size_t i = 1; i < joint->inputs.len; i++) {
        const cb_op *op = &joint->ops.at[joint->inputs.at[i]];
        CHECK(op->phase == CB_BACKWARD &&
              cb_op_attrs(joint, joint->inputs.at[i])->i[0] == CB_ROLE_TANGENT);
    }
    CHECK(strcmp(cb_graph_name(joint, joint->ops.at[joint->inputs.at[2]].name), "tangent.s") == 0);
    CHECK(producer(joint, 3)->code == CB_OP_ADD);
    cb_graph_free(joint);
    cb_graph_free(g);
}

/* ---- norms over channels --------------------------------------------------------------------- */

/* Builds batch_norm of x[4,6,3] with a region, a name and a constraint; outs[0] is y. */
static cb_graph *batch_norm_graph(cb_value_id outs[4]) {
    cb_graph *g = ir_graph();
    cb_value_id ins[3];
    const cb_value_id x = named(g, "x", CB_ROLE_PARAM, CB_BF16, DIMS(4, 6, 3));
    named(g, "spare", CB_ROLE_PARAM, CB_F32, DIMS(1));
    ins[1] = named(g, "weight", CB_ROLE_PARAM, CB_BF16, DIMS(6));
    ins[2] = named(g, "bias", CB_ROLE_PARAM, CB_BF16, DIMS(6));
    named(g, "more", CB_ROLE_PARAM, CB_F32, DIMS(1));
    ins[0] = unary(g, CB_OP_EXP, x);
    CHECK_OK(cb_graph_append_region(g, "block", CB_NONE, UINT64_MAX, &g->region, &err));
    CHECK_OK(cb_graph_intern(g, "model.py:7", &g->location, &err));
    g->constraint = CB_MUST_SAVE;
    CHECK_OK(cb_build(g, CB_OP_BATCH_NORM, 3, ins, &(cb_attrs){.f = {1e-3}}, outs, &err));
    CHECK_OK(cb_graph_intern(g, "normed", &g->ops.at[g->values.at[outs[0]].producer].name, &err));
    g->region = g->location = CB_NONE;
    g->constraint = CB_FREE;
    return g;
}

static const cb_op *op_of(const cb_graph *g, cb_opcode code) {
    for (size_t i = 0; i < g->ops.len; i++) {
        if (g->ops.at[i].code == code) return &g->ops.at[i];
    }
    return NULL;
}

static void check_carried(const cb_graph *g, const cb_op *op) {
    CHECK(op && op->phase == CB_FORWARD && op->region == 0 && op->constraint == CB_MUST_SAVE);
    CHECK(op && strcmp(cb_graph_name(g, op->location), "model.py:7") == 0);
}

TEST(a_norm_that_fuses_is_split) {
    cb_value_id outs[4];
    cb_graph *g = batch_norm_graph(outs), *joint;
    result(g, unary(g, CB_OP_SUM, unary(g, CB_OP_RELU, outs[0])), "loss");
    result(g, outs[2], "var");
    joint = build_joint(g, WRT(0, 2));
    CHECK(count(joint, CB_OP_BATCH_NORM) == 0 && count(joint, CB_OP_BATCH_NORM_STATS) == 1 &&
          count(joint, CB_OP_BATCH_NORM_APPLY) == 1 && count(joint, CB_OP_BATCH_NORM_BWD) == 1);
    const cb_op *stats = op_of(joint, CB_OP_BATCH_NORM_STATS),
                *apply = op_of(joint, CB_OP_BATCH_NORM_APPLY),
                *bwd = op_of(joint, CB_OP_BATCH_NORM_BWD);
    check_carried(joint, stats);
    check_carried(joint, apply);
    CHECK(strcmp(cb_graph_name(joint, apply->name), "normed") == 0);
    CHECK(joint->attrs.at[stats->attrs].f[0] == 1e-3);
    const cb_value_id *in = joint->in_value.at + bwd->in_begin;
    CHECK(in[3] == stats->out_begin && in[4] == stats->out_begin + 2);
    CHECK(joint->outputs.at[1].value == stats->out_begin + 1);
    CHECK(joint->ops.at[joint->backward_starts].code == CB_OP_FULL);
    cb_graph_free(joint);
    cb_graph_free(g);
}

/* The norm is split if fused ops read its output, even through a view. It is not split if only a
 * product reads the output, or nothing does. */
TEST(a_norm_that_does_not_fuse_is_whole) {
    cb_value_id outs[4], y;
    cb_graph *g = batch_norm_graph(outs), *joint;
    CHECK_OK(cb_build_transpose(g, outs[0], (int64_t[]){0, 2, 1}, &y, &err));
    result(g, unary(g, CB_OP_SUM, binary(g, CB_OP_MATMUL, outs[0], y)), "loss");
    joint = build_joint(g, WRT(0));
    CHECK(count(joint, CB_OP_BATCH_NORM) == 1 && count(joint, CB_OP_BATCH_NORM_STATS) == 0);
    cb_graph_free(joint);
    result(g, unary(g, CB_OP_EXP, y), "e");
    joint = build_joint(g, WRT(0));
    CHECK(count(joint, CB_OP_BATCH_NORM) == 0 && count(joint, CB_OP_BATCH_NORM_APPLY) == 1);
    cb_graph_free(joint);
    cb_graph_free(g);
    g = batch_norm_graph(outs);
    result(g, unary(g, CB_OP_SUM, outs[1]), "loss"); /* only the mean is read */
    joint = build_joint(g, WRT(0));
    CHECK(count(joint, CB_OP_BATCH_NORM_STATS) == 0 && count(joint, CB_OP_BATCH_NORM_APPLY) == 0);
    cb_graph_free(joint);
    cb_graph_free(g);
}

/* ---- mistakes -------------------------------------------------------------------------------- */

static void fails(const cb_graph *g, uint32_t wrt, cb_status status, const char *part) {
    cb_graph *out = NULL;
    const cb_joint_options options = {.wrt = &wrt, .n_wrt = 1};
    CHECK_FAIL(cb_joint_build(g, &options, &ir_alloc, &out, &err), status, part);
    CHECK(out == NULL);
}

TEST(mistakes) {
    cb_graph *g = ir_graph();
    cb_value_id x = named(g, "x", CB_ROLE_PARAM, CB_F32, DIMS(3));
    cb_value_id labels = named(g, "labels", CB_ROLE_DATA, CB_I64, DIMS(3));
    fails(g, 0, CB_INVALID, "the graph has no result");
    fails(g, 2, CB_INVALID, "input 2, but the graph has 2 inputs");
    fails(g, 1, CB_TYPE, "gradient requested for input 'labels' of dtype i64");
    result(g, unary(g, CB_OP_EXP, x), "logits");
    fails(g, 0, CB_INVALID, "the loss 'logits' has shape (3,)");
    cb_graph_free(g);
    g = ir_graph();
    named(g, "x", CB_ROLE_PARAM, CB_F32, DIMS(3));
    labels = named(g, "labels", CB_ROLE_DATA, CB_I64, DIMS(3));
    result(g, unary(g, CB_OP_SUM, labels), "count");
    fails(g, 0, CB_TYPE, "the loss 'count' has dtype i64");
    cb_graph_free(g);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static cb_status joint_of_mlp(cb_alloc *alloc, void *user) {
    const cb_graph *g = user;
    cb_graph *joint = NULL;
    const cb_joint_options options = {.wrt = (uint32_t[]){2, 3, 4, 0}, .n_wrt = 4};
    const cb_status status = cb_joint_build(g, &options, alloc, &joint, &err);
    CHECK((status == CB_OK) == (joint != NULL));
    cb_graph_free(joint);
    return status;
}

/* Builds a norm whose statistics have gradients, so that it is differentiated through its
 * expansion. */
static cb_graph *norm_graph(void) {
    cb_graph *g = ir_graph();
    cb_value_id ins[3], outs[3];
    ins[0] = named(g, "x", CB_ROLE_PARAM, CB_BF16, DIMS(4, 6));
    named(g, "spare", CB_ROLE_PARAM, CB_F32, DIMS(1));
    ins[1] = named(g, "weight", CB_ROLE_PARAM, CB_BF16, DIMS(6));
    ins[2] = named(g, "bias", CB_ROLE_PARAM, CB_BF16, DIMS(6));
    named(g, "more", CB_ROLE_PARAM, CB_F32, DIMS(1));
    CHECK_OK(cb_build(g, CB_OP_LAYER_NORM, 3, ins, &(cb_attrs){.f = {1e-5}}, outs, &err));
    cb_value_id y, mean = unary(g, CB_OP_SUM, unary(g, CB_OP_EXP, outs[1]));
    CHECK_OK(
        cb_build_cast(g, unary(g, CB_OP_SUM, unary(g, CB_OP_SQUARE, outs[0])), CB_F32, &y, &err));
    result(g, binary(g, CB_OP_ADD, y, mean), "loss");
    return g;
}

TEST(out_of_memory) {
    cb_graph *g = NULL;
    CHECK_OK(mlp(&ir_alloc, &g));
    check_oom(joint_of_mlp, g);
    cb_graph_free(g);
    g = norm_graph();
    check_oom(joint_of_mlp, g);
    cb_graph_free(g);
    cb_value_id outs[4];
    g = batch_norm_graph(outs);
    cb_value_id loss = unary(g, CB_OP_SUM, unary(g, CB_OP_RELU, outs[0]));
    CHECK_OK(cb_build_cast(g, loss, CB_F32, &loss, &err));
    result(g, loss, "loss");
    named(g, "last", CB_ROLE_PARAM, CB_F32, DIMS(1));
    check_oom(joint_of_mlp, g);
    cb_graph_free(g);
}

int main(void) {
    cb_alloc_init(&ir_alloc);
    RUN(text);
    RUN(only_what_is_asked);
    RUN(matrix_gradients_copy_nothing);
    RUN(gradients_of_slices_are_concatenated);
    RUN(linear_gradients_copy_nothing);
    RUN(phases_follow_tangents);
    RUN(gradient_ops_have_the_forward_place_alone);
    RUN(unused_input_gets_zeros);
    RUN(outputs_own_their_storage);
    RUN(loss_may_be_an_input);
    RUN(states_stay_outputs);
    RUN(tangent_inputs);
    RUN(a_norm_that_fuses_is_split);
    RUN(a_norm_that_does_not_fuse_is_whole);
    RUN(mistakes);
    RUN(out_of_memory);
    return ir_report();
}
