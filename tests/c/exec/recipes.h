/* recipes.h: a small graph for every op of ops.def, for tests that cover the whole table.
 *
 * A recipe appends its inputs, each with the range of its values, and the op. `n` is a size that
 * tests vary (2, 1, 3 and 0), `turn` an attribute that changes along with it, `dtype` the floating
 * dtype. With `strided`, the op reads strided views. */
#ifndef CB_TESTS_RECIPES_H
#define CB_TESTS_RECIPES_H

#include "ir/builder.h"

#define RECIPE_INPUTS 8

typedef struct recipe {
    cb_graph *g;
    cb_opcode code;
    cb_dtype dtype;
    int64_t n;
    int turn;
    bool strided;
    struct {
        double low, high; /* open range; integers: low..high-1 */
        bool is_int;
    } range[RECIPE_INPUTS];
    uint32_t n_inputs;
    cb_value_id outs[4];
    cb_status status;
    cb_error *err;
    bool is_missing;
} recipe;

static inline cb_shape recipe_shape(int32_t rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    return (cb_shape){.rank = rank, .dim = {a, b, c, d}};
}
#define S0 recipe_shape(0, 0, 0, 0, 0)
#define S1(a) recipe_shape(1, a, 0, 0, 0)
#define S2(a, b) recipe_shape(2, a, b, 0, 0)
#define S3(a, b, c) recipe_shape(3, a, b, c, 0)
#define S4(a, b, c, d) recipe_shape(4, a, b, c, d)

/* Adds a view of this shape: every other element of an input that is twice as wide or, at odd
 * turns, a transpose. */
static inline cb_status recipe_view(recipe *r, const char *name, cb_dtype dtype, cb_shape shape,
                                    cb_value_id *out) {
    const int32_t last = shape.rank - 1;
    cb_shape storage = shape;
    cb_attrs view = {.dims = {.rank = shape.rank}};
    const bool transposed = r->turn % 2 && last > 0;
    for (int32_t k = 0; transposed && k <= last; k++) {
        storage.dim[k] = shape.dim[last - k];
        view.dims.dim[k] = last - k;
    }
    if (!transposed) {
        storage.dim[last] = 2 * shape.dim[last] + 1;
        view = (cb_attrs){.i = {last, 1, storage.dim[last], 2}};
    }
    CB_TRY(cb_graph_append_input(r->g, name, CB_ROLE_PARAM, dtype, &storage, out, r->err));
    return cb_build(r->g, transposed ? CB_OP_TRANSPOSE : CB_OP_SLICE, 1, out, &view, out, r->err);
}

static inline cb_value_id recipe_input(recipe *r, cb_dtype dtype, cb_shape shape, double low,
                                       double high) {
    char name[8] = {'x', (char)('0' + r->n_inputs), 0};
    cb_value_id out = CB_NONE;
    r->range[r->n_inputs].low = low;
    r->range[r->n_inputs].high = high;
    r->range[r->n_inputs].is_int = !cb_dtype_is_float(dtype);
    r->n_inputs++;
    if (r->status == CB_OK && r->strided && shape.rank > 0)
        r->status = recipe_view(r, name, dtype, shape, &out);
    else if (r->status == CB_OK)
        r->status = cb_graph_append_input(r->g, name, CB_ROLE_PARAM, dtype, &shape, &out, r->err);
    return r->status == CB_OK ? out : 0;
}

static inline cb_value_id floats(recipe *r, cb_shape shape) {
    return recipe_input(r, r->dtype, shape, -1.93, 2.11);
}
static inline cb_value_id positive(recipe *r, cb_shape shape) {
    return recipe_input(r, r->dtype, shape, 0.41, 1.87);
}
static inline cb_value_id statistic(recipe *r, cb_shape shape) {
    return recipe_input(r, r->dtype == CB_F64 ? CB_F64 : CB_F32, shape, 0.31, 1.27);
}
static inline cb_value_id indices(recipe *r, cb_shape shape, int64_t size) {
    return recipe_input(r, r->turn % 2 ? CB_I32 : CB_I64, shape, 0, (double)size);
}

static inline void recipe_op(recipe *r, uint32_t n_ins, const cb_value_id *ins,
                             const cb_attrs *attrs) {
    if (r->status == CB_OK) r->status = cb_build(r->g, r->code, n_ins, ins, attrs, r->outs, r->err);
}
#define OP0(...) recipe_op(r, 0, NULL, &(cb_attrs){__VA_ARGS__})
#define OP1(a, ...) recipe_op(r, 1, (cb_value_id[]){a}, &(cb_attrs){__VA_ARGS__})
#define OP2(a, b, ...) recipe_op(r, 2, (cb_value_id[]){a, b}, &(cb_attrs){__VA_ARGS__})

