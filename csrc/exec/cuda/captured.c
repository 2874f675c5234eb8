/* A graph is captured on its own stream, so that work which other threads put on the device's
 * stream does not become part of it. It also has its own optimizer table. An update outside of the
 * graph uses another table, so neither changes rows or counts of the other.
 *
 * Before a replay, the numbers that the caller has changed are copied to the device, in stream
 * order: hyper-parameters, the count of steps, the random step. The host follows the counts, so in
 * most replays nothing is copied. */
#include "captured.h"

#include <string.h>

#include "device/device.h"

typedef struct cb_cu_captured {
    cb_cu_executable *x;
    struct cb_cu_captured *next; /* next graph of the executable */
    cb_arena memory;
    cb_cu_update update;
    bool updates;
    void *graph; /* CUgraphExec */
} captured;

void cb_cu_captured_forget(cb_cu_executable *x) {
    for (captured *c = x->captured; c; c = c->next) cb_cu_update_forget(&c->update);
}

static void use(void *executable, void *arena) {
    cb_cu_use_arena(executable, (uint64_t)(uintptr_t)arena);
}

/* ---- capturing ------------------------------------------------------------------------------- */

/* Puts the work on a stream that is being captured. The host then treats the numbers of the update
 * as unknown, so the first replay copies them. */
static cb_status put(captured *c, const cb_bindings *given, void *stream,
                     const cb_optim_table *table, cb_error *err) {
    cb_cu_executable *const x = c->x;
    cb_bindings b = *given;
    b.stream = stream;
    CB_TRY(cb_cu_put_run(x, &b, err));
    if (!table) return CB_OK;
    CB_TRY(cb_cu_update_put(&c->update, x->d, stream, x->failed, table->optimizer, table, err));
    c->update.was_captured = false; /* only this file replays the graph */
    return CB_OK;
}

/* Does the same without changing the executable's record of the random step: capturing runs
 * nothing. */
static cb_status put_unnoticed(captured *c, const cb_bindings *b, void *stream,
                               const cb_optim_table *table, cb_error *err) {
    cb_cu_executable *const x = c->x;
    const bool knows = x->knows_step, was_captured = x->was_captured;
    const uint64_t there = x->step_there;
    const cb_status status = put(c, b, stream, table, err);
    x->knows_step = knows;
    x->was_captured = was_captured;
    x->step_there = there;
    return status;
}

static cb_status record(captured *c, const cb_bindings *b, void *stream,
                        const cb_optim_table *table, cb_error *err) {
    enum { RELAXED = 2 };
    const cb_cu_driver *driver = &c->x->d->driver;
    void *graph = NULL;
    CB_CU(driver, cuStreamBeginCapture(stream, RELAXED));
    cb_status status = put_unnoticed(c, b, stream, table, err);
    int code = driver->cuStreamEndCapture(stream, &graph);
    if (status == CB_OK && code) status = cb_cu_failed(driver, "cuStreamEndCapture", code, err);
    if (status == CB_OK) {
        code = driver->cuGraphInstantiateWithFlags(&c->graph, graph, 0);
        if (code) status = cb_cu_failed(driver, "cuGraphInstantiateWithFlags", code, err);
    }
    if (graph) (void)driver->cuGraphDestroy(graph);
    return status;
}

static cb_status record_aside(captured *c, const cb_bindings *b, const cb_optim_table *table,
                              cb_error *err) {
    enum { BESIDE_THE_LEGACY_STREAM = 1 };
    const cb_cu_driver *driver = &c->x->d->driver;
    void *stream = NULL;
    CB_CU(driver, cuStreamCreate(&stream, BESIDE_THE_LEGACY_STREAM));
    const cb_status status = record(c, b, stream, table, err);
    (void)driver->cuStreamDestroy(stream);
    return status;
}

/* Loads the optimizer's kernels and copies its table to the device, which is not possible during a
 * capture. */
static cb_status prepare(captured *c, const cb_optim_table *table, cb_error *err) {
    const cb_cu_gpu *d = c->x->d;
    bool has_f64 = false;
    for (uint32_t i = 0; i < table->n_rows; i++) has_f64 |= table->rows[i].dtype == CB_F64;
    CB_TRY(cb_cu_update_init(&c->update, d, table->n_rows, has_f64, &c->memory, err));
    CB_TRY(cb_cu_update_ready(&c->update, d, table->optimizer, err));
    CB_TRY(cb_cu_update_bring(&c->update, d, d->stream, table->optimizer, table, err));
    CB_CU(&d->driver, cuStreamSynchronize(d->stream));
    return CB_OK;
}

