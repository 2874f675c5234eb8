/* Only the lengths of the graph's arrays are trusted. Ops are checked in order: when op i is
 * checked, everything before it is known to be valid, so its shape rule can be run again on its
 * inputs and the results compared. A failure is a bug in the code that made the graph:
 * CB_INTERNAL. */
#include "verify.h"

#include <inttypes.h>

#include "../base/bitset.h"
#include "infer.h"

static cb_status bad_op(const cb_graph *g, size_t op, const char *what, cb_error *err) {
    cb_opcode code = g->ops.at[op].code;
    const char *name = (int)code >= 0 && code < CB_OP_COUNT ? cb_op_def_of(code)->name : "?";
    return cb_fail(err, CB_INTERNAL, "verify: op %zu (%s): %s", op, name, what);
}

static cb_status bad_output(size_t output, const char *what, cb_error *err) {
    return cb_fail(err, CB_INTERNAL, "verify: output %zu: %s", output, what);
}

static bool is_id_or_none(uint32_t id, size_t len) { return id == CB_NONE || id < len; }

/* ---- ops ------------------------------------------------------------------------------------- */

/* Progress of the checks: ids must be dense and in this order. */
typedef struct cursor {
    size_t values, storages, in_value, inputs;
} cursor;

static cb_status check_op_fields(const cb_graph *g, size_t id, const cursor *at, cb_error *err) {
    const cb_op *op = &g->ops.at[id];
    if ((int)op->code < 0 || op->code >= CB_OP_COUNT) return bad_op(g, id, "no such opcode", err);
    const cb_op_def *def = cb_op_def_of(op->code);
    if (op->in_begin != at->in_value || op->n_in > g->in_value.len - at->in_value)
        return bad_op(g, id, "its inputs do not follow those of the op before", err);
    if (op->n_in < (uint32_t)def->min_ins ||
        (def->max_ins >= 0 && op->n_in > (uint32_t)def->max_ins)) {
        return bad_op(g, id, "wrong number of inputs", err);
    }
    if (op->out_begin != at->values || op->n_out != (uint32_t)def->n_outs ||
        op->n_out > CB_MAX_OUTS || op->n_out > g->values.len - at->values) {
        return bad_op(g, id, "its outputs do not follow those of the op before", err);
    }
    for (uint32_t i = 0; i < op->n_in; i++) {
        if (g->in_value.at[op->in_begin + i] >= op->out_begin)
            return bad_op(g, id, "reads a value that does not exist yet", err);
    }
    if (op->attrs >= g->attrs.len) return bad_op(g, id, "no such attributes", err);
    if (op->phase > CB_BACKWARD) return bad_op(g, id, "no such phase", err);
    if (op->constraint >= CB_CONSTRAINT_COUNT) return bad_op(g, id, "no such constraint", err);
    if (!is_id_or_none(op->location, g->names.len) || !is_id_or_none(op->name, g->names.len))
        return bad_op(g, id, "no such name", err);
    if (!is_id_or_none(op->region, g->regions.len)) return bad_op(g, id, "no such region", err);
    return CB_OK;
}

static bool equal_types(const cb_value *a, const cb_value *b) {
    return a->dtype == b->dtype && cb_shape_equal(&a->shape, &b->shape) && a->offset == b->offset &&
           memcmp(a->stride, b->stride, (size_t)b->shape.rank * sizeof *a->stride) == 0;
}

/* True if the last element that the value shows is inside its storage. Strides are not negative, so
 * it has the largest offset. */
static bool is_inside(const cb_value *v, uint64_t bytes) {
    int64_t last = v->offset;
    if (v->offset < 0) return false;
    if (cb_numel(&v->shape) == 0) return true;
    for (int32_t k = 0; k < v->shape.rank; k++) {
        int64_t reach;
        if (v->stride[k] < 0 || !cb_mul_i64(v->shape.dim[k] - 1, v->stride[k], &reach))
            return false;
        if (reach > INT64_MAX - last) return false;
        last += reach;
    }
    return (uint64_t)last < bytes / cb_dtype_size(v->dtype);
}

