/* A call of the builder may append several ops. If a later one fails, the earlier ones are removed,
 * so that each call succeeds completely or has no effect: it calls `mark_of` first and `settle` at
 * the end. */
#include "builder.h"

#include <inttypes.h>

#include "infer.h"

typedef struct mark {
    size_t ops, values, storages, in_value, attrs, inputs;
    cb_op_id backward_starts;
} mark;

static mark mark_of(const cb_graph *g) {
    return (mark){g->ops.len,   g->values.len, g->storages.len,   g->in_value.len,
                  g->attrs.len, g->inputs.len, g->backward_starts};
}

/* Removes everything appended since `m` if `status` is a failure. */
static cb_status settle(cb_graph *g, mark m, cb_status status) {
    if (status == CB_OK) return CB_OK;
    g->ops.len = m.ops;
    g->values.len = m.values;
    g->storages.len = m.storages;
    g->in_value.len = m.in_value;
    g->attrs.len = m.attrs;
    g->inputs.len = m.inputs;
    g->backward_starts = m.backward_starts;
    return status;
}

static cb_status check_value(const cb_graph *g, cb_opcode code, cb_value_id x, cb_error *err) {
    if (x < g->values.len) return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: the graph has no value %%%" PRIu32,
                   cb_op_def_of(code)->name, x);
}

/* Appends an op with one output. */
static cb_status append1(cb_graph *g, cb_opcode code, uint32_t n_ins, const cb_value_id *ins,
                         const cb_attrs *attrs, cb_value_id *out, cb_error *err) {
    cb_op_id op;
    CB_TRY(cb_graph_append(g, code, n_ins, ins, attrs, &op, err));
    *out = g->ops.at[op].out_begin;
    return CB_OK;
}

/* ---- views and copies ------------------------------------------------------------------------ */

cb_status cb_build_contiguous(cb_graph *g, cb_value_id x, cb_value_id *out, cb_error *err) {
    CB_TRY(check_value(g, CB_OP_CONTIGUOUS, x, err));
    const cb_value *v = &g->values.at[x];
    if (cb_is_contiguous(&v->shape, v->stride)) {
        *out = x;
        return CB_OK;
    }
    return append1(g, CB_OP_CONTIGUOUS, 1, &x, NULL, out, err);
}

/* Returns the bools that x is a cast of, which can be cast to any other type instead: 0 and 1 are
 * exact in all types. Returns x itself if it is anything else. */
static cb_value_id bools_of(const cb_graph *g, cb_value_id x) {
    const cb_op_id maker = g->values.at[x].producer;
    if (g->ops.at[maker].code != CB_OP_CAST) return x;
    const cb_value_id from = cb_op_ins(g, maker)[0];
    return g->values.at[from].dtype == CB_BOOL ? from : x;
}

cb_status cb_build_cast(cb_graph *g, cb_value_id x, cb_dtype dtype, cb_value_id *out,
                        cb_error *err) {
    CB_TRY(check_value(g, CB_OP_CAST, x, err));
    if (g->values.at[x].dtype == dtype) {
        *out = x;
        return CB_OK;
    }
    x = bools_of(g, x);
    return append1(g, CB_OP_CAST, 1, &x, &(cb_attrs){.dtype = dtype}, out, err);
}

cb_status cb_build_expand(cb_graph *g, cb_value_id x, const cb_shape *shape, cb_value_id *out,
                          cb_error *err) {
    CB_TRY(check_value(g, CB_OP_EXPAND, x, err));
    if (cb_shape_equal(&g->values.at[x].shape, shape)) {
        *out = x;
        return CB_OK;
    }
    return append1(g, CB_OP_EXPAND, 1, &x, &(cb_attrs){.dims = *shape}, out, err);
}

