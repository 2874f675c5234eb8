/* Joined products: which products of a loop are joined, in the forward and in sums of gradients. */
#include "ad/rewrites/joins.h"

#include "ad/joint.h"
#include "ir/ir.h"
#include "oom.h"

enum { BATCH = 2, WIDTH = 3, OUT = 4 };

/* How a test changes the loop below. */
typedef struct change {
    cb_dtype dtype;
    int64_t batch;      /* 0: BATCH */
    bool across;        /* steps are along axis 1, so their rows are not consecutive */
    bool chained;       /* the left side of a step needs the step before it */
    uint8_t constraint; /* cb_constraint of the product of step 3 */
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
    const cb_shape first = DIMS(steps, batch, WIDTH), second = DIMS(batch, steps, WIDTH),
                   row = DIMS(batch, WIDTH);
    cb_value_id x, w, u, h, a, b;
    CB_TRY(cb_graph_append_input(g, "x", CB_ROLE_PARAM, dtype, how->across ? &second : &first, &x,
                                 &err));
    CB_TRY(cb_graph_append_input(g, "w", CB_ROLE_PARAM, dtype, &DIMS(WIDTH, OUT), &w, &err));
    CB_TRY(cb_graph_append_input(g, "u", CB_ROLE_PARAM, dtype, &DIMS(OUT, OUT), &u, &err));
    CB_TRY(cb_graph_append_input(g, "h", CB_ROLE_DATA, dtype, &DIMS(batch, OUT), &h, &err));
    for (int64_t t = 0; t < steps; t++) {
        CB_TRY(slice(g, x, how->across, t, &a));
        CB_TRY(cb_build_reshape(g, a, &row, &a, &err));
        if (how->chained && t > 0) {
            const cb_attrs first_columns = {.i = {1, 0, WIDTH, 1}};
            CB_TRY(cb_build(g, CB_OP_SLICE, 1, &h, &first_columns, &b, &err));
            CB_TRY(cb_build2(g, CB_OP_ADD, a, b, &a, &err));
        }
        g->constraint = t == 3 ? how->constraint : CB_FREE;
        CB_TRY(cb_build2(g, CB_OP_MATMUL, a, w, &a, &err));
        g->constraint = CB_FREE;
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
    size_t products, added, concats, pads;
    int64_t rows, inner; /* the largest, of products and of those added in place */
} tally;

static tally tally_of(const cb_graph *g) {
    tally n = {0};
    for (cb_op_id id = 0; id < g->ops.len; id++) {
        const cb_opcode code = g->ops.at[id].code;
        const bool adds = code == CB_OP_MATMUL_ADD;
        n.concats += code == CB_OP_CONCAT;
        n.pads += code == CB_OP_PAD;
        if (code != CB_OP_MATMUL && !adds) continue;
        const int64_t *dim = g->values.at[cb_op_ins(g, id)[0]].shape.dim;
        n.products += !adds;
        n.added += adds;
        if (id < g->backward_starts && dim[0] > n.rows) n.rows = dim[0];
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

TEST(steps_are_joined) {
    /* Of 18 steps, 4 become one product; 2 are left over, at the end of the forward. */
    const tally n = joint_tally(18, &none);
    CHECK(n.rows == 4 * BATCH && n.inner == 4 * BATCH);
    /* forward: 5 of x, 18 of h; backward: 5 for x, 5 for w, 17 for h, and 5 for u, of which 4 are
     * added in place */
    CHECK(n.products == 5 + 18 + 5 + 5 + 17 + 1 && n.added == 4);
    /* 5 concats of g, which the gradients of x, w and u read, 5 of h, and one for that of x */
    CHECK(n.concats == 5 + 5 + 1 && n.pads == 0);
}

TEST(rows_that_are_not_consecutive_are_concatenated) {
    const tally n = joint_tally(16, &(change){.across = true});
    CHECK(n.rows == 4 * BATCH && n.inner == 4 * BATCH);
    CHECK(n.concats == 4 + 4 + 4 + 1); /* x, g, h and the gradient of x */
}

TEST(a_joined_product_has_a_limit) {
    const tally n = joint_tally(16, &(change){.batch = 100});
    CHECK(n.rows == 200 && n.inner == 200);
    /* Larger ones are only added in place, up to the same limit. */
    const tally large = joint_tally(16, &(change){.batch = 129});
    CHECK(large.rows == 129 && large.inner == 129 && large.added == 15 + 15);
    CHECK(joint_tally(16, &(change){.batch = 257}).added == 0);
}

TEST(what_stays) {
    CHECK(joint_tally(7, &none).rows == BATCH && joint_tally(7, &none).added == 0);
    CHECK(joint_tally(8, &none).rows == 2 * BATCH && joint_tally(8, &none).added > 0);
    /* Each step needs the one before it; the sums of gradients are still joined. */
    const tally chained = joint_tally(16, &(change){.chained = true});
    CHECK(chained.rows == BATCH && chained.added == 3 + 3);
    /* The constraint is that of one product; the other 15 are joined in threes. */
    const tally kept = joint_tally(16, &(change){.constraint = CB_MUST_RECOMPUTE});
    CHECK(kept.products == joint_tally(16, &none).products + 2 + 2 + 2);
    /* Sums of 16-bit products are rounded one by one. */
    const tally half = joint_tally(16, &(change){.dtype = CB_BF16});
    CHECK(half.rows == 4 * BATCH && half.added == 0);
    const tally sliced = joint_tally(16, &(change){.slices = true});
    CHECK(sliced.rows == BATCH && sliced.inner == BATCH);
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
    RUN(steps_are_joined);
    RUN(rows_that_are_not_consecutive_are_concatenated);
    RUN(a_joined_product_has_a_limit);
    RUN(what_stays);
    RUN(out_of_memory);
    return ir_report();
}
