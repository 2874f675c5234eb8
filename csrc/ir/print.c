/* Writes the text form. The same graph gives the same bytes. */
#include <inttypes.h>
#include <math.h>

#include "../base/json.h"
#include "form.h"
#include "text.h"

/* Strings are written as JSON writes them, and read as JSON reads them. */
static void put_string(cb_str *s, const char *text) {
    cb_json_writer w = {.out = s};
    cb_json_put_string(&w, NULL, text);
}

static void put_number(cb_str *s, double v) {
    cb_json_writer w = {.out = s};
    if (isnan(v)) cb_str_addf(s, "nan");
    else if (isinf(v)) cb_str_addf(s, v < 0 ? "-inf" : "inf");
    else cb_json_put_double(&w, NULL, v);
}

static void put_dims(cb_str *s, const cb_shape *shape) {
    cb_str_addf(s, "[");
    for (int32_t k = 0; k < shape->rank; k++)
        cb_str_addf(s, "%s%" PRId64, k ? "," : "", shape->dim[k]);
    cb_str_addf(s, "]");
}

static void put_attr(cb_str *s, const cb_graph *g, cb_op_id id, const cb_attr_slot *slot) {
    const cb_attrs *a = cb_op_attrs(g, id);
    cb_str_addf(s, "%.*s=", (int)slot->name_length, slot->name);
    switch (slot->kind) {
        case CB_ATTR_F: put_number(s, a->f[slot->index]); break;
        case CB_ATTR_DIMS: put_dims(s, &a->dims); break;
        case CB_ATTR_DTYPE: cb_str_addf(s, "%s", cb_dtype_name(a->dtype)); break;
        case CB_ATTR_I:
            if (g->ops.at[id].code == CB_OP_INPUT)
                cb_str_addf(s, "%s", cb_role_words.word[a->i[0]]);
            else cb_str_addf(s, "%" PRId64, a->i[slot->index]);
            break;
    }
}

static void put_attrs(cb_str *s, const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const char *before = " {";
    cb_attr_slot slot;
    for (int k = 0; cb_op_attr(op->code, k, &slot); k++) {
        if (cb_form_is_implied(op->code, &slot)) continue;
        cb_str_addf(s, "%s", before);
        put_attr(s, g, id, &slot);
        before = ", ";
    }
    if (op->name != CB_NONE) {
        cb_str_addf(s, "%sname=", before);
        put_string(s, cb_graph_name(g, op->name));
        before = ", ";
    }
    if (before[0] == ',') cb_str_addf(s, "}");
}

static void put_op(cb_str *s, const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    for (uint32_t k = 0; k < op->n_out; k++)
        cb_str_addf(s, "%s%%%" PRIu32, k ? ", " : "", op->out_begin + k);
    cb_str_addf(s, " = %s", cb_op_def_of(op->code)->name);
    for (uint32_t i = 0; i < op->n_in; i++)
        cb_str_addf(s, "%s%%%" PRIu32, i ? ", " : "(", cb_op_ins(g, id)[i]);
    if (op->n_in) cb_str_addf(s, ")");
    put_attrs(s, g, id);
    for (uint32_t k = 0; k < op->n_out; k++) {
        const cb_value *v = &g->values.at[op->out_begin + k];
        cb_str_addf(s, "%s%s", k ? ", " : " : ", cb_dtype_name(v->dtype));
        put_dims(s, &v->shape);
    }
    if (op->location != CB_NONE) {
        cb_str_addf(s, " @");
        put_string(s, cb_graph_name(g, op->location));
    }
    if (op->phase == CB_BACKWARD) cb_str_addf(s, " phase=backward");
    if (op->region != CB_NONE) cb_str_addf(s, " region=%" PRIu32, op->region);
    if (op->constraint != CB_FREE)
        cb_str_addf(s, " constraint=%s", cb_constraint_words.word[op->constraint]);
    if (op->origin != CB_NONE) cb_str_addf(s, " origin=%" PRIu32, op->origin);
    cb_str_addf(s, "\n");
}

static void put_region(cb_str *s, const cb_graph *g, uint32_t id) {
    const cb_region *r = &g->regions.at[id];
    cb_str_addf(s, "region %" PRIu32, id);
    if (r->name != CB_NONE) {
        cb_str_addf(s, " ");
        put_string(s, cb_graph_name(g, r->name));
    }
    if (r->parent == CB_NONE) cb_str_addf(s, " parent=none");
    else cb_str_addf(s, " parent=%" PRIu32, r->parent);
    if (r->saved_limit == UINT64_MAX) cb_str_addf(s, " limit=none\n");
    else cb_str_addf(s, " limit=%" PRIu64 "\n", r->saved_limit);
}

static void put_output(cb_str *s, const cb_graph *g, const cb_output *o) {
    cb_str_addf(s, "output ");
    if (o->name != CB_NONE) {
        put_string(s, cb_graph_name(g, o->name));
        cb_str_addf(s, " ");
    }
    cb_str_addf(s, "%%%" PRIu32 " %s", o->value, cb_output_kind_words.word[o->kind]);
    if (o->input != CB_NONE) cb_str_addf(s, " input=%" PRIu32, o->input);
    cb_str_addf(s, "\n");
}

cb_status cb_graph_print(const cb_graph *g, cb_str *out, cb_error *err) {
    cb_str_addf(out, "%s %d\n", CB_FORM_NAME, CB_FORM_VERSION);
    for (size_t i = 0; i < g->regions.len; i++) put_region(out, g, (uint32_t)i);
    for (size_t op = 0; op < g->ops.len; op++) {
        if (op == g->backward_starts) cb_str_addf(out, "--- backward\n");
        put_op(out, g, (cb_op_id)op);
    }
    for (size_t i = 0; i < g->outputs.len; i++) put_output(out, g, &g->outputs.at[i]);
    return out->failed ? cb_no_memory(err) : CB_OK;
}
