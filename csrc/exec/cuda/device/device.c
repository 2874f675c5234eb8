/* Opens a device, copies memory, waits for streams, and records events. */
#include "device.h"

#include <string.h>

#define DEVICE(d) const cb_cu_gpu *const d = device

/* ---- opening --------------------------------------------------------------------------------- */

static cb_status open_libraries(cb_cu_gpu *d, cb_error *err) {
    const cb_cuda_options *o = &d->runtime->cuda;
    if (!o->driver || !o->nvrtc)
        return cb_fail(err, CB_UNSUPPORTED,
                       "cuda: this context has no path to the %s (cb_context_set_cuda)",
                       o->driver ? "library NVRTC" : "driver");
    CB_TRY(cb_cu_open_driver(&d->driver, o->driver, err));
    return cb_cu_open_nvrtc(&d->nvrtc, o->nvrtc, err);
}

static cb_status make_stream(cb_cu_gpu *d, cb_error *err) {
    enum { BESIDE_THE_LEGACY_STREAM = 1 };
    CB_TRY(cb_cu_enter(d, err));
    const int code = d->driver.cuStreamCreate(&d->stream, BESIDE_THE_LEGACY_STREAM);
    return cb_cu_leave(d, code ? cb_cu_failed(&d->driver, "cuStreamCreate", code, err) : CB_OK);
}

static cb_status open_device(cb_cu_gpu *d, cb_error *err) {
    cb_cu_device is;
    const int ordinal = d->runtime->cuda.device;
    int n;
    CB_TRY(cb_cu_count_devices(&d->driver, &n, err));
    if (ordinal < 0 || ordinal >= n)
        return cb_fail(err, CB_INVALID, "cuda: device %d was requested, but there %s %d", ordinal,
                       n == 1 ? "is" : "are", n);
    CB_TRY(cb_cu_describe_device(&d->driver, ordinal, &is, err));
    d->ordinal = ordinal;
    d->capability = is.capability;
    CB_CU(&d->driver, cuDeviceGet(&d->device, ordinal));
    CB_CU(&d->driver, cuDevicePrimaryCtxRetain(&d->context, d->device));
    const cb_status status = make_stream(d, err);
    if (status != CB_OK) (void)d->driver.cuDevicePrimaryCtxRelease(d->device);
    return status;
}

/* Opens a device. It is allocated outside of the context's allocator, which would count it as a
 * leak, because it stays open after everything made with it has been freed. */
cb_status cb_cu_open(const cb_runtime *runtime, void **device, cb_error *err) {
    cb_alloc outside;
    cb_alloc_init(&outside);
    cb_cu_gpu *d = cb_malloc(&outside, sizeof *d);
    if (!d) return cb_no_memory(err);
    memset(d, 0, sizeof *d);
    d->runtime = runtime;
    cb_status status = cb_cu_pool_new(&outside, &d->pool, err);
    if (status == CB_OK) status = open_libraries(d, err);
    if (status == CB_OK) status = open_device(d, err);
    if (status != CB_OK) {
        cb_cu_pool_free(&outside, d->pool);
        cb_free(&outside, d);
        return status;
    }
    *device = d;
    return CB_OK;
}

void cb_cu_close(void *device) {
    cb_cu_gpu *d = device;
    cb_alloc outside;
    cb_alloc_init(&outside);
    (void)cb_cu_pool_release(d);
    if (cb_cu_enter(d, NULL) == CB_OK) {
        (void)d->driver.cuStreamDestroy(d->stream);
        (void)cb_cu_leave(d, CB_OK);
    }
    (void)d->driver.cuDevicePrimaryCtxRelease(d->device);
    cb_cu_pool_free(&outside, d->pool);
    cb_free(&outside, d);
}

/* ---- memory ---------------------------------------------------------------------------------- */

cb_status cb_cu_alloc(void *device, size_t bytes, void **block, cb_error *err) {
    DEVICE(d);
    uint64_t address = 0;
    CB_TRY(cb_cu_enter(d, err));
    const int mode = cb_cu_begin_aside(d);
    const cb_status status = cb_cu_take(d, bytes, &address, err);
    cb_cu_end_aside(d, mode);
    CB_TRY(cb_cu_leave(d, status));
    *block = (void *)(uintptr_t)address;
    return CB_OK;
}

