/* Shape rules, one row per case: types of the inputs, the op in text form, and the types of the
 * outputs or a part of the error. The test asserts that every op has a row. */
#include "ir.h"
#include "ir/infer.h"

#define NO_WINDOW "kernel_h=0,kernel_w=0,stride_h=0,stride_w=0,pad_h=0,pad_w=0,plane_w=0,"
#define ATTENTION_OPTIONS " {scale=0.5, p=0, stream=0, causal=0}"

typedef struct row {
    const char *ins, *op, *want;
} row;

/* Writes the text of a graph with inputs of the types in `ins` (separated by spaces) and the op. */
static void text_of(const row *r, const char *outs, char *text, size_t room) {
    size_t length = (size_t)snprintf(text, room, "cutback.graph 1\n");
    int id = 0;
    for (const char *at = r->ins; *at;) {
        size_t one = strcspn(at, " ");
        length += (size_t)snprintf(text + length, room - length,
                                   "%%%d = input {role=data} : %.*s\n", id++, (int)one, at);
        at += one + (at[one] == ' ');
    }
    int n_outs = 0;
    for (const char *at = outs; (at = strchr(at, ']')); at++) {
        length +=
            (size_t)snprintf(text + length, room - length, "%s%%%d", n_outs++ ? ", " : "", id++);
    }
    snprintf(text + length, room - length, " = %s : %s\n", r->op, outs);
}

