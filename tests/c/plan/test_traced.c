/* Traced graphs: the ops and tensors made from nodes, refusals with their place, and PyTorch's
 * network on a graph small enough to follow by hand. tests/python/planner/test_traced.py compares
 * with PyTorch's own answers. */
#include "plan/torch/traced.h"

#include "check.h"
#include "fuzz.h"
#include "oom.h"
#include "plan/planner.h"
#include "plan/torch/aten.h"
#include "plan/torch/torch_compat.h"

static cb_alloc alloc;

#define TENSOR(storage, bytes) \
    "{\"shape\":[4],\"dtype\":\"float32\",\"bytes\":" #bytes ",\"storage\":" #storage "}"
#define ARGUMENT(name, role, tensor)                                 \
    "{\"name\":\"" name "\",\"kind\":\"placeholder\",\"op\":\"" name \
    "\",\"inputs\":[],\"out\":[" tensor "],\"role\":\"" role "\"}"
#define NODE(name, op, ins, outs, more)                                                    \
    "{\"name\":\"" name "\",\"kind\":\"call_function\",\"op\":\"" op "\",\"inputs\":[" ins \
    "],\"out\":[" outs "]" more "}"
#define POINTWISE ",\"tags\":[\"pointwise\"]"

/* A little of everything: a parameter, a view of an argument, an op with two tensors and its
 * getitems, a random op, a custom op, a storage id that is reused. */
static const char *const graph = "{\"name\":\"g\",\"nodes\":["                         /**/
    ARGUMENT("w", "primal", TENSOR(0, 16)) ","                                         /* 0 */
    ARGUMENT("x", "primal", TENSOR(1, 64)) ","                                         /* 1 */
    ARGUMENT("t", "tangent", TENSOR(2, 64)) ","                                        /* 2 */
    NODE("w1", "aten.permute.default", "0", TENSOR(0, 16), "") ","                     /* 3 */
    NODE("mm", "aten.mm.default", "1,3", TENSOR(3, 64), ",\"flops\":1e6") ","          /* 4 */
    NODE("vm", "aten.var_mean.correction", "4", TENSOR(4, 4) "," TENSOR(5, 4), "") "," /* 5 */
    NODE("v0", "_operator.getitem", "5", TENSOR(4, 4), "") ","                         /* 6 */
    NODE("mul", "aten.mul.Tensor", "4,6", TENSOR(6, 64), POINTWISE) ","                /* 7 */
    NODE("rand", "aten.rand.default", "", TENSOR(7, 64), "") ","                       /* 8 */
    NODE("drop", "aten.mul.Tensor", "7,8", TENSOR(8, 64), POINTWISE) ","               /* 9 */
    NODE("mine", "mylib.thing.default", "9", TENSOR(9, 64), "") ","                    /* 10 */
    NODE("reused", "aten.neg.default", "10", TENSOR(6, 64), POINTWISE) ","             /* 11 */
    NODE("g1", "aten.mul.Tensor", "2,7,8", TENSOR(10, 64), POINTWISE) ","              /* 12 */
    NODE("g2", "aten.mm.default", "12,4", TENSOR(11, 16), ",\"flops\":1e6")            /* 13 */
    "],\"storage_bytes\":[16,64,64,64,4,4,64,64,64,64,64,16],\"forward_outputs\":[11],"
    "\"backward_outputs\":[13,null],\"static_inputs\":[0]}";

static cb_problem *read_graph(const char *text) {
    cb_problem *p = NULL;
    CHECK_OK(cb_problem_read(&alloc, text, strlen(text), &p, &err));
    return p;
}

TEST(nodes_become_ops) {
    cb_problem *p = read_graph(graph);
    if (!p) return;
    CHECK(p->n_op == 14 && p->n_value == 15 && p->backward_starts == 12);
    CHECK(p->op_flags[0] == (CB_POP_PLACEHOLDER | CB_POP_PARAMETER));
    CHECK(p->op_flags[1] == CB_POP_PLACEHOLDER);
    CHECK(p->op_flags[2] == (CB_POP_PLACEHOLDER | CB_POP_BACKWARD));
    CHECK(p->op_flags[3] == CB_POP_VIEW && p->op_flags[4] == CB_POP_COMPUTE);
    CHECK(p->op_flags[5] == (CB_POP_FUSIBLE | CB_POP_REDUCTION) && p->op_flags[6] == CB_POP_VIEW);
    CHECK(p->op_flags[7] == CB_POP_FUSIBLE && p->op_flags[8] == CB_POP_RANDOM_STATEFUL);
    CHECK(p->op_flags[10] == CB_POP_UNKNOWN);
    CHECK(p->op_flags[12] == (CB_POP_FUSIBLE | CB_POP_BACKWARD));
    CHECK(strcmp(p->op_name[7], "mul") == 0 && strcmp(p->op_kind[7], "aten.mul.Tensor") == 0);
    CHECK(strcmp(p->value_type[p->out_begin[7]], "f32[4]") == 0);
    CHECK(p->in_begin[7] - p->in_begin[6] == 2); /* getitem reads both tensors */
    CHECK(p->static_bytes == 16 + 64 + 64);
    cb_problem_free(p);
}