/* Replaces one -1 in `shape` with the size that the number of elements implies. */
static cb_status fill_in(const cb_shape *from, cb_shape *shape, cb_error *err) {
    char have[CB_SHAPE_TEXT], want[CB_SHAPE_TEXT];
    int32_t open = -1;
    int64_t rest = 1, numel = cb_numel(from);
    for (int32_t k = 0; k < shape->rank && k < CB_MAX_RANK; k++) {
        if (shape->dim[k] == -1 && open < 0) {
            open = k;
        } else if (shape->dim[k] < 0 || !cb_mul_i64(rest, shape->dim[k], &rest)) {
            return cb_fail(err, CB_INVALID, "reshape: %s cannot become %s",
                           cb_shape_text(from, have), cb_shape_text(shape, want));
        }
    }
    if (open < 0) return CB_OK;
    if (rest == 0 || numel % rest) {
        return cb_fail(err, CB_INVALID,
                       "reshape: no size for the -1 in %s gives the %" PRId64 " elements of %s",
                       cb_shape_text(shape, want), numel, cb_shape_text(from, have));
    }
    shape->dim[open] = numel / rest;
    return CB_OK;
}

/* A reshape to the same shape returns the value itself. */
static cb_status build_reshape(cb_graph *g, cb_value_id x, const cb_shape *shape, cb_value_id *out,
                               cb_error *err) {
    int64_t stride[CB_MAX_RANK];
    cb_attrs attrs = {.dims = *shape};
    CB_TRY(check_value(g, CB_OP_RESHAPE, x, err));
    CB_TRY(fill_in(&g->values.at[x].shape, &attrs.dims, err));
    const cb_value *v = &g->values.at[x];
    if (cb_shape_equal(&v->shape, &attrs.dims)) {
        *out = x;
        return CB_OK;
    }
    int64_t numel;
    bool sound = cb_shape_numel(&attrs.dims, &numel, NULL) == CB_OK && numel == cb_numel(&v->shape);
    if (sound && !cb_view_strides(&v->shape, v->stride, &attrs.dims, stride))
        CB_TRY(append1(g, CB_OP_CONTIGUOUS, 1, &x, NULL, &x, err));
    return append1(g, CB_OP_RESHAPE, 1, &x, &attrs, out, err);
}

cb_status cb_build_reshape(cb_graph *g, cb_value_id x, const cb_shape *shape, cb_value_id *out,
                           cb_error *err) {
    mark m = mark_of(g);
    return settle(g, m, build_reshape(g, x, shape, out, err));
}

/* Negative axes count from the end. Axes out of range are left for the shape rule to refuse. */
static int64_t from_end(int64_t axis, int32_t rank) {
    return axis < 0 && axis >= -rank ? axis + rank : axis;
}

cb_status cb_build_transpose(cb_graph *g, cb_value_id x, const int64_t *axes, cb_value_id *out,
                             cb_error *err) {
    CB_TRY(check_value(g, CB_OP_TRANSPOSE, x, err));
    int32_t rank = g->values.at[x].shape.rank;
    cb_attrs attrs = {.dims = cb_shape_make(rank, axes)};
    for (int32_t k = 0; k < rank; k++) attrs.dims.dim[k] = from_end(axes[k], rank);
    return append1(g, CB_OP_TRANSPOSE, 1, &x, &attrs, out, err);
}

cb_status cb_build_swap_last(cb_graph *g, cb_value_id x, cb_value_id *out, cb_error *err) {
    char text[CB_SHAPE_TEXT];
    int64_t axes[CB_MAX_RANK] = {0};
    CB_TRY(check_value(g, CB_OP_TRANSPOSE, x, err));
    const cb_shape *s = &g->values.at[x].shape;
    if (s->rank < 2) {
        return cb_fail(err, CB_INVALID, "transpose: %s has no two axes to swap",
                       cb_shape_text(s, text));
    }
    for (int32_t k = 0; k < s->rank; k++) axes[k] = k;
    axes[s->rank - 2] = s->rank - 1;
    axes[s->rank - 1] = s->rank - 2;
    return cb_build_transpose(g, x, axes, out, err);
}

