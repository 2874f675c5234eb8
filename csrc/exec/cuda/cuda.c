/* The cuda backend. The kernels of all groups are compiled once. A run fills in the addresses of
 * its arguments and launches the kernels one after another. It neither allocates nor waits, so it
 * can be captured. A program uses three blocks of device memory: the arena of the plan, which the
 * caller provides; extra memory of the kernels; and the failure word, which the last kernels of a
 * run check before they replace states. */
#include <stdio.h>
#include <string.h>

#include "../executable.h"
#include "../workspace.h"
#include "captured.h"
#include "device/device.h"
#include "group.h"
#include "launches.h"
#include "ops/product.h"
#include "run.h"

#define ALIGNMENT 256 /* cuMemAlloc guarantees it; enough for the widest accesses */
#define CAPABILITY 80 /* compute capability for code that is printed without a device */

typedef cb_cu_executable executable;
typedef cb_cu_failure failure;

/* ---- workspace ------------------------------------------------------------------------------- */

/* Returns the scratch that an op needs: partial sums of columns, and cuBLASLt's workspace. Other
 * ops need none, even if they do on the CPU. */
static uint64_t workspace(const cb_graph *g, cb_op_id op) {
    switch (g->ops.at[op].code) {
        case CB_OP_SUM:
        case CB_OP_MEAN:
        case CB_OP_LAYER_NORM_BWD:
        case CB_OP_RMS_NORM_BWD: return cb_op_workspace(g, op);
        case CB_OP_MATMUL: return cb_cu_product_room(g, op);
        default: return 0;
    }
}

/* Returns true for attention, which has no kernel yet that keeps tiles of scores in shared
 * memory. */
static bool lacks(cb_opcode code) { return code == CB_OP_ATTENTION || code == CB_OP_ATTENTION_BWD; }

/* ---- compiling ------------------------------------------------------------------------------- */

/* Adds the last kernels of a run, which copy new states over the caller's unless the run has
 * failed. */
static void add_states(cb_cu_code *c) {
    const cb_program *p = c->program;
    for (uint32_t i = 0; i < p->n_output; i++) {
        const cb_argument *a = &p->output[i];
        const bool wide = cb_dtype_size(a->dtype) % 4 == 0;
        const uint64_t n = wide ? a->bytes / 4 : a->bytes;
        if (a->role_or_kind != CB_OUTPUT_STATE || n == 0) continue;
        const cb_operand *o = &p->operand[a->operand];
        const cb_cu_param to = {CB_CU_INPUT, a->input, 0},
                          from = {CB_CU_ARENA, 0,
                                  p->buffer[o->buffer].offset +
                                      (uint64_t)o->offset * cb_dtype_size(o->dtype)};
        cb_cu_begin(c);
        const char *type = wide ? "uint32_t" : "uint8_t";
        const int out = cb_cu_param_of(c, to, type, true),
                  in = cb_cu_param_of(c, from, type, false),
                  f = cb_cu_param_of(c, (cb_cu_param){.place = CB_CU_FAILURE}, "failure", false);
        cb_cu_add(c, "const uint64_t i = blockIdx.x * (uint64_t)256 + threadIdx.x;\n");
        cb_cu_add(c, "if (i < p%d && p%d->instr == 0) p%d[i] = p%d[i];\n",
                  cb_cu_count(c, (int64_t)n), f, out, in);
        cb_cu_end(c, (cb_cu_grid){(uint32_t)((n + 255) / 256), 1, 1}, 256);
    }
}

/* Adds a kernel that advances the step of the random generator on the device, so that replays of a
 * captured run draw new numbers. */
static void add_count(cb_cu_code *c) {
    if (!c->reads_step) return;
    cb_cu_begin(c);
    const int count = cb_cu_param_of(c, (cb_cu_param){.place = CB_CU_COUNT}, "uint64_t", true),
              f = cb_cu_param_of(c, (cb_cu_param){.place = CB_CU_FAILURE}, "failure", false);
    cb_cu_add(c, "if (threadIdx.x == 0 && p%d->instr == 0) p%d[0]++;\n", f, count);
    cb_cu_end(c, (cb_cu_grid){1, 1, 1}, 32);
}

static bool has_products(const cb_program *p) {
    for (uint32_t i = 0; i < p->n_instr; i++)
        if (p->instr[i].code == CB_OP_MATMUL) return true;
    return false;
}

/* Opens cuBLASLt, which loads slowly, only if it is configured and the program has products. */
static cb_status open_products(executable *x, cb_error *err) {
    const char *path = x->d->runtime->cuda.blaslt;
    if (!path || !has_products(x->program)) return CB_OK;
    cb_error why;
    if (cb_cu_open_blaslt(&x->blaslt, path, &why) != CB_OK)
        return cb_fail(
            err, CB_UNSUPPORTED,
            "cuda: %.300s; set CUTBACK_CUBLASLT=none to use Cutback's own kernels for products",
            why.text);
    x->code.blaslt = &x->blaslt;
    return cb_cu_blaslt_open(&x->blaslt, &x->code.products, err);
}

