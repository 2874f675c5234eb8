/* Handles of the driver are passed through unchanged: a stream is a CUstream, an event a CUevent,
 * and memory is an address. Every call pushes the primary context on the calling thread and pops it
 * again, so the caller's current context does not change. */
#include "context.h"

cb_status cb_cu_enter(const cb_cu_gpu *d, cb_error *err) {
    CB_CU(&d->driver, cuCtxPushCurrent(d->context));
    return CB_OK;
}

cb_status cb_cu_leave(const cb_cu_gpu *d, cb_status status) {
    void *left;
    (void)d->driver.cuCtxPopCurrent(&left);
    return status;
}

void *cb_cu_stream_of(const cb_cu_gpu *d, cb_stream *stream) {
    return stream ? (void *)stream : d->stream;
}

int cb_cu_begin_aside(const cb_cu_gpu *d) {
    enum { RELAXED = 2 };
    int mode = RELAXED; /* the call replaces it by the old mode */
    return d->driver.cuThreadExchangeStreamCaptureMode(&mode) == 0 ? mode : RELAXED;
}

void cb_cu_end_aside(const cb_cu_gpu *d, int mode) {
    (void)d->driver.cuThreadExchangeStreamCaptureMode(&mode);
}

cb_status cb_cu_check_stream(const cb_cu_gpu *d, void *stream, cb_error *err) {
    enum {
        LAST_STANDING = 2
    }; /* handles up to this one are special: the legacy and the per-thread
                                   stream */
    void *context = NULL;
    if (stream == d->stream || (uintptr_t)stream <= LAST_STANDING) return CB_OK;
    CB_CU(&d->driver, cuStreamGetCtx(stream, &context));
    if (context == d->context) return CB_OK;
    return cb_fail(err, CB_INVALID,
                   "run: the stream belongs to another device or context; this step runs in the "
                   "primary context of device %d",
                   d->ordinal);
}

cb_status cb_cu_is_captured(const cb_cu_gpu *d, void *stream, bool *out, cb_error *err) {
    int status = 0;
    CB_CU(&d->driver, cuStreamIsCapturing(stream, &status));
    *out = status != 0;
    return CB_OK;
}

cb_status cb_cu_refuse_capture(const cb_cu_gpu *d, void *stream, cb_error *err) {
    bool captured = false;
    CB_TRY(cb_cu_is_captured(d, stream, &captured, err));
    return captured ? cb_fail(err, CB_UNSUPPORTED,
                              "cuda: this call is not possible while its stream is being captured: "
                              "end the capture, or run the step on another stream")
                    : CB_OK;
}

cb_status cb_cu_record(void *device, cb_stream *stream, cb_event *event, cb_error *err) {
    const cb_cu_gpu *const d = device;
    void *const at = cb_cu_stream_of(d, stream);
    CB_TRY(cb_cu_enter(d, err));
    cb_status status = cb_cu_check_stream(d, at, err);
    if (status == CB_OK) status = cb_cu_refuse_capture(d, at, err);
    const int code = status == CB_OK ? d->driver.cuEventRecord(event, at) : 0;
    if (code) status = cb_cu_failed(&d->driver, "cuEventRecord", code, err);
    return cb_cu_leave(d, status);
}
