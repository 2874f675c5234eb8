/* The builder: broadcasting, copies where an op needs them, reshapes, matmul's rules, and failed
 * calls, which leave nothing behind. */
#include "ir.h"
#include "ir/infer.h"

TEST(broadcasts) {
    cb_graph *g = ir_graph();
    cb_value_id y, x = ir_input(g, CB_F32, DIMS(4, 1)), b = ir_input(g, CB_F32, DIMS(3));
    CHECK_OK(cb_build2(g, CB_OP_ADD, x, b, &y, &err));
    CHECK(ir_shape_is(g, y, DIMS(4, 3)) && ir_code(g, y) == CB_OP_ADD);
    const cb_value_id *ins = cb_op_ins(g, g->values.at[y].producer);
    CHECK(ir_code(g, ins[0]) == CB_OP_EXPAND && ir_code(g, ins[1]) == CB_OP_EXPAND);
    const int64_t *left = g->values.at[ins[0]].stride, *right = g->values.at[ins[1]].stride;
    CHECK(left[0] == 1 && left[1] == 0 && right[0] == 0 && right[1] == 1);
    CHECK(g->values.at[ins[0]].storage == g->values.at[x].storage);
    size_t before = g->ops.len;
    CHECK_OK(cb_build2(g, CB_OP_MUL, y, y, &y, &err)); /* equal shapes: no view */
    CHECK(g->ops.len == before + 1);
    cb_value_id c = ir_input(g, CB_BOOL, DIMS(2, 1, 1)), out;
    CHECK_OK(cb_build(g, CB_OP_WHERE, INS(c, y, b), NULL, &out, &err));
    CHECK(ir_shape_is(g, out, DIMS(2, 4, 3)));
    CHECK_OK(cb_graph_verify(g, CB_SPEC_FORWARD, &err));
    cb_graph_free(g);
}

TEST(failures_leave_nothing) {
    cb_graph *g = ir_graph();
    cb_value_id out = 77, x = ir_input(g, CB_F32, DIMS(4, 3)), y = ir_input(g, CB_F32, DIMS(5, 3)),
                n = ir_input(g, CB_I64, DIMS(3));
    CHECK_FAIL(cb_build2(g, CB_OP_ADD, x, y, &out, &err), CB_INVALID,
               "add: cannot broadcast (4,3) with (5,3)");
    /* n is expanded before the dtypes are compared; the view is removed again */
    CHECK_FAIL(cb_build2(g, CB_OP_ADD, x, n, &out, &err), CB_TYPE,
               "add: dtypes differ: f32 and i64; cast one");
    CHECK_FAIL(cb_build2(g, CB_OP_ADD, x, 99, &out, &err), CB_INVALID,
               "add: the graph has no value %99");
    CHECK_FAIL(cb_build2(g, CB_OP_MATMUL, x, n, &out, &err), CB_TYPE, "matmul: dtypes differ");
    CHECK_FAIL(cb_build1(g, CB_OP_ADD, x, &out, &err), CB_INVALID, "add: takes 2 inputs, got 1");
    CHECK_FAIL(cb_build_reshape(g, x, &DIMS(5, -1), &out, &err), CB_INVALID,
               "12 elements of (4,3)");
    CHECK_FAIL(cb_build_reshape(g, x, &DIMS(-1, -1), &out, &err), CB_INVALID, "cannot become");
    CHECK_FAIL(cb_build_reshape(g, x, &DIMS(0, -1), &out, &err), CB_INVALID, "no size for the -1");
    CHECK_FAIL(cb_build_reshape(g, x, &DIMS(7), &out, &err), CB_INVALID, "has 12 elements");
    CHECK_FAIL(cb_build_full(g, &DIMS(-1), CB_F32, 1, &out, &err), CB_INVALID, "negative");
    CHECK_FAIL(cb_build_sum(g, x, 1, (int64_t[]){2}, false, &out, &err), CB_INVALID, "no axis 2");
    CHECK_FAIL(cb_build_sum(g, x, 2, (int64_t[]){0, -2}, false, &out, &err), CB_INVALID,
               "ascending order");
    CHECK_FAIL(cb_build_sum_to(g, x, &DIMS(2, 3), &out, &err), CB_INVALID,
               "did not come from broadcasting");
    CHECK_FAIL(cb_build_swap_last(g, n, &out, &err), CB_INVALID, "no two axes");
    CHECK(out == 77 && g->ops.len == 3 && g->values.len == 3 && g->storages.len == 3);
    CHECK(g->in_value.len == 0 && g->attrs.len == 3 && g->backward_starts == 3);
    CHECK_OK(cb_graph_verify(g, CB_SPEC_FORWARD, &err));
    cb_graph_free(g);
}

