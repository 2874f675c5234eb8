/* packs.c: one pass finds the storages to pack, another copies the graph. An op of the backward
 * that reads such a storage gets a copy of its value: the unpacked value, or a view of it. Each
 * copy is made before its first reader and is FORWARD, because it depends on no tangent. */
#include "packs.h"

#include "../../ir/builder.h"

typedef enum pack { STAYS = 0, AS_BITS, AS_SIGNS, AS_BYTES } pack;

typedef struct packs {
    const cb_graph *g;
    uint8_t *how;        /* [storages of g] a `pack` */
    bool *is_late;       /* [storages of g] an op of the backward reads it */
    cb_value_id *packed; /* [storages of g] value of the new graph */
    cb_value_id *copy;   /* [values of g] value of the new graph that replaces it in the backward;
                            CB_NONE: not made yet */
    cb_value_id *ins;    /* room for the inputs of an op */
} packs;

/* ---- which ----------------------------------------------------------------------------------- */

static bool is_view(const cb_graph *g, cb_op_id id) { return cb_op_flags(g, id) & CB_OPF_VIEW; }

/* Returns the attributes of the packed positions that an op makes. */
static cb_attrs positions_of(const cb_graph *g, cb_op_id id) {
    const cb_shape *x = &g->values.at[cb_op_ins(g, id)[0]].shape;
    const int64_t *own = cb_op_attrs(g, id)->i;
    cb_attrs attrs = {.i = {0}};
    if (g->ops.at[id].code == CB_OP_ARGMAX) {
        attrs.i[7] = x->dim[own[0]];
        return attrs;
    }
    for (int k = 0; k < 6; k++) attrs.i[k] = own[k];
    attrs.i[6] = x->dim[3];
    attrs.i[7] = x->dim[2] * x->dim[3];
    return attrs;
}

static bool makes_short_positions(const cb_graph *g, const cb_value *v) {
    const cb_opcode code = g->ops.at[v->producer].code;
    if (cb_dtype_is_float(v->dtype) || (code != CB_OP_ARGMAX && code != CB_OP_MAX_POOL2D))
        return false;
    const cb_attrs attrs = positions_of(g, v->producer);
    return cb_packed_index_bytes(&attrs) < (int64_t)cb_dtype_size(v->dtype);
}

/* Returns how a value is packed if the backward reads it. */
static pack how_of(const cb_graph *g, cb_value_id root) {
    const cb_value *v = &g->values.at[root];
    const cb_op *op = &g->ops.at[v->producer];
    if (v->producer >= g->backward_starts || op->phase != CB_FORWARD) return STAYS;
    if (op->code == CB_OP_INPUT || op->code == CB_OP_FULL) return STAYS;
    if (g->storages.at[v->storage].bytes < CB_PACK_BYTES) return STAYS;
    if (v->dtype == CB_BOOL) return AS_BITS;
    if (makes_short_positions(g, v)) return AS_BYTES;
    return op->code == CB_OP_RELU && cb_dtype_is_float(v->dtype) ? AS_SIGNS : STAYS;
}

/* True if the op only reads where the input is above 0 or NaN. */
static bool reads_sign(const cb_graph *g, cb_op_id id, uint32_t input) {
    const cb_value_id value = cb_op_ins(g, id)[input];
    const cb_value_id root = g->storages.at[g->values.at[value].storage].root;
    return g->ops.at[id].code == CB_OP_RELU_BWD && input == 1 && value == root;
}

static void look_at(const packs *x, cb_op_id id) {
    const cb_graph *g = x->g;
    const cb_op *op = &g->ops.at[id];
    for (uint32_t k = 0; k < op->n_out; k++) /* views have the constraints of their storage */
        if (op->constraint != CB_FREE) x->how[g->values.at[op->out_begin + k].storage] = STAYS;
    if (id < g->backward_starts || is_view(g, id)) return;
    for (uint32_t k = 0; k < op->n_in; k++) {
        const cb_storage_id s = g->values.at[cb_op_ins(g, id)[k]].storage;
        x->is_late[s] = true;
        if (x->how[s] == AS_SIGNS && !reads_sign(g, id, k)) x->how[s] = STAYS;
    }
}