/* Returns a condition that small changes of the inputs do not affect. */
static inline cb_value_id condition(recipe *r, cb_value_id x) {
    const cb_shape scalar = S0;
    cb_value_id zero, out = 0;
    if (r->status == CB_OK) r->status = cb_build_full(r->g, &scalar, r->dtype, 0.05, &zero, r->err);
    if (r->status == CB_OK) r->status = cb_build2(r->g, CB_OP_GT, x, zero, &out, r->err);
    return out;
}

/* Adds x, mean, rstd, weight and bias, which are broadcast from channels or all have one shape. */
static inline void recipe_batch_norm_apply(recipe *r) {
    const cb_shape x = S3(r->n, 3, 2), small = r->turn % 2 ? x : S3(1, 3, 1);
    cb_value_id ins[5];
    ins[0] = floats(r, x);
    ins[1] = statistic(r, small);
    ins[2] = statistic(r, small);
    ins[3] = floats(r, small);
    ins[4] = floats(r, small);
    recipe_op(r, 5, ins, NULL);
}

static inline void recipe_pointwise(recipe *r) {
    const cb_shape two = S2(r->n, 3);
    /* the second operand of a pair broadcasts in one way or another */
    const cb_shape others[] = {S1(3), S2(1, 1), S2(r->n, 3), S2(1, 3)}, other = others[r->turn % 4];
    cb_value_id a, b;
    switch (r->code) {
        case CB_OP_LOG:
        case CB_OP_SQRT:
        case CB_OP_RSQRT:
        case CB_OP_RECIPROCAL:
        case CB_OP_LOG1P: OP1(positive(r, two), .f = {0}); break;
        case CB_OP_LOGICAL_NOT: OP1(condition(r, floats(r, two)), .f = {0}); break;
        case CB_OP_CAST: OP1(floats(r, two), .dtype = r->turn % 2 ? CB_F32 : CB_F64); break;
        case CB_OP_DROPOUT: OP1(floats(r, two), .f = {0.4}, .i = {5}); break;
        case CB_OP_TRIL: OP1(floats(r, S3(r->n, 3, 4)), .f = {0.25}, .i = {r->turn - 1}); break;
        case CB_OP_POW:
            a = positive(r, two);
            OP2(a, positive(r, other), .f = {0});
            break;
        case CB_OP_DIV:
            a = floats(r, two);
            OP2(a, positive(r, other), .f = {0});
            break;
        case CB_OP_LOGICAL_AND:
        case CB_OP_LOGICAL_OR:
            a = condition(r, floats(r, two));
            OP2(a, condition(r, floats(r, other)), .f = {0});
            break;
        case CB_OP_WHERE:
            a = condition(r, floats(r, two));
            b = floats(r, other);
            recipe_op(r, 3, (cb_value_id[]){a, b, floats(r, two)}, NULL);
            break;
        case CB_OP_BATCH_NORM_APPLY: recipe_batch_norm_apply(r); break;
        default:
            a = floats(r, two);
            if (cb_op_def_of(r->code)->min_ins == 1) OP1(a, .f = {0});
            else OP2(a, floats(r, other), .f = {0});
    }
}

static inline cb_value_id recipe_unary(recipe *r, cb_opcode code, cb_value_id x) {
    cb_value_id out = 0;
    if (r->status == CB_OK) r->status = cb_build1(r->g, code, x, &out, r->err);
    return out;
}

/* Adds sin x with the gradient dy cos x. */
static inline void recipe_custom_vjp(recipe *r) {
    const cb_shape shape = S2(r->n, 3);
    const cb_value_id x = floats(r, shape), y = recipe_unary(r, CB_OP_SIN, x);
    cb_value_id dy = 0, dx = recipe_unary(r, CB_OP_COS, x);
    const cb_attrs zeros = {.dims = shape, .dtype = r->dtype};
    if (r->status == CB_OK) r->status = cb_build(r->g, CB_OP_FULL, 0, NULL, &zeros, &dy, r->err);
    if (r->status == CB_OK) r->status = cb_build2(r->g, CB_OP_MUL, dx, dy, &dx, r->err);
    recipe_op(r, 4, (cb_value_id[]){y, dy, x, dx}, &(cb_attrs){.i = {0, 1}});
}