static cb_status check_value(const cb_graph *g, size_t id, uint32_t k, const cb_value *want,
                             cursor *at, cb_error *err) {
    const cb_op *op = &g->ops.at[id];
    const cb_value *v = &g->values.at[op->out_begin + k];
    const bool is_view = k == 0 && (cb_op_def_of(op->code)->flags & CB_OPF_VIEW);
    if (v->producer != id || v->out_index != k)
        return bad_op(g, id, "an output refers to another producer", err);
    if (!equal_types(v, want))
        return bad_op(g, id,
                      "an output does not have the type and layout that the shape rule gives", err);
    if (is_view) {
        if (v->storage != g->values.at[cb_op_ins(g, (cb_op_id)id)[0]].storage)
            return bad_op(g, id, "the storage of a view is not that of its input", err);
    } else {
        if (v->storage != at->storages || v->storage >= g->storages.len)
            return bad_op(g, id, "storages are not numbered in order", err);
        at->storages++;
        const cb_storage *s = &g->storages.at[v->storage];
        if (s->root != op->out_begin + k)
            return bad_op(g, id, "the root of a storage is another value", err);
        if (s->bytes != (uint64_t)cb_numel(&v->shape) * cb_dtype_size(v->dtype))
            return bad_op(g, id, "a storage has the wrong size", err);
    }
    if (!is_inside(v, g->storages.at[v->storage].bytes))
        return bad_op(g, id, "a view extends beyond its storage", err);
    return CB_OK;
}

/* Runs the shape rule again. `in` has room for the inputs. */
static cb_status check_outputs_of(const cb_graph *g, size_t id, const cb_value **in, cursor *at,
                                  cb_error *err) {
    const cb_op *op = &g->ops.at[id];
    const cb_value_id *ins = cb_op_ins(g, (cb_op_id)id);
    cb_error why = {0};
    for (uint32_t i = 0; i < op->n_in; i++) in[i] = &g->values.at[ins[i]];
    cb_infer x = {
        .code = op->code, .attrs = cb_op_attrs(g, (cb_op_id)id), .n_ins = op->n_in, .in = in};
    if (cb_infer_outputs(&x, &why) != CB_OK) return bad_op(g, id, why.text, err);
    for (uint32_t k = 0; k < op->n_out; k++) CB_TRY(check_value(g, id, k, &x.out[k], at, err));
    return CB_OK;
}

static cb_status check_ops(const cb_graph *g, cb_error *err) {
    cursor at = {0};
    cb_status status = CB_OK;
    cb_arena scratch;
    cb_arena_init(&scratch, g->arena.alloc);
    const cb_value **in =
        CB_NEW(&scratch, const cb_value *, g->in_value.len); /* room for any op's inputs */
    if (!in) CB_TRY_DONE(cb_no_memory(err));
    for (size_t id = 0; id < g->ops.len; id++) {
        CB_TRY_DONE(check_op_fields(g, id, &at, err));
        CB_TRY_DONE(check_outputs_of(g, id, in, &at, err));
        if (g->ops.at[id].code == CB_OP_INPUT) {
            if (at.inputs >= g->inputs.len || g->inputs.at[at.inputs] != id)
                CB_TRY_DONE(bad_op(g, id, "is an input, but the list of inputs lacks it", err));
            at.inputs++;
        }
        at.in_value += g->ops.at[id].n_in;
        at.values += g->ops.at[id].n_out;
    }
    if (at.values != g->values.len || at.storages != g->storages.len ||
        at.in_value != g->in_value.len || at.inputs != g->inputs.len) {
        status =
            cb_fail(err, CB_INTERNAL, "verify: some values, storages or inputs belong to no op");
    }
done:
    cb_arena_free(&scratch);
    return status;
}

/* ---- the rest, for every stage --------------------------------------------------------------- */

static cb_status check_regions(const cb_graph *g, cb_error *err) {
    for (size_t i = 0; i < g->regions.len; i++) {
        const cb_region *r = &g->regions.at[i];
        if (is_id_or_none(r->name, g->names.len) && (r->parent == CB_NONE || r->parent < i))
            continue;
        return cb_fail(err, CB_INTERNAL,
                       "verify: region %zu: no such name, or its parent does not come before it",
                       i);
    }
    return CB_OK;
}

static cb_status check_outputs(const cb_graph *g, bool need_input, cb_error *err) {
    for (size_t i = 0; i < g->outputs.len; i++) {
        const cb_output *o = &g->outputs.at[i];
        if (o->value >= g->values.len) return bad_output(i, "no such value", err);
        if (!is_id_or_none(o->name, g->names.len)) return bad_output(i, "no such name", err);
        if (o->kind == CB_OUTPUT_RESULT) {
            if (o->input != CB_NONE) return bad_output(i, "a result belongs to no input", err);
            continue;
        }
        if (o->kind != CB_OUTPUT_STATE && o->kind != CB_OUTPUT_GRAD)
            return bad_output(i, "unknown kind", err);
        if (o->input == CB_NONE && !need_input) continue;
        if (o->input >= g->inputs.len) return bad_output(i, "no such input", err);
        cb_op_id op = g->inputs.at[o->input];
        const cb_value *in = &g->values.at[g->ops.at[op].out_begin], *v = &g->values.at[o->value];
        if (v->dtype != in->dtype || !cb_shape_equal(&v->shape, &in->shape))
            return bad_output(i, "dtype or shape differ from those of its input", err);
        if (o->kind == CB_OUTPUT_STATE && cb_op_attrs(g, op)->i[0] != CB_ROLE_STATE)
            return bad_output(i, "its input does not have the role state", err);
    }
    return CB_OK;
}

