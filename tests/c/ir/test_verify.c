/* The verifier must find what no writer produces: graphs damaged by hand, one field at a time. */
#include "ir.h"

static const char *const joint_text =
    "cutback.graph 1\n"
    "region 0 \"block\" parent=none limit=none\n"
    "%0 = input {role=param, name=\"w\"} : f32[4,6]\n"
    "%1 = input {role=state, name=\"s\"} : f32[6]\n"
    "%2 = transpose(%0) {axes=[1,0]} : f32[6,4] @\"m.py:1\" region=0\n"
    "%3 = slice(%2) {axis=0, start=1, stop=5, step=2} : f32[2,4]\n"
    "%4, %5, %6 = layer_norm(%0, %1, %1) {eps=0} : f32[4,6], f32[4], f32[4]\n"
    "%7 = sum(%4) {axes=[0,1], keepdims=0} : f32[]\n"
    "%8 = sum(%4) {axes=[0], keepdims=0} : f32[6]\n"
    "--- backward\n"
    "%9 = full {value=1} : f32[] phase=backward\n"
    "%10 = expand(%9) {shape=[4,6]} : f32[4,6] phase=backward\n"
    "%11 = contiguous(%10) : f32[4,6] phase=backward\n"
    "output \"loss\" %7 result\n"
    "output \"s\" %8 state input=1\n"
    "output \"w\" %11 grad input=0\n";

static cb_graph *sound(const char *text) {
    cb_graph *g = NULL;
    CHECK_OK(cb_graph_parse(&ir_alloc, text, strlen(text), &g, &err));
    return g;
}

TEST(sound_graphs) {
    cb_graph *g = sound(joint_text);
    CHECK_OK(cb_graph_verify(g, CB_SPEC_JOINT, &err));
    CHECK_FAIL(cb_graph_verify(g, CB_SPEC_FORWARD, &err), CB_INTERNAL,
               "op 7 (full): a backward op in a forward graph");
    CHECK_FAIL(cb_graph_verify(g, CB_SPEC_SPLIT, &err), CB_INTERNAL,
               "op 2 (transpose): has no origin");
    for (size_t i = 0; i < g->ops.len; i++) g->ops.at[i].origin = 0;
    CHECK_OK(cb_graph_verify(g, CB_SPEC_SPLIT, &err));
    CHECK_FAIL(cb_graph_verify(g, (cb_spec)9, &err), CB_INTERNAL, "no such stage");
    cb_graph_free(g);
}

/* Damages a fresh graph and expects the verifier to report `want`. */
#define DAMAGED(damage, want)                                                   \
    do {                                                                        \
        cb_graph *g = sound(joint_text);                                        \
        damage;                                                                 \
        CHECK_FAIL(cb_graph_verify(g, CB_SPEC_JOINT, &err), CB_INTERNAL, want); \
        cb_graph_free(g);                                                       \
    } while (0)

TEST(ops) {
    DAMAGED(g->ops.at[2].code = (cb_opcode)999, "op 2 (?): no such opcode");
    DAMAGED(g->ops.at[2].in_begin = 5, "inputs do not follow");
    DAMAGED(g->ops.at[2].n_in = 1000, "inputs do not follow");
    DAMAGED(g->ops.at[2].n_in = 2, "wrong number of inputs");
    DAMAGED(g->ops.at[2].out_begin = 1, "outputs do not follow");
    DAMAGED(g->ops.at[4].n_out = 2, "outputs do not follow");
    DAMAGED(g->in_value.at[0] = 2, "op 2 (transpose): reads a value that does not exist yet");
    DAMAGED(g->in_value.at[0] = 4000000, "does not exist yet");
    DAMAGED(g->ops.at[2].attrs = 4000, "no such attributes");
    DAMAGED(g->ops.at[2].phase = 2, "no such phase");
    DAMAGED(g->ops.at[2].constraint = CB_CONSTRAINT_COUNT, "no such constraint");
    DAMAGED(g->ops.at[2].location = 4000, "no such name");
    DAMAGED(g->ops.at[2].name = 4000, "no such name");
    DAMAGED(g->ops.at[2].region = 1, "no such region");
    DAMAGED(g->attrs.at[2].dims.dim[0] = 7,
            "op 2 (transpose): transpose: (7,0) is not a permutation");
    DAMAGED(g->attrs.at[2].dims.rank = 1000, "transpose");
    DAMAGED(g->attrs.at[3].i[1] = 9, "slice: 9:5:2");
    DAMAGED(g->attrs.at[4].f[0] = -1, "eps is -1");
    DAMAGED(g->attrs.at[7].dtype = (cb_dtype)99, "type 99");
    DAMAGED(g->inputs.at[1] = 0, "op 1 (input): is an input, but the list of inputs lacks it");
    DAMAGED(g->inputs.len = 1, "is an input, but the list of inputs lacks it");
    DAMAGED(g->ops.len = 0, "belong to no op");
    DAMAGED(g->backward_starts = 4000, "after the end");
    DAMAGED(g->regions.at[0].parent = 0, "region 0: no such name, or its parent");
    DAMAGED(g->regions.at[0].name = 4000, "region 0");
}

