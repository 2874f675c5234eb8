/* The device and its programs. Calls check their arguments, translate addresses and queue work; the
 * work runs on the host's kernels, at the near addresses, when somebody waits. One lock per device
 * is enough: the tests are about order, not speed. */
#include "far.h"

#include <pthread.h>
#include <string.h>

#include "exec/cpu/executor/executor.h"
#include "memory.h"
#include "queue.h"

typedef struct far_device {
    const cb_runtime *runtime;
    far_memory memory;
    far_queue queue;
    pthread_mutex_t lock;
} far_device;

typedef struct far_update { /* a queued optimizer step */
    const cb_optimizer *optimizer;
    cb_optim_row *rows; /* [n_rows], near; each row is a group of its own */
    double *hyper;      /* [n_rows][n_hyper] */
    uint32_t n_rows;
    bool waits;
} far_update;

#define FAR_RUNS_MOST 4u

typedef struct far_pending {  /* a queued run */
    cb_bindings bindings;     /* near addresses */
    void **inputs, **outputs; /* [n_input], [n_output] */
    bool waits;
} far_pending;

typedef struct far_executable {
    cb_executable x;
    cb_executor *executor;
    far_device *d;
    void *arena; /* far address of the latest run's arena, NULL before the first */
    far_pending runs[FAR_RUNS_MOST];
    uint32_t n_run;              /* runs started so far */
    const cb_bindings *bindings; /* bindings of the run being executed */
    far_update update;
    cb_status status; /* status of the runs since the last `finish` */
    cb_error error;
} far_executable;

static cb_status unlocked(far_device *d, cb_status status) {
    pthread_mutex_unlock(&d->lock);
    return status;
}

static void lock(far_device *d) { pthread_mutex_lock(&d->lock); }

/* ---- the device ------------------------------------------------------------------------------ */

/* Allocates the device outside of the context's allocator, because it outlives everything made with
 * it. */
static cb_status far_open(const cb_runtime *runtime, void **device, cb_error *err) {
    cb_alloc outside;
    cb_alloc_init(&outside);
    far_device *d = cb_malloc(&outside, sizeof *d);
    if (!d) return cb_no_memory(err);
    memset(d, 0, sizeof *d);
    d->runtime = runtime;
    cb_status status = far_memory_open(&d->memory, runtime->alloc, err);
    if (status != CB_OK) {
        cb_free(&outside, d);
        return status;
    }
    pthread_mutex_init(&d->lock, NULL);
    *device = d;
    return CB_OK;
}

static void far_close(void *device) {
    far_device *d = device;
    pthread_mutex_destroy(&d->lock);
    far_memory_close(&d->memory);
    cb_alloc outside;
    cb_alloc_init(&outside);
    cb_free(&outside, d);
}

static cb_status far_alloc(void *device, size_t bytes, void **block, cb_error *err) {
    far_device *d = device;
    lock(d);
    return unlocked(d, far_memory_take(&d->memory, bytes, block, err));
}

static void far_free(void *device, void *block) {
    far_device *d = device;
    lock(d);
    far_memory_give(&d->memory, block);
    (void)unlocked(d, CB_OK);
}

static cb_status far_copy(void *device, cb_stream *stream, cb_way way, void *to, const void *from,
                          size_t bytes, cb_error *err) {
    far_device *d = device;
    void *source = (void *)from;
    void **far_side = way == CB_WAY_IN ? &to : &source;
    CB_TRY(far_near(&d->memory, *far_side, far_side, err));
    if (bytes == 0) return CB_OK;
    lock(d);
    far_put(
        &d->queue,
        (far_work){.kind = FAR_COPY, .stream = stream, .to = to, .from = source, .bytes = bytes});
    return unlocked(d, CB_OK);
}

/* ---- order ----------------------------------------------------------------------------------- */

static cb_status far_sync(void *device, cb_stream *stream, cb_error *err) {
    far_device *d = device;
    (void)err;
    lock(d);
    far_do(&d->queue, stream);
    return unlocked(d, CB_OK);
}

