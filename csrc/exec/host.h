/* host.h: shared by the backends that run on the host: host memory, work that is finished when a
 * call returns, and kernels with the same scratch. Their device is the runtime itself. */
#ifndef CB_EXEC_HOST_H
#define CB_EXEC_HOST_H

#include "backend.h"
#include "workspace.h"

cb_status cb_host_open(const cb_runtime *runtime, void **device, cb_error *err);
void cb_host_close(void *device);
cb_status cb_host_alloc(void *device, size_t bytes, void **block, cb_error *err);
void cb_host_free(void *device, void *block);
cb_status cb_host_copy(void *device, cb_stream *stream, cb_way way, void *to, const void *from,
                       size_t bytes, cb_error *err);
cb_status cb_host_sync(void *device, cb_stream *stream, cb_error *err);
cb_status cb_host_event_new(void *device, cb_event **event, cb_error *err);
void cb_host_event_free(void *device, cb_event *event);
cb_status cb_host_record(void *device, cb_stream *stream, cb_event *event, cb_error *err);
cb_status cb_host_wait(void *device, cb_stream *stream, cb_event *event, cb_error *err);
cb_status cb_host_seconds(void *device, cb_event *from, cb_event *to, double *out, cb_error *err);
cb_status cb_host_finish(void *executable, cb_stream *stream, cb_error *err);
cb_status cb_host_update(void *device, void *executable, cb_stream *stream,
                         const cb_optimizer *optimizer, const cb_optim_table *table, cb_error *err);

/* A host backend's functions, except those for programs. */
#define CB_HOST_CALLS                                                                           \
    .is_host = true, .alignment = CB_ALIGN, .workspace = cb_op_workspace, .open = cb_host_open, \
    .close = cb_host_close, .alloc = cb_host_alloc, .free = cb_host_free, .copy = cb_host_copy, \
    .sync = cb_host_sync, .event_new = cb_host_event_new, .event_free = cb_host_event_free,     \
    .record = cb_host_record, .wait = cb_host_wait, .seconds = cb_host_seconds,                 \
    .finish = cb_host_finish, .update = cb_host_update

/* Returns seconds since a fixed moment in the past. */
double cb_host_clock(void);

#endif
