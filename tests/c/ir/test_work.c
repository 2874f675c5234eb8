/* Amounts of work: known figures, and blocks of rows that stay within their bounds for every
 * shape. */
#include "ir.h"
#include "ir/work.h"

static cb_work work_of(const cb_graph *g, cb_value_id value) {
    return cb_op_work(g, g->values.at[value].producer);
}

TEST(figures) {
    cb_graph *g = ir_graph();
    cb_value_id x = ir_input(g, CB_F32, DIMS(8, 16)), w = ir_input(g, CB_F32, DIMS(16, 4)),
                b = ir_input(g, CB_F32, DIMS(16)), y;
    CHECK(work_of(g, x).bytes == 0);
    CHECK_OK(cb_build_matmul(g, x, w, &y, &err));
    CHECK(work_of(g, y).flops == 2.0 * 8 * 16 * 4 && work_of(g, y).bytes == 4 * (128 + 64 + 32));
    CHECK_OK(
        cb_build2(g, CB_OP_ADD, x, b, &y, &err)); /* b is read once, however often it repeats */
    CHECK(work_of(g, y).flops == 64 && work_of(g, y).bytes == 4 * (128 + 16 + 128));
    CHECK_OK(cb_build2(g, CB_OP_MUL, x, x, &y, &err)); /* x is read once */
    CHECK(work_of(g, y).bytes == 4 * 256);
    CHECK_OK(cb_build_swap_last(g, x, &y, &err));
    CHECK(work_of(g, y).bytes == 0 && work_of(g, y).flops == 0);
    CHECK_OK(cb_build_sum(g, x, 1, (int64_t[]){1}, false, &y, &err));
    CHECK(work_of(g, y).flops == 256 && work_of(g, y).bytes == 4 * (128 + 8));
    cb_value_id index = ir_input(g, CB_I32, DIMS(3)), table = ir_input(g, CB_F32, DIMS(1000, 4));
    CHECK_OK(cb_build2(g, CB_OP_EMBEDDING, table, index, &y, &err)); /* three rows in, three out */
    CHECK(work_of(g, y).bytes == 4 * 3 + 2 * 4 * 12);
    cb_value_id image = ir_input(g, CB_F32, DIMS(2, 3, 8, 8)),
                kernel = ir_input(g, CB_F32, DIMS(5, 3, 3, 3));
    CHECK_OK(cb_build(g, CB_OP_CONV2D, INS(image, kernel), &(cb_attrs){.i = {1, 1, 1, 1, 1, 1, 1}},
                      &y, &err));
    CHECK(work_of(g, y).flops == 2.0 * (2 * 5 * 64) * 27);
    cb_graph_free(g);
}

TEST(row_blocks) {
    static const int64_t sizes[] = {0, 1, 3, 16, 31, 64, 1000, 4096, 100000, 1 << 20};
    const size_t n = sizeof sizes / sizeof *sizes;
    for (size_t i = 0; i < n * n; i++) {
        const int64_t rows = sizes[i / n], columns = sizes[i % n],
                      blocks = cb_row_blocks(rows, columns);
        CHECK(blocks >= 1 && blocks <= 64 && (blocks == 1 || blocks * 16 <= rows));
        CHECK(blocks == 1 || blocks * columns <= 1 << 18);
    }
}

int main(void) {
    cb_alloc_init(&ir_alloc);
    RUN(figures);
    RUN(row_blocks);
    return ir_report();
}