static const row good[] = {
    {"", "full {value=0.5}", "f32[2,3]"},
    {"", "full {value=1}", "bool[]"},
    {"", "iota {axis=1}", "i64[2,3]"},
    {"", "uniform {stream=7}", "f32[4]"},
    /* pointwise */
    {"f32[2,3]", "neg(%0)", "f32[2,3]"},
    {"i32[0]", "abs(%0)", "i32[0]"},
    {"u8[1]", "sign(%0)", "u8[1]"},
    {"f64[]", "floor(%0)", "f64[]"},
    {"bf16[2]", "exp(%0)", "bf16[2]"},
    {"f16[2]", "log(%0)", "f16[2]"},
    {"f32[2]", "log1p(%0)", "f32[2]"},
    {"f32[2]", "sqrt(%0)", "f32[2]"},
    {"f32[2]", "rsqrt(%0)", "f32[2]"},
    {"f32[2]", "reciprocal(%0)", "f32[2]"},
    {"i64[2]", "square(%0)", "i64[2]"},
    {"f32[2]", "sin(%0)", "f32[2]"},
    {"f32[2]", "cos(%0)", "f32[2]"},
    {"f32[2]", "tanh(%0)", "f32[2]"},
    {"f32[2]", "sigmoid(%0)", "f32[2]"},
    {"f32[2]", "erf(%0)", "f32[2]"},
    {"f32[2]", "relu(%0)", "f32[2]"},
    {"f32[2]", "gelu(%0)", "f32[2]"},
    {"f32[2]", "gelu_tanh(%0)", "f32[2]"},
    {"f32[2]", "silu(%0)", "f32[2]"},
    {"bool[2]", "logical_not(%0)", "bool[2]"},
    {"bool[2]", "cast(%0) {dtype=bf16}", "bf16[2]"},
    {"bool[2]", "contiguous(%0)", "bool[2]"},
    {"f32[2]", "dropout(%0) {p=0.5, stream=0}", "f32[2]"},
    {"f32[2] f32[2]", "tanh_bwd(%0, %1)", "f32[2]"},
    {"f32[2] f32[2]", "sigmoid_bwd(%0, %1)", "f32[2]"},
    {"f32[2] f32[2]", "relu_bwd(%0, %1)", "f32[2]"},
    {"f32[2] f32[2]", "gelu_bwd(%0, %1)", "f32[2]"},
    {"f32[2] f32[2]", "gelu_tanh_bwd(%0, %1)", "f32[2]"},
    {"f32[2] f32[2]", "silu_bwd(%0, %1)", "f32[2]"},
    {"i64[2] i64[2]", "add(%0, %1)", "i64[2]"},
    {"f32[2] f32[2]", "sub(%0, %1)", "f32[2]"},
    {"f32[2]", "mul(%0, %0)", "f32[2]"},
    {"f32[2]", "div(%0, %0)", "f32[2]"},
    {"f32[2]", "pow(%0, %0)", "f32[2]"},
    {"u8[2]", "maximum(%0, %0)", "u8[2]"},
    {"f32[2]", "minimum(%0, %0)", "f32[2]"},
    {"bool[2]", "eq(%0, %0)", "bool[2]"},
    {"f32[2]", "ne(%0, %0)", "bool[2]"},
    {"i32[2]", "lt(%0, %0)", "bool[2]"},
    {"f32[2]", "le(%0, %0)", "bool[2]"},
    {"f32[2]", "gt(%0, %0)", "bool[2]"},
    {"f32[2]", "ge(%0, %0)", "bool[2]"},
    {"bool[2]", "logical_and(%0, %0)", "bool[2]"},
    {"bool[2]", "logical_or(%0, %0)", "bool[2]"},
    {"bool[2] i64[2]", "where(%0, %1, %1)", "i64[2]"},
    /* reductions */
    {"f32[2,3,4]", "sum(%0) {axes=[0,2], keepdims=0}", "f32[3]"},
    {"f32[2,3,4]", "sum(%0) {axes=[0,2], keepdims=1}", "f32[1,3,1]"},
    {"bool[2,3]", "sum(%0) {axes=[1], keepdims=0}", "i64[2]"},
    {"u8[2,0]", "sum(%0) {axes=[1], keepdims=0}", "i64[2]"},
    {"f32[]", "sum(%0) {axes=[], keepdims=0}", "f32[]"},
    {"bf16[0,3]", "mean(%0) {axes=[0], keepdims=0}", "bf16[3]"},
    {"u8[2,3]", "amax(%0) {axes=[1], keepdims=0}", "u8[2]"},
    {"f32[0,3]", "amin(%0) {axes=[1], keepdims=1}", "f32[0,1]"},
    {"f32[2,3]", "argmax(%0) {axis=1, keepdims=0}", "i64[2]"},
    {"f32[2,3]", "argmax(%0) {axis=0, keepdims=1}", "i64[1,3]"},
    /* views and movement */
    {"f32[2,3]", "reshape(%0) {shape=[3,1,2]}", "f32[3,1,2]"},
    {"f32[]", "reshape(%0) {shape=[1]}", "f32[1]"},
    {"f32[2,0]", "reshape(%0) {shape=[0,7]}", "f32[0,7]"},
    {"f32[2,3,4]", "transpose(%0) {axes=[2,0,1]}", "f32[4,2,3]"},
    {"f32[]", "transpose(%0) {axes=[]}", "f32[]"},
    {"f32[3,1]", "expand(%0) {shape=[2,3,4]}", "f32[2,3,4]"},
    {"f32[1]", "expand(%0) {shape=[0]}", "f32[0]"},
    {"f32[10]", "slice(%0) {axis=0, start=1, stop=10, step=3}", "f32[3]"},
    {"f32[10]", "slice(%0) {axis=0, start=10, stop=10, step=1}", "f32[0]"},
    {"f32[10]", "slice(%0) {axis=0, start=9, stop=10, step=9223372036854775807}", "f32[1]"},
    {"i64[2,3]", "stop_gradient(%0)", "i64[2,3]"},
    {"f32[2]", "custom_vjp(%0) {index=1, n_outs=2}", "f32[2]"},
    {"f32[2] f32[3]", "custom_vjp(%0, %0, %1, %1, %1, %1) {index=0, n_outs=1}", "f32[2]"},
    {"f32[2,3] f32[2,0]", "concat(%0, %1, %0) {axis=1}", "f32[2,6]"},
    {"f32[3]", "pad(%0) {axis=0, low=1, high=2, interior=1, value=-inf}", "f32[8]"},
    {"f32[0]", "pad(%0) {axis=0, low=1, high=2, interior=9, value=0}", "f32[3]"},
    {"bool[2,3]", "tril(%0) {k=0, fill=0}", "bool[2,3]"},
    {"f32[2,3] i32[2,5]", "gather(%0, %1) {axis=1}", "f32[2,5]"},
    {"f32[2,3] i64[2,5] f32[2,5]", "scatter_add(%0, %1, %2) {axis=1}", "f32[2,3]"},
    {"f32[10,4] i64[2,3]", "embedding(%0, %1)", "f32[2,3,4]"},
    {"f32[10,4] i32[]", "embedding(%0, %1)", "f32[4]"},
    {"f32[2,3,4] i64[2,3]", "embedding_bwd(%0, %1) {rows=10}", "f32[10,4]"},
    {"bool[3,3]", "pack_bits(%0)", "u8[2]"},
    {"f16[]", "pack_bits(%0)", "u8[1]"},
    {"f32[0,3]", "pack_bits(%0)", "u8[0]"},
    {"u8[2]", "unpack_bits(%0) {shape=[3,3]}", "bool[3,3]"},
    {"i64[3,2]", "pack_index(%0) {" NO_WINDOW "limit=256}", "u8[6]"},
    {"i32[3]", "pack_index(%0) {" NO_WINDOW "limit=65537}", "u8[12]"},
    {"i32[1,2,3,4]",
     "pack_index(%0) "
     "{kernel_h=16,kernel_w=17,stride_h=1,stride_w=1,pad_h=0,pad_w=0,plane_w=40,limit=1600}",
     "u8[48]"},
    {"u8[6]", "unpack_index(%0) {" NO_WINDOW "limit=300,shape=[3],dtype=i64}", "i64[3]"},
    /* products, windows */
    {"f32[2,3] f32[3,4]", "matmul(%0, %1)", "f32[2,4]"},
    {"f64[5,2,0] f64[5,0,4]", "matmul(%0, %1)", "f64[5,2,4]"},
    {"f32[2,3] f32[3,4] f32[2,4]", "matmul_add(%0, %1, %2)", "f32[2,4]"},
    {"f32[2,4,7,8] f32[6,2,3,3]",
     "conv2d(%0, %1) {stride_h=2, stride_w=1, pad_h=1, pad_w=0, dilation_h=1, dilation_w=2, "
     "groups=2}",
     "f32[2,6,4,4]"},
    {"f32[0,4,7,8] f32[6,4,1,1]",
     "conv2d(%0, %1) {stride_h=1, stride_w=1, pad_h=0, pad_w=0, dilation_h=1, dilation_w=1, "
     "groups=1}",
     "f32[0,6,7,8]"},
    {"f32[2,6,4,4] f32[6,2,3,3]",
     "conv2d_dgrad(%0, %1) {stride_h=2, stride_w=1, pad_h=1, pad_w=0, dilation_h=1, dilation_w=2, "
     "groups=2, "
     "shape=[2,4,7,8]}",
     "f32[2,4,7,8]"},
    {"f32[2,6,4,4] f32[2,4,7,8]",
     "conv2d_wgrad(%0, %1) {stride_h=2, stride_w=1, pad_h=1, pad_w=0, dilation_h=1, dilation_w=2, "
     "groups=2, "
     "shape=[6,2,3,3]}",
     "f32[6,2,3,3]"},
    {"f32[2,3,5,6]",
     "max_pool2d(%0) {kernel_h=2, kernel_w=3, stride_h=2, stride_w=1, pad_h=1, pad_w=1}",
     "f32[2,3,3,6], i32[2,3,3,6]"},
    {"bf16[2,3,5,6]",
     "avg_pool2d(%0) {kernel_h=2, kernel_w=2, stride_h=2, stride_w=2, pad_h=0, pad_w=0}",
     "bf16[2,3,2,3]"},
    {"f32[2,3,2,3]",
     "avg_pool2d_bwd(%0) {kernel_h=2, kernel_w=2, stride_h=2, stride_w=2, pad_h=0, pad_w=0, "
     "shape=[2,3,5,6]}",
     "f32[2,3,5,6]"},
    /* rows */
    {"f32[2,3]", "softmax(%0)", "f32[2,3]"},
    {"f32[2,3]", "softmax_bwd(%0, %0)", "f32[2,3]"},
    {"bf16[3]", "log_softmax(%0)", "bf16[3]"},
    {"f32[2,3]", "log_softmax_bwd(%0, %0)", "f32[2,3]"},
    {"f32[2,5,3] f32[3]", "layer_norm(%0, %1, %1) {eps=1e-05}", "f32[2,5,3], f32[2,5], f32[2,5]"},
    {"bf16[2,3] bf16[3]", "layer_norm(%0, %1, %1) {eps=0}", "bf16[2,3], f32[2], f32[2]"},
    {"f64[2,3] f64[3]", "layer_norm(%0, %1, %1) {eps=0}", "f64[2,3], f64[2], f64[2]"},
    {"f16[2,3] f16[3] f32[2]", "layer_norm_bwd(%0, %0, %1, %2, %2)", "f16[2,3], f16[3], f16[3]"},
    {"bf16[2,3] bf16[3]", "rms_norm(%0, %1) {eps=0}", "bf16[2,3], f32[2]"},
    {"bf16[2,3] bf16[3] f32[2]", "rms_norm_bwd(%0, %0, %1, %2)", "bf16[2,3], bf16[3]"},
    {"f32[2,3,4,4] f32[3]", "batch_norm(%0, %1, %1) {eps=0.001}",
     "f32[2,3,4,4], f32[3], f32[3], f32[3]"},
    {"f16[2,3,4]", "batch_norm_stats(%0) {eps=0.001}", "f32[3], f32[3], f32[3]"},
    {"f64[2,3]", "batch_norm_stats(%0) {eps=0}", "f64[3], f64[3], f64[3]"},
    {"bf16[2,3] f32[2,3]", "batch_norm_apply(%0, %1, %1, %0, %0)", "bf16[2,3]"},
    {"bf16[2,3] bf16[3] f32[3]", "batch_norm_bwd(%0, %0, %1, %2, %2)",
     "bf16[2,3], bf16[3], bf16[3]"},
    {"bf16[2,5,9] i64[2,5]", "cross_entropy(%0, %1) {ignore=-100}", "f32[2,5], f32[2,5]"},
    {"f32[2] bf16[2,9] i32[2]", "cross_entropy_bwd(%0, %1, %2) {ignore=-100}", "bf16[2,9]"},
    {"bf16[2,4,5,3] bf16[2,2,7,3] bf16[2,2,7,6]", "attention(%0, %1, %2)" ATTENTION_OPTIONS,
     "bf16[2,4,5,6], f32[2,4,5]"},
    {"f64[5,3] bool[5,5]", "attention(%0, %0, %0, %1)" ATTENTION_OPTIONS, "f64[5,3], f64[5]"},
    {"f32[1,5,3] f32[1,7,3] f32[1,7,6] f32[1,5,6] f32[1,5] f32[1,5,7]",
     "attention_bwd(%3, %0, %1, %2, %3, %4, %5)" ATTENTION_OPTIONS,
     "f32[1,5,3], f32[1,7,3], f32[1,7,6]"},
};

