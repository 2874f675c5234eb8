/* The debug backend runs the cpu kernels without an arena. Each buffer is a separate block,
 * allocated at its first group and freed after its last. So a sanitizer sees every access outside
 * of it, and the counted peak equals the planned liveness peak.
 *
 *     | guard | bytes, rounded up to a cache line | guard |
 *
 * A buffer that takes over the memory of another is the same block.
 *
 * A local of a group also gets such a block while its group runs. It is not counted, because
 * elsewhere it is in registers.
 *
 * A fresh buffer has all bits set, which is a NaN in every float type, so that reads of unwritten
 * memory show. The guards (with the padding) hold a pattern that is checked when the buffer is
 * freed. This also catches overruns in code without sanitizers, such as a BLAS. */
#include "../../base/sanitize.h"
#include "../executable.h"

#define GUARD_SIZE CB_ALIGN
#define GUARD_BYTE 0xA5

typedef struct state {
    cb_executable x;
    /* Buffers sorted by first group: those of group g are at made_begin[g] .. made_begin[g + 1].
     * `last` has them sorted by last group in the same way. */
    uint32_t *made_begin, *made;
    uint32_t *last_begin, *last;
    bool *is_taken;                 /* [n_buffer] another buffer has taken over its block */
    uint32_t *local_begin, *locals; /* the locals of group g are at local_begin[g] .. local_begin[g
                                       + 1] */
    uint64_t live, peak;            /* bytes */
    const cb_bindings *bindings;
} state;

/* ---- one buffer ------------------------------------------------------------------------------ */

static size_t tail_bytes(uint64_t bytes) {
    return cb_align_up((size_t)bytes) - (size_t)bytes + GUARD_SIZE;
}

static cb_status make_block(const state *s, uint64_t bytes, char **out, cb_error *err) {
    size_t tail = tail_bytes(bytes), total;
    if (!cb_add_size((size_t)bytes, GUARD_SIZE + tail, &total)) return cb_no_memory(err);
    char *block = cb_malloc(s->x.runtime->alloc, total);
    if (!block) return cb_no_memory(err);
    char *data = block + GUARD_SIZE;
    memset(block, GUARD_BYTE, GUARD_SIZE);
    memset(data, 0xFF, (size_t)bytes);
    memset(data + bytes, GUARD_BYTE, tail);
    CB_POISON(block, GUARD_SIZE);
    CB_POISON(data + bytes, tail);
    *out = data;
    return CB_OK;
}

static cb_status make_buffer(state *s, uint32_t buffer, cb_error *err) {
    const cb_buffer *x = &s->x.program->buffer[buffer];
    const uint64_t bytes = x->bytes;
    if (x->takes_over) {
        s->x.address[buffer] = s->x.address[x->over];
        s->is_taken[x->over] = true;
        return CB_OK;
    }
    CB_TRY(make_block(s, bytes, &s->x.address[buffer], err));
    s->live += bytes;
    if (s->live > s->peak) s->peak = s->live;
    return CB_OK;
}

static bool is_pattern(const char *at, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)at[i] != GUARD_BYTE) return false;
    return true;
}

/* Frees a block if there is one. Returns false if something wrote past its ends. */
static bool free_block(const state *s, char **at, uint64_t bytes) {
    char *data = *at;
    CB_UNPOISON(data - GUARD_SIZE, GUARD_SIZE);
    CB_UNPOISON(data + bytes, tail_bytes(bytes));
    bool is_whole =
        is_pattern(data - GUARD_SIZE, GUARD_SIZE) && is_pattern(data + bytes, tail_bytes(bytes));
    cb_free(s->x.runtime->alloc, data - GUARD_SIZE);
    *at = NULL;
    return is_whole;
}

/* Frees a buffer, unless its block was taken over and has a new owner. */
static bool free_buffer(state *s, uint32_t buffer) {
    if (s->is_taken[buffer]) {
        s->x.address[buffer] = NULL;
        s->is_taken[buffer] = false;
        return true;
    }
    uint64_t bytes = s->x.program->buffer[buffer].bytes;
    s->live -= bytes;
    return free_block(s, &s->x.address[buffer], bytes);
}

