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
    int ordinal; /* its number among the devices that the process sees */
    int capability;
    void *context; /* the primary context, which PyTorch and others use too */
    void *stream;  /* the stream for callers that pass NULL */
    struct cb_cu_pool *pool;
} cb_cu_gpu;

/* cb_cu_enter makes the device's context current on the calling thread; cb_cu_leave restores the
 * previous one and returns `status`. Functions marked "in the context" must be called in between.
 */
CB_MUST_CHECK cb_status cb_cu_enter(const cb_cu_gpu *d, cb_error *err);
cb_status cb_cu_leave(const cb_cu_gpu *d, cb_status status);

/* These enclose work that is not part of a capture but that a capture in this thread would forbid:
 * allocating memory, loading code, or waiting for the device's own stream. Pass the result of the
 * first to the second. */
int cb_cu_begin_aside(const cb_cu_gpu *d);
void cb_cu_end_aside(const cb_cu_gpu *d, int mode);

/* Needs a current context. CB_INVALID: the stream belongs to another device or context. */
CB_MUST_CHECK cb_status cb_cu_check_stream(const cb_cu_gpu *d, void *stream, cb_error *err);
/* Sets `out` if the stream is being captured; then it must not be waited for. Needs a current
 * context. */
CB_MUST_CHECK cb_status cb_cu_is_captured(const cb_cu_gpu *d, void *stream, bool *out,
                                          cb_error *err);
void *cb_cu_stream_of(const cb_cu_gpu *d, cb_stream *stream);
/* Returns CB_UNSUPPORTED if the stream is being captured: a step's events and waits cannot be part
 * of a graph and would invalidate the capture. Needs a current context. */
CB_MUST_CHECK cb_status cb_cu_refuse_capture(const cb_cu_gpu *d, void *stream, cb_error *err);
cb_status cb_cu_record(void *device, cb_stream *stream, cb_event *event, cb_error *err);

#endif
