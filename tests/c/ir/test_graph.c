/* The graph itself: appending, outputs, regions, copies and pruning; out of memory at every
 * allocation. */
#include "ir.h"
#include "ir/graph_json.h"
#include "ir/infer.h"
#include "oom.h"

/* Checks each row of the table, so that a contradictory row is found here. */
TEST(op_table) {
    for (int i = 0; i < CB_OP_COUNT; i++) {
        const cb_op_def *def = cb_op_def_of((cb_opcode)i);
        cb_opcode found = CB_OP_COUNT;
        cb_attr_slot slot;
        unsigned taken = 0;
        CHECK(cb_op_find(def->name, strlen(def->name), &found) && (int)found == i);
        CHECK(def->n_outs >= 1 && def->n_outs <= CB_MAX_OUTS);
        CHECK(def->max_ins == -1 || def->max_ins >= def->min_ins);
        CHECK(def->doc[0] && def->vjp[0]);
        CHECK(!(def->flags & CB_OPF_VIEW) || def->n_outs == 1);
        for (int k = 0; cb_op_attr((cb_opcode)i, k, &slot); k++) {
            static const int first_bit[] = {
                [CB_ATTR_F] = 0, [CB_ATTR_I] = 2, [CB_ATTR_DIMS] = 10, [CB_ATTR_DTYPE] = 11};
            unsigned bit = 1u << (first_bit[slot.kind] + slot.index);
            CHECK(slot.name_length > 0 && slot.name_length < 32);
            CHECK(slot.index < (slot.kind == CB_ATTR_F ? 2 : slot.kind == CB_ATTR_I ? 8 : 1));
            CHECK(!(taken & bit)); /* no slot is used twice */
            taken |= bit;
        }
        CHECK(!cb_op_attr((cb_opcode)i, -1, &slot));
    }
    cb_opcode none;
    CHECK(!cb_op_find("ad", 2, &none) && !cb_op_find("adds", 4, &none) &&
          !cb_op_find("", 0, &none));
}

TEST(appends) {
    cb_graph *g = ir_graph();
    cb_value_id x;
    cb_op_id op = 77;
    CHECK_OK(cb_graph_append_input(g, "w", CB_ROLE_PARAM, CB_F32, &DIMS(2, 3), &x, &err));
    CHECK(x == 0 && g->inputs.len == 1 && strcmp(cb_graph_name(g, g->ops.at[0].name), "w") == 0);
    CHECK(g->storages.at[0].bytes == 24 && g->storages.at[0].root == 0 && g->backward_starts == 1);
    /* slots that the op does not have are dropped */
    cb_attrs messy = {.f = {1, 2}, .i = {1, 2, 3}, .dims = DIMS(1, 2), .dtype = CB_F64};
    CHECK_OK(cb_graph_append(g, CB_OP_NEG, INS(x), &messy, &op, &err));
    const cb_attrs *a = cb_op_attrs(g, op);
    CHECK(op == 1 && a->f[0] == 0 && a->i[0] == 0 && a->dims.rank == 0 && a->dtype == CB_BOOL);
    op = 77;
    CHECK_FAIL(cb_graph_append(g, CB_OP_NEG, INS(5), NULL, &op, &err), CB_INVALID,
               "neg: input 0: the graph has no value %5");
    CHECK_FAIL(cb_graph_append_input(g, "w", (cb_role)9, CB_F32, &DIMS(2), &x, &err), CB_INVALID,
               "role is 9");
    CHECK_FAIL(cb_graph_append_input(g, "w", CB_ROLE_DATA, (cb_dtype)99, &DIMS(2), &x, &err),
               CB_TYPE, "type 99");
    CHECK_FAIL(cb_graph_append_input(g, "w", CB_ROLE_DATA, CB_F32, &DIMS(2, -1), &x, &err),
               CB_INVALID, "negative");
    CHECK(op == 77 && x == 0 && g->ops.len == 2 && g->values.len == 2 && g->inputs.len == 1);
    cb_value_id many[40];
    for (int i = 0; i < 40; i++) many[i] = x;
    CHECK_OK(cb_graph_append(g, CB_OP_CONCAT, 40, many, NULL, &op, &err));
    CHECK(ir_shape_is(g, g->ops.at[op].out_begin, DIMS(80, 3)));
    CHECK_OK(cb_graph_verify(g, CB_SPEC_FORWARD, &err));
    cb_graph_free(g);
    cb_graph_free(NULL);
}

