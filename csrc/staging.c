#include "staging.h"

cb_status cb_staging_init(cb_staging *s, const cb_backend *backend, void *device, size_t n_slot,
                          cb_arena *arena, cb_error *err) {
    *s = (cb_staging){.backend = backend, .device = device};
    if (backend->is_host) return CB_OK;
    CB_TRY_NEW(s->block, arena, n_slot, err);
    CB_TRY_NEW(s->is_there, arena, n_slot, err);
    s->n_slot = (uint32_t)n_slot;
    return CB_OK;
}

void cb_staging_free(cb_staging *s) {
    for (uint32_t i = 0; i < s->n_slot; i++) s->backend->free(s->device, s->block[i]);
}

cb_status cb_stage(cb_staging *s, uint32_t slot, void *host, uint64_t bytes, bool there, void **at,
                   cb_error *err) {
    *at = s->backend->is_host || there ? host : NULL;
    if (s->backend->is_host) return CB_OK;
    s->is_there[slot] = there;
    if (there || bytes == 0) return CB_OK;
    if (!s->block[slot]) CB_TRY(s->backend->alloc(s->device, (size_t)bytes, &s->block[slot], err));
    *at = s->block[slot];
    return CB_OK;
}

cb_status cb_stage_in(const cb_staging *s, cb_stream *stream, uint32_t slot, const void *host,
                      uint64_t bytes, cb_error *err) {
    if (s->backend->is_host || s->is_there[slot] || bytes == 0) return CB_OK;
    return s->backend->copy(s->device, stream, CB_WAY_IN, s->block[slot], host, (size_t)bytes, err);
}

cb_status cb_stage_out(const cb_staging *s, cb_stream *stream, uint32_t slot, void *host,
                       uint64_t bytes, cb_error *err) {
    if (s->backend->is_host || s->is_there[slot] || bytes == 0) return CB_OK;
    return s->backend->copy(s->device, stream, CB_WAY_OUT, host, s->block[slot], (size_t)bytes,
                            err);
}
