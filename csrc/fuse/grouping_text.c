/* Writes groups as text for people: one op of the problem on each line, with its members under the
 * names that they have in the problem of single ops. Values have the ids of the joint graph.
 *
 *     cutback.groups 1
 *     op 4: matmul_4(%4)
 *     op 5 [8192x1024] kernel 2: add_5(%5), gelu_6(%7) gives %7 takes in %3
 *
 * Ops that could run as one have the same kernel number. An op `takes in` values that other ops
 * make and that its runs may compute as well. */
#include <inttypes.h>

#include "grouping.h"

static void print_members(const cb_grouping *x, const cb_graph *g, uint32_t op, cb_str *out) {
    for (uint32_t k = x->begin[op]; k < x->begin[op + 1]; k++) {
        const cb_op *o = &g->ops.at[x->member[k]];
        cb_str_addf(out, "%s%s_%" PRIu32 "(%%%" PRIu32 ")", k > x->begin[op] ? ", " : "",
                    cb_op_def_of(o->code)->name, x->member[k], o->out_begin);
    }
}

static void print_given(const cb_grouping *x, const cb_graph *g, uint32_t op, cb_str *out) {
    const char *before = " gives";
    for (uint32_t k = x->begin[op]; k < x->begin[op + 1]; k++) {
        const cb_op *o = &g->ops.at[x->member[k]];
        for (uint32_t v = o->out_begin; v < o->out_begin + o->n_out; v++) {
            if (!x->is_given[v]) continue;
            cb_str_addf(out, "%s %%%" PRIu32, before, v);
            before = "";
        }
    }
}

cb_status cb_grouping_print(const cb_grouping *x, const cb_graph *g, cb_str *out, cb_error *err) {
    uint32_t wish = 0;
    cb_str_addf(out, "cutback.groups 1\n");
    for (uint32_t op = 0; op < x->n_op; op++) {
        const cb_domain domain = x->domain[op];
        const char *before = " takes in";
        cb_str_addf(out, "op %" PRIu32, op);
        if (domain.inner > 0)
            cb_str_addf(out, " [%" PRId64 "x%" PRId64 "x%" PRId64 "]",
                        domain.count / domain.columns / domain.inner, domain.columns, domain.inner);
        else if (domain.columns > 0)
            cb_str_addf(out, " [%" PRId64 "x%" PRId64 "]", domain.count / domain.columns,
                        domain.columns);
        else if (domain.count > 0) cb_str_addf(out, " [%" PRId64 "]", domain.count);
        if (x->kernel[op] != CB_NONE) cb_str_addf(out, " kernel %" PRIu32, x->kernel[op]);
        cb_str_addf(out, ": ");
        print_members(x, g, op, out);
        if (cb_group_size(x, op) > 1) print_given(x, g, op, out);
        for (; wish < x->n_inlining && x->inlining[wish].op == op; wish++, before = "")
            cb_str_addf(out, "%s %%%" PRIu32, before, x->inlining[wish].value);
        cb_str_addf(out, "\n");
    }
    return out->failed ? cb_no_memory(err) : CB_OK;
}