cb_status cb_build_full(cb_graph *g, const cb_shape *shape, cb_dtype dtype, double value,
                        cb_value_id *out, cb_error *err) {
    mark m = mark_of(g);
    cb_value_id scalar;
    CB_TRY(
        append1(g, CB_OP_FULL, 0, NULL, &(cb_attrs){.f = {value}, .dtype = dtype}, &scalar, err));
    return settle(g, m, cb_build_expand(g, scalar, shape, out, err));
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* Converts the axes of a reduction to the form of the shape rule: explicit, not negative,
 * sorted. */
static void tidy_axes(cb_shape *axes, int32_t rank) {
    if (axes->rank < 0 || axes->rank > CB_MAX_RANK) return; /* the shape rule refuses it */
    if (axes->rank == 0) {
        axes->rank = rank;
        for (int32_t k = 0; k < rank; k++) axes->dim[k] = k;
    }
    for (int32_t k = 0; k < axes->rank; k++) {
        int64_t axis = from_end(axes->dim[k], rank);
        int32_t at = k;
        for (; at > 0 && axes->dim[at - 1] > axis; at--) axes->dim[at] = axes->dim[at - 1];
        axes->dim[at] = axis;
    }
}

cb_status cb_build_sum(cb_graph *g, cb_value_id x, int32_t n_axes, const int64_t *axes,
                       bool keepdims, cb_value_id *out, cb_error *err) {
    cb_attrs attrs = {.i = {keepdims}, .dims = cb_shape_make(n_axes, axes)};
    return cb_build(g, CB_OP_SUM, 1, &x, &attrs, out, err);
}

static cb_status build_sum_to(cb_graph *g, cb_value_id x, const cb_shape *shape, cb_value_id *out,
                              cb_error *err) {
    char from[CB_SHAPE_TEXT], to[CB_SHAPE_TEXT];
    CB_TRY(check_value(g, CB_OP_SUM, x, err));
    const cb_shape have = g->values.at[x].shape;
    cb_attrs attrs = {0};
    int32_t fresh = have.rank - shape->rank;
    bool fits = fresh >= 0;
    for (int32_t k = 0; fits && k < have.rank; k++) {
        int64_t want = k < fresh ? 1 : shape->dim[k - fresh];
        fits = want == 1 || want == have.dim[k];
        if (want != have.dim[k]) attrs.dims.dim[attrs.dims.rank++] = k;
    }
    if (!fits) {
        return cb_fail(err, CB_INVALID, "sum: %s did not come from broadcasting %s",
                       cb_shape_text(&have, from), cb_shape_text(shape, to));
    }
    if (attrs.dims.rank > 0) CB_TRY(append1(g, CB_OP_SUM, 1, &x, &attrs, &x, err));
    return build_reshape(g, x, shape, out, err);
}

cb_status cb_build_sum_to(cb_graph *g, cb_value_id x, const cb_shape *shape, cb_value_id *out,
                          cb_error *err) {
    mark m = mark_of(g);
    return settle(g, m, build_sum_to(g, x, shape, out, err));
}

/* ---- matmul ---------------------------------------------------------------------------------- */

static cb_status build_matrix(cb_graph *g, cb_value_id x, cb_value_id *out, cb_error *err) {
    const cb_value *v = &g->values.at[x];
    *out = x;
    if (v->shape.rank < 2 || cb_is_matrix(&v->shape, v->stride)) return CB_OK;
    return append1(g, CB_OP_CONTIGUOUS, 1, &x, NULL, out, err);
}

static cb_status product(cb_graph *g, cb_value_id x, cb_value_id y, cb_value_id *out,
                         cb_error *err) {
    CB_TRY(build_matrix(g, x, &x, err));
    CB_TRY(build_matrix(g, y, &y, err));
    return append1(g, CB_OP_MATMUL, 2, (cb_value_id[]){x, y}, NULL, out, err);
}

/* Merges the leading axes of x[..,n,k], if the result is a view and a matrix; returns false if that
   needs a copy. */
static bool merged_rows(const cb_value *x, cb_shape *merged) {
    int64_t stride[CB_MAX_RANK];
    const int32_t last = x->shape.rank - 1;
    const int64_t k = x->shape.dim[last], rows = cb_numel_of(&x->shape, 0, last);
    *merged = (cb_shape){.rank = 2, .dim = {rows, k}};
    return cb_view_strides(&x->shape, x->stride, merged, stride) && cb_is_matrix(merged, stride);
}

/* Broadcasts the batch axes of both operands. Copies that the layout requires come first. */
static cb_status batched(cb_graph *g, cb_value_id x, cb_value_id y, cb_value_id *out,
                         cb_error *err) {
    CB_TRY(build_matrix(g, x, &x, err));
    CB_TRY(build_matrix(g, y, &y, err));
    cb_shape left = g->values.at[x].shape, right = g->values.at[y].shape, batch, a = left,
             b = right;
    a.rank -= 2;
    b.rank -= 2;
    cb_error why = {0};
    cb_status status = cb_shape_broadcast(&a, &b, &batch, &why);
    if (status != CB_OK) return cb_fail(err, status, "matmul: batch axes: %s", why.text);
    cb_shape to = batch;
    to.rank += 2;
    to.dim[batch.rank] = left.dim[left.rank - 2];
    to.dim[batch.rank + 1] = left.dim[left.rank - 1];
    CB_TRY(cb_build_expand(g, x, &to, &x, err));
    to.dim[batch.rank] = right.dim[right.rank - 2];
    to.dim[batch.rank + 1] = right.dim[right.rank - 1];
    CB_TRY(cb_build_expand(g, y, &to, &y, err));
    return product(g, x, y, out, err);
}

static cb_status build_matmul(cb_graph *g, cb_value_id x, cb_value_id y, cb_value_id *out,
                              cb_error *err) {
    char left[CB_SHAPE_TEXT], right[CB_SHAPE_TEXT];
    CB_TRY(check_value(g, CB_OP_MATMUL, x, err));
    CB_TRY(check_value(g, CB_OP_MATMUL, y, err));
    cb_shape a = g->values.at[x].shape, b = g->values.at[y].shape, merged;
    bool row = a.rank == 1,
         column = b.rank == 1; /* vectors: a row on the left, a column on the right */
    if (a.rank == 0 || b.rank == 0 || a.dim[a.rank - 1] != b.dim[column ? 0 : b.rank - 2]) {
        return cb_fail(
            err, CB_INVALID,
            "matmul: %s @ %s: the last axis of the first must match the %s of the second",
            cb_shape_text(&a, left), cb_shape_text(&b, right),
            column ? "only one" : "second to last");
    }
    if (row) CB_TRY(build_reshape(g, x, &(cb_shape){.rank = 2, .dim = {1, a.dim[0]}}, &x, err));
    if (column) CB_TRY(build_reshape(g, y, &(cb_shape){.rank = 2, .dim = {b.dim[0], 1}}, &y, err));
    const cb_value *u = &g->values.at[x], *v = &g->values.at[y];
    cb_shape result = u->shape.rank > v->shape.rank ? u->shape : v->shape;
    if (u->shape.rank > 2 && v->shape.rank == 2 && merged_rows(u, &merged)) {
        result.dim[result.rank - 1] = v->shape.dim[1];
        CB_TRY(build_reshape(g, x, &merged, &x, err));
        CB_TRY(product(g, x, y, &x, err));
        CB_TRY(build_reshape(g, x, &result, &x, err));
    } else {
        CB_TRY(batched(g, x, y, &x, err));
        result = g->values.at[x].shape;
    }
    if (column) result.rank--;
    if (row) { /* the row axis is the second to last, or the last if the column axis has been
                  removed */
        int32_t at = column ? result.rank - 1 : result.rank - 2;
        for (int32_t k = at; k < result.rank - 1; k++) result.dim[k] = result.dim[k + 1];
        result.rank--;
    }
    return build_reshape(g, x, &result, out, err);
}

cb_status cb_build_matmul(cb_graph *g, cb_value_id x, cb_value_id y, cb_value_id *out,
                          cb_error *err) {
    mark m = mark_of(g);
    return settle(g, m, build_matmul(g, x, y, out, err));
}

/* ---- any op ---------------------------------------------------------------------------------- */

/* Negative axes of attributes named `axis` and `axes` are counted from the end. */
static void tidy_attrs(const cb_graph *g, cb_opcode code, uint32_t n_ins, const cb_value_id *ins,
                       cb_attrs *attrs) {
    cb_attr_slot slot;
    int32_t rank = n_ins ? g->values.at[ins[0]].shape.rank : attrs->dims.rank;
    for (int k = 0; cb_op_attr(code, k, &slot); k++) {
        if (slot.name_length != 4 ||
            (memcmp(slot.name, "axis", 4) != 0 && memcmp(slot.name, "axes", 4) != 0))
            continue;
        if (slot.kind == CB_ATTR_I) {
            attrs->i[slot.index] = from_end(attrs->i[slot.index], rank);
        } else if (code == CB_OP_TRANSPOSE) {
            for (int32_t d = 0; d < attrs->dims.rank && d < CB_MAX_RANK; d++)
                attrs->dims.dim[d] = from_end(attrs->dims.dim[d], rank);
        } else {
            tidy_axes(&attrs->dims, rank);
        }
    }
}

/* Computes the shape to which all inputs broadcast. */
static cb_status common_shape(const cb_graph *g, cb_opcode code, uint32_t n_ins,
                              const cb_value_id *ins, cb_shape *out, cb_error *err) {
    *out = g->values.at[ins[0]].shape;
    for (uint32_t i = 1; i < n_ins; i++) {
        cb_error why = {0};
        cb_status status = cb_shape_broadcast(out, &g->values.at[ins[i]].shape, out, &why);
        if (status != CB_OK)
            return cb_fail(err, status, "%s: %s", cb_op_def_of(code)->name, why.text);
    }
    return CB_OK;
}

/* `fixed` receives the inputs, broadcast and copied as the op requires. */
static cb_status fix_inputs(cb_graph *g, cb_opcode code, uint32_t n_ins, const cb_value_id *ins,
                            cb_value_id *fixed, cb_error *err) {
    const uint32_t flags = cb_op_def_of(code)->flags;
    const bool broadcast = (flags & CB_OPF_POINTWISE) && n_ins > 1;
    const bool copy = !(flags & (CB_OPF_STRIDED | CB_OPF_VIEW | CB_OPF_MATRIX));
    cb_shape shape = {0};
    if (broadcast) CB_TRY(common_shape(g, code, n_ins, ins, &shape, err));
    for (uint32_t i = 0; i < n_ins; i++) {
        fixed[i] = code == CB_OP_CAST ? bools_of(g, ins[i]) : ins[i];
        if (broadcast) CB_TRY(cb_build_expand(g, fixed[i], &shape, &fixed[i], err));
        if (copy) CB_TRY(cb_build_contiguous(g, fixed[i], &fixed[i], err));
        if (flags & CB_OPF_MATRIX) CB_TRY(build_matrix(g, fixed[i], &fixed[i], err));
    }
    return CB_OK;
}

static cb_status build(cb_graph *g, cb_opcode code, uint32_t n_ins, const cb_value_id *ins,
                       const cb_attrs *given, cb_value_id *outs, cb_arena *scratch, cb_error *err) {
    cb_attrs attrs = given ? *given : (cb_attrs){0};
    cb_value_id few[8], *fixed = few;
    tidy_attrs(g, code, n_ins, ins, &attrs);
    if (code == CB_OP_MATMUL) return build_matmul(g, ins[0], ins[1], outs, err);
    if (code == CB_OP_RESHAPE) return build_reshape(g, ins[0], &attrs.dims, outs, err);
    if (n_ins > sizeof few / sizeof *few) CB_TRY_NEW(fixed, scratch, n_ins, err);
    CB_TRY(fix_inputs(g, code, n_ins, ins, fixed, err));
    cb_op_id op;
    CB_TRY(cb_graph_append(g, code, n_ins, fixed, &attrs, &op, err));
    for (uint32_t k = 0; k < g->ops.at[op].n_out; k++) outs[k] = g->ops.at[op].out_begin + k;
    return CB_OK;
}

cb_status cb_build(cb_graph *g, cb_opcode code, uint32_t n_ins, const cb_value_id *ins,
                   const cb_attrs *attrs, cb_value_id *outs, cb_error *err) {
    CB_TRY(cb_op_check_call(code, n_ins, err));
    for (uint32_t i = 0; i < n_ins; i++) CB_TRY(check_value(g, code, ins[i], err));
    cb_arena scratch;
    cb_arena_init(&scratch, g->arena.alloc);
    mark m = mark_of(g);
    cb_status status = settle(g, m, build(g, code, n_ins, ins, attrs, outs, &scratch, err));
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_build1(cb_graph *g, cb_opcode code, cb_value_id x, cb_value_id *out, cb_error *err) {
    return cb_build(g, code, 1, &x, NULL, out, err);
}

cb_status cb_build2(cb_graph *g, cb_opcode code, cb_value_id x, cb_value_id y, cb_value_id *out,
                    cb_error *err) {
    return cb_build(g, code, 2, (cb_value_id[]){x, y}, NULL, out, err);
}
