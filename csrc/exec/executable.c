/* Preparation does once what a run must not do: it finds kernels, copies shapes and strides, and
 * lists the tensors that point into the caller's buffers. A run then needs only a struct on the
 * stack for each group and one call per instruction. */
#include "executable.h"

#include <string.h>

#define POLL_SECONDS 5e-3

/* ---- finding kernels ------------------------------------------------------------------------- */

/* Returns the dtype by which a kernel is found: that of its first floating-point operand, or of its
 * first operand if all are integers. */
static cb_dtype kernel_dtype(const cb_program *p, const cb_instr *instr) {
    uint32_t begin[2] = {instr->in_begin, instr->out_begin}, n[2] = {instr->n_in, instr->n_out};
    for (int side = 0; side < 2; side++) {
        for (uint32_t k = 0; k < n[side]; k++) {
            cb_dtype dtype = p->operand[p->operand_id[begin[side] + k]].dtype;
            if (cb_dtype_is_float(dtype)) return dtype;
        }
    }
    return p->operand[p->operand_id[instr->n_in ? instr->in_begin : instr->out_begin]].dtype;
}

static cb_status find_kernel(const cb_program *p, const cb_instr *instr, cb_kernel_fn *out,
                             cb_error *err) {
    cb_dtype dtype = kernel_dtype(p, instr);
    *out = cb_cpu_kernel(instr->code, dtype);
    if (*out) return CB_OK;
    bool is_placed = instr->location && instr->location[0];
    return cb_fail(err, CB_UNSUPPORTED, "%s: no cpu kernel for %s%s%s",
                   cb_op_def_of(instr->code)->name, cb_dtype_name(dtype), is_placed ? " at " : "",
                   is_placed ? instr->location : "");
}

/* ---- indices of the caller ------------------------------------------------------------------- */

/* Returns the input that must be copied before it is used, or -1. */
static int copied_input(const cb_program *p, const cb_instr *instr) {
    const int input = cb_op_index_input(instr->code);
    if (input < 0) return -1;
    const uint32_t id = p->operand_id[instr->in_begin + (uint32_t)input];
    return p->operand[id].space == CB_SPACE_ARENA ? -1 : input;
}

static cb_status check_copy(const cb_program *p, const cb_instr *instr, cb_error *err) {
    const int input = copied_input(p, instr);
    if (input < 0) return CB_OK;
    const cb_operand *x = &p->operand[p->operand_id[instr->in_begin + (uint32_t)input]];
    const uint64_t bytes = cb_index_copy_bytes(x->dtype, &x->shape);
    const uint64_t room = instr->scratch == CB_NONE ? 0 : p->buffer[instr->scratch].bytes;
    if (bytes <= room && cb_is_contiguous(&x->shape, x->stride)) return CB_OK;
    return cb_fail(
        err, CB_INTERNAL, "%s: the copy of its indices takes %llu bytes, but its scratch has %llu",
        cb_op_def_of(instr->code)->name, (unsigned long long)bytes, (unsigned long long)room);
}

size_t cb_copy_indices(const cb_program *program, const cb_instr *instr, cb_tensor *in,
                       void *scratch) {
    const int input = copied_input(program, instr);
    if (input < 0) return 0;
    cb_tensor *index = &in[input];
    const size_t n = (size_t)cb_numel(&index->shape) * cb_dtype_size(index->dtype);
    if (n == 0 || !scratch) return 0; /* check_copy has made sure that there is room */
    memcpy(scratch, index->data, n);
    index->data = scratch;
    return (size_t)cb_index_copy_bytes(index->dtype, &index->shape);
}

/* ---- preparation ----------------------------------------------------------------------------- */

cb_status cb_executable_supports(const cb_program *program, uint32_t group, cb_error *err) {
    const cb_group *g = &program->group[group];
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr; i++) {
        cb_kernel_fn kernel;
        CB_TRY(find_kernel(program, &program->instr[i], &kernel, err));
        CB_TRY(check_copy(program, &program->instr[i], err));
    }
    return CB_OK;
}

static const cb_operand *operand_of(const cb_executable *x, uint32_t tensor) {
    return &x->program->operand[x->program->operand_id[tensor]];
}

