/* Copies a graph, complete or without unneeded ops. Names and regions are copied unchanged, so
 * their ids stay; ops, values and storages are renumbered densely in their old order. */
#include "../base/bitset.h"
#include "graph.h"
#include "infer_checks.h"

/* The maximum number of inputs of an op that may be replaced: their new ids are in a local array.
 */
#define REPLACED_INS 8

/* Maps old ids to new ids. */
typedef struct renumbering {
    uint32_t *value, *storage;
} renumbering;

/* Marks the inputs and all ops that the outputs depend on. One pass backwards is enough, because
 * readers have larger ids. */
static void mark_needed(const cb_graph *g, cb_bitset *keep) {
    for (size_t i = 0; i < g->inputs.len; i++) cb_bitset_add(keep, g->inputs.at[i]);
    for (size_t i = 0; i < g->outputs.len; i++)
        cb_bitset_add(keep, g->values.at[g->outputs.at[i].value].producer);
    for (size_t op = g->ops.len; op-- > 0;) {
        if (!cb_bitset_has(keep, op)) continue;
        const cb_value_id *ins = cb_op_ins(g, (cb_op_id)op);
        for (uint32_t i = 0; i < g->ops.at[op].n_in; i++)
            cb_bitset_add(keep, g->values.at[ins[i]].producer);
    }
}

static cb_status copy_names(const cb_graph *g, cb_graph *to, cb_error *err) {
    uint32_t id;
    for (size_t i = 0; i < g->names.len; i++)
        CB_TRY(cb_graph_intern(to, g->names.text[i], &id, err));
    if (!CB_RESERVE(&to->arena, to->regions, g->regions.len)) return cb_no_memory(err);
    for (size_t i = 0; i < g->regions.len; i++)
        to->regions.at[to->regions.len++] = g->regions.at[i];
    return CB_OK;
}

/* Copies the attributes that ops appended later will get. */
static void copy_defaults(const cb_graph *g, cb_graph *to) {
    to->location = g->location;
    to->region = g->region;
    to->phase = g->phase;
    to->constraint = g->constraint;
}

/* Reserves room for everything, so that copying cannot fail. */
static bool reserve_all(const cb_graph *g, cb_graph *to) {
    return CB_RESERVE(&to->arena, to->ops, g->ops.len) &&
           CB_RESERVE(&to->arena, to->values, g->values.len) &&
           CB_RESERVE(&to->arena, to->storages, g->storages.len) &&
           CB_RESERVE(&to->arena, to->in_value, g->in_value.len) &&
           CB_RESERVE(&to->arena, to->attrs, g->attrs.len) &&
           CB_RESERVE(&to->arena, to->inputs, g->inputs.len) &&
           CB_RESERVE(&to->arena, to->outputs, g->outputs.len);
}

static void copy_values(const cb_graph *g, const cb_op *op, cb_graph *to, const renumbering *map) {
    for (uint32_t k = 0; k < op->n_out; k++) {
        cb_value value = g->values.at[op->out_begin + k];
        uint32_t id = (uint32_t)to->values.len;
        const cb_storage *storage = &g->storages.at[value.storage];
        map->value[op->out_begin + k] = id;
        if (storage->root == op->out_begin + k) { /* otherwise a view, whose root came before */
            map->storage[value.storage] = (uint32_t)to->storages.len;
            to->storages.at[to->storages.len++] = (cb_storage){.bytes = storage->bytes, .root = id};
        }
        value.storage = map->storage[value.storage];
        value.producer = (cb_op_id)to->ops.len;
        to->values.at[to->values.len++] = value;
    }
}

static void copy_op(const cb_graph *g, cb_op_id id, cb_graph *to, const renumbering *map) {
    cb_op op = g->ops.at[id];
    const cb_value_id *ins = cb_op_ins(g, id);
    op.in_begin = (uint32_t)to->in_value.len;
    for (uint32_t i = 0; i < op.n_in; i++) to->in_value.at[to->in_value.len++] = map->value[ins[i]];
    op.attrs = (uint32_t)to->attrs.len;
    to->attrs.at[to->attrs.len++] = *cb_op_attrs(g, id);
    op.out_begin = (cb_value_id)to->values.len;
    copy_values(g, &g->ops.at[id], to, map);
    if (op.code == CB_OP_INPUT) to->inputs.at[to->inputs.len++] = (cb_op_id)to->ops.len;
    to->ops.at[to->ops.len++] = op;
}