TEST(views) {
    cb_graph *g = ir_graph();
    cb_value_id y, z, x = ir_input(g, CB_F32, DIMS(4, 6));
    CHECK_OK(cb_build_transpose(g, x, (int64_t[]){-1, 0}, &y, &err));
    CHECK(ir_shape_is(g, y, DIMS(6, 4)) && g->values.at[y].stride[0] == 1 &&
          g->values.at[y].stride[1] == 6);
    CHECK_OK(cb_build_reshape(g, x, &DIMS(2, -1), &z, &err));
    CHECK(ir_shape_is(g, z, DIMS(2, 12)) && g->values.at[z].storage == g->values.at[x].storage);
    CHECK_OK(cb_build_reshape(g, y, &DIMS(24), &z, &err)); /* not a view, so a copy is inserted */
    CHECK(g->values.at[z].storage != g->values.at[x].storage);
    CHECK(ir_code(g, cb_op_ins(g, g->values.at[z].producer)[0]) == CB_OP_CONTIGUOUS);
    CHECK_OK(cb_build_reshape(g, x, &DIMS(4, 6), &z, &err));
    CHECK(z == x);
    cb_attrs a = {.i = {-1, 1, 6, 2}};
    CHECK_OK(cb_build(g, CB_OP_SLICE, INS(x), &a, &z, &err));
    CHECK(ir_shape_is(g, z, DIMS(4, 3)) && g->values.at[z].stride[1] == 2 &&
          g->values.at[z].offset == 1);
    a = (cb_attrs){.i = {0, 1, 3, 1}};
    CHECK_OK(cb_build(g, CB_OP_SLICE, INS(z), &a, &z, &err));
    CHECK(g->values.at[z].offset == 7 && g->values.at[z].stride[0] == 6);
    CHECK_OK(cb_build_contiguous(g, z, &y, &err));
    CHECK(y != z && ir_code(g, y) == CB_OP_CONTIGUOUS);
    CHECK_OK(cb_build_contiguous(g, y, &z, &err));
    CHECK(y == z);
    CHECK_OK(cb_build_cast(g, y, CB_F32, &z, &err));
    CHECK(y == z);
    CHECK_OK(cb_build_cast(g, y, CB_BF16, &z, &err));
    CHECK(g->values.at[z].dtype == CB_BF16);
    CHECK_OK(cb_build_full(g, &DIMS(5, 5), CB_F32, 2, &z, &err));
    CHECK(ir_shape_is(g, z, DIMS(5, 5)) && g->storages.at[g->values.at[z].storage].bytes == 4);
    CHECK_OK(cb_build_full(g, &SCALAR, CB_F32, 2, &z, &err));
    CHECK(ir_code(g, z) == CB_OP_FULL);
    CHECK_OK(cb_graph_verify(g, CB_SPEC_FORWARD, &err));
    cb_graph_free(g);
}

TEST(copies_where_needed) {
    cb_graph *g = ir_graph();
    cb_value_id t, y, x = ir_input(g, CB_F32, DIMS(4, 6));
    cb_op_id op;
    CHECK_OK(cb_build_swap_last(g, x, &t, &err));
    CHECK_FAIL(cb_graph_append(g, CB_OP_SOFTMAX, INS(t), NULL, &op, &err), CB_INVALID,
               "softmax: input 0 is not contiguous");
    CHECK_FAIL(cb_graph_append(g, CB_OP_RESHAPE, INS(t), &(cb_attrs){.dims = DIMS(24)}, &op, &err),
               CB_INVALID, "a strided (6,4) cannot be seen as (24,)");
    CHECK_OK(cb_build1(g, CB_OP_SOFTMAX, t, &y, &err));
    CHECK(ir_code(g, cb_op_ins(g, g->values.at[y].producer)[0]) == CB_OP_CONTIGUOUS);
    CHECK_OK(cb_build1(g, CB_OP_EXP, t, &y, &err)); /* reads any strides */
    CHECK(cb_op_ins(g, g->values.at[y].producer)[0] == t);
    CHECK(cb_is_contiguous(&g->values.at[y].shape, g->values.at[y].stride));
    cb_graph_free(g);
}

