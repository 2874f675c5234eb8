/* device.h: an open GPU, for the files of this backend. */
#ifndef CB_EXEC_CUDA_DEVICE_H
#define CB_EXEC_CUDA_DEVICE_H

#include "../backend.h"
#include "cu_api.h"
#include "cu_jit.h"

typedef struct cb_cu_gpu {
    const cb_runtime *runtime;
    cb_cu_driver driver;
    cb_cu_nvrtc nvrtc;
    int device;
    int ordinal; /* among those that the process sees */
    int capability;
    void *context; /* the primary one, as PyTorch and others have it */
    void *stream;  /* for callers that name none */
} cb_cu_gpu;

cb_status cb_cu_open(const cb_runtime *runtime, void **device, cb_error *err);
void cb_cu_close(void *device);
cb_status cb_cu_alloc(void *device, size_t bytes, void **block, cb_error *err);
void cb_cu_free(void *device, void *block);
cb_status cb_cu_copy(void *device, cb_stream *stream, cb_way way, void *to, const void *from,
                     size_t bytes, cb_error *err);
cb_status cb_cu_sync(void *device, cb_stream *stream, cb_error *err);
cb_status cb_cu_event_new(void *device, cb_event **event, cb_error *err);
void cb_cu_event_free(void *device, cb_event *event);
cb_status cb_cu_record(void *device, cb_stream *stream, cb_event *event, cb_error *err);
cb_status cb_cu_wait(void *device, cb_stream *stream, cb_event *event, cb_error *err);
cb_status cb_cu_seconds(void *device, cb_event *from, cb_event *to, double *out, cb_error *err);

/* Between these the calling thread has the device's context; it gets back the one it had. */
CB_MUST_CHECK cb_status cb_cu_enter(const cb_cu_gpu *d, cb_error *err);
cb_status cb_cu_leave(const cb_cu_gpu *d, cb_status status);

/* Around what a capture of the caller's forbids (it takes memory, loads code, or waits for the
 * device's own stream), and which nevertheless is no part of it: `mode` is for the second. */
int cb_cu_begin_aside(const cb_cu_gpu *d);
void cb_cu_end_aside(const cb_cu_gpu *d, int mode);

/* In the context: CB_INVALID: the stream belongs to another device. */
CB_MUST_CHECK cb_status cb_cu_check_stream(const cb_cu_gpu *d, void *stream, cb_error *err);
/* In the context. A stream that is captured cannot wait, and must not be waited for. */
CB_MUST_CHECK cb_status cb_cu_is_captured(const cb_cu_gpu *d, void *stream, bool *out,
                                          cb_error *err);
CB_MUST_CHECK cb_status cb_cu_take(const cb_cu_gpu *d, uint64_t bytes, uint64_t *out,
                                   cb_error *err);
void *cb_cu_stream_of(const cb_cu_gpu *d, cb_stream *stream);

#endif
