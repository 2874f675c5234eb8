/* context.h: an open GPU, its context on the calling thread, and its streams. */
#ifndef CB_EXEC_CUDA_DEVICE_CONTEXT_H
#define CB_EXEC_CUDA_DEVICE_CONTEXT_H

#include "../../backend.h"
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
    struct cb_cu_pool *pool;
} cb_cu_gpu;

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
void *cb_cu_stream_of(const cb_cu_gpu *d, cb_stream *stream);
/* In the context. CB_UNSUPPORTED: the stream is captured. Events of a step and waiting are no part
 * of a graph, and would end the capture. */
CB_MUST_CHECK cb_status cb_cu_refuse_capture(const cb_cu_gpu *d, void *stream, cb_error *err);
cb_status cb_cu_record(void *device, cb_stream *stream, cb_event *event, cb_error *err);

#endif