static far_event *event_of(cb_event *event) { return (far_event *)(void *)event; }

static cb_status far_event_new(void *device, cb_event **event, cb_error *err) {
    far_device *d = device;
    far_event *made = cb_malloc(d->runtime->alloc, sizeof *made);
    if (!made) return cb_no_memory(err);
    *made = (far_event){0};
    *event = (cb_event *)(void *)made;
    return CB_OK;
}

static void far_event_free(void *device, cb_event *event) {
    far_device *d = device;
    if (!event) return;
    lock(d);
    far_do_all(&d->queue);
    (void)unlocked(d, CB_OK);
    cb_free(d->runtime->alloc, event);
}

static cb_status far_record(void *device, cb_stream *stream, cb_event *event, cb_error *err) {
    far_device *d = device;
    (void)err;
    lock(d);
    far_put(&d->queue, (far_work){.kind = FAR_RECORD, .stream = stream, .event = event_of(event)});
    return unlocked(d, CB_OK);
}

static cb_status far_wait(void *device, cb_stream *stream, cb_event *event, cb_error *err) {
    far_device *d = device;
    const far_event *e = event_of(event);
    (void)err;
    lock(d);
    if (e->number) {
        far_put(&d->queue, (far_work){.kind = FAR_WAIT,
                                      .stream = stream,
                                      .until_stream = e->stream,
                                      .until = e->number});
    }
    return unlocked(d, CB_OK);
}

static cb_status far_seconds(void *device, cb_event *from, cb_event *to, double *out,
                             cb_error *err) {
    far_device *d = device;
    if (!event_of(from)->number || !event_of(to)->number)
        return cb_fail(err, CB_INVALID, "far: an event was never recorded");
    lock(d);
    far_do(&d->queue, event_of(from)->stream);
    far_do(&d->queue, event_of(to)->stream);
    *out = event_of(to)->at - event_of(from)->at;
    return unlocked(d, CB_OK);
}

/* ---- programs -------------------------------------------------------------------------------- */

static void far_destroy(void *executable) {
    far_executable *f = executable;
    if (!f) return;
    far_device *d = f->d;
    lock(d);
    far_do_all(&d->queue);
    (void)unlocked(d, CB_OK);
    cb_executor_free(f->executor);
    cb_executable_free(&f->x);
    cb_free(d->runtime->alloc, f);
}

static uint64_t far_bytes(const void *executable) {
    const far_executable *f = executable;
    return cb_block_bytes(f) + cb_executable_bytes(&f->x) + cb_executor_bytes(f->executor);
}

/* Allocates lists for the arguments of a run, and for an update of all gradients by any
 * optimizer. */
static cb_status make_lists(far_executable *f, const cb_program *program, cb_error *err) {
    uint32_t n_hyper = 0;
    for (uint32_t i = 0; cb_optimizer_at(i); i++) {
        if (cb_optimizer_at(i)->n_hyper > n_hyper) n_hyper = cb_optimizer_at(i)->n_hyper;
    }
    bool whole = true;
    for (uint32_t i = 0; i < FAR_RUNS_MOST; i++) {
        f->runs[i].inputs = CB_NEW(&f->x.memory, void *, program->n_input);
        f->runs[i].outputs = CB_NEW(&f->x.memory, void *, program->n_output);
        whole &= f->runs[i].inputs && f->runs[i].outputs;
    }
    f->update.rows = CB_NEW(&f->x.memory, cb_optim_row, program->n_output);
    f->update.hyper = CB_NEW(&f->x.memory, double, (size_t)program->n_output *n_hyper);
    return whole && f->update.rows && f->update.hyper ? CB_OK : cb_no_memory(err);
}