TEST(good_cases) {
    static bool seen[CB_OP_COUNT];
    char text[2048];
    seen[CB_OP_INPUT] = true;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cb_graph *g = NULL;
        int failures = check_failures;
        text_of(&good[i], good[i].want, text, sizeof text);
        CHECK_OK(cb_graph_parse(&ir_alloc, text, strlen(text), &g, &err));
        if (check_failures != failures) printf("in: %s\n", text);
        if (!g) continue;
        seen[g->ops.at[g->ops.len - 1].code] = true;
        CHECK_OK(cb_graph_verify(g, CB_SPEC_FORWARD, &err));
        cb_graph_free(g);
    }
    for (int code = 0; code < CB_OP_COUNT; code++) {
        if (!seen[code]) printf("no row for %s\n", cb_op_def_of((cb_opcode)code)->name);
        CHECK(seen[code]);
    }
}

#define CONV "stride_h=1, stride_w=1, pad_h=0, pad_w=0, dilation_h=1, dilation_w=1"

static const row bad[] = {
    {"f32[2] i64[2]", "add(%0, %1)", "add: dtypes differ: f32 and i64; cast one"},
    {"f32[2] f32[3]", "add(%0, %1)", "add: shapes differ: (2,) and (3,)"},
    {"bool[2]", "add(%0, %0)", "bool, which has no arithmetic"},
    {"i32[2]", "div(%0, %0)", "div: needs a float dtype, input 0 is i32; cast it"},
    {"i32[2]", "exp(%0)", "exp: needs a float dtype"},
    {"f32[2]", "logical_not(%0)", "must be bool, not f32"},
    {"f32[2] f32[2]", "where(%0, %1, %1)", "must be bool"},
    {"f32[2]", "add(%0)", "add: takes 2 inputs, got 1"},
    {"f32[2]", "neg(%0, %0)", "neg: takes 1 inputs, got 2"},
    {"", "concat {axis=0}", "at least 1"},
    {"f32[2]", "dropout(%0) {p=1, stream=0}", "p is 1, must be in [0, 1)"},
    {"f32[2]", "dropout(%0) {p=nan, stream=0}", "p is nan"},
    {"f32[2]", "dropout(%0) {p=0.5, stream=-1}", "stream is -1"},
    {"f32[2]", "dropout(%0) {p=0.5, stream=4294967296}", "stream is 4294967296"},
    {"", "iota {axis=1}", "iota: shape (2,) has no axis 1"},
    {"f32[2,3]", "sum(%0) {axes=[2], keepdims=0}", "shape (2,3) has no axis 2"},
    {"f32[2,3]", "sum(%0) {axes=[-1], keepdims=0}", "no axis -1"},
    {"f32[2,3]", "sum(%0) {axes=[1,0], keepdims=0}", "axes must be in ascending order"},
    {"f32[2,3]", "sum(%0) {axes=[1,1], keepdims=0}", "axes must be in ascending order"},
    {"f32[2,3]", "sum(%0) {axes=[], keepdims=0}", "sum: names 0 axes"},
    {"f32[2,3]", "sum(%0) {axes=[0], keepdims=2}", "keepdims is 2"},
    {"i32[2,3]", "mean(%0) {axes=[0], keepdims=0}", "mean: needs a float dtype"},
    {"f32[2,0]", "amax(%0) {axes=[1], keepdims=0}",
     "amax: needs at least one element along each reduced axis of (2,0)"},
    {"f32[2,0]", "argmax(%0) {axis=1, keepdims=0}", "argmax: needs at least one element"},
    {"f32[2,3]", "argmax(%0) {axis=2, keepdims=0}", "no axis 2"},
    {"f32[2,3]", "reshape(%0) {shape=[4]}", "reshape: (2,3) has 6 elements, (4,) has 4"},
    {"f32[2,3]", "reshape(%0) {shape=[-1]}", "negative"},
    {"f32[2,3]", "transpose(%0) {axes=[0,0]}",
     "transpose: (0,0) is not a permutation of the axes of (2,3)"},
    {"f32[2,3]", "transpose(%0) {axes=[0]}", "not a permutation"},
    {"f32[2,3]", "transpose(%0) {axes=[0,64]}", "not a permutation"},
    {"f32[2,3]", "expand(%0) {shape=[2,4]}", "expand: cannot broadcast (2,3) to (2,4)"},
    {"f32[2,3]", "expand(%0) {shape=[3]}", "cannot broadcast"},
    {"f32[1]", "expand(%0) {shape=[4611686018427387904,4611686018427387904]}", "2^62"},
    {"f32[4]", "slice(%0) {axis=0, start=3, stop=2, step=1}", "slice: 3:2:1 of axis 0 of (4,)"},
    {"f32[4]", "slice(%0) {axis=0, start=0, stop=5, step=1}", "needs 0 <= start <= stop <= 4"},
    {"f32[4]", "slice(%0) {axis=0, start=0, stop=4, step=0}", "step >= 1"},
    {"f32[4]", "slice(%0) {axis=1, start=0, stop=4, step=1}", "no axis 1"},
    {"i64[4]", "custom_vjp(%0) {index=0, n_outs=1}", "custom_vjp"},
    {"f32[4]", "custom_vjp(%0) {index=1, n_outs=1}", "needs 0 <= index < n_outs"},
    {"f32[4]", "custom_vjp(%0) {index=-1, n_outs=1}", "needs 0 <= index < n_outs"},
    {"f32[4]", "custom_vjp(%0) {index=0, n_outs=9223372036854775807}", "output 0 of 922"},
    {"f32[4]", "custom_vjp(%0, %0, %0) {index=0, n_outs=1}", "needs y, 1 placeholders"},
    {"f32[4]", "custom_vjp(%0, %0) {index=0, n_outs=2}", "needs y, 2 placeholders"},
    {"f32[4] f32[3]", "custom_vjp(%0, %1) {index=0, n_outs=1}", "y and its placeholder"},
    {"f32[4] f32[3]", "custom_vjp(%0, %0, %0, %1) {index=0, n_outs=1}", "x 0 and its gradient"},
    {"f32[2,3] f32[3,3]", "concat(%0, %1) {axis=1}",
     "concat: (2,3) and (3,3) differ outside axis 1"},
    {"f32[2,3] f64[2,3]", "concat(%0, %1) {axis=1}", "dtypes differ"},
    {"f32[3]", "pad(%0) {axis=0, low=-1, high=0, interior=0, value=0}", "low is -1"},
    {"f32[3]", "pad(%0) {axis=0, low=0, high=0, interior=1152921504606846976, value=0}", "2^60"},
    {"f32[3]", "tril(%0) {k=0, fill=0}", "tril: input 0 must have 2 to 8 axes"},
    {"f32[2,3] f32[2,5]", "gather(%0, %1) {axis=1}",
     "indices (input 1) must be i32 or i64, not f32"},
    {"f32[2,3] i32[4,5]", "gather(%0, %1) {axis=1}", "differ outside axis 1"},
    {"f32[2,3] i32[2]", "gather(%0, %1) {axis=1}", "differ outside axis 1"},
    {"f32[2,3] i32[2,5] f32[2,4]", "scatter_add(%0, %1, %2) {axis=1}",
     "shapes differ: (2,5) and (2,4)"},
    {"f32[2,3] i32[2,5] f64[2,5]", "scatter_add(%0, %1, %2) {axis=1}", "dtypes differ"},
    {"f32[2] i32[2]", "embedding(%0, %1)", "must have 2 axes, shape (2,) has 1"},
    {"f32[2,3] u8[2]", "embedding(%0, %1)", "i32 or i64, not u8"},
    {"i32[8]", "pack_bits(%0)", "pack_bits: input 0 must be bool or float, not i32"},
    {"u8[2]", "unpack_bits(%0) {shape=[8]}", "input 0 has shape (2,), must have (1,)"},
    {"bool[1]", "unpack_bits(%0) {shape=[8]}", "input 0 must be u8, not bool"},
    {"u8[8]", "pack_index(%0) {" NO_WINDOW "limit=9}", "i32 or i64, not u8"},
    {"i32[8]", "pack_index(%0) {" NO_WINDOW "limit=0}", "limit is 0"},
    {"i32[8]",
     "pack_index(%0) "
     "{kernel_h=2,kernel_w=2,stride_h=1,stride_w=1,pad_h=0,pad_w=0,plane_w=3,limit=9}",
     "indices of windows have 4 axes, not 1"},
    {"i32[1,1,1,1]",
     "pack_index(%0) "
     "{kernel_h=2,kernel_w=2,stride_h=1,stride_w=0,pad_h=0,pad_w=0,plane_w=3,limit=9}",
     "stride_w is 0"},
    {"u8[8]", "unpack_index(%0) {" NO_WINDOW "limit=257,shape=[8],dtype=i64}", "must have (16,)"},
    {"u8[8]", "unpack_index(%0) {" NO_WINDOW "limit=9,shape=[8],dtype=f32}",
     "must be i32 or i64, not f32"},
    {"f32[2,3] i32[3]", "embedding_bwd(%0, %1) {rows=4}", "input 1 has shape (3,), must have (2,)"},
    {"f32[2,3] i32[2]", "embedding_bwd(%0, %1) {rows=-4}", "rows is -4"},
    {"f32[2,3] f32[2,3]", "matmul(%0, %1)", "matmul: (2,3) @ (2,3): inner sizes"},
    {"f32[1,2,3] f32[3,4]", "matmul(%0, %1)", "batch axes must agree"},
    {"f32[4,2,3] f32[1,3,4]", "matmul(%0, %1)", "batch axes must agree"},
    {"f32[2,3] f32[3,4] f32[2,3]", "matmul_add(%0, %1, %2)",
     "matmul_add: the base is (2,3), but the product is (2,4)"},
    {"f32[2,3] f32[3,4] f64[2,4]", "matmul_add(%0, %1, %2)", "dtypes differ"},
    {"f32[3] f32[3]", "matmul(%0, %1)", "matmul: input 0 must have 2 to 8 axes"},
    {"i32[2,2]", "matmul(%0, %0)", "needs a float dtype"},
    {"f32[1,4,5,5] f32[2,4,3,3]", "conv2d(%0, %1) {" CONV ", groups=3}", "in 3 groups"},
    {"f32[1,4,5,5] f32[2,4,3,3]", "conv2d(%0, %1) {" CONV ", groups=0}", "groups is 0"},
    {"f32[1,4,5,5] f32[2,2,3,3]", "conv2d(%0, %1) {" CONV ", groups=1}",
     "weight (2,2,3,3) does not fit x (1,4,5,5)"},
    {"f32[1,4,2,5] f32[2,4,3,3]", "conv2d(%0, %1) {" CONV ", groups=1}",
     "does not fit in padded x"},
    {"f32[1,4,5] f32[2,4,3,3]", "conv2d(%0, %1) {" CONV ", groups=1}", "must have 4 axes"},
    {"f32[1,1048576,1,1] f32[2,1048576,1,1]", "conv2d(%0, %1) {" CONV ", groups=1}", "2^19"},
    {"f32[1,2,3,4] f32[2,4,3,3]", "conv2d_dgrad(%0, %1) {" CONV ", groups=1, shape=[1,4,5,5]}",
     "must have (1,2,3,3)"},
    {"f32[1,2,3,3] f32[2,4,3,3]", "conv2d_dgrad(%0, %1) {" CONV ", groups=1, shape=[4,5,5]}",
     "must have 4 axes"},
    {"f32[1,2,3,3] f32[1,4,5,6]", "conv2d_wgrad(%0, %1) {" CONV ", groups=1, shape=[2,4,3,3]}",
     "must have (1,2,3,4)"},
    {"f32[1,1,4,4]",
     "max_pool2d(%0) {kernel_h=2, kernel_w=2, stride_h=0, stride_w=1, pad_h=0, pad_w=0}",
     "stride_h is 0"},
    {"f32[1,1,4,4]",
     "max_pool2d(%0) {kernel_h=2, kernel_w=2, stride_h=1, stride_w=1, pad_h=2, pad_w=0}",
     "pad_h is 2, must be in 0..1"},
    {"f32[1,1,0,4]",
     "max_pool2d(%0) {kernel_h=2, kernel_w=2, stride_h=1, stride_w=1, pad_h=1, pad_w=0}",
     "does not fit in padded x"},
    {"f32[1,1,1048576,4096]",
     "max_pool2d(%0) {kernel_h=2, kernel_w=2, stride_h=1, stride_w=1, pad_h=1, pad_w=0}", "2^31"},
    {"f32[1,1,2,2]",
     "avg_pool2d_bwd(%0) {kernel_h=2, kernel_w=2, stride_h=2, stride_w=2, pad_h=0, pad_w=0, "
     "shape=[1,1,6,6]}",
     "must have (1,1,3,3)"},
    {"f32[]", "softmax(%0)", "must have 1 to 8 axes"},
    {"i32[2]", "log_softmax(%0)", "needs a float dtype"},
    {"f32[2,3] f32[3]", "layer_norm(%0, %1, %1) {eps=-1}", "eps is -1"},
    {"f32[2,3] f32[3]", "layer_norm(%0, %1, %1) {eps=inf}", "eps is inf"},
    {"f32[2,3] f32[2]", "layer_norm(%0, %1, %1) {eps=0}", "input 1 has shape (2,), must have (3,)"},
    {"bf16[2,3] f32[3]", "layer_norm(%0, %1, %1) {eps=0}", "dtypes differ: bf16 and f32"},
    {"bf16[2,3] bf16[3] bf16[2]", "layer_norm_bwd(%0, %0, %1, %2, %2)",
     "input 3 must be f32, not bf16"},
    {"f32[2,3] f32[3]", "rms_norm_bwd(%0, %0, %1, %1)", "input 3 has shape (3,), must have (2,)"},
    {"f32[3] f32[3]", "batch_norm(%0, %1, %1) {eps=0}", "must have 2 to 8 axes"},
    {"i32[2,3]", "batch_norm_stats(%0) {eps=0}", "needs a float dtype"},
    {"f32[3]", "batch_norm_stats(%0) {eps=0}", "must have 2 to 8 axes"},
    {"f32[2,3]", "batch_norm_stats(%0) {eps=-1}", "eps is -1"},
    {"f32[2,3] f32[3]", "batch_norm_apply(%0, %1, %1, %0, %0)",
     "input 1 has shape (3,), must have (2,3)"},
    {"bf16[2,3] f32[2,3]", "batch_norm_apply(%0, %0, %1, %0, %0)", "input 1 must be f32, not bf16"},
    {"bf16[2,3] f32[2,3]", "batch_norm_apply(%0, %1, %1, %0, %1)", "dtypes differ: bf16 and f32"},
    {"f32[2,5] f32[2]", "cross_entropy(%0, %1) {ignore=0}", "must be i32 or i64"},
    {"f32[2,5] i32[5]", "cross_entropy(%0, %1) {ignore=0}", "must have (2,)"},
    {"bf16[2] bf16[2,9] i32[2]", "cross_entropy_bwd(%0, %1, %2) {ignore=0}",
     "input 0 must be f32, not bf16"},
    {"i32[2,3]", "attention(%0, %0, %0)" ATTENTION_OPTIONS, "needs a float dtype"},
    {"f32[2,3] f64[2,3]", "attention(%0, %1, %0)" ATTENTION_OPTIONS, "dtypes differ"},
    {"f32[3]", "attention(%0, %0, %0)" ATTENTION_OPTIONS, "must have 2 to 7 axes"},
    {"f32[3,2,4] f32[2,2,4]", "attention(%0, %1, %1)" ATTENTION_OPTIONS, "do not fit"},
    {"f32[2,4] f32[2,5]", "attention(%0, %1, %1)" ATTENTION_OPTIONS, "do not fit"},
    {"f32[2,4] f32[3,4]", "attention(%0, %0, %1)" ATTENTION_OPTIONS, "do not fit"},
    {"f32[2,257]", "attention(%0, %0, %0)" ATTENTION_OPTIONS, "larger than 256"},
    {"f32[2,4] f32[2,3]", "attention(%0, %0, %0, %1)" ATTENTION_OPTIONS, "must have (2,2)"},
    {"f32[2,4] i32[2,2]", "attention(%0, %0, %0, %1)" ATTENTION_OPTIONS, "dtypes differ"},
    {"f32[2,4]", "attention(%0, %0, %0) {scale=inf, p=0, stream=0, causal=0}", "scale is inf"},
    {"f32[2,4]", "attention(%0, %0, %0) {scale=1, p=1, stream=0, causal=0}", "p is 1"},
    {"f32[2,4]", "attention(%0, %0, %0) {scale=1, p=0, stream=-1, causal=0}", "stream is -1"},
    {"f32[2,4]", "attention(%0, %0, %0) {scale=1, p=0, stream=0, causal=2}", "causal is 2"},
    {"f32[2,4] f32[2,3]", "attention_bwd(%1, %0, %0, %0, %0, %0)" ATTENTION_OPTIONS,
     "must have (2,4)"},
    {"bf16[2,4] bf16[2]", "attention_bwd(%0, %0, %0, %0, %0, %1)" ATTENTION_OPTIONS,
     "input 5 must be f32"},
};