TEST(values) {
    DAMAGED(g->values.at[3].producer = 2, "op 3 (slice): an output refers to another producer");
    DAMAGED(g->values.at[5].out_index = 0, "another producer");
    DAMAGED(g->values.at[3].dtype = CB_F64,
            "not have the type and layout that the shape rule gives");
    DAMAGED(g->values.at[3].shape.dim[0] = 3,
            "not have the type and layout that the shape rule gives");
    DAMAGED(g->values.at[3].shape.rank = 77,
            "not have the type and layout that the shape rule gives");
    DAMAGED(g->values.at[3].stride[0] = 1,
            "not have the type and layout that the shape rule gives");
    DAMAGED(g->values.at[3].offset = 0, "not have the type and layout that the shape rule gives");
    DAMAGED(g->values.at[3].storage = 1, "the storage of a view is not");
    DAMAGED(g->values.at[7].storage = 0, "storages are not numbered in order");
    DAMAGED(g->values.at[7].storage = 4000, "storages are not numbered in order");
    DAMAGED(g->storages.at[0].root = 1, "the root of a storage is another value");
    DAMAGED(g->storages.at[0].bytes = 95, "a storage has the wrong size");
}

TEST(outputs) {
    DAMAGED(g->outputs.at[0].value = 4000, "output 0: no such value");
    DAMAGED(g->outputs.at[0].name = 4000, "output 0: no such name");
    DAMAGED(g->outputs.at[0].input = 0, "belongs to no input");
    DAMAGED(g->outputs.at[0].kind = (cb_output_kind)9, "unknown kind");
    DAMAGED(g->outputs.at[1].input = CB_NONE, "output 1: no such input");
    DAMAGED(g->outputs.at[1].input = 0, "dtype or shape differ");
    DAMAGED(g->outputs.at[1].value = 7, "dtype or shape differ");
    DAMAGED(g->attrs.at[1].i[0] = CB_ROLE_DATA, "does not have the role state");
}

TEST(joint) {
    DAMAGED(g->ops.at[8].phase = CB_FORWARD, "op 8 (expand): depends on a tangent, but is forward");
    DAMAGED(g->ops.at[5].phase = CB_BACKWARD, "op 5 (sum): is backward, but depends on no tangent");
    DAMAGED(g->attrs.at[1].i[0] = CB_ROLE_TANGENT;
            g->outputs.at[1].kind = CB_OUTPUT_GRAD, "op 1 (input): depends on a tangent");
    DAMAGED(g->outputs.at[0].value = 3, "output 0: shares its storage with an input");
    DAMAGED(g->outputs.at[0].value = 10, "output 0: does not fill its storage");
    DAMAGED(g->outputs.at[0].value = 8, "output 1: shares its storage with another output");
}

TEST(forward) {
    cb_graph *g = sound(
        "cutback.graph 1\n%0 = input {role=data} : f32[2]\n--- backward\n%1 = neg(%0) : f32[2]\n"
        "output %1 grad input=0\n");
    CHECK_FAIL(cb_graph_verify(g, CB_SPEC_FORWARD, &err), CB_INTERNAL,
               "output 0: a gradient in a forward graph");
    g->outputs.len = 0;
    CHECK_FAIL(cb_graph_verify(g, CB_SPEC_FORWARD, &err), CB_INTERNAL,
               "a forward graph has ops of autodiff");
    g->backward_starts = 2;
    CHECK_OK(cb_graph_verify(g, CB_SPEC_FORWARD, &err));
    cb_graph_free(g);
    g = ir_graph(); /* an empty graph is valid */
    CHECK_OK(cb_graph_verify(g, CB_SPEC_FORWARD, &err));
    CHECK_OK(cb_graph_verify(g, CB_SPEC_JOINT, &err));
    cb_graph_free(g);
}

int main(void) {
    cb_alloc_init(&ir_alloc);
    RUN(sound_graphs);
    RUN(ops);
    RUN(values);
    RUN(outputs);
    RUN(joint);
    RUN(forward);
    return ir_report();
}