static cb_status far_compile(const cb_program *program, void *device, void **executable,
                             cb_error *err) {
    far_device *d = device;
    far_executable *f = cb_malloc(d->runtime->alloc, sizeof *f);
    if (!f) return cb_no_memory(err);
    *f = (far_executable){.d = d};
    cb_status status = cb_executable_init(&f->x, program, d->runtime, err);
    if (status != CB_OK) {
        cb_free(d->runtime->alloc, f);
        return status;
    }
    status = make_lists(f, program, err);
    if (status == CB_OK) status = cb_executor_new(&f->x, &f->executor, err);
    if (status != CB_OK) {
        far_destroy(f);
        return status;
    }
    *executable = f;
    return CB_OK;
}

static cb_status run_group(void *executable, uint32_t group, cb_error *err) {
    far_executable *f = executable;
    if (!cb_executor_has(f->executor, group))
        return cb_executable_run_group(&f->x, group, f->bindings, err);
    return cb_executor_run(f->executor, group, f->bindings, err);
}

static void *near_address(void *executable, uint32_t operand) {
    return cb_executable_address(&((far_executable *)executable)->x, operand);
}

static void do_run(void *executable, uint32_t slot) {
    far_executable *f = executable;
    f->runs[slot].waits = false;
    f->bindings = &f->runs[slot].bindings;
    if (f->status != CB_OK) return; /* an earlier run has failed */
    f->status = cb_executable_bind(&f->x, f->bindings, &f->error);
    if (f->status == CB_OK)
        f->status = cb_run_groups(f->x.program->n_group, f->bindings, run_group, f, &f->error);
    if (f->status == CB_OK) cb_replace_states(f->x.program, f->bindings, near_address, f);
}

/* Finishes queued runs first, as they use the old arena. */
static cb_status use_arena(far_executable *f, void *arena, cb_error *err) {
    void *near = NULL;
    if (f->arena == arena) return CB_OK;
    CB_TRY(far_near(&f->d->memory, arena, &near, err));
    far_do_all(&f->d->queue);
    f->arena = arena;
    cb_executable_place_all(&f->x, near, NULL);
    return CB_OK;
}

static cb_status take_bindings(const far_executable *f, const cb_bindings *b, far_pending *out,
                               cb_error *err) {
    const cb_program *p = f->x.program;
    for (uint32_t i = 0; i < p->n_input; i++)
        CB_TRY(far_near(&f->d->memory, b->inputs[i], &out->inputs[i], err));
    for (uint32_t i = 0; i < p->n_output; i++) {
        const bool inside = p->operand[p->output[i].operand].space == CB_SPACE_ARENA;
        out->outputs[i] = NULL;
        if (!inside) CB_TRY(far_near(&f->d->memory, b->outputs[i], &out->outputs[i], err));
    }
    out->bindings = *b;
    out->bindings.inputs = out->inputs;
    out->bindings.outputs = out->outputs;
    out->bindings.poll = NULL;
    return CB_OK;
}

static cb_status put_run(far_executable *f, const cb_bindings *b, cb_error *err) {
    if (b->poll && b->poll(b->poll_user))
        return cb_fail(err, CB_CANCELLED, "run: cancelled by the caller");
    const uint32_t slot = f->n_run % FAR_RUNS_MOST;
    if (f->runs[slot].waits) far_do_all(&f->d->queue);
    CB_TRY(use_arena(f, b->arena, err));
    CB_TRY(take_bindings(f, b, &f->runs[slot], err));
    f->runs[slot].waits = true;
    f->n_run++;
    far_put(
        &f->d->queue,
        (far_work){
            .kind = FAR_RUN, .stream = b->stream, .run = do_run, .executable = f, .slot = slot});
    return CB_OK;
}

static cb_status far_run(void *executable, const cb_bindings *bindings, cb_run_stats *stats,
                         cb_error *err) {
    far_executable *f = executable;
    const cb_program *p = f->x.program;
    const uint64_t n_alloc = cb_alloc_stats(f->d->runtime->alloc).n_alloc;
    lock(f->d);
    CB_TRY(unlocked(f->d, put_run(f, bindings, err)));
    if (stats) {
        *stats = (cb_run_stats){.peak_bytes = p->arena_bytes,
                                .n_group = p->n_group,
                                .n_alloc = cb_alloc_stats(f->d->runtime->alloc).n_alloc - n_alloc};
    }
    return CB_OK;
}