static uint32_t count_tensors(const cb_program *p) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_instr; i++) {
        const cb_instr *instr = &p->instr[i];
        if (instr->in_begin + instr->n_in > n) n = instr->in_begin + instr->n_in;
        if (instr->out_begin + instr->n_out > n) n = instr->out_begin + instr->n_out;
    }
    return n;
}

static void describe_tensors(cb_executable *x) {
    for (uint32_t i = 0; i < x->n_tensor; i++) {
        const cb_operand *operand = operand_of(x, i);
        cb_tensor *t = &x->tensor[i];
        *t = (cb_tensor){.dtype = operand->dtype, .shape = operand->shape};
        memcpy(t->stride, operand->stride, sizeof t->stride);
        if (operand->space == CB_SPACE_INPUT || operand->space == CB_SPACE_OUTPUT)
            x->bound[x->n_bound++] = i;
    }
}

cb_status cb_executable_init(cb_executable *x, const cb_program *program, const cb_runtime *runtime,
                             cb_error *err) {
    *x =
        (cb_executable){.program = program, .runtime = runtime, .n_tensor = count_tensors(program)};
    cb_arena_init(&x->memory, runtime->alloc);
    cb_status status = CB_OK;
    x->kernel = CB_NEW(&x->memory, cb_kernel_fn, program->n_instr);
    x->tensor = CB_NEW(&x->memory, cb_tensor, x->n_tensor);
    x->bound = CB_NEW(&x->memory, uint32_t, x->n_tensor);
    x->address = CB_NEW(&x->memory, char *, program->n_buffer);
    x->local = CB_NEW(&x->memory, char *, program->n_local);
    if (!x->kernel || !x->tensor || !x->bound || !x->address || !x->local) {
        status = cb_no_memory(err);
        goto done;
    }
    for (uint32_t i = 0; i < program->n_instr; i++)
        CB_TRY_DONE(find_kernel(program, &program->instr[i], &x->kernel[i], err));
    describe_tensors(x);
done:
    if (status != CB_OK) cb_executable_free(x);
    return status;
}

void cb_executable_free(cb_executable *x) { cb_arena_free(&x->memory); }

uint64_t cb_executable_bytes(const cb_executable *x) { return cb_arena_bytes(&x->memory); }

/* ---- addresses ------------------------------------------------------------------------------- */

static void *element_of(char *base, const cb_operand *operand) {
    return base ? base + operand->offset * (int64_t)cb_dtype_size(operand->dtype) : NULL;
}

static void place_range(cb_executable *x, uint32_t begin, uint32_t n) {
    for (uint32_t i = begin; i < begin + n; i++) {
        const cb_operand *operand = operand_of(x, i);
        if (operand->space == CB_SPACE_ARENA)
            x->tensor[i].data = element_of(x->address[operand->buffer], operand);
        if (operand->space == CB_SPACE_LOCAL)
            x->tensor[i].data = element_of(x->local[operand->buffer], operand);
    }
}

void cb_executable_place(cb_executable *x, uint32_t group) {
    const cb_group *g = &x->program->group[group];
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr; i++) {
        const cb_instr *instr = &x->program->instr[i];
        place_range(x, instr->in_begin, instr->n_in);
        place_range(x, instr->out_begin, instr->n_out);
    }
}

void cb_executable_place_all(cb_executable *x, char *arena, char *host) {
    const cb_program *p = x->program;
    x->host = host;
    for (uint32_t b = 0; b < p->n_buffer; b++) x->address[b] = arena + p->buffer[b].offset;
    for (uint32_t g = 0; g < p->n_group; g++) cb_executable_place(x, g);
}

void *cb_executable_address(const cb_executable *x, uint32_t operand) {
    const cb_operand *o = &x->program->operand[operand];
    return o->space == CB_SPACE_ARENA ? element_of(x->address[o->buffer], o) : NULL;
}

void cb_replace_states(const cb_program *program, const cb_bindings *bindings,
                       void *(*address)(void *executable, uint32_t operand), void *executable) {
    for (uint32_t i = 0; i < program->n_output; i++) {
        const cb_argument *a = &program->output[i];
        if (a->role_or_kind != CB_OUTPUT_STATE || a->bytes == 0) continue;
        memcpy(bindings->inputs[a->input], address(executable, a->operand), (size_t)a->bytes);
    }
}