TEST(casts_of_bools_are_cast_once) {
    cb_graph *g = ir_graph();
    cb_value_id bools, whole, y, x = ir_input(g, CB_F32, DIMS(4));
    CHECK_OK(cb_build2(g, CB_OP_GT, x, x, &bools, &err));
    CHECK_OK(cb_build_cast(g, bools, CB_I64, &whole, &err));
    CHECK_OK(cb_build_cast(g, whole, CB_F32, &y, &err));
    CHECK(cb_op_ins(g, g->values.at[y].producer)[0] == bools);
    CHECK_OK(cb_build(g, CB_OP_CAST, 1, &whole, &(cb_attrs){.dtype = CB_F64}, &y, &err));
    CHECK(cb_op_ins(g, g->values.at[y].producer)[0] == bools);
    CHECK_OK(cb_build_cast(g, x, CB_I32, &whole, &err)); /* rounds */
    CHECK_OK(cb_build_cast(g, whole, CB_F32, &y, &err));
    CHECK(cb_op_ins(g, g->values.at[y].producer)[0] == whole);
    cb_graph_free(g);
}

TEST(reductions) {
    cb_graph *g = ir_graph();
    cb_value_id y, x = ir_input(g, CB_F32, DIMS(2, 3, 4));
    CHECK_OK(
        cb_build_sum(g, x, 2, (int64_t[]){-1, 0}, false, &y, &err)); /* sorted and counted from 0 */
    CHECK(ir_shape_is(g, y, DIMS(3)));
    CHECK_OK(cb_build_sum(g, x, 0, NULL, true, &y, &err)); /* no axes given: all of them */
    CHECK(ir_shape_is(g, y, DIMS(1, 1, 1)) &&
          cb_op_attrs(g, g->values.at[y].producer)->dims.rank == 3);
    CHECK_OK(cb_build(g, CB_OP_ARGMAX, INS(x), &(cb_attrs){.i = {-2, 0}}, &y, &err));
    CHECK(ir_shape_is(g, y, DIMS(2, 4)));
    CHECK_OK(cb_build_sum_to(g, x, &DIMS(3, 1), &y, &err));
    CHECK(ir_shape_is(g, y, DIMS(3, 1)));
    CHECK_OK(cb_build_sum_to(g, x, &DIMS(2, 3, 4), &y, &err));
    CHECK(y == x);
    CHECK_OK(cb_build_sum_to(g, x, &SCALAR, &y, &err));
    CHECK(ir_shape_is(g, y, SCALAR));
    cb_value_id one = ir_input(g, CB_F32, DIMS(1, 1, 4)), none = ir_input(g, CB_F32, DIMS(0, 4));
    size_t before = g->ops.len;
    CHECK_OK(cb_build_sum_to(g, one, &DIMS(4), &y, &err)); /* nothing to add: a view */
    CHECK(g->ops.len == before + 1 && ir_code(g, y) == CB_OP_RESHAPE);
    CHECK_OK(cb_build_sum_to(g, none, &DIMS(1, 4), &y, &err));
    CHECK(ir_shape_is(g, y, DIMS(1, 4)));
    CHECK_OK(cb_graph_verify(g, CB_SPEC_FORWARD, &err));
    cb_graph_free(g);
}

static cb_value_id product(cb_graph *g, cb_shape a, cb_shape b) {
    cb_value_id out = CB_NONE, x = ir_input(g, CB_F32, a), y = ir_input(g, CB_F32, b);
    CHECK_OK(cb_build_matmul(g, x, y, &out, &err));
    return out;
}

static size_t count(const cb_graph *g, cb_opcode code) {
    size_t n = 0;
    for (size_t i = 0; i < g->ops.len; i++) n += g->ops.at[i].code == code;
    return n;
}

