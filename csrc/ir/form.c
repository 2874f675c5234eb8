/* Words are looked up by linear search, because the sets are small. cb_graph_append checks
 * everything about an op, so a file cannot contain what the builder would refuse. */
#include "form.h"

#include <inttypes.h>

#define WORDS(name, label, ...)                             \
    static const char *const name##_list[] = {__VA_ARGS__}; \
    const cb_words cb_##name##_words = {                    \
        .what = (label), .word = name##_list, .n = sizeof name##_list / sizeof *name##_list}

WORDS(role, "role", "data", "param", "tangent", "state");
WORDS(phase, "phase", "forward", "backward");
WORDS(constraint, "constraint", "free", "must_save", "prefer_save", "must_recompute",
      "prefer_recompute", "must_offload", "prefer_offload");
WORDS(output_kind, "output kind", "result", "state", "grad");

/* Returns the number of characters of a hostile word that an error repeats. */
static int shown(size_t length) { return length < 40 ? (int)length : 40; }

cb_status cb_word_find(const cb_words *set, const char *text, size_t length, uint32_t *out,
                       cb_error *err) {
    for (uint32_t k = 0; k < set->n; k++) {
        if (strlen(set->word[k]) != length || memcmp(set->word[k], text, length) != 0) continue;
        *out = k;
        return CB_OK;
    }
    return cb_fail(err, CB_INVALID, "no %s is called '%.*s'", set->what, shown(length), text);
}

cb_status cb_form_attr(cb_op_form *form, const char *name, size_t length, cb_attr_slot *slot,
                       cb_error *err) {
    const char *op = cb_op_def_of(form->code)->name;
    for (int k = 0; cb_op_attr(form->code, k, slot); k++) {
        if (slot->name_length != length || memcmp(slot->name, name, length) != 0) continue;
        if (cb_form_is_implied(form->code, slot)) break;
        if (form->seen >> k & 1) {
            return cb_fail(err, CB_INVALID, "%s: attribute '%.*s' is given twice", op,
                           shown(length), name);
        }
        form->seen |= 1u << k;
        return CB_OK;
    }
    return cb_fail(err, CB_INVALID, "%s: has no attribute '%.*s'", op, shown(length), name);
}

bool cb_form_is_implied(cb_opcode code, const cb_attr_slot *slot) {
    return cb_op_def_of(code)->max_ins == 0 &&
           (slot->kind == CB_ATTR_DIMS || slot->kind == CB_ATTR_DTYPE);
}

static cb_status check_given(const cb_op_form *form, cb_error *err) {
    const cb_op_def *def = cb_op_def_of(form->code);
    cb_attr_slot slot;
    for (int k = 0; cb_op_attr(form->code, k, &slot); k++) {
        if (form->seen >> k & 1 || cb_form_is_implied(form->code, &slot)) continue;
        return cb_fail(err, CB_INVALID, "%s: attribute '%.*s' is missing", def->name,
                       (int)slot.name_length, slot.name);
    }
    if (form->n_out == (uint32_t)def->n_outs) return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: has %d outputs, but %" PRIu32 " are given", def->name,
                   def->n_outs, form->n_out);
}

cb_status cb_form_append(cb_graph *g, cb_op_form *form, uint32_t n_ins, const cb_value_id *ins,
                         cb_error *err) {
    cb_op_id op;
    char have[CB_SHAPE_TEXT], want[CB_SHAPE_TEXT];
    CB_TRY(check_given(form, err));
    if (form->region != CB_NONE && form->region >= g->regions.len)
        return cb_fail(err, CB_INVALID, "the graph has no region %" PRIu32, form->region);
    if (cb_op_def_of(form->code)->max_ins == 0) {
        form->attrs.dims = form->shape[0];
        form->attrs.dtype = form->dtype[0];
    }
    g->location = form->location;
    g->region = form->region;
    g->phase = (uint8_t)form->phase;
    g->constraint = (uint8_t)form->constraint;
    CB_TRY(cb_graph_append(g, form->code, n_ins, ins, &form->attrs, &op, err));
    g->ops.at[op].name = form->name;
    g->ops.at[op].origin = form->origin;
    for (uint32_t k = 0; k < form->n_out; k++) {
        const cb_value *v = &g->values.at[g->ops.at[op].out_begin + k];
        if (v->dtype == form->dtype[k] && cb_shape_equal(&v->shape, &form->shape[k])) continue;
        return cb_fail(err, CB_INVALID, "%s: output %" PRIu32 " is %s %s, not %s %s",
                       cb_op_def_of(form->code)->name, k, cb_dtype_name(v->dtype),
                       cb_shape_text(&v->shape, have), cb_dtype_name(form->dtype[k]),
                       cb_shape_text(&form->shape[k], want));
    }
    return CB_OK;
}

void cb_form_reset_current(cb_graph *g) {
    g->location = CB_NONE;
    g->region = CB_NONE;
    g->phase = CB_FORWARD;
    g->constraint = CB_FREE;
}