TEST(storages) {
    cb_problem *p = read_graph(graph);
    if (!p) return;
    uint32_t reused = p->value_storage[p->out_begin[11]];
    CHECK(p->n_storage == 13 && reused == 12 && p->storage_bytes[reused] == 64);
    CHECK(p->storage_flags[reused] == CB_STORE_HOLD_END && p->storage_flags[6] == 0);
    CHECK(p->storage_flags[0] == CB_STORE_STATIC && p->storage_flags[11] == CB_STORE_HOLD_END);
    cb_problem_free(p);
}

TEST(times_are_the_rooflines) {
    cb_problem *p = read_graph(graph);
    const cb_device *a100 = cb_device_find("a100");
    if (!p) return;
    CHECK(cb_op_time_ps(p, 3, a100) == 0 && cb_op_time_ps(p, 6, a100) == 0);
    CHECK(p->op_bytes[4] == 64 + 16 + 64 && p->op_flops[4] == 1e6);
    CHECK(p->op_bytes[5] == 64 + 4 + 4 && p->op_bytes[12] == 64 + 64 + 64 + 64);
    cb_problem_free(p);
}

TEST(problems_are_read_as_well) {
    cb_problem *p = read_graph(graph);
    cb_arena arena;
    cb_str text;
    if (!p) return;
    cb_arena_init(&arena, &alloc);
    cb_str_init(&text, &arena);
    CHECK_OK(cb_problem_to_json(p, &text, &err));
    cb_problem *again = read_graph(text.at);
    CHECK(again && cb_problem_fingerprint(again) == cb_problem_fingerprint(p));
    CHECK(again && cb_value_bytes(again, 3) == cb_value_bytes(p, 3));
    cb_problem_free(again);
    cb_problem_free(p);
    cb_arena_free(&arena);
}

static void expect(const char *text, const char *part) {
    cb_problem *p = NULL;
    CHECK_FAIL(cb_problem_read(&alloc, text, strlen(text), &p, &err), CB_INVALID, part);
}

TEST(what_is_refused) {
#define GRAPH(nodes, storages, rest) \
    "{\"nodes\":[" nodes "],\"storage_bytes\":[" storages "]" rest "}"
#define ENDS ",\"forward_outputs\":[],\"backward_outputs\":[]"
    expect("{\"nodes\":[]}", "storage_bytes");
    expect("{\"nodes\":7,\"storage_bytes\":[]}", "nodes");
    expect(GRAPH("", "", ",\"forward_outputs\":[0],\"backward_outputs\":[]"),
           "has an output, but there are no nodes");
    expect(GRAPH("", "-1", ENDS), "storage_bytes");
    expect(GRAPH("3", "", ENDS), "a node must be an object");
    expect(GRAPH("{\"kind\":\"output\"}", "", ENDS), "node 0 is of kind \"output\"");
    expect(GRAPH(NODE("a", "aten.neg.default", "0", "", ""), "", ENDS),
           "node 0 reads an input that is not");
    expect(GRAPH(NODE("a", "aten.neg.default", "", TENSOR(0, 4), ""), "", ENDS), "is empty");
    expect(GRAPH(NODE("a", "aten.neg.default", "", TENSOR(1, 4), ""), "4", ENDS), "storage");
    expect(GRAPH(NODE("a", "aten.neg.default", "", TENSOR(0, -4), ""), "4", ENDS), "bytes");
    expect(GRAPH(NODE("a", "aten.neg.default", "", TENSOR(0, 1e300), ""), "4", ENDS), "bytes");
    expect(GRAPH(NODE("a", "aten.neg.default", "", TENSOR(0, 4), ",\"flops\":-1"), "4", ENDS),
           "flops");
    expect(GRAPH(ARGUMENT("a", "primal", TENSOR(0, 4)), "4", ENDS ",\"static_inputs\":[1]"),
           "static_inputs");
    expect(GRAPH(ARGUMENT("a", "primal", TENSOR(0, 4)), "4", ""), "forward_outputs");
    expect(GRAPH(ARGUMENT("t", "tangent", TENSOR(0, 4)) "," NODE("a", "aten.neg.default", "0",
                                                                 TENSOR(1, 4), ""),
                 "4,4", ",\"forward_outputs\":[1],\"backward_outputs\":[]"),
           "runs in the backward");
}