void cb_cu_free(void *device, void *block) {
    DEVICE(d);
    if (!block || cb_cu_enter(d, NULL) != CB_OK) return;
    const int mode = cb_cu_begin_aside(d);
    (void)d->driver.cuCtxSynchronize(); /* streams that used the block may no longer exist */
    (void)d->driver.cuMemFree((uint64_t)(uintptr_t)block);
    cb_cu_end_aside(d, mode);
    (void)cb_cu_leave(d, CB_OK);
}

static cb_status copy(const cb_cu_gpu *d, void *stream, cb_way way, void *to, const void *from,
                      size_t bytes, cb_error *err) {
    if (way == CB_WAY_IN)
        CB_CU(&d->driver, cuMemcpyHtoDAsync((uint64_t)(uintptr_t)to, from, bytes, stream));
    else CB_CU(&d->driver, cuMemcpyDtoHAsync(to, (uint64_t)(uintptr_t)from, bytes, stream));
    return CB_OK;
}

cb_status cb_cu_copy(void *device, cb_stream *stream, cb_way way, void *to, const void *from,
                     size_t bytes, cb_error *err) {
    DEVICE(d);
    if (bytes == 0) return CB_OK;
    CB_TRY(cb_cu_enter(d, err));
    return cb_cu_leave(d, copy(d, cb_cu_stream_of(d, stream), way, to, from, bytes, err));
}

/* ---- order ----------------------------------------------------------------------------------- */

cb_status cb_cu_sync(void *device, cb_stream *stream, cb_error *err) {
    DEVICE(d);
    void *const at = cb_cu_stream_of(d, stream);
    CB_TRY(cb_cu_enter(d, err));
    cb_status status = cb_cu_refuse_capture(d, at, err);
    const int code = status == CB_OK ? d->driver.cuStreamSynchronize(at) : 0;
    if (code) status = cb_cu_failed(&d->driver, "cuStreamSynchronize", code, err);
    return cb_cu_leave(d, status);
}

cb_status cb_cu_event_new(void *device, cb_event **event, cb_error *err) {
    DEVICE(d);
    void *made = NULL;
    CB_TRY(cb_cu_enter(d, err));
    const int code = d->driver.cuEventCreate(&made, 0);
    if (code) return cb_cu_leave(d, cb_cu_failed(&d->driver, "cuEventCreate", code, err));
    *event = made;
    return cb_cu_leave(d, CB_OK);
}

void cb_cu_event_free(void *device, cb_event *event) {
    DEVICE(d);
    if (!event || cb_cu_enter(d, NULL) != CB_OK) return;
    (void)d->driver.cuEventDestroy(event);
    (void)cb_cu_leave(d, CB_OK);
}

cb_status cb_cu_wait(void *device, cb_stream *stream, cb_event *event, cb_error *err) {
    DEVICE(d);
    void *const at = cb_cu_stream_of(d, stream);
    CB_TRY(cb_cu_enter(d, err));
    cb_status status = cb_cu_refuse_capture(d, at, err);
    const int code = status == CB_OK ? d->driver.cuStreamWaitEvent(at, event, 0) : 0;
    if (code) status = cb_cu_failed(&d->driver, "cuStreamWaitEvent", code, err);
    return cb_cu_leave(d, status);
}

static cb_status seconds(const cb_cu_gpu *d, void *from, void *to, double *out, cb_error *err) {
    float milliseconds = 0;
    CB_CU(&d->driver, cuEventSynchronize(from));
    CB_CU(&d->driver, cuEventSynchronize(to));
    CB_CU(&d->driver, cuEventElapsedTime(&milliseconds, from, to));
    *out = (double)milliseconds * 1e-3;
    return CB_OK;
}

cb_status cb_cu_seconds(void *device, cb_event *from, cb_event *to, double *out, cb_error *err) {
    DEVICE(d);
    CB_TRY(cb_cu_enter(d, err));
    return cb_cu_leave(d, seconds(d, from, to, out, err));
}
