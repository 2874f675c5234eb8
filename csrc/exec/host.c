/* Work is finished when a call returns, so streams and waits do nothing, and an event is the time
 * at which it was recorded. */
#include "host.h"

#include <string.h>
#include <time.h>

double cb_host_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

cb_status cb_host_open(const cb_runtime *runtime, void **device, cb_error *err) {
    (void)err;
    *device = (void *)runtime;
    return CB_OK;
}

void cb_host_close(void *device) { (void)device; }

static cb_alloc *alloc_of(void *device) { return ((const cb_runtime *)device)->alloc; }

cb_status cb_host_alloc(void *device, size_t bytes, void **block, cb_error *err) {
    void *made = cb_malloc(alloc_of(device), bytes);
    if (!made) return cb_no_memory(err);
    *block = made;
    return CB_OK;
}

void cb_host_free(void *device, void *block) { cb_free(alloc_of(device), block); }

cb_status cb_host_copy(void *device, cb_stream *stream, cb_way way, void *to, const void *from,
                       size_t bytes, cb_error *err) {
    (void)device, (void)stream, (void)way, (void)err;
    if (bytes) memcpy(to, from, bytes);
    return CB_OK;
}

cb_status cb_host_sync(void *device, cb_stream *stream, cb_error *err) {
    (void)device, (void)stream, (void)err;
    return CB_OK;
}

static double *time_of(cb_event *event) { return (double *)(void *)event; }

cb_status cb_host_event_new(void *device, cb_event **event, cb_error *err) {
    double *made = cb_malloc(alloc_of(device), sizeof *made);
    if (!made) return cb_no_memory(err);
    *made = 0;
    *event = (cb_event *)(void *)made;
    return CB_OK;
}

void cb_host_event_free(void *device, cb_event *event) { cb_free(alloc_of(device), event); }

cb_status cb_host_record(void *device, cb_stream *stream, cb_event *event, cb_error *err) {
    (void)device, (void)stream, (void)err;
    *time_of(event) = cb_host_clock();
    return CB_OK;
}

cb_status cb_host_wait(void *device, cb_stream *stream, cb_event *event, cb_error *err) {
    (void)device, (void)stream, (void)event, (void)err;
    return CB_OK;
}

cb_status cb_host_seconds(void *device, cb_event *from, cb_event *to, double *out, cb_error *err) {
    (void)device, (void)err;
    *out = *time_of(to) - *time_of(from);
    return CB_OK;
}

cb_status cb_host_finish(void *executable, cb_stream *stream, cb_error *err) {
    (void)executable, (void)stream, (void)err;
    return CB_OK;
}

cb_status cb_host_update(void *device, void *executable, cb_stream *stream,
                         const cb_optimizer *optimizer, const cb_optim_table *table,
                         cb_error *err) {
    const cb_runtime *runtime = device;
    (void)executable, (void)stream, (void)optimizer;
    return cb_optim_step(table, runtime->pool, err);
}
