#include "lacking.h"

#include "expand_attention.h"

typedef struct lacking {
    bool (*lacks)(cb_opcode code);
} lacking;

static bool wants(void *user, const cb_graph *g, cb_op_id id) {
    return ((const lacking *)user)->lacks(g->ops.at[id].code);
}

static cb_status replace(cb_graph *to, cb_opcode code, const cb_attrs *attrs, uint32_t n_ins,
                         const cb_value_id *ins, cb_value_id *outs, cb_error *err) {
    cb_emit e = {.graph = to, .err = err};
    cb_expand_attention(&e, code, attrs, n_ins, ins, outs);
    return e.status;
}

cb_status cb_expand_lacking(const cb_graph *g, bool (*lacks)(cb_opcode code), cb_alloc *alloc,
                            cb_graph **out, cb_error *err) {
    lacking user = {lacks};
    const cb_replacing by = {.user = &user, .wants = wants, .replace = replace};
    bool any = false;
    *out = NULL;
    for (size_t i = 0; lacks && i < g->ops.len && !any; i++) any = lacks(g->ops.at[i].code);
    return any ? cb_graph_replace(g, &by, alloc, out, err) : CB_OK;
}