/* Finds the storages to pack. */
static bool find(const packs *x) {
    const cb_graph *g = x->g;
    bool any = false;
    for (size_t s = 0; s < g->storages.len; s++) {
        x->how[s] = (uint8_t)how_of(g, g->storages.at[s].root);
        x->packed[s] = CB_NONE;
    }
    for (size_t v = 0; v < g->values.len; v++) x->copy[v] = CB_NONE;
    for (cb_op_id id = 0; id < g->ops.len; id++) look_at(x, id);
    for (size_t i = 0; i < g->outputs.len; i++)
        x->how[g->values.at[g->outputs.at[i].value].storage] = STAYS;
    for (size_t s = 0; s < g->storages.len; s++) {
        if (!x->is_late[s]) x->how[s] = STAYS;
        any |= x->how[s] != STAYS;
    }
    return any;
}

/* ---- the new graph --------------------------------------------------------------------------- */

static pack how_read(const packs *x, cb_value_id value) {
    return (pack)x->how[x->g->values.at[value].storage];
}

static bool wants(void *user, const cb_graph *g, cb_op_id id) {
    const packs *x = user;
    const cb_op *op = &g->ops.at[id];
    bool any = false;
    for (uint32_t k = 0; k < op->n_out && id < g->backward_starts && !is_view(g, id); k++)
        any |= how_read(x, op->out_begin + k) != STAYS;
    for (uint32_t k = 0; k < op->n_in && id >= g->backward_starts; k++)
        any |= how_read(x, cb_op_ins(g, id)[k]) != STAYS;
    return any;
}

/* Appends an op that depends on no tangent, at the place in the user's program of op `like`. */
static cb_status append(const packs *x, cb_graph *to, cb_op_id like, cb_opcode code, cb_value_id in,
                        const cb_attrs *attrs, cb_value_id *out, cb_error *err) {
    const uint8_t phase = to->phase, constraint = to->constraint;
    const uint32_t location = to->location, region = to->region;
    cb_op_id id;
    to->location = x->g->ops.at[like].location;
    to->region = x->g->ops.at[like].region;
    to->phase = CB_FORWARD;
    to->constraint = CB_FREE;
    const cb_status status = cb_graph_append(to, code, 1, &in, attrs, &id, err);
    to->location = location;
    to->region = region;
    to->phase = phase;
    to->constraint = constraint;
    if (status == CB_OK) *out = to->ops.at[id].out_begin;
    return status;
}

/* Makes the copy of one value, whose input, if it is a view, has a copy. */
static cb_status copy_one(const packs *x, cb_graph *to, cb_value_id value, cb_error *err) {
    const cb_graph *g = x->g;
    const cb_value *v = &g->values.at[value];
    const bool is_index = x->how[v->storage] == AS_BYTES;
    cb_attrs attrs = {.i = {0}};
    if (is_view(g, v->producer))
        return append(x, to, v->producer, g->ops.at[v->producer].code,
                      x->copy[cb_op_ins(g, v->producer)[0]], cb_op_attrs(g, v->producer),
                      &x->copy[value], err);
    if (is_index) attrs = positions_of(g, v->producer);
    attrs.dims = v->shape;
    attrs.dtype = is_index ? v->dtype : attrs.dtype;
    return append(x, to, v->producer, is_index ? CB_OP_UNPACK_INDEX : CB_OP_UNPACK_BITS,
                  x->packed[v->storage], &attrs, &x->copy[value], err);
}

/* Packs a value of the forward, whose value in the new graph is `whole`. */
static cb_status pack_one(const packs *x, cb_graph *to, cb_value_id value, cb_value_id whole,
                          cb_error *err) {
    const cb_value *v = &x->g->values.at[value];
    cb_value_id *packed = &x->packed[v->storage];
    if (x->how[v->storage] != AS_BYTES)
        return append(x, to, v->producer, CB_OP_PACK_BITS, whole, NULL, packed, err);
    const cb_attrs attrs = positions_of(x->g, v->producer);
    return append(x, to, v->producer, CB_OP_PACK_INDEX, whole, &attrs, packed, err);
}

/* Finds the copy of a value, or makes it. Goes up the chain of views for each one that has no copy
 * yet, which is short. */
