/* The JSON form of a graph.
 *
 *     {"format": "cutback.graph", "version": 1, "backward_starts": 12,
 *      "regions": [{"name": "block0", "parent": null, "saved_limit": null}],
 *      "ops": [{"op": "mul", "in": [8, 7], "attrs": {},
 *               "out": [{"dtype": "f32", "shape": [8, 32]}], "name": "h",
 *               "location": "model.py:12", "phase": "backward", "region": 0,
 *               "constraint": "must_save", "origin": 3}],
 *      "outputs": [{"value": 8, "name": "loss", "kind": "result", "input": 0}]}
 *
 * Values are numbered by the outputs of the ops in their order. A key that is missing or null
 * stands for no value (phase: forward, constraint: free). JSON has no infinities: attributes that
 * are not finite are the strings "inf", "-inf" and "nan". */
#include "graph_json.h"

#include <inttypes.h>
#include <math.h>

#include "../base/json.h"
#include "form.h"

/* ---- writing --------------------------------------------------------------------------------- */

static void put_id(cb_json_writer *w, const char *key, uint32_t id) {
    if (id != CB_NONE) cb_json_put_int(w, key, id);
}

static void put_name(cb_json_writer *w, const cb_graph *g, const char *key, uint32_t id) {
    if (id != CB_NONE) cb_json_put_string(w, key, cb_graph_name(g, id));
}

static void put_dims(cb_json_writer *w, const char *key, const cb_shape *s) {
    cb_json_begin(w, key, '[');
    for (int32_t k = 0; k < s->rank; k++) cb_json_put_int(w, NULL, s->dim[k]);
    cb_json_end(w, ']');
}

