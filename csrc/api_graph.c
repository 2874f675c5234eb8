/* Public functions of the context and of graph building. Arguments are checked here because callers
 * may pass anything; the layer that owns an object does the work. */
#include <stdio.h>

#include "ad/gradients.h"
#include "exec/cpu/gemm/products.h"
#include "ir/builder.h"
#include "ir/graph_json.h"
#include "ir/text.h"
#include "pipeline.h"

/* ---- context -------------------------------------------------------------------------------- */

/* The context holds the allocator that counts everything else, so its own block is not counted. */
cb_status cb_context_new(const cb_context_options *options, cb_context **out, cb_error *err) {
    cb_context_options o = options ? *options : (cb_context_options){0};
    cb_alloc outside;
    cb_alloc_init(&outside);
    if (o.n_threads < 0) {
        return cb_fail(err, CB_INVALID, "context: n_threads is %d; 0 means one for each processor",
                       o.n_threads);
    }
    if ((o.blas.sgemm || o.blas.dgemm) && o.blas.int_bits != 32 && o.blas.int_bits != 64) {
        return cb_fail(err, CB_INVALID,
                       "context: the integers of a BLAS have 32 or 64 bits, not %d",
                       o.blas.int_bits);
    }
    cb_context *ctx = cb_malloc(&outside, sizeof *ctx);
    if (!ctx) return cb_no_memory(err);
    memset(ctx, 0, sizeof *ctx);
    cb_alloc_init(&ctx->alloc);
    ctx->runtime = (cb_runtime){.alloc = &ctx->alloc, .blas = o.blas};
    ctx->devices.runtime = &ctx->runtime;
    ctx->products = (cb_optim_products){cb_cpu_multiply, &ctx->runtime.blas};
    if (o.blas.name) {
        (void)snprintf(ctx->blas_name, sizeof ctx->blas_name, "%s", o.blas.name);
        ctx->runtime.blas.name = ctx->blas_name;
    }
    cb_status status = cb_threads_new(&ctx->alloc, o.n_threads ? o.n_threads : cb_cpu_count(),
                                      &ctx->runtime.pool, err);
    if (status != CB_OK) {
        cb_free(&outside, ctx);
        return status;
    }
    *out = ctx;
    return CB_OK;
}

void cb_context_free(cb_context *ctx) {
    if (!ctx) return;
    cb_devices_close(&ctx->devices);
    cb_threads_free(ctx->runtime.pool);
    cb_alloc outside;
    cb_alloc_init(&outside);
    cb_free(&outside, ctx);
}

int cb_context_threads(const cb_context *ctx) { return cb_threads_count(ctx->runtime.pool); }

cb_status cb_context_set_threads(cb_context *ctx, int n_threads, cb_error *err) {
    cb_threads *pool;
    if (n_threads < 0) {
        return cb_fail(err, CB_INVALID, "context: n_threads is %d; 0 means one for each processor",
                       n_threads);
    }
    CB_TRY(cb_threads_new(&ctx->alloc, n_threads ? n_threads : cb_cpu_count(), &pool, err));
    cb_threads_free(ctx->runtime.pool);
    ctx->runtime.pool = pool;
    return CB_OK;
}

/* Copies a path; NULL stays NULL. */
static cb_status keep_path(char to[CB_CUDA_PATH], const char *path, const char **out,
                           cb_error *err) {
    *out = NULL;
    if (!path) return CB_OK;
    const int n = snprintf(to, CB_CUDA_PATH, "%s", path);
    if (n < 0 || n >= CB_CUDA_PATH)
        return cb_fail(err, CB_INVALID, "context: a path has %d bytes; the limit is %d", n,
                       CB_CUDA_PATH - 1);
    *out = to;
    return CB_OK;
}

cb_status cb_context_set_cuda(cb_context *ctx, const cb_cuda_options *options, cb_error *err) {
    cb_cuda_options kept = *options;
    CB_TRY(keep_path(ctx->cuda_driver, options->driver, &kept.driver, err));
    CB_TRY(keep_path(ctx->cuda_nvrtc, options->nvrtc, &kept.nvrtc, err));
    CB_TRY(keep_path(ctx->cuda_blaslt, options->blaslt, &kept.blaslt, err));
    CB_TRY(keep_path(ctx->cuda_cache, options->cache, &kept.cache, err));
    ctx->runtime.cuda = kept;
    return CB_OK;
}

