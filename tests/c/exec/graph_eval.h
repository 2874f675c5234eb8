/* graph_eval.h: runs a graph op by op in the order of ids on the reference kernels, for tests.
 * Every storage is a separate block, which its views share.
 *
 *     eval e;
 *     CHECK_OK(eval_init(&e, graph, &alloc, &err));
 *     eval_put(&e, eval_input(&e, 0), k, 1.5);        // element k of input 0
 *     CHECK_OK(eval_run(&e, &err));
 *     double loss = eval_get(&e, graph->outputs.at[0].value, 0);
 *     eval_free(&e); */
#ifndef CB_TESTS_GRAPH_EVAL_H
#define CB_TESTS_GRAPH_EVAL_H

#include "exec/ref/ref_op.h"
#include "exec/ref/ref_ops.h"
#include "ir/graph.h"

typedef struct eval {
    const cb_graph *g;
    cb_arena arena;
    void **storage;    /* [storages] */
    cb_tensor *tensor; /* [values] */
    cb_philox random;  /* seed and step */
} eval;

static inline cb_status eval_init(eval *e, const cb_graph *g, cb_alloc *alloc, cb_error *error) {
    *e = (eval){.g = g, .random = {.seed = 7, .step = 1}};
    cb_arena_init(&e->arena, alloc);
    e->storage = CB_NEW(&e->arena, void *, g->storages.len);
    e->tensor = CB_NEW(&e->arena, cb_tensor, g->values.len);
    bool whole = e->storage && e->tensor;
    for (size_t i = 0; whole && i < g->storages.len; i++) {
        e->storage[i] = cb_arena_get(&e->arena, (size_t)g->storages.at[i].bytes + 8, 1);
        whole = e->storage[i] != NULL;
    }
    for (size_t i = 0; whole && i < g->values.len; i++) {
        const cb_value *v = &g->values.at[i];
        cb_tensor *t = &e->tensor[i];
        *t = (cb_tensor){.dtype = v->dtype, .shape = v->shape};
        memcpy(t->stride, v->stride, sizeof t->stride);
        t->data = (char *)e->storage[v->storage] + v->offset * (int64_t)cb_dtype_size(v->dtype);
    }
    return whole ? CB_OK : cb_no_memory(error);
}

static inline void eval_free(eval *e) { cb_arena_free(&e->arena); }

static inline cb_value_id eval_input(const eval *e, uint32_t position) {
    return e->g->ops.at[e->g->inputs.at[position]].out_begin;
}

static inline void eval_put(eval *e, cb_value_id value, int64_t element, double x) {
    cb_ref_put(&e->tensor[value], element, x);
}

static inline double eval_get(const eval *e, cb_value_id value, int64_t element) {
    return cb_ref_get(&e->tensor[value], element);
}

static inline cb_status eval_run(eval *e, cb_error *error) {
    for (cb_op_id i = 0; i < e->g->ops.len; i++) {
        const cb_op *op = &e->g->ops.at[i];
        cb_tensor in[16];
        if (cb_op_flags(e->g, i) & (CB_OPF_VIEW | CB_OPF_SOURCE)) continue;
        if (op->n_in > 16) return cb_fail(error, CB_UNSUPPORTED, "eval: more than 16 inputs");
        for (uint32_t k = 0; k < op->n_in; k++) in[k] = e->tensor[cb_op_ins(e->g, i)[k]];
        CB_TRY(cb_ref_op(op->code, cb_op_attrs(e->g, i), op->n_in, in, op->n_out,
                         e->tensor + op->out_begin, &e->random, error));
    }
    return CB_OK;
}

#endif