static cb_status copy_of(const packs *x, cb_graph *to, cb_value_id value, cb_value_id *out,
                         cb_error *err) {
    const cb_graph *g = x->g;
    while (x->copy[value] == CB_NONE) {
        cb_value_id next = value;
        while (is_view(g, g->values.at[next].producer) &&
               x->copy[cb_op_ins(g, g->values.at[next].producer)[0]] == CB_NONE)
            next = cb_op_ins(g, g->values.at[next].producer)[0];
        CB_TRY(copy_one(x, to, next, err));
    }
    *out = x->copy[value];
    return CB_OK;
}

/* relu_bwd(g, y) is g where y is above 0 or NaN, and else 0. */
static cb_status emit_by_sign(const packs *x, cb_graph *to, cb_op_id id, const cb_value_id *map,
                              cb_value_id *outs, cb_error *err) {
    const cb_value_id *in = cb_op_ins(x->g, id);
    const cb_value *v = &x->g->values.at[in[0]];
    const uint8_t phase = to->phase;
    cb_value_id three[3];
    cb_op_id made;
    CB_TRY(copy_of(x, to, in[1], &three[0], err));
    three[1] = map[in[0]];
    to->phase = CB_FORWARD;
    const cb_status status = cb_build_full(to, &v->shape, v->dtype, 0, &three[2], err);
    to->phase = phase;
    CB_TRY(status);
    CB_TRY(cb_graph_append(to, CB_OP_WHERE, 3, three, NULL, &made, err));
    outs[0] = to->ops.at[made].out_begin;
    return CB_OK;
}

static cb_status emit(void *user, cb_graph *to, cb_op_id id, const cb_value_id *map,
                      cb_value_id *outs, cb_error *err) {
    const packs *x = user;
    const cb_graph *g = x->g;
    const cb_op *op = &g->ops.at[id];
    const bool is_late = id >= g->backward_starts;
    cb_op_id made;
    for (uint32_t k = 0; k < op->n_in; k++) {
        const cb_value_id in = cb_op_ins(g, id)[k];
        if (is_late && how_read(x, in) == AS_SIGNS) return emit_by_sign(x, to, id, map, outs, err);
        x->ins[k] = map[in];
        if (is_late && how_read(x, in) != STAYS) CB_TRY(copy_of(x, to, in, &x->ins[k], err));
    }
    CB_TRY(cb_graph_append(to, op->code, op->n_in, x->ins, cb_op_attrs(g, id), &made, err));
    to->ops.at[made].name = op->name;
    for (uint32_t k = 0; k < op->n_out; k++) {
        const cb_storage_id s = g->values.at[op->out_begin + k].storage;
        outs[k] = to->ops.at[made].out_begin + k;
        if (is_late && x->how[s] != STAYS) x->copy[op->out_begin + k] = outs[k]; /* a view */
        if (is_late || x->how[s] == STAYS) continue;
        CB_TRY(pack_one(x, to, op->out_begin + k, outs[k], err));
    }
    return CB_OK;
}

static uint32_t most_inputs(const cb_graph *g) {
    uint32_t most = 0;
    for (size_t i = 0; i < g->ops.len; i++)
        if (g->ops.at[i].n_in > most) most = g->ops.at[i].n_in;
    return most;
}

cb_status cb_pack_saves(const cb_graph *g, cb_alloc *alloc, cb_graph **out, cb_error *err) {
    cb_arena scratch;
    packs x = {.g = g};
    const cb_replacing by = {.user = &x, .wants = wants, .emit = emit};
    cb_status status;
    *out = NULL;
    cb_arena_init(&scratch, alloc);
    x.how = CB_NEW(&scratch, uint8_t, g->storages.len);
    x.is_late = CB_NEW(&scratch, bool, g->storages.len);
    x.packed = CB_NEW(&scratch, cb_value_id, g->storages.len);
    x.copy = CB_NEW(&scratch, cb_value_id, g->values.len);
    x.ins = CB_NEW(&scratch, cb_value_id, most_inputs(g));
    status = x.how && x.is_late && x.packed && x.copy && x.ins ? CB_OK : cb_no_memory(err);
    if (status == CB_OK && find(&x)) status = cb_graph_replace(g, &by, alloc, out, err);
    cb_arena_free(&scratch);
    return status;
}