TEST(matmul) {
    cb_graph *g = ir_graph();
    cb_value_id y, t;
    CHECK(ir_shape_is(g, product(g, DIMS(3), DIMS(3)), SCALAR));
    CHECK(ir_shape_is(g, product(g, DIMS(2, 3), DIMS(3)), DIMS(2)));
    CHECK(ir_shape_is(g, product(g, DIMS(3), DIMS(3, 4)), DIMS(4)));
    CHECK(ir_shape_is(g, product(g, DIMS(3), DIMS(5, 3, 4)), DIMS(5, 4)));
    CHECK(ir_shape_is(g, product(g, DIMS(5, 2, 3), DIMS(3)), DIMS(5, 2)));
    CHECK(ir_shape_is(g, product(g, DIMS(6, 1, 2, 3), DIMS(5, 3, 4)), DIMS(6, 5, 2, 4)));
    CHECK(ir_shape_is(g, product(g, DIMS(2, 0), DIMS(0, 4)), DIMS(2, 4)));
    y = product(g, DIMS(7, 5, 2, 3), DIMS(3, 4)); /* one large product */
    CHECK(ir_shape_is(g, y, DIMS(7, 5, 2, 4)));
    const cb_op *op = &g->ops.at[g->values.at[y].producer];
    CHECK(op->code == CB_OP_RESHAPE && ir_code(g, g->in_value.at[op->in_begin]) == CB_OP_MATMUL);
    CHECK(ir_shape_is(g, g->in_value.at[op->in_begin], DIMS(70, 4)));
    CHECK(count(g, CB_OP_CONTIGUOUS) == 0);
    /* a transposed operand is used as it is; a stepped one needs a copy */
    cb_value_id x = ir_input(g, CB_F32, DIMS(5, 8, 8)), w = ir_input(g, CB_F32, DIMS(8, 8));
    CHECK_OK(cb_build_swap_last(g, x, &t, &err));
    CHECK_OK(cb_build_matmul(g, t, w, &y, &err));
    CHECK(count(g, CB_OP_CONTIGUOUS) == 0);
    CHECK_OK(cb_build(g, CB_OP_SLICE, INS(x), &(cb_attrs){.i = {2, 0, 8, 2}}, &t, &err));
    CHECK_OK(cb_build_matmul(g, w, t, &y, &err));
    CHECK(ir_shape_is(g, y, DIMS(5, 8, 4)) && count(g, CB_OP_CONTIGUOUS) == 1);
    CHECK_FAIL(cb_build_matmul(g, x, ir_input(g, CB_F32, DIMS(7, 8)), &y, &err), CB_INVALID,
               "matmul: (5,8,8) @ (7,8)");
    CHECK_FAIL(cb_build_matmul(g, x, ir_input(g, CB_F32, SCALAR), &y, &err), CB_INVALID,
               "matmul: (5,8,8) @ ()");
    CHECK_FAIL(cb_build_matmul(g, x, ir_input(g, CB_F32, DIMS(4, 8, 8)), &y, &err), CB_INVALID,
               "matmul: batch axes: cannot broadcast (5,) with (4,)");
    CHECK_OK(cb_graph_verify(g, CB_SPEC_FORWARD, &err));
    cb_graph_free(g);
}

TEST(matrix_layouts) {
    struct {
        int64_t n, m, down, right;
        bool is;
    } rows[] = {
        {3, 4, 4, 1, true},  {3, 4, 9, 1, true},  {3, 4, 3, 1, false}, {3, 4, 1, 3, true},
        {3, 4, 1, 2, false}, {3, 4, 8, 2, false}, {3, 4, 0, 1, false}, {1, 4, 0, 1, true},
        {3, 1, 1, 0, true},  {3, 1, 0, 1, false}, {1, 1, 0, 0, true},  {0, 4, 0, 0, true},
        {1, 4, 7, 2, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cb_shape s = DIMS(2, rows[i].n, rows[i].m);
        bool is = cb_is_matrix(&s, (int64_t[]){0, rows[i].down, rows[i].right});
        CHECK(is == rows[i].is);
        if (is != rows[i].is) printf("row %zu\n", i);
    }
}

/* Everything that one call appends, including views, gets the current source location, region,
 * phase and constraint. */
TEST(current_marks) {
    cb_graph *g = ir_graph();
    cb_value_id y, x = ir_input(g, CB_F32, DIMS(4, 1)), b = ir_input(g, CB_F32, DIMS(3));
    CHECK_OK(cb_graph_intern(g, "model.py:12", &g->location, &err));
    CHECK_OK(cb_graph_append_region(g, "block0", CB_NONE, UINT64_MAX, &g->region, &err));
    g->constraint = CB_MUST_SAVE;
    size_t first = g->ops.len;
    CHECK_OK(cb_build2(g, CB_OP_ADD, x, b, &y, &err));
    CHECK(g->ops.len == first + 3);
    for (size_t i = first; i < g->ops.len; i++) {
        const cb_op *op = &g->ops.at[i];
        CHECK(op->location == g->location && op->region == 0 && op->constraint == CB_MUST_SAVE);
        CHECK(op->phase == CB_FORWARD && op->origin == CB_NONE);
    }
    cb_graph_free(g);
}

int main(void) {
    cb_alloc_init(&ir_alloc);
    RUN(broadcasts);
    RUN(failures_leave_nothing);
    RUN(views);
    RUN(copies_where_needed);
    RUN(casts_of_bools_are_cast_once);
    RUN(reductions);
    RUN(matmul);
    RUN(matrix_layouts);
    RUN(current_marks);
    return ir_report();
}
