/* Finds backends by name, and opens their devices. Two threads that request a device at the same
 * time may both open it; the second to finish closes its own again. This needs no lock, which a
 * forked child could inherit while it is held. */
#include "backend.h"

#include <string.h>

const cb_backend *cb_backend_find(const char *name) {
    for (uint32_t i = 0; cb_backends[i]; i++)
        if (strcmp(cb_backends[i]->name, name) == 0) return cb_backends[i];
    return NULL;
}

const char *cb_backend_name(uint32_t i) {
    for (uint32_t k = 0; k < i; k++)
        if (!cb_backends[k]) return NULL;
    return cb_backends[i] ? cb_backends[i]->name : NULL;
}

void cb_backend_names(cb_str *out) {
    for (uint32_t i = 0; cb_backends[i]; i++) {
        const char *before = i == 0 ? "" : cb_backends[i + 1] ? ", " : " and ";
        cb_str_addf(out, "%s%s", before, cb_backends[i]->name);
    }
}

cb_status cb_backend_supports(const cb_backend *backend, const cb_program *program, cb_error *err) {
    for (uint32_t g = 0; g < program->n_group; g++) CB_TRY(backend->supports(program, g, err));
    return CB_OK;
}

cb_status cb_devices_get(cb_devices *devices, const cb_backend *backend, void **device,
                         cb_error *err) {
    uint32_t i = 0;
    while (cb_backends[i] != backend) i++;
    void *open = atomic_load(&devices->open[i]), *other = NULL;
    if (!open) {
        CB_TRY(backend->open(devices->runtime, &open, err));
        if (!atomic_compare_exchange_strong(&devices->open[i], &other, open)) {
            backend->close(open);
            open = other;
        }
    }
    *device = open;
    return CB_OK;
}

void *cb_devices_find(cb_devices *devices, const cb_backend *backend) {
    uint32_t i = 0;
    while (cb_backends[i] != backend) i++;
    return atomic_load(&devices->open[i]);
}

void cb_devices_close(cb_devices *devices) {
    for (uint32_t i = 0; cb_backends[i]; i++) {
        void *open = atomic_exchange(&devices->open[i], NULL);
        if (open) cb_backends[i]->close(open);
    }
}

/* ---- marks ----------------------------------------------------------------------------------- */

cb_mark *cb_mark_keep(cb_mark *mark) {
    atomic_fetch_add(&mark->refs, 1);
    return mark;
}

void cb_mark_drop(cb_mark *mark) {
    if (mark && atomic_fetch_sub(&mark->refs, 1) == 1)
        mark->backend->pooled->unmark(mark->device, mark);
}

void cb_mark_reached(cb_mark *mark) { atomic_store(&mark->is_reached, true); }

cb_status cb_mark_wait(cb_mark *mark, void *stream, cb_error *err) {
    if (atomic_load(&mark->is_reached)) return CB_OK;
    return mark->backend->wait(mark->device, stream, mark->event, err);
}
