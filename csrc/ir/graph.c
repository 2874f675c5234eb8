/* Appending checks everything, infers, reserves room in every array, and only then writes. Steps
 * that cannot fail come last, so a failed call leaves nothing but unused room in the arena. */
#include "graph.h"

#include <inttypes.h>

#include "infer.h"

#define MOST (UINT32_C(1) << 30) /* ops, values, inputs: their sums stay far from CB_NONE */
#define FEW 8                    /* most ops have at most this many inputs */

cb_status cb_graph_create(cb_alloc *alloc, cb_graph **out, cb_error *err) {
    cb_arena arena;
    cb_arena_init(&arena, alloc);
    cb_graph *g = CB_NEW(&arena, cb_graph, 1);
    if (!g) return cb_no_memory(err);
    g->arena = arena; /* the graph is allocated in its own arena */
    /* Reserves room at the start: `at` is never NULL, and adding even 0 to NULL is undefined. */
    if (!CB_RESERVE(&g->arena, g->in_value, 1)) {
        cb_graph_free(g);
        return cb_no_memory(err);
    }
    cb_names_init(&g->names, &g->arena);
    g->location = CB_NONE;
    g->region = CB_NONE;
    g->phase = CB_FORWARD;
    g->constraint = CB_FREE;
    *out = g;
    return CB_OK;
}

void cb_graph_free(cb_graph *g) {
    if (!g) return;
    cb_arena arena = g->arena;
    cb_arena_free(&arena);
}

uint64_t cb_graph_bytes(const cb_graph *g) { return cb_arena_bytes(&g->arena); }

cb_status cb_graph_intern(cb_graph *g, const char *text, uint32_t *id, cb_error *err) {
    return cb_names_intern(&g->names, text, strlen(text), id) ? CB_OK : cb_no_memory(err);
}

/* Copies the op's attributes; every other slot is zero, so that equal ops have equal bytes. */
static cb_attrs own_attrs(cb_opcode code, const cb_attrs *given) {
    cb_attrs own = {0};
    cb_attr_slot slot;
    for (int k = 0; given && cb_op_attr(code, k, &slot); k++) {
        switch (slot.kind) {
            case CB_ATTR_F: own.f[slot.index] = given->f[slot.index]; break;
            case CB_ATTR_I: own.i[slot.index] = given->i[slot.index]; break;
            case CB_ATTR_DTYPE: own.dtype = given->dtype; break;
            case CB_ATTR_DIMS: {
                int32_t rank = given->dims.rank;
                own.dims.rank = rank; /* the shape rule refuses an absurd rank */
                for (int32_t d = 0; d < rank && d < CB_MAX_RANK; d++)
                    own.dims.dim[d] = given->dims.dim[d];
                break;
            }
        }
    }
    return own;
}

static cb_status check_call(const cb_graph *g, cb_opcode code, uint32_t n_ins,
                            const cb_value_id *ins, cb_error *err) {
    CB_TRY(cb_op_check_call(code, n_ins, err));
    const char *name = cb_op_def_of(code)->name;
    for (uint32_t i = 0; i < n_ins; i++) {
        if (ins[i] < g->values.len) continue;
        return cb_fail(err, CB_INVALID, "%s: input %" PRIu32 ": the graph has no value %%%" PRIu32,
                       name, i, ins[i]);
    }
    if (g->ops.len >= MOST || g->values.len >= MOST || g->in_value.len + n_ins >= MOST) {
        return cb_fail(err, CB_INVALID,
                       "%s: a graph holds at most 2^30 ops, values and inputs of ops", name);
    }
    return CB_OK;
}

/* Runs the shape rule. `scratch` holds the inputs of an op that has many. */
static cb_status infer(const cb_graph *g, const cb_value_id *ins, cb_arena *scratch, cb_infer *x,
                       cb_error *err) {
    const cb_value *few[FEW];
    const cb_value **in = few;
    if (x->n_ins > FEW) CB_TRY_NEW(in, scratch, x->n_ins, err);
    for (uint32_t i = 0; i < x->n_ins; i++) in[i] = &g->values.at[ins[i]];
    x->in = in;
    cb_status status = cb_infer_outputs(x, err);
    if (cb_op_def_of(x->code)->flags & CB_OPF_VIEW) x->out[0].storage = in[0]->storage;
    x->in = NULL;
    return status;
}