TEST(outputs_and_regions) {
    cb_graph *g = ir_graph();
    cb_value_id x = ir_input(g, CB_F32, DIMS(3)), s, y;
    uint32_t r;
    CHECK_OK(cb_graph_append_input(g, "running", CB_ROLE_STATE, CB_F32, &DIMS(2), &s, &err));
    CHECK_OK(cb_build1(g, CB_OP_NEG, x, &y, &err));
    CHECK_FAIL(cb_graph_append_output(g, 9, "y", CB_OUTPUT_RESULT, CB_NONE, &err), CB_INVALID,
               "no value %9");
    CHECK_FAIL(cb_graph_append_output(g, y, "y", CB_OUTPUT_RESULT, 0, &err), CB_INVALID,
               "belongs to no input");
    CHECK_FAIL(cb_graph_append_output(g, y, "y", CB_OUTPUT_STATE, 0, &err), CB_INVALID,
               "give it the role state");
    CHECK_FAIL(cb_graph_append_output(g, y, "y", CB_OUTPUT_STATE, 1, &err), CB_INVALID,
               "state is f32 (3,), but its input 1 is f32 (2,)");
    CHECK_FAIL(cb_graph_append_output(g, y, "y", CB_OUTPUT_GRAD, 2, &err), CB_INVALID,
               "has 2 inputs");
    CHECK_FAIL(cb_graph_append_output(g, y, "y", (cb_output_kind)7, 0, &err), CB_INVALID,
               "unknown kind");
    CHECK(g->outputs.len == 0);
    CHECK_OK(cb_graph_append_output(g, y, "y", CB_OUTPUT_RESULT, CB_NONE, &err));
    CHECK_OK(cb_graph_append_output(g, y, NULL, CB_OUTPUT_GRAD, 0, &err));
    CHECK(g->outputs.len == 2 && g->outputs.at[1].name == CB_NONE);
    CHECK_FAIL(cb_graph_append_region(g, "r", 0, UINT64_MAX, &r, &err), CB_INVALID, "no region 0");
    CHECK_OK(cb_graph_append_region(g, "r", CB_NONE, (uint64_t)INT64_MAX + 1, &r, &err));
    CHECK(r == 0 && g->regions.at[0].saved_limit == UINT64_MAX);
    cb_graph_free(g);
}

/* Builds two inputs, a live chain with a view and an op with several outputs, and dead ops around
 * them. */
static cb_status make(cb_alloc *alloc, cb_graph **out, cb_error *e) {
    cb_graph *g = NULL;
    cb_status status;
    cb_value_id x, w, dead, y, norm[3];
    CB_TRY_DONE(cb_graph_create(alloc, &g, e));
    CB_TRY_DONE(cb_graph_append_input(g, "x", CB_ROLE_DATA, CB_F32, &DIMS(4, 6), &x, e));
    CB_TRY_DONE(cb_graph_append_input(g, "w", CB_ROLE_PARAM, CB_F32, &DIMS(6), &w, e));
    CB_TRY_DONE(cb_build1(g, CB_OP_EXP, x, &dead, e));
    CB_TRY_DONE(cb_graph_intern(g, "model.py:3", &g->location, e));
    CB_TRY_DONE(cb_graph_append_region(g, "block \"0\"", CB_NONE, 4096, &g->region, e));
    CB_TRY_DONE(cb_build(g, CB_OP_LAYER_NORM, INS(x, w, w), &(cb_attrs){.f = {1e-5}}, norm, e));
    g->constraint = CB_PREFER_SAVE;
    CB_TRY_DONE(cb_build_swap_last(g, norm[0], &y, e));
    CB_TRY_DONE(cb_build2(g, CB_OP_SUB, y, y, &dead, e));
    CB_TRY_DONE(cb_build_matmul(g, norm[0], y, &y, e));
    CB_TRY_DONE(cb_build_sum(g, y, 0, NULL, false, &y, e));
    CB_TRY_DONE(cb_graph_append_output(g, y, "loss", CB_OUTPUT_RESULT, CB_NONE, e));
    *out = g;
    return CB_OK;
done:
    cb_graph_free(g);
    return status;
}

TEST(copy_and_prune) {
    cb_graph *g = NULL, *copy = NULL, *less = NULL, *again = NULL;
    cb_arena arena;
    cb_arena_init(&arena, &ir_alloc);
    CHECK_OK(make(&ir_alloc, &g, &err));
    CHECK_OK(cb_graph_copy(g, &ir_alloc, &copy, &err));
    CHECK_OK(cb_graph_verify(copy, CB_SPEC_FORWARD, &err));
    CHECK(strcmp(ir_text(g, &arena), ir_text(copy, &arena)) == 0);
    CHECK(copy->location == g->location && copy->region == 0 && copy->constraint == CB_PREFER_SAVE);
    CHECK_OK(cb_graph_prune(g, &ir_alloc, &less, &err));
    CHECK_OK(cb_graph_verify(less, CB_SPEC_FORWARD, &err));
    CHECK(less->ops.len == g->ops.len - 2 && less->inputs.len == 2 && less->outputs.len == 1);
    CHECK(less->storages.len == g->storages.len - 2 && !strstr(ir_text(less, &arena), "exp"));
    CHECK_OK(cb_graph_prune(less, &ir_alloc, &again, &err));
    CHECK(strcmp(ir_text(less, &arena), ir_text(again, &arena)) == 0);
    cb_graph_free(g);
    CHECK_OK(cb_graph_verify(less, CB_SPEC_FORWARD, &err)); /* copies are independent */
    cb_graph_free(copy);
    cb_graph_free(less);
    cb_graph_free(again);
    cb_arena_free(&arena);
}