static cb_status far_finish(void *executable, cb_stream *stream, cb_error *err) {
    far_executable *f = executable;
    lock(f->d);
    far_do(&f->d->queue, stream);
    const cb_status status = f->status;
    if (status != CB_OK && err) *err = f->error;
    f->status = CB_OK;
    return unlocked(f->d, status);
}

static void *far_address(void *executable, uint32_t operand) {
    const far_executable *f = executable;
    return far_of(&f->d->memory, near_address(executable, operand));
}

/* ---- optimizers ------------------------------------------------------------------------------ */

static cb_status take_row(const far_device *d, const cb_optim_row *row, uint32_t n_state,
                          cb_optim_row *out, cb_error *err) {
    void *grad = NULL;
    *out = *row;
    CB_TRY(far_near(&d->memory, row->param, &out->param, err));
    CB_TRY(far_near(&d->memory, row->grad, &grad, err));
    out->grad = grad;
    for (uint32_t s = 0; s < n_state; s++)
        CB_TRY(far_near(&d->memory, row->state[s], &out->state[s], err));
    return CB_OK;
}

static void do_update(void *executable, uint32_t slot) {
    far_executable *f = executable;
    (void)slot; /* there is only one slot */
    far_update *u = &f->update;
    u->waits = false;
    if (f->status != CB_OK) return; /* its run has failed */
    const cb_optim_table table = {.optimizer = u->optimizer,
                                  .grad_factor = 1,
                                  .rows = u->rows,
                                  .hyper = u->hyper,
                                  .n_rows = u->n_rows,
                                  .n_groups = u->n_rows,
                                  .n_hyper = u->optimizer->n_hyper};
    f->status = cb_optim_step(&table, f->d->runtime->pool, &f->error);
}

static cb_status put_update(far_executable *f, cb_stream *stream, const cb_optimizer *optimizer,
                            const cb_optim_table *table, cb_error *err) {
    far_update *u = &f->update;
    const size_t n = table->n_hyper;
    if (u->waits) far_do_all(&f->d->queue); /* there is room for only one */
    u->optimizer = optimizer;
    u->n_rows = table->n_rows;
    for (uint32_t i = 0; i < table->n_rows; i++) {
        const cb_optim_row *row = &table->rows[i];
        const double *hyper = table->hyper + row->group * n;
        memcpy(u->hyper + i * n, hyper, n * sizeof *hyper);
        CB_TRY(take_row(f->d, row, cb_optimizer_n_used(optimizer, hyper), &u->rows[i], err));
        u->rows[i].group = i;
    }
    u->waits = true;
    far_put(&f->d->queue,
            (far_work){.kind = FAR_RUN, .stream = stream, .run = do_update, .executable = f});
    return CB_OK;
}

static cb_status far_update_step(void *device, void *executable, cb_stream *stream,
                                 const cb_optimizer *optimizer, const cb_optim_table *table,
                                 cb_error *err) {
    far_executable *f = executable;
    (void)device;
    lock(f->d);
    return unlocked(f->d, put_update(f, stream, optimizer, table, err));
}

#define FAR_CALLS                                                                                 \
    .uses_arena = true, .workspace = cb_op_workspace, .fuses = cb_kernels_fuse,                   \
    .supports = cb_executable_supports, .open = far_open, .close = far_close, .alloc = far_alloc, \
    .free = far_free, .copy = far_copy, .sync = far_sync, .event_new = far_event_new,             \
    .event_free = far_event_free, .record = far_record, .wait = far_wait, .seconds = far_seconds, \
    .compile = far_compile, .run = far_run, .finish = far_finish, .address = far_address,         \
    .bytes = far_bytes, .destroy = far_destroy

const cb_backend cb_backend_far = {
    .name = "far", .alignment = CB_ALIGN, FAR_CALLS, .update = far_update_step};
const cb_backend cb_backend_far256 = {.name = "far256", .alignment = 256, FAR_CALLS};