/* Maps the outputs of the op to values of `to`, each with a separate storage. */
static cb_status note_outputs(const cb_graph *g, const cb_op *op, const cb_graph *to,
                              const cb_value_id *outs, const renumbering *map, cb_error *err) {
    for (uint32_t k = 0; k < op->n_out; k++) {
        const cb_value *was = &g->values.at[op->out_begin + k], *is = &to->values.at[outs[k]];
        if (was->dtype != is->dtype || !cb_shape_equal(&was->shape, &is->shape))
            return cb_fail(err, CB_INTERNAL, "%s: output %u was replaced by another type",
                           cb_op_def_of(op->code)->name, k);
        map->value[op->out_begin + k] = outs[k];
        map->storage[was->storage] = is->storage;
    }
    return CB_OK;
}

/* Lets `by` replace the op; *done is false if it does not. */
static cb_status replace_op(const cb_graph *g, cb_op_id id, const cb_replacing *by, cb_graph *to,
                            const renumbering *map, bool *done, cb_error *err) {
    const cb_op *op = &g->ops.at[id];
    cb_value_id ins[REPLACED_INS], outs[CB_MAX_OUTS];
    *done = by->wants(by->user, g, id);
    if (!*done) return CB_OK;
    for (uint32_t i = 0; i < op->n_in && i < REPLACED_INS; i++)
        ins[i] = map->value[cb_op_ins(g, id)[i]];
    to->location = op->location;
    to->region = op->region;
    to->phase = op->phase;
    to->constraint = op->constraint;
    if (by->emit) {
        CB_TRY(by->emit(by->user, to, id, map->value, outs, err));
    } else {
        CB_TRY(by->replace(to, op->code, cb_op_attrs(g, id), op->n_in, ins, outs, err));
        to->ops.at[to->values.at[outs[0]].producer].name = op->name;
    }
    CB_TRY(note_outputs(g, op, to, outs, map, err));
    return reserve_all(g, to) ? CB_OK : cb_no_memory(err);
}

/* The parts of the graph that a copy contains; the whole graph if all fields are NULL. */
typedef struct choice {
    const cb_bitset *keep;  /* ops to copy */
    const cb_op_id *order;  /* all ops in their new order */
    const cb_replacing *by; /* replaces ops */
} choice;

static cb_status copy_graph(const cb_graph *g, const choice *of, cb_arena *scratch, cb_graph *to,
                            cb_error *err) {
    renumbering map = {.value = CB_NEW(scratch, uint32_t, g->values.len),
                       .storage = CB_NEW(scratch, uint32_t, g->storages.len)};
    if (!map.value || !map.storage || !reserve_all(g, to)) return cb_no_memory(err);
    CB_TRY(copy_names(g, to, err));
    to->backward_starts = 0;
    for (size_t i = 0; i < g->ops.len; i++) {
        const cb_op_id op = of->order ? of->order[i] : (cb_op_id)i;
        bool done = false;
        if (of->keep && !cb_bitset_has(of->keep, op)) continue;
        if (of->by) CB_TRY(replace_op(g, op, of->by, to, &map, &done, err));
        if (!done) copy_op(g, op, to, &map);
        if (!of->order && op < g->backward_starts) to->backward_starts = (cb_op_id)to->ops.len;
    }
    copy_defaults(g, to);
    for (size_t i = 0; i < g->outputs.len; i++) {
        cb_output output = g->outputs.at[i];
        output.value = map.value[output.value];
        to->outputs.at[to->outputs.len++] = output;
    }
    return CB_OK;
}

static cb_status copy_some(const cb_graph *g, bool needed_only, choice of, cb_alloc *alloc,
                           cb_graph **out, cb_error *err) {
    cb_graph *to = NULL;
    cb_arena scratch;
    cb_bitset keep;
    cb_status status;
    cb_arena_init(&scratch, alloc);
    CB_TRY_DONE(cb_graph_create(alloc, &to, err));
    if (needed_only) {
        if (!cb_bitset_init(&keep, &scratch, g->ops.len)) {
            status = cb_no_memory(err);
            goto done;
        }
        mark_needed(g, &keep);
        of.keep = &keep;
    }
    CB_TRY_DONE(copy_graph(g, &of, &scratch, to, err));
    *out = to;
    to = NULL;
done:
    cb_graph_free(to);
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_graph_prune(const cb_graph *g, cb_alloc *alloc, cb_graph **out, cb_error *err) {
    return copy_some(g, true, (choice){0}, alloc, out, err);
}

cb_status cb_graph_copy(const cb_graph *g, cb_alloc *alloc, cb_graph **out, cb_error *err) {
    return copy_some(g, false, (choice){0}, alloc, out, err);
}

cb_status cb_graph_arrange(const cb_graph *g, const cb_op_id *order, cb_alloc *alloc,
                           cb_graph **out, cb_error *err) {
    return copy_some(g, false, (choice){.order = order}, alloc, out, err);
}

cb_status cb_graph_replace(const cb_graph *g, const cb_replacing *by, cb_alloc *alloc,
                           cb_graph **out, cb_error *err) {
    return copy_some(g, false, (choice){.by = by}, alloc, out, err);
}
