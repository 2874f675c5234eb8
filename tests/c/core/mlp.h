/* mlp.h: the model used by the tests of the public API: dense layers without residuals, with layer
 * norm, GELU and dropout, a mean squared error, and a running mean as state. Built through
 * cutback.h alone.
 *
 *     for each layer:  x = dropout(gelu(layer_norm(x @ w + b)))
 *     loss = mean((x - target)^2);   s' = 0.9 s + mean(first layer) */
#ifndef CB_TESTS_CORE_MLP_H
#define CB_TESTS_CORE_MLP_H

#include <stdlib.h>

#include "include/cutback.h"

#include "check.h"

#define MLP_MAX_ARGS 64

typedef struct mlp_size {
    int64_t batch, width;
    int depth;
} mlp_size;

typedef struct mlp_builder {
    cb_graph *g;
    uint32_t n_inputs;
    uint32_t wrt[MLP_MAX_ARGS], n_wrt;
    cb_error *e;
} mlp_builder;

static cb_status mlp_input(mlp_builder *b, const char *name, cb_role role, cb_shape shape,
                           cb_value_id *out) {
    if (role == CB_ROLE_PARAM) b->wrt[b->n_wrt++] = b->n_inputs;
    b->n_inputs++;
    return cb_graph_add_input(b->g, name, role, CB_F32, shape, out, b->e);
}

static cb_status mlp_op(mlp_builder *b, const char *name, cb_value_id x, cb_value_id y,
                        const cb_attrs *attrs, cb_value_id *out) {
    const cb_value_id ins[2] = {x, y};
    return cb_graph_add_op(b->g, name, y == CB_NONE ? 1 : 2, ins, attrs, 1, out, b->e);
}

static cb_status mlp_layer(mlp_builder *b, int layer, mlp_size size, cb_value_id *x,
                           cb_value_id *hidden) {
    const cb_shape square = {2, {size.width, size.width}}, row = {1, {size.width}};
    const cb_attrs norm = {.f = {1e-5}}, dropout = {.f = {0.25}, .i = {layer}};
    cb_value_id w, bias, gain, shift, normed[3];
    CB_TRY(cb_graph_set_location(b->g, layer == 0 ? "mlp.h:first" : NULL, b->e));
    CB_TRY(mlp_input(b, "w", CB_ROLE_PARAM, square, &w));
    CB_TRY(mlp_input(b, "b", CB_ROLE_PARAM, row, &bias));
    CB_TRY(mlp_input(b, "gain", CB_ROLE_PARAM, row, &gain));
    CB_TRY(mlp_input(b, "shift", CB_ROLE_PARAM, row, &shift));
    CB_TRY(mlp_op(b, "matmul", *x, w, NULL, x));
    CB_TRY(mlp_op(b, "add", *x, bias, NULL, hidden));
    const cb_value_id ins[3] = {*hidden, gain, shift};
    CB_TRY(cb_graph_add_op(b->g, "layer_norm", 3, ins, &norm, 3, normed, b->e));
    CB_TRY(mlp_op(b, "gelu", normed[0], CB_NONE, NULL, x));
    return mlp_op(b, "dropout", *x, CB_NONE, &dropout, x);
}

static cb_status mlp_state(mlp_builder *b, cb_value_id hidden) {
    const cb_attrs tenth = {.f = {0.9}, .dtype = CB_F32};
    cb_value_id s, mean, factor;
    uint32_t position = b->n_inputs;
    CB_TRY(mlp_input(b, "s", CB_ROLE_STATE, (cb_shape){0}, &s));
    CB_TRY(cb_graph_add_op(b->g, "full", 0, NULL, &tenth, 1, &factor, b->e));
    CB_TRY(mlp_op(b, "mul", s, factor, NULL, &s));
    CB_TRY(mlp_op(b, "mean", hidden, CB_NONE, NULL, &mean));
    CB_TRY(mlp_op(b, "add", s, mean, NULL, &s));
    return cb_graph_add_state(b->g, position, s, b->e);
}