/* In PyTorch, mm is compute, var_mean shrinks 8 to 1, rand and the custom op are not on the list.
 * mul is pointwise and fuses with its readers in the backward, so it is recomputed. */
TEST(what_torch_saves) {
    cb_problem *p = read_graph(graph);
    cb_arena arena;
    cb_facts facts;
    cb_torch_cut cut;
    if (!p) return;
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_facts_make(p, cb_device_find("a100"), &arena, &facts, &err));
    CHECK_OK(cb_torch_cut_solve(&facts, &arena, &cut, &err));
    CHECK(cut.n_saved == 3);
    CHECK(cut.saved[0] == 4 && cut.saved[1] == 6 && cut.saved[2] == 8);
    CHECK(cut.again[7] && !cut.again[4] && !cut.again[9]);
    /* mm and rand, one op from the backward and materialized: 64 x 1.1; the selected tensor, two
     * ops away and fused: 2 x 4 x 1.1^2 */
    CHECK(cut.flow.value == 70 + 2 * 4 + 70);
    cb_problem_free(p);
    cb_arena_free(&arena);
}

TEST(op_rows) {
    CHECK(cb_aten_row("aten.mul.Tensor") == cb_aten_row("aten.mul"));
    CHECK(cb_aten_row("aten.mulx.Tensor") == 0 && cb_aten_row("") == 0);
    CHECK(cb_aten_row("_operator.getitem") & CB_ATEN_GETITEM);
    CHECK(cb_aten_row("aten.t.default") & CB_ATEN_VIEW);
    CHECK(cb_aten_row("aten.cat.default") & CB_ATEN_JOIN);
    CHECK(cb_aten_row("prims.var.default") & CB_ATEN_REDUCE);
    CHECK(cb_aten_flags("aten.native_dropout.default") == CB_POP_RANDOM_STATEFUL);
    CHECK(cb_aten_flags("aten.native_dropout_backward.default") == 0);
    CHECK(cb_aten_flags("aten._scaled_dot_product_flash_attention.default") == CB_POP_COMPUTE);
    CHECK(cb_aten_flags("_c10d_functional.all_reduce.default") == CB_POP_COLLECTIVE);
    CHECK(cb_aten_flags("mylib.mul.default") == CB_POP_UNKNOWN);
}

static cb_status read_and_plan(cb_alloc *from, void *user) {
    cb_plan_options o = {.preset = CB_PRESET_TORCH_COMPAT, .device = cb_device_find("a100")};
    cb_problem *p = NULL;
    cb_plan *plan = NULL;
    (void)user;
    cb_status status = cb_problem_read(from, graph, strlen(graph), &p, &err);
    if (status == CB_OK) status = cb_plan_make(p, &o, from, &plan, &err);
    cb_plan_free(plan);
    cb_problem_free(p);
    return status;
}

TEST(out_of_memory) { check_oom(read_and_plan, NULL); }

static bool try_graph(const char *text, size_t length) {
    cb_problem *p;
    cb_status status = cb_problem_read(&alloc, text, length, &p, &err);
    CHECK(status == CB_OK || (status == CB_INVALID && err.text[0]));
    if (status != CB_OK) return false;
    for (cb_preset preset = CB_PRESET_AUTOGRAD; preset < CB_PRESET_COUNT; preset++) {
        cb_plan_options o = {.preset = preset, .device = cb_device_find("a100")};
        cb_plan *plan = NULL;
        status = cb_plan_make(p, &o, &alloc, &plan, &err);
        CHECK(status == CB_OK || status == CB_INVALID || status == CB_INFEASIBLE);
        cb_plan_free(plan);
    }
    cb_problem_free(p);
    return true;
}

int main(int argc, char **argv) {
    cb_alloc_init(&alloc);
    RUN(nodes_become_ops);
    RUN(storages);
    RUN(times_are_the_rooflines);
    RUN(problems_are_read_as_well);
    RUN(what_is_refused);
    RUN(what_torch_saves);
    RUN(op_rows);
    RUN(out_of_memory);
    fuzz_run(&graph, 1, fuzz_count(argc, argv), try_graph);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
