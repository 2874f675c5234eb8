/* The scratch of the host's kernels: known sizes, and bounds that hold for every shape. */
#include "exec/tiles.h"
#include "exec/workspace.h"
#include "ir/ir.h"
#include "ir/work.h"

static uint64_t workspace_of(const cb_graph *g, cb_value_id value) {
    const cb_op_id op = g->values.at[value].producer;
    const uint64_t bytes = cb_op_workspace(g, op);
    CHECK(bytes <= CB_WORKSPACE_MAX + cb_op_index_copy(g, op));
    return bytes;
}

/* Sums over columns and backwards of norms have scratch of whole blocks, within the limit, and none
 * for few rows. One column counts as a row. */
TEST(column_workspace) {
    static const int64_t sizes[] = {0, 1, 3, 16, 31, 64, 1000, 4096, 100000, 1 << 20};
    const size_t n = sizeof sizes / sizeof *sizes;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n; k++) {
            int64_t blocks = cb_row_blocks(sizes[i], sizes[k]);
            cb_graph *g = ir_graph();
            cb_value_id y, outs[3], x = ir_input(g, CB_F64, DIMS(sizes[i], sizes[k])),
                                    c = ir_input(g, CB_F64, DIMS(sizes[k])),
                                    r = ir_input(g, CB_F64, DIMS(sizes[i]));
            CHECK_OK(cb_build_sum(g, x, 1, (int64_t[]){0}, false, &y, &err));
            uint64_t want = blocks == 1 ? 0 : (uint64_t)(blocks * sizes[k]) * 8;
            CHECK(workspace_of(g, y) == (sizes[k] == 1 ? 0 : want));
            CHECK_OK(cb_build_sum(g, x, 0, NULL, false, &y, &err)); /* over all axes */
            CHECK(workspace_of(g, y) == 0);
            CHECK_OK(cb_build(g, CB_OP_LAYER_NORM_BWD, INS(x, x, c, r, r), NULL, outs, &err));
            CHECK(workspace_of(g, outs[0]) == 2 * want);
            cb_graph_free(g);
        }
    }
}

TEST(conv_workspace) {
    static const int64_t sides[] = {1, 2, 7, 64, 300}, channels[] = {1, 4, 512},
                         kernels[] = {1, 3, 7};
    static const cb_dtype dtypes[] = {CB_F32, CB_F64, CB_BF16};
    for (int i = 0; i < 5 * 3 * 3 * 3; i++) {
        int64_t side = sides[i % 5], c = channels[i / 5 % 3], k = kernels[i / 15 % 3];
        cb_dtype dtype = dtypes[i / 45];
        cb_graph *g = ir_graph();
        cb_value_id y, d, x = ir_input(g, dtype, DIMS(3, c, side, side)),
                          w = ir_input(g, dtype, DIMS(c, c, k, k));
        cb_attrs a = {.i = {1, 1, k / 2, k / 2, 1, 1, 1}};
        CHECK_OK(cb_build(g, CB_OP_CONV2D, INS(x, w), &a, &y, &err));
        workspace_of(g, y);
        a.dims = DIMS(3, c, side, side);
        CHECK_OK(cb_build(g, CB_OP_CONV2D_DGRAD, INS(y, w), &a, &d, &err));
        workspace_of(g, d);
        a.dims = DIMS(c, c, k, k);
        CHECK_OK(cb_build(g, CB_OP_CONV2D_WGRAD, INS(y, x), &a, &d, &err));
        workspace_of(g, d);
        cb_graph_free(g);
    }
}

/* Scratch includes a copy of indices that the caller could overwrite: arguments, views of them,
 * results. */
TEST(index_copies) {
    cb_graph *g = ir_graph();
    cb_value_id table = ir_input(g, CB_F32, DIMS(1000, 4)), index = ir_input(g, CB_I32, DIMS(90)),
                logits = ir_input(g, CB_F64, DIMS(90, 4)), r = ir_input(g, CB_F64, DIMS(90));
    cb_value_id view, own, result, y[2];
    CHECK_OK(cb_build_reshape(g, index, &DIMS(9, 10), &view, &err));
    CHECK_OK(cb_build2(g, CB_OP_ADD, index, index, &own, &err));
    CHECK_OK(cb_build2(g, CB_OP_MUL, index, index, &result, &err));
    CHECK_OK(cb_graph_append_output(g, result, "y", CB_OUTPUT_RESULT, CB_NONE, &err));
    const uint64_t copy = 384; /* 90 * 4 bytes, rounded up */
    CHECK_OK(cb_build2(g, CB_OP_EMBEDDING, table, index, y, &err));
    CHECK(workspace_of(g, y[0]) == copy);
    CHECK_OK(cb_build2(g, CB_OP_EMBEDDING, table, view, y, &err));
    CHECK(workspace_of(g, y[0]) == copy);
    CHECK_OK(cb_build2(g, CB_OP_EMBEDDING, table, result, y, &err));
    CHECK(workspace_of(g, y[0]) == copy);
    CHECK_OK(cb_build2(g, CB_OP_EMBEDDING, table, own, y, &err));
    CHECK(workspace_of(g, y[0]) == 0);
    CHECK_OK(cb_build2(g, CB_OP_GATHER, r, index, y, &err));
    CHECK(workspace_of(g, y[0]) == copy);
    CHECK_OK(cb_build(g, CB_OP_SCATTER_ADD, INS(r, index, r), NULL, y, &err));
    CHECK(workspace_of(g, y[0]) == copy);
    CHECK_OK(cb_build(g, CB_OP_EMBEDDING_BWD, INS(logits, index), &(cb_attrs){.i = {7}}, y, &err));
    CHECK(workspace_of(g, y[0]) == copy);
    CHECK_OK(cb_build(g, CB_OP_CROSS_ENTROPY, INS(logits, index), NULL, y, &err));
    CHECK(workspace_of(g, y[0]) == copy);
    CHECK_OK(cb_build(g, CB_OP_CROSS_ENTROPY_BWD, INS(r, logits, index), NULL, y, &err));
    CHECK(workspace_of(g, y[0]) == copy);
    cb_graph_free(g);
}

int main(void) {
    cb_alloc_init(&ir_alloc);
    RUN(column_workspace);
    RUN(conv_workspace);
    RUN(index_copies);
    return ir_report();
}
