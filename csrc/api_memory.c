/* Public functions for device memory, for arrays that stay there between steps. */
#include "pipeline.h"

static cb_status device_of(cb_context *ctx, const char *name, const cb_backend **backend,
                           void **device, cb_error *err) {
    *backend = name ? cb_backend_find(name) : cb_backends[0];
    if (!*backend) return cb_fail(err, CB_INVALID, "no backend is called \"%s\"", name);
    return cb_devices_get(&ctx->devices, *backend, device, err);
}

cb_status cb_memory_alloc(cb_context *ctx, const char *backend, size_t bytes, void **block,
                          cb_error *err) {
    const cb_backend *b;
    void *device;
    CB_TRY(device_of(ctx, backend, &b, &device, err));
    return b->alloc(device, bytes, block, err);
}

void cb_memory_free(cb_context *ctx, const char *backend, void *block) {
    const cb_backend *b;
    void *device;
    if (block && device_of(ctx, backend, &b, &device, NULL) == CB_OK) b->free(device, block);
}

cb_status cb_memory_copy(cb_context *ctx, const char *backend, void *stream, bool to_host, void *to,
                         const void *from, size_t bytes, cb_error *err) {
    const cb_backend *b;
    void *device;
    cb_stream *const on = stream;
    CB_TRY(device_of(ctx, backend, &b, &device, err));
    const cb_status copied =
        b->copy(device, on, to_host ? CB_WAY_OUT : CB_WAY_IN, to, from, bytes, err);
    /* Waits even after a failure: no copy to or from the caller's memory may still be running. */
    const cb_status synced = b->sync(device, on, copied == CB_OK ? err : NULL);
    return copied == CB_OK ? synced : copied;
}

static cb_status order(const cb_backend *b, void *device, cb_event *event, cb_stream *before,
                       cb_stream *after, cb_error *err) {
    CB_TRY(b->record(device, before, event, err));
    return b->wait(device, after, event, err);
}

cb_status cb_memory_order(cb_context *ctx, const char *backend, void *before, void *after,
                          cb_error *err) {
    const cb_backend *b;
    void *device;
    cb_event *event;
    if (before == after) return CB_OK;
    CB_TRY(device_of(ctx, backend, &b, &device, err));
    CB_TRY(b->event_new(device, &event, err));
    const cb_status status = order(b, device, event, before, after, err);
    b->event_free(device, event);
    return status;
}

cb_status cb_memory_wait(cb_context *ctx, const char *backend, void *stream, cb_error *err) {
    const cb_backend *b;
    void *device;
    CB_TRY(device_of(ctx, backend, &b, &device, err));
    return b->sync(device, stream, err);
}

/* ---- marks and kept blocks ------------------------------------------------------------------- */

static cb_status pooled_of(cb_context *ctx, const char *name, const cb_pooled **pooled,
                           void **device, cb_error *err) {
    const cb_backend *b;
    CB_TRY(device_of(ctx, name, &b, device, err));
    *pooled = b->pooled;
    return b->pooled ? CB_OK
                     : cb_fail(err, CB_UNSUPPORTED, "the backend \"%s\" caches no memory", b->name);
}

/* Returns the pool of a device that is already open; NULL: there is none, or it keeps no memory. */
static const cb_pooled *open_pool_of(cb_context *ctx, const char *name, void **device) {
    const cb_backend *b = name ? cb_backend_find(name) : cb_backends[0];
    *device = b ? cb_devices_find(&ctx->devices, b) : NULL;
    return *device ? b->pooled : NULL;
}

cb_status cb_mark_new(cb_context *ctx, const char *backend, void *stream, cb_mark **out,
                      cb_error *err) {
    const cb_pooled *pooled;
    void *device;
    CB_TRY(pooled_of(ctx, backend, &pooled, &device, err));
    return pooled->mark(device, stream, out, err);
}

cb_status cb_block_take(cb_context *ctx, const char *backend, size_t bytes, void *stream,
                        cb_block **out, cb_uses *after, cb_error *err) {
    const cb_pooled *pooled;
    void *device;
    CB_TRY(pooled_of(ctx, backend, &pooled, &device, err));
    return pooled->take(device, bytes, stream, out, after, err);
}

void cb_block_give(cb_context *ctx, const char *backend, cb_block *block, const cb_uses *uses) {
    void *device;
    const cb_pooled *pooled = open_pool_of(ctx, backend, &device);
    if (block && pooled) pooled->give(device, block, uses);
}

void *cb_block_address(const cb_block *block) { return block->data; }

cb_block_stats cb_block_stats_of(cb_context *ctx, const char *backend, bool resets_peak) {
    void *device;
    const cb_pooled *pooled = open_pool_of(ctx, backend, &device);
    return pooled ? pooled->stats(device, resets_peak) : (cb_block_stats){0};
}

uint64_t cb_block_release(cb_context *ctx, const char *backend) {
    void *device;
    const cb_pooled *pooled = open_pool_of(ctx, backend, &device);
    return pooled ? pooled->release(device) : 0;
}

/* ---- memory of runs -------------------------------------------------------------------------- */

cb_status cb_run_memory_new(cb_context *ctx, cb_run_memory **out, cb_error *err) {
    return cb_run_memory_make(&ctx->devices, out, err);
}