/* Returns one type for each output of the op. The types do not matter if the rule refuses the
 * inputs. */
static const char *any_types(const char *op) {
    static const char most[] = "f32[2], f32[2], f32[2], f32[2]";
    cb_opcode code = CB_OP_COUNT;
    CHECK(cb_op_find(op, strcspn(op, "( "), &code));
    int n_outs = code < CB_OP_COUNT ? cb_op_def_of(code)->n_outs : 1;
    return most + (CB_MAX_OUTS - n_outs) * (int)strlen("f32[2], ");
}

TEST(bad_cases) {
    char text[2048];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cb_graph *g = NULL;
        int failures = check_failures;
        text_of(&bad[i], any_types(bad[i].op), text, sizeof text);
        cb_status status = cb_graph_parse(&ir_alloc, text, strlen(text), &g, &err);
        CHECK(status == CB_INVALID || status == CB_TYPE || status == CB_UNSUPPORTED);
        CHECK(g == NULL && strstr(err.text, bad[i].want));
        if (check_failures != failures) printf("%s -> %s\n", text, err.text);
    }
}

/* Tests sizes past 2^62 bytes, reached in several ways. */
TEST(absurd_sizes) {
    cb_graph *g = ir_graph();
    cb_op_id op;
    cb_value_id big, x = ir_input(g, CB_F32, DIMS(1));
    cb_shape huge = DIMS(INT64_C(1) << 61), table = DIMS(INT64_C(1) << 40, INT64_C(1) << 40);
    CHECK_FAIL(cb_graph_append_input(g, "h", CB_ROLE_DATA, CB_F32, &huge, &big, &err), CB_INVALID,
               "2^62 bytes");
    CHECK_OK(
        cb_build_expand(g, x, &huge, &big, &err)); /* a view may repeat one element that often */
    CHECK_FAIL(cb_build1(g, CB_OP_NEG, big, &big, &err), CB_INVALID, "neg: shape: ");
    CHECK_FAIL(cb_graph_append(g, CB_OP_CONCAT, INS(big, big, big), &(cb_attrs){0}, &op, &err),
               CB_INVALID, "2^62");
    CHECK_FAIL(cb_build_expand(g, x, &table, &big, &err), CB_INVALID, "2^62");
    cb_attrs rank = {.dims = {.rank = 9}};
    CHECK_FAIL(cb_graph_append(g, CB_OP_SUM, INS(x), &rank, &op, &err), CB_INVALID, "sum");
    CHECK_FAIL(cb_graph_append(g, CB_OP_RESHAPE, INS(x), &rank, &op, &err), CB_INVALID, "rank");
    CHECK_FAIL(cb_graph_append(g, CB_OP_TRANSPOSE, INS(x), &rank, &op, &err), CB_INVALID,
               "transpose");
    CHECK_FAIL(cb_graph_append(g, CB_OP_FULL, 0, NULL, &rank, &op, &err), CB_INVALID, "rank");
    rank.dims.rank = -1;
    CHECK_FAIL(cb_graph_append(g, CB_OP_EXPAND, INS(x), &rank, &op, &err), CB_INVALID, "rank");
    CHECK_FAIL(
        cb_graph_append(g, CB_OP_CAST, INS(x), &(cb_attrs){.dtype = CB_DTYPE_COUNT}, &op, &err),
        CB_TYPE, "cast");
    CHECK_FAIL(cb_graph_append(g, (cb_opcode)1000, 0, NULL, NULL, &op, &err), CB_INVALID,
               "unknown op");
    cb_graph_free(g);
}

int main(void) {
    cb_alloc_init(&ir_alloc);
    RUN(good_cases);
    RUN(bad_cases);
    RUN(absurd_sizes);
    return ir_report();
}
