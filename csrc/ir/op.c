#include "op.h"

#include <inttypes.h>
#include <string.h>

static const cb_op_def defs[CB_OP_COUNT] = {
#define CB_OP(id, text, least, most, outs, flag_set, infer, gradient, attributes, meaning) \
    [CB_OP_##id] = {.name = (text),                                                        \
                    .min_ins = (least),                                                    \
                    .max_ins = (most),                                                     \
                    .n_outs = (outs),                                                      \
                    .flags = (flag_set),                                                   \
                    .attrs = (attributes),                                                 \
                    .doc = (meaning),                                                      \
                    .vjp = #gradient},
#include "ops.def"
#undef CB_OP
};

const cb_op_def *cb_op_def_of(cb_opcode code) { return &defs[code]; }

cb_status cb_op_check_call(cb_opcode code, uint32_t n_ins, cb_error *err) {
    if ((int)code < 0 || code >= CB_OP_COUNT)
        return cb_fail(err, CB_INVALID, "unknown op %d", (int)code);
    const cb_op_def *def = cb_op_def_of(code);
    if (n_ins >= (uint32_t)def->min_ins && (def->max_ins < 0 || n_ins <= (uint32_t)def->max_ins))
        return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: takes %s%d inputs, got %" PRIu32, def->name,
                   def->max_ins < 0 ? "at least " : "", def->min_ins, n_ins);
}

int cb_op_index_input(cb_opcode code) {
    switch (code) {
        case CB_OP_GATHER:
        case CB_OP_SCATTER_ADD:
        case CB_OP_EMBEDDING:
        case CB_OP_EMBEDDING_BWD:
        case CB_OP_CROSS_ENTROPY: return 1;
        case CB_OP_CROSS_ENTROPY_BWD: return 2;
        default: return -1;
    }
}

int64_t cb_packed_index_bytes(const cb_attrs *attrs) {
    const int64_t *a = attrs->i, numbers = a[0] ? a[0] * a[1] : a[7];
    return numbers <= 1 << 8 ? 1 : numbers <= 1 << 16 ? 2 : 4;
}

/* About a hundred short names: linear search costs less than maintaining a table. */
bool cb_op_find(const char *name, size_t length, cb_opcode *out) {
    for (int code = 0; code < CB_OP_COUNT; code++) {
        if (strlen(defs[code].name) == length && memcmp(defs[code].name, name, length) == 0) {
            *out = (cb_opcode)code;
            return true;
        }
    }
    return false;
}

/* Scans "name=slot name=slot": rows are short, and only text forms and the builder call this. */
bool cb_op_attr(cb_opcode code, int index, cb_attr_slot *out) {
    const char *at = defs[code].attrs;
    for (; *at && index > 0; index--) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    if (!*at || index < 0) return false;
    out->name = at;
    out->name_length = strcspn(at, "=");
    const char *slot = at + out->name_length + 1;
    switch (slot[0]) {
        case 'f': out->kind = CB_ATTR_F; break;
        case 'i': out->kind = CB_ATTR_I; break;
        case 'd': out->kind = CB_ATTR_DIMS; break;
        default: out->kind = CB_ATTR_DTYPE; break;
    }
    out->index = out->kind == CB_ATTR_F || out->kind == CB_ATTR_I ? slot[1] - '0' : 0;
    return true;
}