static inline void recipe_bits(recipe *r) {
    const cb_shape shape = S2(r->n, 5);
    cb_value_id x = floats(r, shape);
    if (r->turn % 2) x = condition(r, x);
    if (r->code == CB_OP_PACK_BITS) OP1(x, .f = {0});
    else OP1(recipe_unary(r, CB_OP_PACK_BITS, x), .dims = shape);
}

/* Positions of the larger of two elements or, at odd turns, in windows of two by three. */
static inline void recipe_index(recipe *r) {
    const bool has_windows = r->turn % 2;
    const cb_attrs windows = {.i = {2, 3, 2, 3, 1, 1, 2, 4}}, plain = {.i = {[7] = 300}};
    const cb_shape shape = has_windows ? S4(r->n, 2, 1, 1) : S2(r->n, 5);
    cb_attrs attrs = has_windows ? windows : plain, last = {.i = {shape.rank}};
    cb_shape pairs = shape;
    pairs.dim[pairs.rank++] = 2;
    cb_value_id x = floats(r, pairs);
    if (r->status == CB_OK) r->status = cb_build(r->g, CB_OP_ARGMAX, 1, &x, &last, &x, r->err);
    if (r->code == CB_OP_UNPACK_INDEX && r->status == CB_OK)
        r->status = cb_build(r->g, CB_OP_PACK_INDEX, 1, &x, &attrs, &x, r->err);
    if (r->code == CB_OP_UNPACK_INDEX) {
        attrs.dims = shape;
        attrs.dtype = r->turn % 3 ? CB_I64 : CB_I32;
    }
    recipe_op(r, 1, &x, &attrs);
}

static inline void recipe_shapes(recipe *r) {
    const int64_t n = r->n, turn = r->turn % 2;
    cb_value_id a, b;
    switch (r->code) {
        case CB_OP_FULL: OP0(.f = {1.5}, .dims = S2(n, 2), .dtype = r->dtype); break;
        case CB_OP_IOTA:
            OP0(.i = {turn}, .dims = S2(n, 2), .dtype = turn ? CB_I64 : r->dtype);
            break;
        case CB_OP_UNIFORM: OP0(.i = {3}, .dims = S2(n, 2), .dtype = r->dtype); break;
        case CB_OP_SUM:
        case CB_OP_MEAN:
            OP1(floats(r, S3(n, 2, 3)), .i = {turn}, .dims = turn ? S2(0, -1) : S0);
            break;
        case CB_OP_AMAX:
        case CB_OP_AMIN:
            OP1(floats(r, S3(n, 2, 3)), .i = {turn}, .dims = turn ? S1(1) : S2(1, 2));
            break;
        case CB_OP_ARGMAX: OP1(floats(r, S3(n, 2, 3)), .i = {1 + turn, turn}); break;
        case CB_OP_RESHAPE:
            OP1(floats(r, S3(n, 2, 3)), .dims = turn ? S2(3 * n, 2) : S4(n, 3, 1, 2));
            break;
        case CB_OP_TRANSPOSE:
            OP1(floats(r, S3(n, 2, 3)), .dims = turn ? S3(2, 0, 1) : S3(0, 2, 1));
            break;
        case CB_OP_EXPAND:
            OP1(floats(r, turn ? S2(3, 1) : S2(n, 1)), .dims = turn ? S3(n, 3, 2) : S2(n, 3));
            break;
        case CB_OP_SLICE: OP1(floats(r, S2(n, 5)), .i = {1, turn, turn ? 5 : 3, 1 + turn}); break;
        case CB_OP_STOP_GRADIENT: /* floor is constant between integers, so differences are 0 */
            OP1(recipe_unary(r, CB_OP_FLOOR, floats(r, S2(n, 3))), .f = {0});
            break;
        case CB_OP_CUSTOM_VJP: recipe_custom_vjp(r); break;
        case CB_OP_CONCAT:
            a = floats(r, S2(n, 2));
            b = floats(r, S2(n, 1));
            recipe_op(r, 3, (cb_value_id[]){a, b, a}, &(cb_attrs){.i = {1}});
            break;
        case CB_OP_PAD: OP1(floats(r, S2(n, 3)), .f = {0.5}, .i = {turn, 1, 2, turn}); break;
        case CB_OP_GATHER:
            a = floats(r, turn ? S2(4, n) : S2(n, 4));
            OP2(a, indices(r, turn ? S2(3, n) : S2(n, 6), 4), .i = {1 - turn});
            break;
        case CB_OP_SCATTER_ADD:
            a = floats(r, S2(n, 3));
            b = indices(r, S2(n, 5), 3);
            recipe_op(r, 3, (cb_value_id[]){a, b, floats(r, S2(n, 5))}, &(cb_attrs){.i = {1}});
            break;
        case CB_OP_EMBEDDING:
            a = floats(r, S2(4, 3));
            OP2(a, indices(r, turn ? S1(n) : S2(n, 2), 4), .f = {0});
            break;
        case CB_OP_EMBEDDING_BWD:
            a = floats(r, S2(n, 3));
            OP2(a, indices(r, S1(n), 4), .i = {4});
            break;
        default: r->is_missing = true;
    }
}