static bool reserve(cb_graph *g, uint32_t n_ins, uint32_t n_outs) {
    return CB_RESERVE(&g->arena, g->ops, 1) && CB_RESERVE(&g->arena, g->values, n_outs) &&
           CB_RESERVE(&g->arena, g->storages, n_outs) &&
           CB_RESERVE(&g->arena, g->in_value, n_ins) && CB_RESERVE(&g->arena, g->attrs, 1) &&
           CB_RESERVE(&g->arena, g->inputs, 1);
}

/* Appends the op. Room is reserved, so nothing here can fail. */
static cb_op_id commit(cb_graph *g, const cb_infer *x, uint32_t n_ins, const cb_value_id *ins) {
    const cb_op_def *def = cb_op_def_of(x->code);
    cb_op_id id = (cb_op_id)g->ops.len;
    cb_op op = {.code = x->code,
                .phase = g->phase,
                .constraint = g->constraint,
                .in_begin = (uint32_t)g->in_value.len,
                .n_in = n_ins,
                .out_begin = (cb_value_id)g->values.len,
                .n_out = (uint32_t)def->n_outs,
                .attrs = (uint32_t)g->attrs.len,
                .location = g->location,
                .name = CB_NONE,
                .region = g->region,
                .origin = CB_NONE};
    if (g->backward_starts == id) g->backward_starts = id + 1; /* it is still a forward graph */
    g->ops.at[g->ops.len++] = op;
    g->attrs.at[g->attrs.len++] = *x->attrs;
    for (uint32_t i = 0; i < n_ins; i++) g->in_value.at[g->in_value.len++] = ins[i];
    for (int k = 0; k < def->n_outs; k++) {
        cb_value value = x->out[k];
        value.producer = id;
        value.out_index = (uint32_t)k;
        if (k > 0 || !(def->flags & CB_OPF_VIEW)) { /* a view has the storage of its input */
            uint64_t bytes = (uint64_t)cb_numel(&value.shape) * cb_dtype_size(value.dtype);
            value.storage = (cb_storage_id)g->storages.len;
            g->storages.at[g->storages.len++] =
                (cb_storage){.bytes = bytes, .root = (cb_value_id)g->values.len};
        }
        g->values.at[g->values.len++] = value;
    }
    if (x->code == CB_OP_INPUT) g->inputs.at[g->inputs.len++] = id;
    return id;
}

cb_status cb_graph_append(cb_graph *g, cb_opcode code, uint32_t n_ins, const cb_value_id *ins,
                          const cb_attrs *attrs, cb_op_id *out, cb_error *err) {
    cb_arena scratch;
    CB_TRY(check_call(g, code, n_ins, ins, err));
    cb_attrs own = own_attrs(code, attrs);
    cb_infer x = {.code = code, .attrs = &own, .n_ins = n_ins};
    cb_arena_init(&scratch, g->arena.alloc);
    cb_status status = infer(g, ins, &scratch, &x, err);
    cb_arena_free(&scratch);
    if (status != CB_OK) return status;
    if (!reserve(g, n_ins, (uint32_t)cb_op_def_of(code)->n_outs)) return cb_no_memory(err);
    *out = commit(g, &x, n_ins, ins);
    return CB_OK;
}

cb_status cb_graph_append_input(cb_graph *g, const char *name, cb_role role, cb_dtype dtype,
                                const cb_shape *shape, cb_value_id *out, cb_error *err) {
    uint32_t name_id = CB_NONE;
    cb_op_id op = CB_NONE;
    if (name) CB_TRY(cb_graph_intern(g, name, &name_id, err));
    const cb_attrs attrs = {.i = {role}, .dims = *shape, .dtype = dtype};
    CB_TRY(cb_graph_append(g, CB_OP_INPUT, 0, NULL, &attrs, &op, err));
    g->ops.at[op].name = name_id;
    *out = g->ops.at[op].out_begin;
    return CB_OK;
}

