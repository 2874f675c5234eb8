/* ref.c: the reference backend. Every buffer of the program is a separate block, which exists as
 * long as the executable. The backend ignores offsets and lifetimes, so a mistake in them shows as
 * a difference from the cpu backend. */
#include "ref_op.h"

#include <string.h>

#include "../executable.h"

typedef struct ref_state {
    const cb_program *program;
    cb_arena memory;
    cb_alloc *alloc;
    char **buffer;     /* [n_buffer] */
    char *host;        /* [program->host_bytes] */
    void **local;      /* [n_local] */
    cb_tensor *tensor; /* operands of the current instruction, with room for those of every
                          instruction */
    uint64_t bytes;
} ref_state;

static cb_status ref_supports(const cb_program *program, uint32_t group, cb_error *err) {
    const cb_group *g = &program->group[group];
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr; i++) {
        const cb_op_def *def = cb_op_def_of(program->instr[i].code);
        if (!(def->flags & (CB_OPF_VIEW | CB_OPF_SOURCE))) continue;
        return cb_fail(err, CB_UNSUPPORTED, "%s: views and inputs are operands, not instructions",
                       def->name);
    }
    return CB_OK;
}

static void ref_destroy(void *opaque) {
    ref_state *s = opaque;
    if (!s) return;
    for (uint32_t i = 0; s->buffer && i < s->program->n_buffer; i++)
        cb_free(s->alloc, s->buffer[i]);
    for (uint32_t i = 0; s->local && i < s->program->n_local; i++) cb_free(s->alloc, s->local[i]);
    cb_free(s->alloc, s->host);
    cb_arena_free(&s->memory);
    cb_free(s->alloc, s);
}

static uint64_t ref_bytes(const void *opaque) {
    const ref_state *s = opaque;
    uint64_t bytes = cb_block_bytes(s) + cb_arena_bytes(&s->memory);
    if (s->host) bytes += cb_block_bytes(s->host);
    for (uint32_t i = 0; i < s->program->n_buffer; i++) bytes += cb_block_bytes(s->buffer[i]);
    for (uint32_t i = 0; i < s->program->n_local; i++) bytes += cb_block_bytes(s->local[i]);
    return bytes;
}

static cb_status ref_compile(const cb_program *program, void *device, void **state, cb_error *err) {
    const cb_runtime *runtime = device;
    uint32_t most = 0;
    CB_TRY(cb_backend_supports(&cb_backend_ref, program, err));
    ref_state *s = cb_malloc(runtime->alloc, sizeof *s);
    if (!s) return cb_no_memory(err);
    *s = (ref_state){.program = program, .alloc = runtime->alloc};
    cb_arena_init(&s->memory, runtime->alloc);
    for (uint32_t i = 0; i < program->n_instr; i++) {
        const uint32_t n = program->instr[i].n_in + program->instr[i].n_out;
        if (n > most) most = n;
    }
    s->buffer = CB_NEW(&s->memory, char *, program->n_buffer);
    s->tensor = CB_NEW(&s->memory, cb_tensor, most);
    s->local = CB_NEW(&s->memory, void *, program->n_local);
    s->host = program->host_bytes ? cb_malloc(s->alloc, (size_t)program->host_bytes) : NULL;
    bool whole = s->buffer && s->tensor && s->local && (s->host || !program->host_bytes);
    for (uint32_t i = 0; whole && i < program->n_buffer; i++) {
        s->buffer[i] = cb_malloc(s->alloc, (size_t)program->buffer[i].bytes);
        s->bytes += program->buffer[i].bytes;
        whole = s->buffer[i] != NULL;
    }
    for (uint32_t i = 0; whole && i < program->n_local; i++) {
        s->local[i] = cb_malloc(s->alloc, (size_t)program->locals[i].bytes);
        whole = s->local[i] != NULL;
    }
    if (!whole) {
        ref_destroy(s);
        return cb_no_memory(err);
    }
    *state = s;
    return CB_OK;
}