static bool free_local(state *s, uint32_t local) {
    return free_block(s, &s->x.local[local], s->x.program->locals[local].bytes);
}

static void free_all(state *s) {
    for (uint32_t b = 0; b < s->x.program->n_buffer; b++)
        if (s->x.address[b]) free_buffer(s, b);
    for (uint32_t l = 0; l < s->x.program->n_local; l++)
        if (s->x.local[l]) free_local(s, l);
}

/* ---- creation and destruction ---------------------------------------------------------------- */

static void debug_destroy(void *handle) {
    state *s = handle;
    if (!s) return;
    cb_alloc *alloc = s->x.runtime->alloc;
    free_all(s);
    cb_free(alloc, s->x.host);
    cb_executable_free(&s->x);
    cb_free(alloc, s);
}

static uint32_t key_of(const cb_buffer *b, bool by_last) { return by_last ? b->last : b->made; }

/* Sorts the buffers by their first or last group, by counting. Buffers that are held to the end
 * (last == n_group) have a separate range. */
static cb_status sort_buffers(state *s, bool by_last, uint32_t **begin_out, uint32_t **list_out,
                              cb_error *err) {
    const cb_program *p = s->x.program;
    uint32_t *begin = CB_NEW(&s->x.memory, uint32_t, (size_t)p->n_group + 3);
    uint32_t *list = CB_NEW(&s->x.memory, uint32_t, p->n_buffer);
    if (!begin || !list) return cb_no_memory(err);
    for (uint32_t b = 0; b < p->n_buffer; b++) begin[key_of(&p->buffer[b], by_last) + 2]++;
    for (uint32_t g = 0; g <= p->n_group; g++) begin[g + 2] += begin[g + 1];
    for (uint32_t b = 0; b < p->n_buffer; b++)
        list[begin[key_of(&p->buffer[b], by_last) + 1]++] = b;
    *begin_out = begin;
    *list_out = list;
    return CB_OK;
}

static cb_status sort_locals(state *s, cb_error *err) {
    const cb_program *p = s->x.program;
    uint32_t *begin = CB_NEW(&s->x.memory, uint32_t, (size_t)p->n_group + 2);
    CB_TRY_NEW(s->locals, &s->x.memory, p->n_local, err);
    if (!begin) return cb_no_memory(err);
    for (uint32_t l = 0; l < p->n_local; l++) begin[p->locals[l].group + 2]++;
    for (uint32_t g = 0; g < p->n_group; g++) begin[g + 1] += begin[g];
    for (uint32_t l = 0; l < p->n_local; l++) s->locals[begin[p->locals[l].group + 1]++] = l;
    s->local_begin = begin;
    return CB_OK;
}

static cb_status debug_compile(const cb_program *program, void *device, void **out, cb_error *err) {
    const cb_runtime *runtime = device;
    state *s = cb_malloc(runtime->alloc, sizeof *s);
    if (!s) return cb_no_memory(err);
    *s = (state){0};
    cb_status status = cb_executable_init(&s->x, program, runtime, err);
    if (status != CB_OK) {
        cb_free(runtime->alloc, s);
        return status;
    }
    s->x.host = program->host_bytes ? cb_malloc(runtime->alloc, (size_t)program->host_bytes) : NULL;
    CB_TRY_DONE(s->x.host || !program->host_bytes ? CB_OK : cb_no_memory(err));
    CB_TRY_DONE(sort_buffers(s, false, &s->made_begin, &s->made, err));
    CB_TRY_DONE(sort_buffers(s, true, &s->last_begin, &s->last, err));
    CB_TRY_DONE(sort_locals(s, err));
    s->is_taken = CB_NEW(&s->x.memory, bool, program->n_buffer);
    CB_TRY_DONE(s->is_taken ? CB_OK : cb_no_memory(err));
    *out = s;
done:
    if (status != CB_OK) debug_destroy(s);
    return status;
}