/* Checks that a state or gradient belongs to an input of the same dtype and shape. */
static cb_status check_pairing(const cb_graph *g, const cb_output *output, cb_error *err) {
    char have[CB_SHAPE_TEXT], want[CB_SHAPE_TEXT];
    const char *what = output->kind == CB_OUTPUT_STATE ? "state" : "gradient";
    if (output->input == CB_NONE) return CB_OK; /* split graph: the other half has the input */
    if (output->input >= g->inputs.len) {
        return cb_fail(err, CB_INVALID,
                       "output: %s of input %" PRIu32 ", but the graph has %zu inputs", what,
                       output->input, g->inputs.len);
    }
    cb_op_id op = g->inputs.at[output->input];
    const cb_value *input = &g->values.at[g->ops.at[op].out_begin],
                   *value = &g->values.at[output->value];
    if (output->kind == CB_OUTPUT_STATE && cb_op_attrs(g, op)->i[0] != CB_ROLE_STATE) {
        return cb_fail(err, CB_INVALID,
                       "output: input %" PRIu32 " (%s) takes no new state; give it the role state",
                       output->input, cb_graph_name(g, g->ops.at[op].name));
    }
    if (value->dtype == input->dtype && cb_shape_equal(&value->shape, &input->shape)) return CB_OK;
    return cb_fail(err, CB_INVALID, "output: %s is %s %s, but its input %" PRIu32 " is %s %s", what,
                   cb_dtype_name(value->dtype), cb_shape_text(&value->shape, have), output->input,
                   cb_dtype_name(input->dtype), cb_shape_text(&input->shape, want));
}

cb_status cb_graph_append_output(cb_graph *g, cb_value_id value, const char *name,
                                 cb_output_kind kind, uint32_t input, cb_error *err) {
    cb_output output = {.value = value, .name = CB_NONE, .kind = kind, .input = input};
    if (value >= g->values.len)
        return cb_fail(err, CB_INVALID, "output: the graph has no value %%%" PRIu32, value);
    if (g->outputs.len >= MOST)
        return cb_fail(err, CB_INVALID, "output: a graph has at most 2^30 outputs");
    switch (kind) {
        case CB_OUTPUT_RESULT:
            if (input != CB_NONE)
                return cb_fail(err, CB_INVALID, "output: a result belongs to no input");
            break;
        case CB_OUTPUT_STATE:
        case CB_OUTPUT_GRAD: CB_TRY(check_pairing(g, &output, err)); break;
        default: return cb_fail(err, CB_INVALID, "output: unknown kind %d", (int)kind);
    }
    if (name) CB_TRY(cb_graph_intern(g, name, &output.name, err));
    return CB_PUSH(&g->arena, g->outputs, output) ? CB_OK : cb_no_memory(err);
}

cb_status cb_graph_append_region(cb_graph *g, const char *name, uint32_t parent,
                                 uint64_t saved_limit, uint32_t *out, cb_error *err) {
    cb_region region = {.name = CB_NONE, .parent = parent, .saved_limit = saved_limit};
    if (saved_limit > INT64_MAX) region.saved_limit = UINT64_MAX; /* text and JSON hold 63 bits */
    if (parent != CB_NONE && parent >= g->regions.len) {
        return cb_fail(err, CB_INVALID,
                       "region: the graph has no region %" PRIu32 " to be the parent", parent);
    }
    if (g->regions.len >= MOST)
        return cb_fail(err, CB_INVALID, "region: a graph has at most 2^30 regions");
    if (name) CB_TRY(cb_graph_intern(g, name, &region.name, err));
    if (!CB_PUSH(&g->arena, g->regions, region)) return cb_no_memory(err);
    *out = (uint32_t)g->regions.len - 1;
    return CB_OK;
}