static cb_status describe(const ref_state *s, const cb_bindings *b, uint32_t id, cb_tensor *out,
                          cb_error *err) {
    const cb_operand *o = &s->program->operand[id];
    char *base = NULL;
    switch (o->space) {
        case CB_SPACE_ARENA: base = s->buffer[o->buffer]; break;
        case CB_SPACE_INPUT: base = b->inputs[o->buffer]; break;
        case CB_SPACE_OUTPUT: base = b->outputs[o->buffer]; break;
        case CB_SPACE_LOCAL: base = s->local[o->buffer]; break;
    }
    if (!base && cb_numel(&o->shape) > 0) {
        return cb_fail(err, CB_INVALID, "run: no buffer was given for %s %u",
                       o->space == CB_SPACE_INPUT ? "input" : "output", o->buffer);
    }
    *out = (cb_tensor){.dtype = o->dtype, .shape = o->shape};
    out->data = base ? base + o->offset * (int64_t)cb_dtype_size(o->dtype) : NULL;
    memcpy(out->stride, o->stride, sizeof out->stride);
    return CB_OK;
}

static cb_status run_instr(const ref_state *s, const cb_bindings *b, const cb_instr *instr,
                           cb_error *err) {
    const uint32_t scratch = instr->scratch;
    const cb_philox random = {.seed = b->seed, .step = b->step};
    const uint32_t *ids = s->program->operand_id;
    cb_tensor *in = s->tensor, *out = s->tensor + instr->n_in;
    for (uint32_t i = 0; i < instr->n_in; i++)
        CB_TRY(describe(s, b, ids[instr->in_begin + i], &in[i], err));
    for (uint32_t i = 0; i < instr->n_out; i++)
        CB_TRY(describe(s, b, ids[instr->out_begin + i], &out[i], err));
    (void)cb_copy_indices(s->program, instr, in, scratch == CB_NONE ? NULL : s->buffer[scratch]);
    const cb_status status =
        cb_ref_op(instr->code, &instr->attrs, instr->n_in, in, instr->n_out, out, &random, err);
    if (status != CB_OK) cb_add_location(err, instr->location);
    return status;
}

typedef struct ref_run_call {
    const ref_state *state;
    const cb_bindings *bindings;
} ref_run_call;

static cb_status run_group(void *user, uint32_t group, cb_error *err) {
    const ref_run_call *call = user;
    const cb_program *p = call->state->program;
    const cb_group *g = &p->group[group];
    cb_run_moves(p, group, false, call->state->host, call->state->buffer);
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr; i++)
        CB_TRY(run_instr(call->state, call->bindings, &p->instr[i], err));
    cb_run_moves(p, group, true, call->state->host, call->state->buffer);
    return CB_OK;
}

static void *ref_address(void *opaque, uint32_t operand) {
    const ref_state *s = opaque;
    const cb_operand *o = &s->program->operand[operand];
    if (o->space != CB_SPACE_ARENA) return NULL;
    return s->buffer[o->buffer] + o->offset * (int64_t)cb_dtype_size(o->dtype);
}

static cb_status ref_run(void *opaque, const cb_bindings *bindings, cb_run_stats *stats,
                         cb_error *err) {
    ref_state *s = opaque;
    ref_run_call call = {s, bindings};
    /* All bits set: NaN in every float type, so that reads of unwritten memory show. */
    for (uint32_t i = 0; i < s->program->n_buffer; i++)
        memset(s->buffer[i], 0xFF, (size_t)s->program->buffer[i].bytes);
    for (uint32_t i = 0; i < s->program->n_local; i++)
        memset(s->local[i], 0xFF, (size_t)s->program->locals[i].bytes);
    CB_TRY(cb_run_groups(s->program->n_group, bindings, run_group, &call, err));
    cb_replace_states(s->program, bindings, ref_address, s);
    if (stats) *stats = (cb_run_stats){.peak_bytes = s->bytes, .n_group = s->program->n_group};
    return CB_OK;
}

const cb_backend cb_backend_ref = {
    .name = "ref",
    CB_HOST_CALLS,
    .supports = ref_supports,
    .compile = ref_compile,
    .run = ref_run,
    .address = ref_address,
    .bytes = ref_bytes,
    .destroy = ref_destroy,
};
