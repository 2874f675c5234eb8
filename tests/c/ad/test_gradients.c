/* Gradients appended to the graph that holds the values: which values they belong to, rules written
 * by the user, and failures, which leave the graph unchanged. */
#include "ad/gradients.h"

#include "ad/joint.h"
#include "ir/ir.h"

typedef struct sizes {
    size_t ops, values, storages, ins, attrs, starts;
} sizes;

static sizes sizes_of(const cb_graph *g) {
    return (sizes){g->ops.len,      g->values.len, g->storages.len,
                   g->in_value.len, g->attrs.len,  g->backward_starts};
}

static bool is_as_before(const cb_graph *g, sizes before) {
    const sizes now = sizes_of(g);
    return memcmp(&now, &before, sizeof now) == 0;
}

static cb_value_id unary(cb_graph *g, cb_opcode code, cb_value_id x) {
    cb_value_id out = 0;
    CHECK_OK(cb_build1(g, code, x, &out, &err));
    return out;
}

static cb_value_id zeros(cb_graph *g, cb_shape shape) {
    const cb_attrs attrs = {.dims = shape, .dtype = CB_F32};
    cb_value_id out = 0;
    CHECK_OK(cb_build(g, CB_OP_FULL, 0, NULL, &attrs, &out, &err));
    return out;
}

static cb_status gradients(cb_graph *g, cb_value_id of, cb_value_id from, uint32_t n_wrt,
                           const cb_value_id *wrt, cb_value_id *out) {
    const cb_gradients wanted = {&of, &from, wrt, 1, n_wrt};
    return cb_gradients_append(g, &wanted, out, &err);
}

TEST(of_values_in_the_middle) {
    cb_graph *g = ir_graph();
    const cb_value_id x = ir_input(g, CB_F32, DIMS(3)), other = ir_input(g, CB_F32, DIMS(2));
    const cb_value_id h = unary(g, CB_OP_SIN, x), y = unary(g, CB_OP_EXP, h);
    const cb_value_id dy = zeros(g, DIMS(3)), wrt[] = {h, other, y};
    cb_value_id out[3];
    const size_t before = g->ops.len;
    g->region = CB_NONE;
    CHECK_OK(gradients(g, y, dy, 3, wrt, out));
    CHECK(g->ops.len == before + 1 && ir_code(g, out[0]) == CB_OP_MUL); /* dy * y, and not cos x */
    CHECK(out[1] == CB_NONE && out[2] == dy);
    CHECK(g->ops.at[before].phase == CB_FORWARD && g->backward_starts == g->ops.len);
    CHECK_OK(gradients(g, out[0], dy, 1, &x, out)); /* the gradient of a gradient */
    CHECK(out[0] != CB_NONE);
    cb_graph_free(g);
}

/* Builds y = -x with the custom gradient 2 dy. */
static cb_value_id marked(cb_graph *g, cb_value_id x, cb_shape shape) {
    const cb_value_id y = unary(g, CB_OP_NEG, x), dy = zeros(g, shape),
                      dx = unary(g, CB_OP_SQUARE, dy);
    const cb_attrs attrs = {.i = {0, 1}};
    cb_value_id out = 0;
    CHECK_OK(cb_build(g, CB_OP_CUSTOM_VJP, INS(y, dy, x, dx), &attrs, &out, &err));
    return out;
}

TEST(rules_of_the_user) {
    cb_graph *g = ir_graph(), *joint = NULL;
    const cb_value_id x = ir_input(g, CB_F32, DIMS(3)), y = marked(g, x, DIMS(3)),
                      from = zeros(g, DIMS(3));
    const uint32_t first = 0;
    const cb_joint_options options = {.wrt = &first, .n_wrt = 1};
    cb_value_id out, loss;
    CHECK_OK(gradients(g, y, from, 1, &x, &out));
    CHECK(ir_code(g, out) == CB_OP_SQUARE && cb_op_ins(g, g->values.at[out].producer)[0] == from);
    CHECK_OK(cb_build_sum(g, y, 0, NULL, false, &loss, &err));
    CHECK_OK(cb_graph_append_output(g, loss, "loss", CB_OUTPUT_RESULT, CB_NONE, &err));
    CHECK_OK(cb_joint_build(g, &options, &ir_alloc, &joint, &err));
    size_t n_squares = 0;
    for (size_t i = 0; i < joint->ops.len; i++) {
        const cb_op *op = &joint->ops.at[i];
        n_squares += op->code == CB_OP_SQUARE;
        CHECK(op->code != CB_OP_CUSTOM_VJP || op->n_in == 1);
    }
    CHECK(n_squares == 1); /* the square of the gradient remains, that of the placeholder is gone */
    cb_graph_free(joint);
    cb_graph_free(g);
}

TEST(mistakes_change_nothing) {
    cb_graph *g = ir_graph();
    const cb_value_id x = ir_input(g, CB_F32, DIMS(3)), i = ir_input(g, CB_I64, DIMS(3));
    const cb_value_id y = unary(g, CB_OP_EXP, x), dy = zeros(g, DIMS(3)), wide = zeros(g, DIMS(4));
    const cb_attrs attrs = {.i = {0, 2}};
    cb_value_id out, alone, sum;
    CHECK_OK(cb_build(g, CB_OP_CUSTOM_VJP, INS(y, dy, dy, x, y), &attrs, &alone, &err));
    CHECK_OK(cb_build2(g, CB_OP_MUL, alone, y, &sum, &err));
    const sizes before = sizes_of(g);
    CHECK_FAIL(gradients(g, y, wide, 1, &x, &out), CB_INVALID, "(3,)");
    CHECK_FAIL(gradients(g, i, dy, 1, &x, &out), CB_TYPE, "i64");
    CHECK_FAIL(gradients(g, y, dy, 1, &i, &out), CB_TYPE, "i64");
    CHECK_FAIL(gradients(g, sum, dy, 1, &x, &out), CB_INVALID, "output 1 of 2 does not follow");
    CHECK(is_as_before(g, before));
    cb_graph_free(g);
}

TEST(out_of_memory) {
    unsigned n_failed = 0;
    for (uint64_t nth = 1; nth < 40; nth++) {
        cb_graph *g = ir_graph();
        const cb_value_id x = ir_input(g, CB_F32, DIMS(3));
        cb_value_id y = x, out;
        for (int i = 0; i < 20; i++) y = marked(g, unary(g, CB_OP_GELU, y), DIMS(3));
        const cb_value_id from = zeros(g, DIMS(3));
        const sizes before = sizes_of(g);
        cb_alloc_fail(&ir_alloc, nth);
        const cb_status status = gradients(g, y, from, 1, &x, &out);
        cb_alloc_fail(&ir_alloc, 0);
        CHECK(status == CB_OK || (status == CB_NOMEM && is_as_before(g, before)));
        n_failed += status != CB_OK;
        if (status != CB_OK) CHECK_OK(gradients(g, y, from, 1, &x, &out));
        CHECK_OK(cb_graph_verify(g, CB_SPEC_FORWARD, &err));
        cb_graph_free(g);
    }
    CHECK(n_failed > 3);
}

int main(void) {
    cb_alloc_init(&ir_alloc);
    RUN(of_values_in_the_middle);
    RUN(rules_of_the_user);
    RUN(mistakes_change_nothing);
    RUN(out_of_memory);
    return ir_report();
}