/* ---- by stage -------------------------------------------------------------------------------- */

static cb_status check_forward(const cb_graph *g, cb_error *err) {
    for (size_t id = 0; id < g->ops.len; id++) {
        if (g->ops.at[id].phase != CB_FORWARD)
            return bad_op(g, id, "a backward op in a forward graph", err);
    }
    for (size_t i = 0; i < g->outputs.len; i++) {
        if (g->outputs.at[i].kind == CB_OUTPUT_GRAD)
            return bad_output(i, "a gradient in a forward graph", err);
    }
    if (g->backward_starts != g->ops.len)
        return cb_fail(err, CB_INTERNAL, "verify: a forward graph has ops of autodiff");
    return CB_OK;
}

/* Ops that tangents reach are in the BACKWARD phase: tangent inputs, seeds (backward ops without
 * inputs), and the ops that read a backward value. Other ops that autodiff appended may be backward
 * too: they read gradients that the forward makes (ad/strips/early.h). */
static cb_status check_phases(const cb_graph *g, cb_error *err) {
    for (size_t id = 0; id < g->ops.len; id++) {
        const cb_op *op = &g->ops.at[id];
        const cb_value_id *ins = cb_op_ins(g, (cb_op_id)id);
        bool reached = false;
        for (uint32_t i = 0; i < op->n_in; i++)
            reached |= g->ops.at[g->values.at[ins[i]].producer].phase == CB_BACKWARD;
        if (op->code == CB_OP_INPUT)
            reached = cb_op_attrs(g, (cb_op_id)id)->i[0] == CB_ROLE_TANGENT;
        bool is_seed = op->n_in == 0 && op->code != CB_OP_INPUT;
        if (reached && op->phase != CB_BACKWARD)
            return bad_op(g, id, "depends on a tangent, but is forward", err);
        if (!reached && op->phase == CB_BACKWARD && !is_seed && id < g->backward_starts)
            return bad_op(g, id, "is backward, but depends on no tangent", err);
    }
    return CB_OK;
}

static cb_status check_owned(const cb_graph *g, cb_error *err) {
    cb_arena scratch;
    cb_bitset taken;
    cb_status status = CB_OK;
    cb_arena_init(&scratch, g->arena.alloc);
    if (!cb_bitset_init(&taken, &scratch, g->storages.len)) status = cb_no_memory(err);
    for (size_t i = 0; i < g->outputs.len && status == CB_OK; i++) {
        const cb_value *v = &g->values.at[g->outputs.at[i].value];
        const cb_storage *s = &g->storages.at[v->storage];
        uint64_t bytes = (uint64_t)cb_numel(&v->shape) * cb_dtype_size(v->dtype);
        if (cb_bitset_has(&taken, v->storage)) {
            status = bad_output(i, "shares its storage with another output", err);
        } else if (g->ops.at[g->values.at[s->root].producer].code == CB_OP_INPUT) {
            status = bad_output(i, "shares its storage with an input", err);
        } else if (!cb_is_contiguous(&v->shape, v->stride) || v->offset != 0 || bytes != s->bytes) {
            status = bad_output(i, "does not fill its storage in row-major order", err);
        }
        cb_bitset_add(&taken, v->storage);
    }
    cb_arena_free(&scratch);
    return status;
}

static cb_status check_origins(const cb_graph *g, cb_error *err) {
    for (size_t id = 0; id < g->ops.len; id++) {
        if (g->ops.at[id].origin == CB_NONE && g->ops.at[id].code != CB_OP_INPUT)
            return bad_op(g, id, "has no origin in the joint graph", err);
    }
    return CB_OK;
}

cb_status cb_graph_verify(const cb_graph *g, cb_spec spec, cb_error *err) {
    CB_TRY(check_ops(g, err));
    CB_TRY(check_regions(g, err));
    CB_TRY(check_outputs(g, spec != CB_SPEC_SPLIT, err));
    if (g->backward_starts > g->ops.len)
        return cb_fail(err, CB_INTERNAL, "verify: the backward starts after the end");
    switch (spec) {
        case CB_SPEC_FORWARD: return check_forward(g, err);
        case CB_SPEC_JOINT: CB_TRY(check_phases(g, err)); return check_owned(g, err);
        case CB_SPEC_SPLIT: return check_origins(g, err);
    }
    return cb_fail(err, CB_INTERNAL, "verify: no such stage");
}
