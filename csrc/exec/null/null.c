/* The null backend: the run loop without kernels, for measuring everything around them and for
 * planning on machines that cannot hold the arena. Outputs and states do not change. */
#include "../executable.h"

typedef struct state {
    const cb_program *program;
    cb_alloc *alloc;
} state;

static cb_status null_supports(const cb_program *program, uint32_t group, cb_error *err) {
    (void)program, (void)group, (void)err;
    return CB_OK;
}

static cb_status null_compile(const cb_program *program, void *device, void **out, cb_error *err) {
    const cb_runtime *runtime = device;
    state *s = cb_malloc(runtime->alloc, sizeof *s);
    if (!s) return cb_no_memory(err);
    *s = (state){.program = program, .alloc = runtime->alloc};
    *out = s;
    return CB_OK;
}

static cb_status count_group(void *user, uint32_t group, cb_error *err) {
    (void)group;
    (void)err;
    ++*(uint64_t *)user;
    return CB_OK;
}

static cb_status null_run(void *handle, const cb_bindings *bindings, cb_run_stats *stats,
                          cb_error *err) {
    const state *s = handle;
    uint64_t n_group = 0;
    CB_TRY(cb_run_groups(s->program->n_group, bindings, count_group, &n_group, err));
    if (stats) *stats = (cb_run_stats){.n_group = n_group};
    return CB_OK;
}

static void *null_address(void *handle, uint32_t operand) {
    (void)handle;
    (void)operand;
    return NULL;
}

static uint64_t null_bytes(const void *handle) { return cb_block_bytes(handle); }

static void null_destroy(void *handle) {
    state *s = handle;
    if (s) cb_free(s->alloc, s);
}

const cb_backend cb_backend_null = {
    .name = "null",
    CB_HOST_CALLS,
    .supports = null_supports,
    .compile = null_compile,
    .run = null_run,
    .address = null_address,
    .bytes = null_bytes,
    .destroy = null_destroy,
};
