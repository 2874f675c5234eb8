#include "replay.h"

#include "../ir/builder.h"

typedef struct mapping {
    cb_value_id *to; /* [n] CB_NONE: the value stays */
    cb_arena *scratch;
} mapping;

static cb_value_id mapped(const mapping *m, cb_value_id value) {
    return m->to[value] == CB_NONE ? value : m->to[value];
}

static cb_status append_again(cb_graph *g, cb_op_id id, const mapping *m, cb_error *err) {
    const cb_op op = g->ops.at[id];
    const cb_attrs attrs = *cb_op_attrs(g, id);
    cb_value_id *ins, *outs;
    bool depends = false;
    for (uint32_t i = 0; i < op.n_in && !depends; i++)
        depends = m->to[cb_op_ins(g, id)[i]] != CB_NONE;
    if (!depends) return CB_OK;
    CB_TRY_NEW(ins, m->scratch, op.n_in, err);
    CB_TRY_NEW(outs, m->scratch, op.n_out, err);
    for (uint32_t i = 0; i < op.n_in; i++) ins[i] = mapped(m, cb_op_ins(g, id)[i]);
    CB_TRY(cb_build(g, op.code, op.n_in, ins, &attrs, outs, err)); /* copies what is strided now */
    for (uint32_t i = 0; i < op.n_out; i++) m->to[op.out_begin + i] = outs[i];
    return CB_OK;
}

cb_status cb_replay_ops(cb_graph *g, const cb_replay *r, cb_value_id *results, uint32_t n_results,
                        cb_arena *scratch, cb_error *err) {
    const size_t n_values = g->values.len;
    mapping m = {.scratch = scratch};
    cb_op_id begin = r->end;
    CB_TRY_NEW(m.to, scratch, n_values, err);
    for (size_t i = 0; i < n_values; i++) m.to[i] = CB_NONE;
    for (uint32_t i = 0; i < r->n; i++) {
        const cb_op_id producer = g->values.at[r->from[i]].producer;
        m.to[r->from[i]] = r->to[i];
        if (producer < begin) begin = producer; /* earlier ops cannot depend on `from` */
    }
    for (cb_op_id i = begin; i < r->end; i++) CB_TRY(append_again(g, i, &m, err));
    for (uint32_t i = 0; i < n_results; i++) results[i] = mapped(&m, results[i]);
    return CB_OK;
}
