#include "staging.h"

cb_status cb_staging_init(cb_staging *s, const cb_backend *backend, void *device, size_t n_slot,
                          cb_arena *arena, cb_error *err) {
    *s = (cb_staging){.backend = backend, .device = device};
    if (backend->is_host) return CB_OK;
    CB_TRY_NEW(s->copy, arena, n_slot, err);
    CB_TRY_NEW(s->is_there, arena, n_slot, err);
    s->n_slot = (uint32_t)n_slot;
    return CB_OK;
}

/* A copy that is too small is freed first. */
static cb_status fit(const cb_staging *s, cb_copy *copy, uint64_t bytes, cb_error *err) {
    void *data = copy->data;
    if (data && copy->bytes >= bytes) return CB_OK;
    *copy = (cb_copy){.next = copy->next};
    if (data) s->backend->free(s->device, data);
    CB_TRY(s->backend->alloc(s->device, (size_t)bytes, &copy->data, err));
    copy->bytes = bytes;
    return CB_OK;
}

cb_status cb_stage(cb_staging *s, uint32_t slot, void *host, uint64_t bytes, bool there, void **at,
                   cb_error *err) {
    *at = s->backend->is_host || there ? host : NULL;
    if (s->backend->is_host) return CB_OK;
    s->is_there[slot] = there;
    if (there || bytes == 0) return CB_OK;
    CB_TRY(fit(s, s->copy[slot], bytes, err));
    *at = s->copy[slot]->data;
    return CB_OK;
}

cb_status cb_stage_in(const cb_staging *s, cb_stream *stream, uint32_t slot, const void *host,
                      uint64_t bytes, cb_error *err) {
    if (s->backend->is_host || s->is_there[slot] || bytes == 0) return CB_OK;
    return s->backend->copy(s->device, stream, CB_WAY_IN, s->copy[slot]->data, host, (size_t)bytes,
                            err);
}

cb_status cb_stage_out(const cb_staging *s, cb_stream *stream, uint32_t slot, void *host,
                       uint64_t bytes, cb_error *err) {
    if (s->backend->is_host || s->is_there[slot] || bytes == 0) return CB_OK;
    return s->backend->copy(s->device, stream, CB_WAY_OUT, host, s->copy[slot]->data, (size_t)bytes,
                            err);
}