static uint64_t debug_bytes(const void *handle) {
    const state *s = handle;
    const uint64_t host = s->x.host ? cb_block_bytes(s->x.host) : 0;
    return cb_block_bytes(s) + cb_executable_bytes(&s->x) + host;
}

/* ---- run ------------------------------------------------------------------------------------- */

static cb_status report_overrun(const state *s, const char *what, uint32_t id, uint64_t bytes,
                                uint32_t group, cb_error *err) {
    const cb_program *p = s->x.program;
    const cb_instr *instr = &p->instr[p->group[group].instr_begin];
    return cb_fail(
        err, CB_INTERNAL,
        "%s: something wrote past the ends of %s %u (%llu bytes) while it was allocated; "
        "found after group %u",
        cb_op_def_of(instr->code)->name, what, id, (unsigned long long)bytes, group);
}

static cb_status run_group(void *user, uint32_t group, cb_error *err) {
    state *s = user;
    const cb_program *p = s->x.program;
    for (uint32_t i = s->made_begin[group]; i < s->made_begin[group + 1]; i++)
        CB_TRY(make_buffer(s, s->made[i], err));
    const uint32_t *locals = s->locals + s->local_begin[group],
                   n_local = s->local_begin[group + 1] - s->local_begin[group];
    for (uint32_t i = 0; i < n_local; i++) {
        const uint32_t l = locals[i];
        CB_TRY(make_block(s, p->locals[l].bytes, &s->x.local[l], err));
    }
    if (s->bindings->group_bytes) s->bindings->group_bytes[group] = s->live;
    cb_executable_place(&s->x, group);
    cb_run_moves(p, group, false, s->x.host, s->x.address);
    CB_TRY(cb_executable_run_group(&s->x, group, s->bindings, err));
    cb_run_moves(p, group, true, s->x.host, s->x.address);
    for (uint32_t i = s->last_begin[group]; i < s->last_begin[group + 1]; i++) {
        const uint32_t b = s->last[i];
        if (!free_buffer(s, b))
            return report_overrun(s, "buffer", b, p->buffer[b].bytes, group, err);
    }
    for (uint32_t i = 0; i < n_local; i++) {
        if (!free_local(s, locals[i]))
            return report_overrun(s, "local", locals[i], p->locals[locals[i]].bytes, group, err);
    }
    return CB_OK;
}

static void *debug_address(void *handle, uint32_t operand) {
    return cb_executable_address(&((state *)handle)->x, operand);
}

static void debug_let_go(void *handle) { free_all(handle); }

/* Runs the program. Buffers that are held to the end stay allocated until the next run, for
 * cb_backend.address. */
static cb_status debug_run(void *handle, const cb_bindings *bindings, cb_run_stats *stats,
                           cb_error *err) {
    state *s = handle;
    uint64_t n_alloc = cb_alloc_stats(s->x.runtime->alloc).n_alloc;
    free_all(s);
    s->peak = 0;
    s->bindings = bindings;
    CB_TRY(cb_executable_bind(&s->x, bindings, err));
    cb_status status = cb_run_groups(s->x.program->n_group, bindings, run_group, s, err);
    if (status != CB_OK) {
        free_all(s);
        return status;
    }
    cb_replace_states(s->x.program, bindings, debug_address, s);
    if (stats) {
        *stats = (cb_run_stats){.peak_bytes = s->peak,
                                .n_group = s->x.program->n_group,
                                .n_alloc = cb_alloc_stats(s->x.runtime->alloc).n_alloc - n_alloc};
    }
    return CB_OK;
}

const cb_backend cb_backend_debug = {
    .name = "debug",
    CB_HOST_CALLS,
    .fuses = cb_kernels_fuse,
    .supports = cb_executable_supports,
    .compile = debug_compile,
    .run = debug_run,
    .address = debug_address,
    .let_go = debug_let_go,
    .bytes = debug_bytes,
    .destroy = debug_destroy,
};