TEST(prune_moves_the_start_of_the_backward) {
    cb_graph *g = ir_graph(), *less = NULL;
    cb_value_id x = ir_input(g, CB_F32, DIMS(2)), dead, y;
    CHECK_OK(cb_build1(g, CB_OP_EXP, x, &dead, &err));
    CHECK_OK(cb_build1(g, CB_OP_EXP, x, &y, &err));
    cb_op_id start = (cb_op_id)g->ops.len;
    CHECK_OK(cb_build1(g, CB_OP_NEG, y, &y, &err));
    g->backward_starts = start;
    CHECK_OK(cb_build1(g, CB_OP_NEG, y, &y, &err)); /* once set, it stays */
    CHECK(g->backward_starts == start);
    CHECK_OK(cb_graph_append_output(g, y, "y", CB_OUTPUT_RESULT, CB_NONE, &err));
    CHECK_OK(cb_graph_prune(g, &ir_alloc, &less, &err));
    CHECK(less->ops.len == 4 && less->backward_starts == 2);
    cb_graph_free(g);
    cb_graph_free(less);
}

/* ---- out of memory -----------------------------------------------------------------------------
 */

static cb_status make_and_free(cb_alloc *alloc, void *user) {
    cb_graph *g = NULL;
    cb_status status = make(alloc, &g, &err);
    (void)user;
    if (status == CB_OK) cb_graph_free(g);
    return status;
}

static cb_status copy_and_free(cb_alloc *alloc, void *user) {
    cb_graph *g = NULL;
    CB_TRY(cb_graph_copy(user, alloc, &g, &err));
    cb_graph_free(g);
    CB_TRY(cb_graph_prune(user, alloc, &g, &err));
    cb_graph_free(g);
    return CB_OK;
}

/* Makes a round trip through text and JSON. */
static cb_status round_trip(cb_alloc *alloc, void *user) {
    cb_arena arena;
    cb_str text, json;
    cb_status status;
    cb_graph *a = NULL, *b = NULL;
    cb_arena_init(&arena, alloc);
    cb_str_init(&text, &arena);
    cb_str_init(&json, &arena);
    CB_TRY_DONE(cb_graph_print(user, &text, &err));
    CB_TRY_DONE(cb_graph_parse(alloc, text.at, text.len, &a, &err));
    CB_TRY_DONE(cb_graph_verify(a, CB_SPEC_FORWARD, &err));
    CB_TRY_DONE(cb_graph_to_json(a, &json, &err));
    CB_TRY_DONE(cb_graph_from_json(alloc, json.at, json.len, &b, &err));
done:
    cb_graph_free(a);
    cb_graph_free(b);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    cb_graph *g = NULL;
    check_oom(make_and_free, NULL);
    CHECK_OK(make(&ir_alloc, &g, &err));
    check_oom(copy_and_free, g);
    check_oom(round_trip, g);
    cb_graph_free(g);
}

/* A graph that ran out of memory is unchanged and can be extended again. */
TEST(goes_on_after_out_of_memory) {
    cb_graph *g = ir_graph();
    cb_value_id x = ir_input(g, CB_F32, DIMS(4, 1)), b = ir_input(g, CB_F32, DIMS(3)), y = x;
    unsigned n_failed = 0;
    for (int i = 0; i < 400; i++) {
        size_t ops = g->ops.len, values = g->values.len, ins = g->in_value.len;
        cb_alloc_fail(&ir_alloc, 1); /* the arena's next chunk */
        cb_status status = cb_build2(g, CB_OP_ADD, i % 2 ? y : x, b, &y, &err);
        cb_alloc_fail(&ir_alloc, 0);
        if (status == CB_OK) continue;
        CHECK(status == CB_NOMEM && g->ops.len == ops && g->values.len == values &&
              g->in_value.len == ins);
        n_failed++;
        CHECK_OK(cb_build2(g, CB_OP_ADD, x, b, &y, &err));
    }
    CHECK(n_failed > 3);
    CHECK_OK(cb_graph_verify(g, CB_SPEC_FORWARD, &err));
    cb_graph_free(g);
}

int main(void) {
    cb_alloc_init(&ir_alloc);
    RUN(op_table);
    RUN(appends);
    RUN(outputs_and_regions);
    RUN(copy_and_prune);
    RUN(prune_moves_the_start_of_the_backward);
    RUN(out_of_memory);
    RUN(goes_on_after_out_of_memory);
    return ir_report();
}