cb_status cb_executable_bind(cb_executable *x, const cb_bindings *bindings, cb_error *err) {
    for (uint32_t i = 0; i < x->n_bound; i++) {
        const cb_operand *operand = operand_of(x, x->bound[i]);
        bool is_input = operand->space == CB_SPACE_INPUT;
        char *base =
            is_input ? bindings->inputs[operand->buffer] : bindings->outputs[operand->buffer];
        const cb_argument *a =
            is_input ? &x->program->input[operand->buffer] : &x->program->output[operand->buffer];
        if (!base && a->bytes > 0) {
            return cb_fail(err, CB_INVALID, "run: no buffer was given for %s %u (\"%s\")",
                           is_input ? "input" : "output", operand->buffer, a->name ? a->name : "");
        }
        x->tensor[x->bound[i]].data = element_of(base, operand);
    }
    return CB_OK;
}

/* ---- moving ---------------------------------------------------------------------------------- */

void cb_run_moves(const cb_program *program, uint32_t group, bool leaving, char *host,
                  char *const *address) {
    if (!program->move_begin) return;
    for (uint32_t m = program->move_begin[group]; m < program->move_begin[group + 1]; m++) {
        const cb_move *move = &program->move[m];
        const size_t bytes = (size_t)program->buffer[move->buffer].bytes;
        if ((move->from == CB_NONE) != leaving || bytes == 0) continue;
        if (leaving) memcpy(host + move->host, address[move->buffer], bytes);
        else memcpy(address[move->buffer], host + move->host, bytes);
    }
}

/* ---- running --------------------------------------------------------------------------------- */

cb_status cb_executable_run_group(const cb_executable *x, uint32_t group,
                                  const cb_bindings *bindings, cb_error *err) {
    const cb_program *p = x->program;
    const cb_group *g = &p->group[group];
    cb_kernel_args args = {.pool = x->runtime->pool,
                           .blas = &x->runtime->blas,
                           .random = {.seed = bindings->seed, .step = bindings->step}};
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr; i++) {
        const cb_instr *instr = &p->instr[i];
        const bool has_scratch = instr->scratch != CB_NONE;
        char *scratch = has_scratch ? x->address[instr->scratch] : NULL;
        const size_t scratch_bytes = has_scratch ? (size_t)p->buffer[instr->scratch].bytes : 0;
        args.code = instr->code;
        args.attrs = &instr->attrs;
        const size_t copied = cb_copy_indices(p, instr, x->tensor + instr->in_begin, scratch);
        args.scratch = scratch ? scratch + copied : NULL;
        args.scratch_bytes = scratch_bytes - copied;
        args.in = x->tensor + instr->in_begin;
        args.out = x->tensor + instr->out_begin;
        args.n_in = instr->n_in;
        args.n_out = instr->n_out;
        if (cb_op_def_of(instr->code)->flags & CB_OPF_RANDOM)
            args.random.stream = (uint32_t)instr->attrs.i[0];
        cb_status status = x->kernel[i](&args, err);
        if (status == CB_OK) continue;
        cb_add_location(err, instr->location);
        return status;
    }
    return CB_OK;
}

cb_status cb_run_groups(uint32_t n_group, const cb_bindings *bindings, cb_run_group_fn run_group,
                        void *user, cb_error *err) {
    bool needs_clock = bindings->poll || bindings->group_seconds;
    double start = needs_clock ? cb_host_clock() : 0, polled = start - 2 * POLL_SECONDS;
    bool changed = false;
    for (uint32_t g = 0; g < n_group; g++) {
        if (bindings->poll && !changed && start - polled >= POLL_SECONDS) {
            polled = start;
            if (bindings->poll(bindings->poll_user))
                return cb_fail(err, CB_CANCELLED, "run: cancelled by the caller");
        }
        CB_TRY(run_group(user, g, err));
        const double end = needs_clock ? cb_host_clock() : 0;
        if (bindings->group_seconds) bindings->group_seconds[g] = end - start;
        start = end;
        if (!bindings->after_group) continue;
        changed = bindings->after_group(bindings->after_user, g);
        if (needs_clock) start = cb_host_clock();
    }
    return CB_OK;
}