static void put_number(cb_json_writer *w, const char *key, double v) {
    if (isfinite(v)) cb_json_put_double(w, key, v);
    else cb_json_put_string(w, key, isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
}

static void put_attrs(cb_json_writer *w, const cb_graph *g, cb_op_id id) {
    const cb_attrs *a = cb_op_attrs(g, id);
    const cb_opcode code = g->ops.at[id].code;
    cb_attr_slot slot;
    cb_json_begin(w, "attrs", '{');
    for (int k = 0; cb_op_attr(code, k, &slot); k++) {
        char key[32] = {0};
        if (cb_form_is_implied(code, &slot)) continue;
        memcpy(key, slot.name, slot.name_length < sizeof key ? slot.name_length : sizeof key - 1);
        switch (slot.kind) {
            case CB_ATTR_F: put_number(w, key, a->f[slot.index]); break;
            case CB_ATTR_DIMS: put_dims(w, key, &a->dims); break;
            case CB_ATTR_DTYPE: cb_json_put_string(w, key, cb_dtype_name(a->dtype)); break;
            case CB_ATTR_I:
                if (code == CB_OP_INPUT) cb_json_put_string(w, key, cb_role_words.word[a->i[0]]);
                else cb_json_put_int(w, key, a->i[slot.index]);
                break;
        }
    }
    cb_json_end(w, '}');
}

static void put_op(cb_json_writer *w, const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    cb_json_begin(w, NULL, '{');
    cb_json_put_string(w, "op", cb_op_def_of(op->code)->name);
    cb_json_begin(w, "in", '[');
    for (uint32_t i = 0; i < op->n_in; i++) cb_json_put_int(w, NULL, cb_op_ins(g, id)[i]);
    cb_json_end(w, ']');
    put_attrs(w, g, id);
    cb_json_begin(w, "out", '[');
    for (uint32_t k = 0; k < op->n_out; k++) {
        const cb_value *v = &g->values.at[op->out_begin + k];
        cb_json_begin(w, NULL, '{');
        cb_json_put_string(w, "dtype", cb_dtype_name(v->dtype));
        put_dims(w, "shape", &v->shape);
        cb_json_end(w, '}');
    }
    cb_json_end(w, ']');
    put_name(w, g, "name", op->name);
    put_name(w, g, "location", op->location);
    if (op->phase != CB_FORWARD) cb_json_put_string(w, "phase", cb_phase_words.word[op->phase]);
    put_id(w, "region", op->region);
    if (op->constraint != CB_FREE)
        cb_json_put_string(w, "constraint", cb_constraint_words.word[op->constraint]);
    put_id(w, "origin", op->origin);
    cb_json_end(w, '}');
}

static void put_regions(cb_json_writer *w, const cb_graph *g) {
    cb_json_begin(w, "regions", '[');
    for (size_t i = 0; i < g->regions.len; i++) {
        const cb_region *r = &g->regions.at[i];
        cb_json_begin(w, NULL, '{');
        put_name(w, g, "name", r->name);
        put_id(w, "parent", r->parent);
        if (r->saved_limit != UINT64_MAX) cb_json_put_u64(w, "saved_limit", r->saved_limit);
        cb_json_end(w, '}');
    }
    cb_json_end(w, ']');
}

static void put_outputs(cb_json_writer *w, const cb_graph *g) {
    cb_json_begin(w, "outputs", '[');
    for (size_t i = 0; i < g->outputs.len; i++) {
        const cb_output *o = &g->outputs.at[i];
        cb_json_begin(w, NULL, '{');
        put_id(w, "value", o->value);
        put_name(w, g, "name", o->name);
        cb_json_put_string(w, "kind", cb_output_kind_words.word[o->kind]);
        put_id(w, "input", o->input);
        cb_json_end(w, '}');
    }
    cb_json_end(w, ']');
}

cb_status cb_graph_to_json(const cb_graph *g, cb_str *out, cb_error *err) {
    cb_json_writer w = {.out = out};
    cb_json_begin(&w, NULL, '{');
    cb_json_put_string(&w, "format", CB_FORM_NAME);
    cb_json_put_int(&w, "version", CB_FORM_VERSION);
    cb_json_put_u64(&w, "backward_starts", g->backward_starts);
    put_regions(&w, g);
    cb_json_begin(&w, "ops", '[');
    for (size_t op = 0; op < g->ops.len; op++) put_op(&w, g, (cb_op_id)op);
    cb_json_end(&w, ']');
    put_outputs(&w, g);
    cb_json_end(&w, '}');
    return out->failed ? cb_no_memory(err) : CB_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reader {
    cb_graph *graph;
    cb_arena scratch;
    CB_VEC(cb_value_id) ins; /* inputs of the op being read */
    cb_error *err;
} reader;

/* Adds a line to an error that has none. */
static cb_status blame(const reader *r, const cb_json *node, cb_status status,
                       const cb_error *why) {
    if (status == CB_NOMEM) return cb_no_memory(r->err);
    return cb_fail(r->err, status, "line %" PRIu32 ": %s", node->line, why->text);
}

/* Returns NULL if the key is absent or null. */
static const cb_json *find(const cb_json *object, const char *key) {
    const cb_json *node = cb_json_get(object, key);
    return node && node->kind != CB_JSON_NULL ? node : NULL;
}

static cb_status want_string(const reader *r, const cb_json *node, const char *what) {
    if (node->kind == CB_JSON_STRING) return CB_OK;
    return cb_fail(r->err, CB_INVALID, "line %" PRIu32 ": %s must be a string, not %s", node->line,
                   what, cb_json_kind_name(node->kind));
}

static cb_status want_object(const reader *r, const cb_json *node, const char *what) {
    if (node->kind == CB_JSON_OBJECT) return CB_OK;
    return cb_fail(r->err, CB_INVALID, "line %" PRIu32 ": %s must be an object, not %s", node->line,
                   what, cb_json_kind_name(node->kind));
}

static cb_status read_id(const reader *r, const cb_json *object, const char *key, uint32_t *out) {
    uint64_t value;
    const cb_json *node = find(object, key);
    if (!node) return CB_OK;
    CB_TRY(cb_json_as_u64(node, key, CB_NONE - 1, &value, r->err));
    *out = (uint32_t)value;
    return CB_OK;
}

static cb_status read_name(const reader *r, const cb_json *object, const char *key, uint32_t *out) {
    const cb_json *node = find(object, key);
    if (!node) return CB_OK;
    CB_TRY(want_string(r, node, key));
    return cb_graph_intern(r->graph, node->as.string, out, r->err);
}

static cb_status read_word(const reader *r, const cb_json *node, const cb_words *set,
                           uint32_t *out) {
    cb_error why = {0};
    CB_TRY(want_string(r, node, set->what));
    cb_status status = cb_word_find(set, node->as.string, node->n, out, &why);
    return status == CB_OK ? CB_OK : blame(r, node, status, &why);
}

static cb_status read_dims(const reader *r, const cb_json *node, const char *what, cb_shape *out) {
    cb_shape s = {0};
    if (node->kind != CB_JSON_ARRAY || node->n > CB_MAX_RANK) {
        return cb_fail(r->err, CB_INVALID,
                       "line %" PRIu32 ": %s must be a list of at most %d integers", node->line,
                       what, CB_MAX_RANK);
    }
    for (const cb_json *k = node->as.child; k; k = k->next) {
        CB_TRY(cb_json_as_i64(k, what, &s.dim[s.rank], r->err));
        s.rank++;
    }
    *out = s;
    return CB_OK;
}

static cb_status read_dtype(const reader *r, const cb_json *node, cb_dtype *out) {
    CB_TRY(want_string(r, node, "dtype"));
    if (cb_dtype_parse(node->as.string, node->n, out)) return CB_OK;
    return cb_fail(r->err, CB_INVALID, "line %" PRIu32 ": no element type has that name",
                   node->line);
}

static cb_status read_double(const reader *r, const cb_json *node, double *out) {
    if (node->kind != CB_JSON_STRING) return cb_json_as_double(node, "attribute", out, r->err);
    if (strcmp(node->as.string, "nan") == 0) *out = (double)NAN;
    else if (strcmp(node->as.string, "inf") == 0) *out = (double)INFINITY;
    else if (strcmp(node->as.string, "-inf") == 0) *out = -(double)INFINITY;
    else return cb_fail(r->err, CB_INVALID, "line %" PRIu32 ": not a number", node->line);
    return CB_OK;
}

static cb_status read_attr(const reader *r, const cb_json *node, cb_op_form *form) {
    cb_attr_slot slot;
    cb_error why = {0};
    cb_status status = cb_form_attr(form, node->key, strlen(node->key), &slot, &why);
    if (status != CB_OK) return blame(r, node, status, &why);
    switch (slot.kind) {
        case CB_ATTR_F: return read_double(r, node, &form->attrs.f[slot.index]);
        case CB_ATTR_DIMS: return read_dims(r, node, node->key, &form->attrs.dims);
        case CB_ATTR_DTYPE: return read_dtype(r, node, &form->attrs.dtype);
        case CB_ATTR_I: break;
    }
    if (form->code != CB_OP_INPUT)
        return cb_json_as_i64(node, node->key, &form->attrs.i[slot.index], r->err);
    uint32_t role;
    CB_TRY(read_word(r, node, &cb_role_words, &role));
    form->attrs.i[slot.index] = role;
    return CB_OK;
}

static cb_status read_ins(reader *r, const cb_json *op) {
    const cb_json *list;
    uint64_t id;
    r->ins.len = 0;
    CB_TRY(cb_json_want(op, "in", CB_JSON_ARRAY, &list, r->err));
    for (const cb_json *k = list->as.child; k; k = k->next) {
        CB_TRY(cb_json_as_u64(k, "in", CB_NONE - 1, &id, r->err));
        if (!CB_PUSH(&r->scratch, r->ins, (cb_value_id)id)) return cb_no_memory(r->err);
    }
    return CB_OK;
}

static cb_status read_outs(const reader *r, const cb_json *op, cb_op_form *form) {
    const cb_json *list, *dtype, *shape;
    CB_TRY(cb_json_want(op, "out", CB_JSON_ARRAY, &list, r->err));
    if (list->n > CB_MAX_OUTS) {
        return cb_fail(r->err, CB_INVALID, "line %" PRIu32 ": too many outputs for any op",
                       list->line);
    }
    for (const cb_json *k = list->as.child; k; k = k->next) {
        CB_TRY(want_object(r, k, "an output"));
        CB_TRY(cb_json_want(k, "dtype", CB_JSON_STRING, &dtype, r->err));
        CB_TRY(cb_json_want(k, "shape", CB_JSON_ARRAY, &shape, r->err));
        CB_TRY(read_dtype(r, dtype, &form->dtype[form->n_out]));
        CB_TRY(read_dims(r, shape, "shape", &form->shape[form->n_out]));
        form->n_out++;
    }
    return CB_OK;
}

static cb_status read_op(reader *r, const cb_json *op) {
    cb_op_form form = CB_OP_FORM_EMPTY;
    const cb_json *node;
    cb_error why = {0};
    CB_TRY(want_object(r, op, "an op"));
    CB_TRY(cb_json_want(op, "op", CB_JSON_STRING, &node, r->err));
    if (!cb_op_find(node->as.string, node->n, &form.code)) {
        return cb_fail(r->err, CB_INVALID, "line %" PRIu32 ": no op is called '%.40s'", node->line,
                       node->as.string);
    }
    CB_TRY(read_ins(r, op));
    CB_TRY(cb_json_want(op, "attrs", CB_JSON_OBJECT, &node, r->err));
    for (const cb_json *k = node->as.child; k; k = k->next) CB_TRY(read_attr(r, k, &form));
    CB_TRY(read_outs(r, op, &form));
    CB_TRY(read_name(r, op, "name", &form.name));
    CB_TRY(read_name(r, op, "location", &form.location));
    CB_TRY(read_id(r, op, "region", &form.region));
    CB_TRY(read_id(r, op, "origin", &form.origin));
    if ((node = find(op, "phase"))) CB_TRY(read_word(r, node, &cb_phase_words, &form.phase));
    if ((node = find(op, "constraint")))
        CB_TRY(read_word(r, node, &cb_constraint_words, &form.constraint));
    cb_status status = cb_form_append(r->graph, &form, (uint32_t)r->ins.len, r->ins.at, &why);
    return status == CB_OK ? CB_OK : blame(r, op, status, &why);
}

static cb_status read_region(reader *r, const cb_json *node) {
    uint32_t name = CB_NONE, parent = CB_NONE, id;
    uint64_t limit = UINT64_MAX;
    cb_error why = {0};
    CB_TRY(want_object(r, node, "a region"));
    CB_TRY(read_name(r, node, "name", &name));
    CB_TRY(read_id(r, node, "parent", &parent));
    const cb_json *saved = find(node, "saved_limit");
    if (saved) CB_TRY(cb_json_as_u64(saved, "saved_limit", INT64_MAX, &limit, r->err));
    cb_status status = cb_graph_append_region(
        r->graph, name == CB_NONE ? NULL : cb_graph_name(r->graph, name), parent, limit, &id, &why);
    return status == CB_OK ? CB_OK : blame(r, node, status, &why);
}

static cb_status read_output(reader *r, const cb_json *node) {
    uint32_t value = CB_NONE, name = CB_NONE, input = CB_NONE, kind;
    const cb_json *word;
    cb_error why = {0};
    CB_TRY(want_object(r, node, "an output"));
    CB_TRY(read_id(r, node, "value", &value));
    CB_TRY(read_name(r, node, "name", &name));
    CB_TRY(read_id(r, node, "input", &input));
    CB_TRY(cb_json_want(node, "kind", CB_JSON_STRING, &word, r->err));
    CB_TRY(read_word(r, word, &cb_output_kind_words, &kind));
    cb_status status = cb_graph_append_output(
        r->graph, value, name == CB_NONE ? NULL : cb_graph_name(r->graph, name),
        (cb_output_kind)kind, input, &why);
    return status == CB_OK ? CB_OK : blame(r, node, status, &why);
}

static cb_status read_header(const reader *r, const cb_json *root) {
    const cb_json *node;
    int64_t version;
    CB_TRY(want_object(r, root, "a graph"));
    CB_TRY(cb_json_want(root, "format", CB_JSON_STRING, &node, r->err));
    if (strcmp(node->as.string, CB_FORM_NAME) != 0) {
        return cb_fail(r->err, CB_INVALID, "format is '%.40s', not '%s'", node->as.string,
                       CB_FORM_NAME);
    }
    CB_TRY(cb_json_want(root, "version", CB_JSON_INT, &node, r->err));
    CB_TRY(cb_json_as_i64(node, "version", &version, r->err));
    if (version == CB_FORM_VERSION) return CB_OK;
    return cb_fail(r->err, CB_UNSUPPORTED,
                   "format version %" PRId64 "; this library reads version %d", version,
                   CB_FORM_VERSION);
}

static cb_status read_graph(reader *r, const cb_json *root) {
    const cb_json *list;
    uint32_t backward_starts = CB_NONE;
    cb_graph *g = r->graph;
    CB_TRY(read_header(r, root));
    CB_TRY(cb_json_want(root, "regions", CB_JSON_ARRAY, &list, r->err));
    for (const cb_json *k = list->as.child; k; k = k->next) CB_TRY(read_region(r, k));
    CB_TRY(cb_json_want(root, "ops", CB_JSON_ARRAY, &list, r->err));
    for (const cb_json *k = list->as.child; k; k = k->next) CB_TRY(read_op(r, k));
    CB_TRY(cb_json_want(root, "outputs", CB_JSON_ARRAY, &list, r->err));
    for (const cb_json *k = list->as.child; k; k = k->next) CB_TRY(read_output(r, k));
    CB_TRY(read_id(r, root, "backward_starts", &backward_starts));
    if (backward_starts != CB_NONE && backward_starts > g->ops.len) {
        return cb_fail(r->err, CB_INVALID,
                       "backward_starts is %" PRIu32 ", but the graph has %zu ops", backward_starts,
                       g->ops.len);
    }
    if (backward_starts != CB_NONE) g->backward_starts = backward_starts;
    cb_form_reset_current(g);
    return CB_OK;
}

cb_status cb_graph_from_json(cb_alloc *alloc, const char *text, size_t length, cb_graph **out,
                             cb_error *err) {
    reader r = {.err = err};
    const cb_json *root;
    cb_status status;
    cb_arena_init(&r.scratch, alloc);
    CB_TRY_DONE(cb_json_parse(&r.scratch, text, length, &root, err));
    CB_TRY_DONE(cb_graph_create(alloc, &r.graph, err));
    CB_TRY_DONE(read_graph(&r, root));
    *out = r.graph;
    r.graph = NULL;
done:
    cb_graph_free(r.graph);
    cb_arena_free(&r.scratch);
    return status;
}