cb_cuda_options cb_context_cuda(const cb_context *ctx) { return ctx->runtime.cuda; }

cb_memory_stats cb_context_memory(const cb_context *ctx) { return cb_alloc_stats(&ctx->alloc); }

uint64_t cb_context_fail_alloc(cb_context *ctx, uint64_t nth) {
    uint64_t left = cb_alloc_left(&ctx->alloc);
    cb_alloc_fail(&ctx->alloc, nth);
    return left;
}

/* ---- text ----------------------------------------------------------------------------------- */

void cb_text_free(const cb_context *ctx, char *text) { cb_free((cb_alloc *)&ctx->alloc, text); }

typedef cb_status (*write_fn)(const cb_graph *g, cb_str *out, cb_error *err);

static cb_status give_written(const cb_graph *g, write_fn write, char **out, cb_error *err) {
    cb_arena scratch;
    cb_str text;
    cb_arena_init(&scratch, g->arena.alloc);
    cb_str_init(&text, &scratch);
    cb_status status = write(g, &text, err);
    if (status == CB_OK) status = cb_text_give(g->arena.alloc, &text, out, err);
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_graph_to_text(const cb_graph *g, char **out, cb_error *err) {
    return give_written(g, cb_graph_print, out, err);
}

cb_status cb_graph_from_text(cb_context *ctx, const char *text, size_t length, cb_graph **out,
                             cb_error *err) {
    return cb_graph_parse(&ctx->alloc, text, length, out, err);
}

cb_status cb_graph_save_json(const cb_graph *g, char **out, cb_error *err) {
    return give_written(g, cb_graph_to_json, out, err);
}

cb_status cb_graph_load_json(cb_context *ctx, const char *text, size_t length, cb_graph **out,
                             cb_error *err) {
    return cb_graph_from_json(&ctx->alloc, text, length, out, err);
}

/* ---- graph ---------------------------------------------------------------------------------- */

cb_status cb_graph_new(cb_context *ctx, cb_graph **out, cb_error *err) {
    return cb_graph_create(&ctx->alloc, out, err);
}

static cb_status check_value(const cb_graph *g, cb_value_id value, cb_error *err) {
    if (value < g->values.len) return CB_OK;
    return cb_fail(err, CB_INVALID, "the graph has %zu values, but none with the id %u",
                   g->values.len, value);
}

static cb_status check_constraint(cb_constraint constraint, cb_error *err) {
    if ((int)constraint >= 0 && constraint < CB_CONSTRAINT_COUNT) return CB_OK;
    return cb_fail(err, CB_INVALID, "unknown constraint %d", (int)constraint);
}

cb_status cb_graph_add_input(cb_graph *g, const char *name, cb_role role, cb_dtype dtype,
                             cb_shape shape, cb_value_id *out, cb_error *err) {
    if ((int)role < 0 || role > CB_ROLE_STATE)
        return cb_fail(err, CB_INVALID, "input: unknown role %d", (int)role);
    return cb_graph_append_input(g, name, role, dtype, &shape, out, err);
}

cb_status cb_graph_add_op(cb_graph *g, const char *name, uint32_t n_ins, const cb_value_id *ins,
                          const cb_attrs *attrs, uint32_t n_outs, cb_value_id *outs,
                          cb_error *err) {
    cb_opcode code;
    if (!cb_op_find(name, strlen(name), &code))
        return cb_fail(err, CB_INVALID, "no op is called \"%s\"", name);
    const cb_op_def *def = cb_op_def_of(code);
    if (code == CB_OP_INPUT)
        return cb_fail(err, CB_INVALID, "inputs are added with cb_graph_add_input");
    if (n_outs != (uint32_t)def->n_outs) {
        return cb_fail(err, CB_INVALID, "%s: has %d outputs, but there is room for %u", name,
                       def->n_outs, n_outs);
    }
    for (uint32_t k = 0; k < n_ins; k++) CB_TRY(check_value(g, ins[k], err));
    return cb_build(g, code, n_ins, ins, attrs, outs, err);
}

cb_status cb_graph_add_gradients(cb_graph *g, uint32_t n_of, const cb_value_id *of,
                                 const cb_value_id *from, uint32_t n_wrt, const cb_value_id *wrt,
                                 cb_value_id *out, cb_error *err) {
    const cb_gradients wanted = {of, from, wrt, n_of, n_wrt};
    for (uint32_t i = 0; i < n_of; i++) {
        CB_TRY(check_value(g, of[i], err));
        CB_TRY(check_value(g, from[i], err));
    }
    for (uint32_t i = 0; i < n_wrt; i++) CB_TRY(check_value(g, wrt[i], err));
    return cb_gradients_append(g, &wanted, out, err);
}

cb_status cb_graph_add_output(cb_graph *g, cb_value_id value, const char *name, cb_error *err) {
    return cb_graph_append_output(g, value, name, CB_OUTPUT_RESULT, CB_NONE, err);
}

/* A tracer learns only later which inputs are states, so the input becomes a state when it gets its
 * new value. */
cb_status cb_graph_add_state(cb_graph *g, uint32_t input, cb_value_id value, cb_error *err) {
    if (input >= g->inputs.len) {
        return cb_fail(err, CB_INVALID, "state: the graph has %zu inputs, but none at %u",
                       g->inputs.len, input);
    }
    for (size_t i = 0; i < g->outputs.len; i++) {
        if (g->outputs.at[i].kind != CB_OUTPUT_STATE || g->outputs.at[i].input != input) continue;
        return cb_fail(err, CB_INVALID, "state: input %u already has a new value", input);
    }
    const cb_op *op = &g->ops.at[g->inputs.at[input]];
    int64_t *role = &g->attrs.at[op->attrs].i[0], before = *role;
    *role = CB_ROLE_STATE;
    cb_status status =
        cb_graph_append_output(g, value, cb_graph_name(g, op->name), CB_OUTPUT_STATE, input, err);
    if (status != CB_OK) *role = before;
    return status;
}

cb_status cb_graph_set_location(cb_graph *g, const char *location, cb_error *err) {
    uint32_t id = CB_NONE;
    if (location) CB_TRY(cb_graph_intern(g, location, &id, err));
    g->location = id;
    return CB_OK;
}

cb_status cb_graph_add_region(cb_graph *g, const char *name, uint32_t parent, uint64_t saved_limit,
                              uint32_t *out, cb_error *err) {
    return cb_graph_append_region(g, name, parent, saved_limit, out, err);
}

cb_status cb_graph_set_region(cb_graph *g, uint32_t region, cb_error *err) {
    if (region != CB_NONE && region >= g->regions.len) {
        return cb_fail(err, CB_INVALID,
                       "region: the graph has %zu regions, but none with the id %u", g->regions.len,
                       region);
    }
    g->region = region;
    return CB_OK;
}

/* Cannot report an error, so an unknown constraint counts as CB_FREE. */
void cb_graph_set_constraint(cb_graph *g, cb_constraint constraint) {
    g->constraint = (uint8_t)(check_constraint(constraint, NULL) == CB_OK ? constraint : CB_FREE);
}

cb_status cb_graph_constrain(cb_graph *g, cb_value_id value, cb_constraint constraint,
                             cb_error *err) {
    CB_TRY(check_value(g, value, err));
    CB_TRY(check_constraint(constraint, err));
    g->ops.at[g->values.at[value].producer].constraint = (uint8_t)constraint;
    return CB_OK;
}

cb_status cb_graph_value_info(const cb_graph *g, cb_value_id value, cb_dtype *dtype,
                              cb_shape *shape, cb_error *err) {
    CB_TRY(check_value(g, value, err));
    *dtype = g->values.at[value].dtype;
    *shape = g->values.at[value].shape;
    return CB_OK;
}