static cb_status make(captured *c, const cb_bindings *b, const cb_optim_table *table,
                      cb_error *err) {
    const int mode = cb_cu_begin_aside(c->x->d);
    c->updates = table && table->n_rows > 0;
    cb_status status = c->updates ? prepare(c, table, err) : CB_OK;
    if (status == CB_OK) status = record_aside(c, b, c->updates ? table : NULL, err);
    cb_cu_end_aside(c->x->d, mode);
    return status;
}

static void take_out(captured *c) {
    struct cb_cu_captured **at = &c->x->captured;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
}

static void release(void *handle) {
    captured *c = handle;
    if (!c) return;
    const cb_cu_gpu *d = c->x->d;
    if (cb_cu_enter(d, NULL) == CB_OK) {
        const int mode = cb_cu_begin_aside(d);
        (void)d->driver.cuCtxSynchronize(); /* streams of replays may no longer exist */
        if (c->graph) (void)d->driver.cuGraphExecDestroy(c->graph);
        cb_cu_update_release(&c->update, d);
        cb_cu_end_aside(d, mode);
        (void)cb_cu_leave(d, CB_OK);
    }
    take_out(c);
    cb_arena_free(&c->memory);
    cb_free(d->runtime->alloc, c);
}

static cb_status capture(void *executable, const cb_bindings *b, const cb_optim_table *table,
                         void **graph, cb_error *err) {
    cb_cu_executable *const x = executable;
    captured *c = cb_malloc(x->d->runtime->alloc, sizeof *c);
    if (!c) return cb_no_memory(err);
    *c = (captured){.x = x, .next = x->captured};
    cb_arena_init(&c->memory, x->d->runtime->alloc);
    x->captured = c;
    cb_status status = cb_cu_enter(x->d, err);
    if (status == CB_OK) status = cb_cu_leave(x->d, make(c, b, table, err));
    if (status != CB_OK) release(c);
    else *graph = c;
    return status;
}

/* ---- replaying ------------------------------------------------------------------------------- */

static bool continues(const void *graph, int64_t t) {
    const captured *c = graph;
    return !c->updates || cb_cu_update_continues(&c->update, t);
}

static cb_status bring_numbers(captured *c, void *stream, const cb_optim_table *table,
                               cb_error *err) {
    if (!c->updates) return CB_OK;
    if (!table->rows) return cb_cu_update_bring_hyper(&c->update, c->x->d, stream, table, err);
    return cb_cu_update_bring(&c->update, c->x->d, stream, table->optimizer, table, err);
}

static cb_status launch(captured *c, void *stream, uint32_t step, const cb_optim_table *table,
                        cb_error *err) {
    cb_cu_executable *const x = c->x;
    bool within;
    CB_TRY(cb_cu_check_stream(x->d, stream, err));
    CB_TRY(cb_cu_refuse_capture(x->d, stream, err));
    CB_TRY(bring_numbers(c, stream, table, err));
    CB_TRY(cb_cu_bring_step(x, stream, step, &within, err));
    CB_CU(&x->d->driver, cuGraphLaunch(c->graph, stream));
    x->group_seconds = NULL;
    x->knows_step = !x->was_captured;
    if (c->updates) cb_cu_update_replayed(&c->update);
    return CB_OK;
}

static cb_status replay(void *graph, cb_stream *stream, uint32_t step, const cb_optim_table *table,
                        cb_error *err) {
    captured *c = graph;
    CB_TRY(cb_cu_enter(c->x->d, err));
    return cb_cu_leave(c->x->d, launch(c, cb_cu_stream_of(c->x->d, stream), step, table, err));
}

static cb_status counts(void *graph, cb_stream *stream, const cb_optim_table *table, int64_t *t,
                        double *numbers, cb_error *err) {
    captured *c = graph;
    const cb_cu_gpu *d = c->x->d;
    if (!c->updates) return CB_OK;
    CB_TRY(cb_cu_enter(d, err));
    return cb_cu_leave(
        d, cb_cu_update_counts(&c->update, d, cb_cu_stream_of(d, stream), table, t, numbers, err));
}

static bool resident(const void *graph, uint32_t group, cb_resident *out) {
    const captured *c = graph;
    return c->updates && cb_cu_update_resident(&c->update, group, out);
}

static cb_status move(void *device, cb_stream *stream, void *to, const void *from, size_t bytes,
                      cb_error *err) {
    const cb_cu_gpu *d = device;
    if (bytes == 0) return CB_OK;
    CB_TRY(cb_cu_enter(d, err));
    const int code = d->driver.cuMemcpyDtoDAsync((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from,
                                                 bytes, cb_cu_stream_of(d, stream));
    return cb_cu_leave(d, code ? cb_cu_failed(&d->driver, "cuMemcpyDtoDAsync", code, err) : CB_OK);
}

const cb_capturing cb_cu_capturing = {use,    capture,  continues, replay,
                                      counts, resident, release,   move};
