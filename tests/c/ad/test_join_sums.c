/* Joined sums: which gradients of a loop are joined. */
#include "ad/rewrites/join_sums.h"

#include "ad/joint.h"
#include "ir/ir.h"
#include "oom.h"

enum { BATCH = 2, WIDTH = 32 };

/* How a test changes the loop below. */
typedef struct change {
    cb_dtype dtype;
    int64_t batch; /* 0: BATCH */
    int64_t width; /* 0: WIDTH */
    bool across;   /* steps are along axis 1, so their rows are not consecutive */
    bool chained;  /* the left side of a step needs the step before it */
    bool slices;
} change;

static const change none;

static cb_status slice(cb_graph *g, cb_value_id x, int64_t axis, int64_t at, cb_value_id *out) {
    const cb_attrs attrs = {.i = {axis, at, at + 1, 1}};
    return cb_build(g, CB_OP_SLICE, 1, &x, &attrs, out, &err);
}

/* h = tanh(x[t] @ w + h @ u) for each step; the loss is the sum of the last h. */
static cb_status loop(cb_graph *g, int64_t steps, const change *how) {
    const cb_dtype dtype = how->dtype ? how->dtype : CB_F32;
    const int64_t batch = how->batch ? how->batch : BATCH;
    const int64_t width = how->width ? how->width : WIDTH;
    const cb_shape first = DIMS(steps, batch, width), second = DIMS(batch, steps, width),
                   row = DIMS(batch, width);
    cb_value_id x, w, u, h, a, b;
    CB_TRY(cb_graph_append_input(g, "x", CB_ROLE_PARAM, dtype, how->across ? &second : &first, &x,
                                 &err));
    CB_TRY(cb_graph_append_input(g, "w", CB_ROLE_PARAM, dtype, &DIMS(width, width), &w, &err));
    CB_TRY(cb_graph_append_input(g, "u", CB_ROLE_PARAM, dtype, &DIMS(width, width), &u, &err));
    CB_TRY(cb_graph_append_input(g, "h", CB_ROLE_DATA, dtype, &DIMS(batch, width), &h, &err));
    for (int64_t t = 0; t < steps; t++) {
        CB_TRY(slice(g, x, how->across, t, &a));
        CB_TRY(cb_build_reshape(g, a, &row, &a, &err));
        if (how->chained && t > 0) {
            const cb_attrs first_columns = {.i = {1, 0, width, 1}};
            CB_TRY(cb_build(g, CB_OP_SLICE, 1, &h, &first_columns, &b, &err));
            CB_TRY(cb_build2(g, CB_OP_ADD, a, b, &a, &err));
        }
        CB_TRY(cb_build2(g, CB_OP_MATMUL, a, w, &a, &err));
        CB_TRY(cb_build2(g, CB_OP_MATMUL, h, u, &b, &err));
        CB_TRY(cb_build2(g, CB_OP_ADD, a, b, &a, &err));
        CB_TRY(cb_build1(g, CB_OP_TANH, a, &h, &err));
    }
    CB_TRY(cb_build_sum(g, h, 0, NULL, false, &h, &err));
    return cb_graph_append_output(g, h, "loss", CB_OUTPUT_RESULT, CB_NONE, &err);
}

static cb_graph *loop_of(int64_t steps, const change *how) {
    cb_graph *g = ir_graph();
    CHECK_OK(loop(g, steps, how));
    return g;
}

static cb_status build(const cb_graph *g, cb_alloc *alloc, bool slices, cb_graph **out) {
    static const uint32_t wrt[] = {0, 1, 2};
    const cb_joint_options options = {.wrt = wrt, .n_wrt = 3, .slices = slices};
    return cb_joint_build(g, &options, alloc, out, &err);
}

/* Products by the length of their inner axis, and those added in place. */
typedef struct tally {
    size_t products, added, concats;
    int64_t inner; /* the longest of those added in place */
} tally;

static tally tally_of(const cb_graph *g) {
    tally n = {0};
    for (cb_op_id id = 0; id < g->ops.len; id++) {
        const cb_opcode code = g->ops.at[id].code;
        const bool adds = code == CB_OP_MATMUL_ADD;
        n.concats += code == CB_OP_CONCAT;
        if (code != CB_OP_MATMUL && !adds) continue;
        const int64_t *dim = g->values.at[cb_op_ins(g, id)[0]].shape.dim;
        n.products += !adds;
        n.added += adds;
        if (adds && dim[1] > n.inner) n.inner = dim[1];
    }
    return n;
}

static tally joint_tally(int64_t steps, const change *how) {
    cb_graph *g = loop_of(steps, how), *joint = NULL;
    CHECK_OK(build(g, &ir_alloc, how->slices, &joint));
    const tally n = tally_of(joint);
    cb_graph_free(joint);
    cb_graph_free(g);
    return n;
}

TEST(terms_are_joined) {
    /* Of 18 terms, 4 become one product, whose sides and their copies take as much as a gradient;
     * 2 are left over, at the end of the forward. */
    const tally n = joint_tally(18, &none);
    CHECK(n.inner == 4 * BATCH);
    /* forward: 18 of x, 18 of h; backward: 18 for x, 17 for h, and 5 for each of w and u, of
     * which 4 are added in place */
    CHECK(n.products == 18 + 18 + 18 + 17 + 1 + 1 && n.added == 4 + 4);
    CHECK(n.concats == 5 + 5 + 5 + 1); /* x, h, their gradients, and at last that of all of x */
}

TEST(a_joined_product_has_a_limit) {
    CHECK(joint_tally(16, &(change){.batch = 4}).inner == 8);
    /* The sides of two terms would take more than a gradient. */
    CHECK(joint_tally(16, &(change){.batch = 5}).added == 0);
    CHECK(joint_tally(32, &(change){.batch = 60, .width = 4096}).inner == 240);
    CHECK(joint_tally(32, &(change){.batch = 129, .width = 4096}).added == 0);
}

TEST(what_stays) {
    CHECK(joint_tally(7, &none).added == 0 && joint_tally(8, &none).added == 3 + 3);
    CHECK(joint_tally(16, &(change){.across = true}).added == 3 + 3);
    CHECK(joint_tally(16, &(change){.chained = true}).added == 3 + 3);
    /* Sums of 16-bit products are rounded one by one. */
    CHECK(joint_tally(16, &(change){.dtype = CB_BF16}).added == 0);
    const tally sliced = joint_tally(16, &(change){.slices = true});
    CHECK(sliced.inner == BATCH);
}

static cb_status join(cb_alloc *alloc, void *user) {
    cb_graph *out = NULL;
    const cb_status status = build(user, alloc, false, &out);
    cb_graph_free(out);
    return status;
}

TEST(out_of_memory) {
    cb_graph *g = loop_of(8, &(change){.across = true});
    check_oom(join, g);
    cb_graph_free(g);
}

int main(void) {
    cb_alloc_init(&ir_alloc);
    RUN(terms_are_joined);
    RUN(a_joined_product_has_a_limit);
    RUN(what_stays);
    RUN(out_of_memory);
    return ir_report();
}