static cb_status mlp_fill(mlp_builder *b, mlp_size size) {
    const cb_shape batch = {2, {size.batch, size.width}};
    cb_value_id x, target, hidden, first = CB_NONE;
    CB_TRY(mlp_input(b, "x", CB_ROLE_DATA, batch, &x));
    CB_TRY(mlp_input(b, "target", CB_ROLE_DATA, batch, &target));
    for (int layer = 0; layer < size.depth; layer++) {
        CB_TRY(mlp_layer(b, layer, size, &x, &hidden));
        if (layer == 0) first = hidden;
    }
    CB_TRY(mlp_op(b, "sub", x, target, NULL, &x));
    CB_TRY(mlp_op(b, "square", x, CB_NONE, NULL, &x));
    CB_TRY(mlp_op(b, "mean", x, CB_NONE, NULL, &x));
    CB_TRY(cb_graph_add_output(b->g, x, "loss", b->e));
    return mlp_state(b, first);
}

/* Builds the graph; frees it on failure. */
static cb_status mlp_build(cb_context *ctx, mlp_size size, mlp_builder *b, cb_error *e) {
    *b = (mlp_builder){.e = e};
    CB_TRY(cb_graph_new(ctx, &b->g, e));
    cb_status status = mlp_fill(b, size);
    if (status != CB_OK) cb_graph_free(b->g);
    if (status != CB_OK) b->g = NULL;
    return status;
}

static inline cb_status mlp_compile(cb_context *ctx, mlp_size size, cb_compile_options options,
                                    cb_step **out, cb_error *e) {
    mlp_builder b;
    CB_TRY(mlp_build(ctx, size, &b, e));
    options.wrt = b.wrt;
    options.n_wrt = b.n_wrt;
    cb_status status = cb_compile(ctx, b.g, &options, out, e);
    cb_graph_free(b.g);
    return status;
}

static inline bool has_backend(const char *name) {
    bool found = false;
    for (uint32_t k = 0; cb_backend_name(k); k++) found |= strcmp(cb_backend_name(k), name) == 0;
    return found;
}

static inline cb_status mlp_compile_text(cb_context *ctx, mlp_size size, cb_compile_options options,
                                         const char *what, char **out, cb_error *e) {
    mlp_builder b;
    CB_TRY(mlp_build(ctx, size, &b, e));
    options.wrt = b.wrt;
    options.n_wrt = b.n_wrt;
    cb_status status = cb_compile_text(ctx, b.g, &options, what, out, e);
    cb_graph_free(b.g);
    return status;
}

/* Memory for all arguments of a step, filled with reproducible numbers. */
typedef struct mlp_memory {
    void *inputs[MLP_MAX_ARGS], *outputs[MLP_MAX_ARGS];
    uint32_t n_inputs, n_outputs;
} mlp_memory;

static inline float mlp_number(uint32_t argument, size_t i) {
    return (float)((argument * 7919u + i * 2654435761u) % 2001u) / 1000.0f - 1.0f;
}

static inline void mlp_memory_init(mlp_memory *memory, const cb_step *step) {
    *memory =
        (mlp_memory){.n_inputs = cb_step_n_inputs(step), .n_outputs = cb_step_n_outputs(step)};
    for (uint32_t i = 0; i < memory->n_inputs; i++) {
        cb_argument_info info = cb_step_input(step, i);
        float scale = info.role_or_kind == CB_ROLE_PARAM ? 0.2f : 1.0f;
        float *data = malloc(info.bytes);
        for (size_t k = 0; k < info.bytes / 4; k++) data[k] = scale * mlp_number(i, k);
        memory->inputs[i] = data;
    }
    for (uint32_t i = 0; i < memory->n_outputs; i++) {
        cb_argument_info info = cb_step_output(step, i);
        memory->outputs[i] = info.inside ? NULL : calloc(1, info.bytes);
    }
}

static inline void mlp_memory_free(mlp_memory *memory) {
    for (uint32_t i = 0; i < memory->n_inputs; i++) free(memory->inputs[i]);
    for (uint32_t i = 0; i < memory->n_outputs; i++) free(memory->outputs[i]);
}

static inline cb_run mlp_run(const mlp_memory *memory) {
    return (cb_run){.inputs = memory->inputs,
                    .outputs = memory->outputs,
                    .on_host = true,
                    .seed = 42,
                    .random_step = 3};
}

/* Returns a hash of all bits of all outputs and of the state. */
static inline uint64_t mlp_hash(const mlp_memory *memory, const cb_step *step) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (uint32_t i = 0; i < memory->n_outputs; i++) {
        cb_argument_info info = cb_step_output(step, i);
        const unsigned char *data =
            info.role_or_kind == 1 ? memory->inputs[info.input] : memory->outputs[i];
        for (size_t k = 0; data && k < info.bytes; k++) {
            hash = (hash ^ data[k]) * UINT64_C(1099511628211);
        }
    }
    return hash;
}

#endif
