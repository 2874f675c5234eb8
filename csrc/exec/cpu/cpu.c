/* The cpu backend. Every buffer is at its planned offset in the caller's arena. A run allocates
 * nothing, and recomputes addresses only if the arena has changed. Kernels run groups of one
 * instruction; the executor runs groups of several. */
#include "../executable.h"
#include "executor/executor.h"

typedef struct state {
    cb_executable x;
    cb_executor *executor;
    char *arena; /* the arena that the addresses point into; NULL before the first run */
    uint64_t
        *top; /* [n_group] end of the highest buffer that the group touches, scratch included */
} state;

typedef struct run {
    state *s;
    const cb_bindings *bindings;
    uint64_t peak; /* high-water mark of the memory that groups have touched so far */
} run;

/* Raises `top` to the end of a buffer, whose bytes are rounded up to the arena's alignment as in
 * the plan. */
static void touch(const cb_program *p, uint32_t buffer, uint64_t *top) {
    uint64_t end =
        (p->buffer[buffer].offset + p->buffer[buffer].bytes + p->align - 1) & ~(p->align - 1);
    if (end > *top) *top = end;
}

static uint64_t group_top(const cb_program *p, const cb_group *g) {
    uint64_t top = 0;
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr; i++) {
        const cb_instr *instr = &p->instr[i];
        if (instr->scratch != CB_NONE) touch(p, instr->scratch, &top);
        for (uint32_t k = 0; k < instr->n_in + instr->n_out; k++) {
            uint32_t at =
                k < instr->n_in ? instr->in_begin + k : instr->out_begin + k - instr->n_in;
            const cb_operand *operand = &p->operand[p->operand_id[at]];
            if (operand->space == CB_SPACE_ARENA) touch(p, operand->buffer, &top);
        }
    }
    return top;
}

static uint64_t moves_top(const cb_program *p, uint32_t group) {
    uint64_t top = 0;
    if (!p->move_begin) return 0;
    for (uint32_t m = p->move_begin[group]; m < p->move_begin[group + 1]; m++)
        touch(p, p->move[m].buffer, &top);
    return top;
}

static void cpu_destroy(void *handle) {
    state *s = handle;
    if (!s) return;
    cb_alloc *alloc = s->x.runtime->alloc;
    cb_executor_free(s->executor);
    cb_executable_free(&s->x);
    cb_free(alloc, s);
}

static uint64_t cpu_bytes(const void *handle) {
    const state *s = handle;
    return cb_block_bytes(s) + cb_executable_bytes(&s->x) + cb_executor_bytes(s->executor);
}

static cb_status prepare(state *s, cb_error *err) {
    const cb_program *p = s->x.program;
    CB_TRY_NEW(s->top, &s->x.memory, p->n_group, err);
    for (uint32_t g = 0; g < p->n_group; g++) {
        const uint64_t runs = group_top(p, &p->group[g]), moves = moves_top(p, g);
        s->top[g] = runs > moves ? runs : moves;
    }
    return cb_executor_new(&s->x, &s->executor, err);
}

static cb_status cpu_compile(const cb_program *program, void *device, void **out, cb_error *err) {
    const cb_runtime *runtime = device;
    state *s = cb_malloc(runtime->alloc, sizeof *s);
    if (!s) return cb_no_memory(err);
    *s = (state){0};
    cb_status status = cb_executable_init(&s->x, program, runtime, err);
    if (status != CB_OK) {
        cb_free(runtime->alloc, s);
        return status;
    }
    status = prepare(s, err);
    if (status != CB_OK) {
        cpu_destroy(s);
        return status;
    }
    *out = s;
    return CB_OK;
}

static void print_groups(const state *s, cb_str *out) {
    const cb_program *p = s->x.program;
    for (uint32_t g = 0; g < p->n_group; g++) {
        cb_str_addf(out, "group %u ", g);
        if (cb_executor_has(s->executor, g)) {
            cb_executor_print(s->executor, g, out);
            continue;
        }
        cb_str_addf(out, "by kernels of single ops\n");
        for (uint32_t i = 0; i < p->group[g].n_instr; i++)
            cb_str_addf(out, "  %s\n",
                        cb_op_def_of(p->instr[p->group[g].instr_begin + i].code)->name);
    }
}

static cb_status cpu_code(const cb_program *program, const cb_runtime *runtime, void *handle,
                          cb_str *out, cb_error *err) {
    void *made = NULL;
    if (!handle) CB_TRY(cpu_compile(program, (void *)(uintptr_t)runtime, &made, err));
    print_groups(handle ? handle : made, out);
    cpu_destroy(made);
    return CB_OK;
}

static void use_arena(state *s, const cb_bindings *bindings) {
    if (s->arena == bindings->arena && s->x.host == bindings->host) return;
    s->arena = bindings->arena;
    cb_executable_place_all(&s->x, s->arena, bindings->host);
}

static cb_status run_group(void *user, uint32_t group, cb_error *err) {
    run *r = user;
    const cb_executable *x = &r->s->x;
    if (r->s->top[group] > r->peak) r->peak = r->s->top[group];
    cb_run_moves(x->program, group, false, x->host, x->address);
    if (cb_executor_has(r->s->executor, group))
        CB_TRY(cb_executor_run(r->s->executor, group, r->bindings, err));
    else CB_TRY(cb_executable_run_group(x, group, r->bindings, err));
    cb_run_moves(x->program, group, true, x->host, x->address);
    return CB_OK;
}

static void *cpu_address(void *handle, uint32_t operand) {
    return cb_executable_address(&((state *)handle)->x, operand);
}

static cb_status cpu_run(void *handle, const cb_bindings *bindings, cb_run_stats *stats,
                         cb_error *err) {
    state *s = handle;
    run r = {.s = s, .bindings = bindings};
    uint64_t n_alloc = cb_alloc_stats(s->x.runtime->alloc).n_alloc;
    use_arena(s, bindings);
    CB_TRY(cb_executable_bind(&s->x, bindings, err));
    CB_TRY(cb_run_groups(s->x.program->n_group, bindings, run_group, &r, err));
    cb_replace_states(s->x.program, bindings, cpu_address, s);
    if (stats) {
        *stats = (cb_run_stats){.peak_bytes = r.peak,
                                .n_group = s->x.program->n_group,
                                .n_alloc = cb_alloc_stats(s->x.runtime->alloc).n_alloc - n_alloc};
    }
    return CB_OK;
}

const cb_backend cb_backend_cpu = {
    .name = "cpu",
    CB_HOST_CALLS,
    .uses_arena = true,
    .updates_inside = true,
    .fuses = cb_kernels_fuse,
    .supports = cb_executable_supports,
    .compile = cpu_compile,
    .code = cpu_code,
    .run = cpu_run,
    .address = cpu_address,
    .bytes = cpu_bytes,
    .destroy = cpu_destroy,
};