static cb_status write_groups(cb_cu_code *code, cb_alloc *alloc, cb_error *err) {
    cb_cu_include(code, "prelude.cuh");
    for (uint32_t g = 0; g < code->program->n_group; g++) CB_TRY(cb_cu_group(code, g, alloc, err));
    code->group = code->program->n_group;
    add_states(code);
    add_count(code);
    return cb_cu_finish(code, err);
}

static cb_status write_code(executable *x, cb_arena *texts, cb_error *err) {
    cb_cu_init(&x->code, x->program, &x->memory, texts);
    x->code.capability = x->d->capability;
    CB_TRY(open_products(x, err));
    return write_groups(&x->code, x->d->runtime->alloc, err);
}

/* Allows kernels to use more than 48 KiB of shared memory, which takes an explicit call. */
static cb_status allow_shared(executable *x, cb_error *err) {
    enum { MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
    for (size_t k = 0; k < x->code.kernels.len; k++) {
        const int bytes = (int)x->code.kernels.at[k].shared;
        if (bytes == 0) continue;
        CB_CU(&x->d->driver,
              cuFuncSetAttribute(x->function[k], MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes));
    }
    return CB_OK;
}

static cb_status compile_code(executable *x, cb_arena *texts, cb_error *err) {
    CB_TRY(write_code(x, texts, err));
    const size_t n = x->code.kernels.len;
    CB_TRY_NEW(x->function, &x->memory, n, err);
    if (n == 0) return CB_OK;
    CB_TRY(cb_cu_parts_make(&x->parts, &x->code, x->d, texts, x->function, err));
    return allow_shared(x, err);
}

static cb_status make_code(executable *x, cb_error *err) {
    cb_arena texts;
    cb_arena_init(&texts, x->d->runtime->alloc);
    const cb_status status = compile_code(x, &texts, err);
    cb_arena_free(&texts);
    return status;
}

static cb_status make_lists(executable *x, cb_error *err) {
    const size_t n = x->code.params.len;
    CB_TRY_NEW(x->value, &x->memory, n, err);
    CB_TRY_NEW(x->parameter, &x->memory, n, err);
    CB_TRY_NEW(x->event, &x->memory, x->program->n_group + 1, err);
    CB_TRY_NEW(x->known, &x->memory, x->program->n_input + x->program->n_output, err);
    for (size_t k = 0; k < n; k++) x->parameter[k] = &x->value[k];
    return CB_OK;
}

static uint32_t kept_gradients(const cb_program *p, bool *has_f64) {
    uint32_t n = 0;
    *has_f64 = false;
    for (uint32_t i = 0; i < p->n_output; i++) {
        const cb_argument *a = &p->output[i];
        const bool kept =
            a->role_or_kind == CB_OUTPUT_GRAD && p->operand[a->operand].space == CB_SPACE_ARENA;
        n += kept;
        *has_f64 |= kept && a->dtype == CB_F64;
    }
    return n;
}

/* Allocates everything that later calls need: extra memory, events, and the table for updates of
 * gradients that stay in the arena. */
static cb_status make_rest(executable *x, cb_error *err) {
    const cb_cu_gpu *d = x->d;
    bool has_f64;
    const uint32_t kept = kept_gradients(x->program, &has_f64);
    CB_TRY(cb_cu_take(d, x->code.extra_bytes, &x->extra, err));
    CB_TRY(cb_cu_take(d, sizeof(failure) + sizeof(uint64_t), &x->failed, err));
    CB_CU(&d->driver, cuMemsetD8Async(x->failed, 0, sizeof(failure) + sizeof(uint64_t), d->stream));
    CB_CU(&d->driver, cuStreamSynchronize(d->stream));
    for (uint32_t g = 0; g <= x->program->n_group; g++)
        CB_CU(&d->driver, cuEventCreate(&x->event[g], 0));
    if (kept) CB_TRY(cb_cu_update_init(&x->update, d, kept, has_f64, &x->memory, err));
    return CB_OK;
}

static void release(executable *x) {
    const cb_cu_driver *driver = &x->d->driver;
    for (uint32_t g = 0; x->event && g <= x->program->n_group; g++)
        if (x->event[g]) (void)driver->cuEventDestroy(x->event[g]);
    if (x->extra) (void)driver->cuMemFree(x->extra);
    if (x->failed) (void)driver->cuMemFree(x->failed);
    cb_cu_parts_release(&x->parts, x->d);
    for (size_t k = 0; k < x->code.calls.len; k++)
        cb_cu_product_release(&x->blaslt, &x->code.calls.at[k].product);
    cb_cu_blaslt_close(&x->blaslt, x->code.products);
    cb_cu_update_release(&x->update, x->d);
}

static void destroy(void *handle) {
    executable *x = handle;
    if (!x) return;
    if (cb_cu_enter(x->d, NULL) == CB_OK) {
        const int mode = cb_cu_begin_aside(x->d);
        release(x);
        cb_cu_end_aside(x->d, mode);
        (void)cb_cu_leave(x->d, CB_OK);
    }
    cb_arena_free(&x->memory);
    cb_free(x->d->runtime->alloc, x);
}

static uint64_t bytes(const void *handle) {
    const executable *x = handle;
    return cb_block_bytes(x) + cb_arena_bytes(&x->memory);
}

static cb_status make_parts(executable *x, cb_error *err) {
    CB_TRY(make_code(x, err));
    CB_TRY(make_lists(x, err));
    return make_rest(x, err);
}

static cb_status make(executable *x, cb_error *err) {
    const int asked = x->d->runtime->cuda.device;
    if (asked != x->d->ordinal)
        return cb_fail(err, CB_UNSUPPORTED,
                       "cuda: device %d was requested, but this process already uses device %d; a "
                       "process can use only one (CUDA_VISIBLE_DEVICES also selects it)",
                       asked, x->d->ordinal);
    const int mode = cb_cu_begin_aside(x->d);
    const cb_status status = make_parts(x, err);
    cb_cu_end_aside(x->d, mode);
    return status;
}

static cb_status compile(const cb_program *program, void *device, void **handle, cb_error *err) {
    cb_cu_gpu *d = device;
    executable *x = cb_malloc(d->runtime->alloc, sizeof *x);
    if (!x) return cb_no_memory(err);
    *x = (executable){.d = d, .program = program};
    cb_arena_init(&x->memory, d->runtime->alloc);
    cb_status status = cb_cu_enter(d, err);
    if (status == CB_OK) status = cb_cu_leave(d, make(x, err));
    if (status != CB_OK) {
        destroy(x);
        return status;
    }
    *handle = x;
    return CB_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static cb_status run(void *handle, const cb_bindings *b, cb_run_stats *stats, cb_error *err) {
    executable *x = handle;
    const uint64_t n_alloc = cb_alloc_stats(x->d->runtime->alloc).n_alloc;
    if (b->poll && b->poll(b->poll_user))
        return cb_fail(err, CB_CANCELLED, "run: cancelled by the caller");
    CB_TRY(cb_cu_enter(x->d, err));
    CB_TRY(cb_cu_leave(x->d, cb_cu_put_run(x, b, err)));
    if (stats) {
        *stats = (cb_run_stats){.peak_bytes = x->program->arena_bytes,
                                .n_group = x->program->n_group,
                                .n_alloc = cb_alloc_stats(x->d->runtime->alloc).n_alloc - n_alloc};
    }
    return CB_OK;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static cb_status take_seconds(executable *x, cb_error *err) {
    for (uint32_t g = 0; x->group_seconds && g < x->program->n_group; g++) {
        float milliseconds = 0;
        CB_CU(&x->d->driver, cuEventElapsedTime(&milliseconds, x->event[g], x->event[g + 1]));
        x->group_seconds[g] = (double)milliseconds * 1e-3;
    }
    x->group_seconds = NULL;
    return CB_OK;
}

/* Reports an index out of range, with the same message as the CPU's kernels. */
static cb_status tell(const executable *x, const failure *f, cb_error *err) {
    const cb_program *p = x->program;
    const cb_instr *instr = &p->instr[f->instr - 1];
    const bool labels =
        instr->code == CB_OP_CROSS_ENTROPY || instr->code == CB_OP_CROSS_ENTROPY_BWD;
    const cb_operand *of =
        &p->operand[p->operand_id[instr->in_begin + (instr->code == CB_OP_CROSS_ENTROPY_BWD)]];
    long long limit = (long long)of->shape.dim[0];
    if (labels) limit = (long long)of->shape.dim[of->shape.rank - 1];
    if (instr->code == CB_OP_EMBEDDING_BWD) limit = (long long)instr->attrs.i[0];
    if (instr->code == CB_OP_GATHER || instr->code == CB_OP_SCATTER_ADD)
        limit = (long long)of->shape.dim[instr->attrs.i[0]];
    const bool placed = instr->location && instr->location[0];
    return cb_fail(err, CB_INVALID, "%s: %s %lld out of range for %lld %s%s%s",
                   cb_op_def_of(instr->code)->name, labels ? "label" : "index", (long long)f->index,
                   limit, labels ? "classes" : "rows", placed ? " at " : "",
                   placed ? instr->location : "");
}

static cb_status wait_for(executable *x, void *stream, cb_error *err) {
    const cb_cu_driver *driver = &x->d->driver;
    failure f = {0};
    CB_CU(driver, cuMemcpyDtoHAsync(&f, x->failed, sizeof f, stream));
    CB_CU(driver, cuStreamSynchronize(stream));
    CB_TRY(take_seconds(x, err));
    if (f.instr == 0) return CB_OK;
    cb_cu_update_forget(&x->update);
    cb_cu_captured_forget(x);
    x->knows_step = false;
    CB_CU(driver, cuMemsetD8Async(x->failed, 0, sizeof f, stream));
    CB_CU(driver, cuStreamSynchronize(stream));
    return tell(x, &f, err);
}

static cb_status finish(void *handle, cb_stream *stream, cb_error *err) {
    executable *x = handle;
    CB_TRY(cb_cu_enter(x->d, err));
    return cb_cu_leave(x->d, wait_for(x, cb_cu_stream_of(x->d, stream), err));
}

static void *address(void *handle, uint32_t operand) {
    const executable *x = handle;
    const cb_operand *o = &x->program->operand[operand];
    if (o->space != CB_SPACE_ARENA || !x->arena) return NULL;
    const uint64_t at = x->arena + x->program->buffer[o->buffer].offset +
                        (uint64_t)o->offset * cb_dtype_size(o->dtype);
    return (void *)(uintptr_t)at;
}

static cb_status launches(void *handle, cb_str *out, cb_error *err) {
    executable *x = handle;
    CB_TRY(cb_cu_enter(x->d, err));
    return cb_cu_leave(x->d, cb_cu_launches(x->d, &x->code, x->function, &x->update, out, err));
}

static cb_status print_code(const executable *x, cb_cu_code *code, cb_alloc *alloc, cb_str *out,
                            cb_error *err) {
    if (x) {
        code->capability = x->d->capability;
        code->blaslt = x->code.blaslt;
        code->products = x->code.products;
    }
    const cb_status status = write_groups(code, alloc, err);
    if (status == CB_OK) cb_cu_print(code, out);
    for (size_t k = 0; k < code->calls.len; k++)
        cb_cu_product_release(code->blaslt, &code->calls.at[k].product);
    return status;
}

/* Writes the kernels again, because their text is not kept. Without a device, all products use our
 * own kernels. */
static cb_status code_text(const cb_program *program, const cb_runtime *runtime, void *handle,
                           cb_str *out, cb_error *err) {
    executable *x = handle;
    cb_arena memory;
    cb_cu_code code;
    if (x) CB_TRY(cb_cu_enter(x->d, err));
    cb_arena_init(&memory, runtime->alloc);
    cb_cu_init(&code, program, &memory, &memory);
    code.capability = CAPABILITY;
    cb_status status = print_code(x, &code, runtime->alloc, out, err);
    cb_arena_free(&memory);
    if (x) status = cb_cu_leave(x->d, status);
    return status;
}

static cb_status ready(void *handle, const cb_optimizer *optimizer, cb_error *err) {
    executable *x = handle;
    CB_TRY(cb_cu_enter(x->d, err));
    return cb_cu_leave(x->d, cb_cu_update_ready(&x->update, x->d, optimizer, err));
}

static bool resident(const void *handle, uint32_t group, cb_resident *out) {
    return cb_cu_update_resident(&((const executable *)handle)->update, group, out);
}

static cb_status update(void *device, void *handle, cb_stream *stream,
                        const cb_optimizer *optimizer, const cb_optim_table *table, cb_error *err) {
    executable *x = handle;
    (void)device;
    CB_TRY(cb_cu_enter(x->d, err));
    return cb_cu_leave(x->d, cb_cu_update_put(&x->update, x->d, cb_cu_stream_of(x->d, stream),
                                              x->failed, optimizer, table, err));
}

const cb_backend cb_backend_cuda = {
    .name = "cuda",
    .uses_arena = true,
    .alignment = ALIGNMENT,
    .workspace = workspace,
    .fuses = cb_cu_fuses,
    .lacks = lacks,
    .supports = cb_cu_supports,
    .open = cb_cu_open,
    .close = cb_cu_close,
    .alloc = cb_cu_alloc,
    .free = cb_cu_free,
    .pooled = &cb_cu_pooled,
    .copy = cb_cu_copy,
    .sync = cb_cu_sync,
    .event_new = cb_cu_event_new,
    .event_free = cb_cu_event_free,
    .record = cb_cu_record,
    .wait = cb_cu_wait,
    .seconds = cb_cu_seconds,
    .compile = compile,
    .run = run,
    .finish = finish,
    .address = address,
    .launches = launches,
    .code = code_text,
    .bytes = bytes,
    .destroy = destroy,
    .steps = cb_cu_update_steps,
    .ready = ready,
    .resident = resident,
    .capturing = &cb_cu_capturing,
    .update = update,
};
