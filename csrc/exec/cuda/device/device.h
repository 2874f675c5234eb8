/* device.h: opens a GPU, and handles its memory, copies and events. Internal to this backend. */
#ifndef CB_EXEC_CUDA_DEVICE_DEVICE_H
#define CB_EXEC_CUDA_DEVICE_DEVICE_H

#include "pool.h"

cb_status cb_cu_open(const cb_runtime *runtime, void **device, cb_error *err);
void cb_cu_close(void *device);
cb_status cb_cu_alloc(void *device, size_t bytes, void **block, cb_error *err);
void cb_cu_free(void *device, void *block);
cb_status cb_cu_copy(void *device, cb_stream *stream, cb_way way, void *to, const void *from,
                     size_t bytes, cb_error *err);
cb_status cb_cu_sync(void *device, cb_stream *stream, cb_error *err);
cb_status cb_cu_event_new(void *device, cb_event **event, cb_error *err);
void cb_cu_event_free(void *device, cb_event *event);
cb_status cb_cu_wait(void *device, cb_stream *stream, cb_event *event, cb_error *err);
cb_status cb_cu_seconds(void *device, cb_event *from, cb_event *to, double *out, cb_error *err);

#endif