/* Varies with the turn: plain; causal, with two heads of q for each head of k and v; with a mask
 * and dropout; both. */
static inline void recipe_attention(recipe *r) {
    const bool is_forward = r->code == CB_OP_ATTENTION, masked = r->turn % 4 >= 2;
    const int64_t heads = r->turn % 2 ? 2 : 1;
    cb_value_id ins[7];
    uint32_t n = 0;
    if (!is_forward) ins[n++] = floats(r, S3(heads, r->n, 2));
    ins[n++] = floats(r, S3(heads, r->n, 3));
    ins[n++] = floats(r, S3(1, 4, 3));
    ins[n++] = floats(r, S3(1, 4, 2));
    if (!is_forward) {
        ins[n++] = floats(r, S3(heads, r->n, 2));
        ins[n++] = statistic(r, S2(heads, r->n));
    }
    if (masked) ins[n++] = floats(r, S3(heads, r->n, 4));
    recipe_op(r, n, ins, &(cb_attrs){.f = {0.6, masked ? 0.25 : 0}, .i = {7, r->turn % 2}});
}

static inline void recipe_windows(recipe *r) {
    const int64_t n = r->n;
    const bool wide = r->turn % 2; /* stride, padding, dilation, groups */
    const cb_shape x = S4(n, 2, 5, 4), w = wide ? S4(4, 1, 2, 3) : S4(3, 2, 2, 2);
    const cb_shape y = wide ? S4(n, 4, 3, 4) : S4(n, 3, 4, 3);
    cb_attrs conv = {.i = {1, 1, 0, 0, 1, 1, 1}};
    if (wide) conv = (cb_attrs){.i = {2, 1, 1, 2, 1, 2, 2}};
    const cb_attrs pool = {.i = {3, 2, wide ? 2 : 1, 2, wide, wide}, .dims = x};
    const cb_shape pooled = wide ? S4(n, 2, 3, 3) : S4(n, 2, 3, 2);
    cb_value_id a;
    switch (r->code) {
        case CB_OP_CONV2D:
            a = floats(r, x);
            recipe_op(r, 2, (cb_value_id[]){a, floats(r, w)}, &conv);
            break;
        case CB_OP_CONV2D_DGRAD:
            conv.dims = x;
            a = floats(r, y);
            recipe_op(r, 2, (cb_value_id[]){a, floats(r, w)}, &conv);
            break;
        case CB_OP_CONV2D_WGRAD:
            conv.dims = w;
            a = floats(r, y);
            recipe_op(r, 2, (cb_value_id[]){a, floats(r, x)}, &conv);
            break;
        case CB_OP_MAX_POOL2D:
        case CB_OP_AVG_POOL2D:
            a = floats(r, x);
            recipe_op(r, 1, &a, &pool);
            break;
        case CB_OP_AVG_POOL2D_BWD:
            a = floats(r, pooled);
            recipe_op(r, 1, &a, &pool);
            break;
        case CB_OP_ATTENTION:
        case CB_OP_ATTENTION_BWD: recipe_attention(r); break;
        case CB_OP_PACK_BITS:
        case CB_OP_UNPACK_BITS: recipe_bits(r); break;
        case CB_OP_PACK_INDEX:
        case CB_OP_UNPACK_INDEX: recipe_index(r); break;
        default: r->is_missing = true;
    }
}

