/* graph.h: the graph as flat arrays indexed by id.
 *
 * An op is a node; a value is one output of one op, a view (dtype, shape, strides, offset) into a
 * storage. Ops are only ever appended and only read values that exist: the order of ids is a
 * topological order and is the given execution order. Inputs of the graph are ops too (code INPUT,
 * one output).
 *
 *   op 3: layer_norm   inputs are g->in_value[in_begin ..], n_in of them;
 *                      outputs are the value ids out_begin .. out_begin + n_out - 1
 *   value 9            producer op 3, out_index 1, storage 7
 *   storage 7          bytes, root value (the one that allocated it)
 *
 * The files of this folder in order, each using only earlier ones: op; value; infer_checks;
 * infer_move, infer_nn, infer_pointwise; infer; graph; builder, copy, form, text, verify, work;
 * print, parse, graph_json. */
#ifndef CB_IR_GRAPH_H
#define CB_IR_GRAPH_H

#include "../base/map.h"
#include "../base/vec.h"
#include "value.h"

typedef enum cb_phase { CB_FORWARD = 0, CB_BACKWARD } cb_phase;

typedef struct cb_op {
    cb_opcode code;
    uint8_t phase;      /* cb_phase: BACKWARD when it depends on a tangent */
    uint8_t constraint; /* cb_constraint of its outputs */
    uint32_t in_begin;  /* first input in g->in_value */
    uint32_t n_in;
    cb_value_id out_begin; /* outputs have consecutive ids */
    uint32_t n_out;
    uint32_t attrs;    /* index into g->attrs */
    uint32_t location; /* id in g->names ("model.py:12"), CB_NONE: unknown */
    uint32_t name;     /* id in g->names: input name or checkpoint name, CB_NONE: none */
    uint32_t region;   /* id in g->regions, CB_NONE: outside every checkpoint */
    cb_op_id origin;   /* in a split graph: the op of the joint graph it is an instance of */
} cb_op;

typedef struct cb_storage {
    uint64_t bytes;
    cb_value_id root;
} cb_storage;

typedef enum cb_output_kind {
    CB_OUTPUT_RESULT = 0, /* a value that the user's function returns */
    CB_OUTPUT_STATE,      /* new value of input `input` (running statistics) */
    CB_OUTPUT_GRAD        /* gradient of input `input` */
} cb_output_kind;

typedef struct cb_output {
    cb_value_id value; /* never CB_NONE: a gradient that is zero everywhere is a `full` */
    uint32_t name;     /* id in g->names */
    cb_output_kind kind;
    uint32_t input; /* position among g->inputs; CB_NONE for results, and in a half of a split graph
                       that lacks the input */
} cb_output;

/* A `checkpoint(...)` region of the user's program. */
typedef struct cb_region {
    uint32_t name;        /* id in g->names */
    uint32_t parent;      /* CB_NONE: outermost */
    uint64_t saved_limit; /* limit on saved bytes of values made inside; UINT64_MAX: no limit */
} cb_region;

struct cb_graph {
    cb_arena arena;
    CB_VEC(cb_op) ops;
    CB_VEC(cb_value) values;
    CB_VEC(cb_storage) storages;
    CB_VEC(cb_value_id) in_value;
    CB_VEC(cb_attrs) attrs;
    CB_VEC(cb_op_id) inputs; /* INPUT ops, in argument order */
    CB_VEC(cb_output) outputs;
    CB_VEC(cb_region) regions;
    cb_names names;
    cb_op_id
        backward_starts; /* first op that autodiff appended; ops.len in a forward graph: appending
                            increases it, so autodiff sets it after adding its ops */
    /* attributes of ops appended from now on */
    uint32_t location, region;
    uint8_t phase, constraint;
};

CB_MUST_CHECK cb_status cb_graph_create(cb_alloc *alloc, cb_graph **out, cb_error *err);

static inline const cb_value_id *cb_op_ins(const cb_graph *g, cb_op_id op) {
    return g->in_value.at + g->ops.at[op].in_begin;
}
static inline const cb_attrs *cb_op_attrs(const cb_graph *g, cb_op_id op) {
    return &g->attrs.at[g->ops.at[op].attrs];
}
static inline const char *cb_graph_name(const cb_graph *g, uint32_t id) {
    return id == CB_NONE ? "" : g->names.text[id];
}
static inline uint32_t cb_op_flags(const cb_graph *g, cb_op_id op) {
    return cb_op_def_of(g->ops.at[op].code)->flags;
}

/* Appends one op exactly as given: equal shapes, contiguous where the op needs it; checks
 * everything and infers the outputs. The graph is unchanged on failure. `builder.h` is more
 * convenient. */
CB_MUST_CHECK cb_status cb_graph_append(cb_graph *g, cb_opcode code, uint32_t n_ins,
                                        const cb_value_id *ins, const cb_attrs *attrs,
                                        cb_op_id *out, cb_error *err);
CB_MUST_CHECK cb_status cb_graph_append_input(cb_graph *g, const char *name, cb_role role,
                                              cb_dtype dtype, const cb_shape *shape,
                                              cb_value_id *out, cb_error *err);
CB_MUST_CHECK cb_status cb_graph_append_output(cb_graph *g, cb_value_id value, const char *name,
                                               cb_output_kind kind, uint32_t input, cb_error *err);
CB_MUST_CHECK cb_status cb_graph_intern(cb_graph *g, const char *text, uint32_t *id, cb_error *err);
CB_MUST_CHECK cb_status cb_graph_append_region(cb_graph *g, const char *name, uint32_t parent,
                                               uint64_t saved_limit, uint32_t *out, cb_error *err);

/* Makes a new graph with the ops that outputs (and inputs) need. Ids are renumbered in the same
 * order. */
CB_MUST_CHECK cb_status cb_graph_prune(const cb_graph *g, cb_alloc *alloc, cb_graph **out,
                                       cb_error *err);
/* Makes a graph with the same ops in another order, which must be topological; `backward_starts` is
 * 0. */
CB_MUST_CHECK cb_status cb_graph_arrange(const cb_graph *g, const cb_op_id *order, cb_alloc *alloc,
                                         cb_graph **out, cb_error *err);
CB_MUST_CHECK cb_status cb_graph_copy(const cb_graph *g, cb_alloc *alloc, cb_graph **out,
                                      cb_error *err);

/* Replaces ops while a graph is copied. `replace` appends them to `to`; `ins` are values of `to`,
 * and `outs` gets one for each output, of its type and in a separate storage. */
typedef struct cb_replacing {
    void *user;
    bool (*wants)(void *user, const cb_graph *g, cb_op_id id); /* called for ops with at most 8
                                                                  inputs that are not views */
    cb_status (*replace)(cb_graph *to, cb_opcode code, const cb_attrs *attrs, uint32_t n_ins,
                         const cb_value_id *ins, cb_value_id *outs, cb_error *err);
    /* If not NULL, called instead of `replace`, for ops with any number of inputs. `map` gives, for
     * each value of `g`, the value of `to`. */
    cb_status (*emit)(void *user, cb_graph *to, cb_op_id id, const cb_value_id *map,
                      cb_value_id *outs, cb_error *err);
} cb_replacing;
CB_MUST_CHECK cb_status cb_graph_replace(const cb_graph *g, const cb_replacing *by, cb_alloc *alloc,
                                         cb_graph **out, cb_error *err);

#endif