/* Adds g, x, weight and the statistics. */
static inline void recipe_norm_bwd(recipe *r, cb_shape x, cb_shape channels, cb_shape stats) {
    cb_value_id ins[5];
    ins[0] = floats(r, x);
    ins[1] = floats(r, x);
    ins[2] = floats(r, channels);
    ins[3] = statistic(r, stats);
    if (r->code != CB_OP_RMS_NORM_BWD) ins[4] = statistic(r, stats);
    recipe_op(r, r->code == CB_OP_RMS_NORM_BWD ? 4 : 5, ins, NULL);
}

static inline void recipe_rows(recipe *r) {
    const int64_t n = r->n;
    const cb_attrs eps = {.f = {1e-3}}, ignore = {.i = {1}};
    cb_value_id a, b, c;
    switch (r->code) {
        case CB_OP_MATMUL:
            a = floats(r, r->turn % 2 ? S3(2, n, 3) : S2(n, 3));
            OP2(a, floats(r, r->turn % 2 ? S3(1, 3, 2) : S2(3, 2)), .f = {0});
            break;
        case CB_OP_MATMUL_ADD:
            a = floats(r, r->turn % 2 ? S3(2, n, 3) : S2(n, 3));
            b = floats(r, r->turn % 2 ? S3(2, 3, 2) : S2(3, 2));
            c = floats(r, r->turn % 2 ? S3(2, n, 2) : S2(n, 2));
            recipe_op(r, 3, (cb_value_id[]){a, b, c}, NULL);
            break;
        case CB_OP_SOFTMAX:
        case CB_OP_LOG_SOFTMAX: OP1(floats(r, S2(n, 4)), .f = {0}); break;
        case CB_OP_SOFTMAX_BWD:
        case CB_OP_LOG_SOFTMAX_BWD:
            a = floats(r, S2(n, 4));
            OP2(a, floats(r, S2(n, 4)), .f = {0});
            break;
        case CB_OP_LAYER_NORM:
            a = floats(r, S3(n, 2, 4));
            b = floats(r, S1(4));
            recipe_op(r, 3, (cb_value_id[]){a, b, floats(r, S1(4))}, &eps);
            break;
        case CB_OP_RMS_NORM:
            a = floats(r, S3(n, 2, 4));
            recipe_op(r, 2, (cb_value_id[]){a, floats(r, S1(4))}, &eps);
            break;
        case CB_OP_BATCH_NORM:
            a = floats(r, r->turn % 2 ? S2(n + 1, 2) : S4(n, 3, 2, 2));
            b = floats(r, r->turn % 2 ? S1(2) : S1(3));
            c = floats(r, r->turn % 2 ? S1(2) : S1(3));
            recipe_op(r, 3, (cb_value_id[]){a, b, c}, &eps);
            break;
        case CB_OP_BATCH_NORM_STATS:
            a = floats(r, r->turn % 2 ? S2(n + 1, 2) : S4(n, 3, 2, 2));
            recipe_op(r, 1, &a, &eps);
            break;
        case CB_OP_LAYER_NORM_BWD: recipe_norm_bwd(r, S3(n, 2, 4), S1(4), S2(n, 2)); break;
        case CB_OP_RMS_NORM_BWD: recipe_norm_bwd(r, S2(n, 4), S1(4), S1(n)); break;
        case CB_OP_BATCH_NORM_BWD: recipe_norm_bwd(r, S3(n, 3, 2), S1(3), S1(3)); break;
        case CB_OP_CROSS_ENTROPY:
            a = floats(r, S2(n, 3));
            b = indices(r, S1(n), 2);
            recipe_op(r, 2, (cb_value_id[]){a, b}, &ignore);
            break;
        case CB_OP_CROSS_ENTROPY_BWD:
            a = statistic(r, S1(n));
            b = floats(r, S2(n, 3));
            recipe_op(r, 3, (cb_value_id[]){a, b, indices(r, S1(n), 2)}, &ignore);
            break;
        default: recipe_windows(r);
    }
}

/* Adds the op and its inputs to the graph, and sets r->outs. The caller sets the graph, code,
 * dtype, n, turn and err of `r`. */
static inline cb_status recipe_build(recipe *r) {
    const uint32_t flags = cb_op_def_of(r->code)->flags;
    const bool has_inputs = cb_op_def_of(r->code)->min_ins > 0;
    if ((flags & CB_OPF_POINTWISE) && has_inputs) recipe_pointwise(r);
    else if (r->code == CB_OP_CONTIGUOUS) recipe_pointwise(r);
    else recipe_shapes(r);
    if (r->is_missing) {
        r->is_missing = false;
        recipe_rows(r);
    }
    return r->status;
}

#endif
