#include "run_memory.h"

static uint32_t index_of(const cb_backend *backend) {
    uint32_t i = 0;
    while (cb_backends[i] != backend) i++;
    return i;
}

cb_status cb_run_memory_make(cb_devices *devices, cb_run_memory **out, cb_error *err) {
    cb_alloc *alloc = devices->runtime->alloc;
    cb_run_memory *m = cb_malloc(alloc, sizeof *m);
    if (!m) return cb_no_memory(err);
    *m = (cb_run_memory){.devices = devices, .alloc = alloc};
    atomic_init(&m->refs, 1);
    atomic_init(&m->n_forks, cb_fork_count());
    if (pthread_mutex_init(&m->mutex, NULL) != 0) {
        cb_free(alloc, m);
        return cb_no_memory(err);
    }
    *out = m;
    return CB_OK;
}

void cb_run_memory_lock(cb_run_memory *memory) {
    uint_fast64_t before = atomic_load(&memory->n_forks), now = cb_fork_count();
    if (before != now && atomic_compare_exchange_strong(&memory->n_forks, &before, now))
        pthread_mutex_init(&memory->mutex, NULL);
    pthread_mutex_lock(&memory->mutex);
}

void cb_run_memory_unlock(cb_run_memory *memory) { pthread_mutex_unlock(&memory->mutex); }

static void drop_block(cb_run_block *block, cb_alloc *alloc, const cb_backend *backend,
                       void *device) {
    if (!block || --block->refs > 0) return;
    if (block->data) backend->free(device, block->data);
    cb_free(alloc, block);
}

static void empty_copies(cb_copy *first, const cb_backend *backend, void *device) {
    for (cb_copy *copy = first; copy; copy = copy->next) {
        if (copy->data) backend->free(device, copy->data);
        *copy = (cb_copy){.next = copy->next};
    }
}

static void free_copies(cb_copy *first, cb_alloc *alloc) {
    while (first) {
        cb_copy *next = first->next;
        cb_free(alloc, first);
        first = next;
    }
}

void cb_run_memory_free(cb_run_memory *memory) {
    if (!memory || atomic_fetch_sub(&memory->refs, 1) != 1) return;
    for (uint32_t i = 0; cb_backends[i]; i++) {
        void *device = cb_devices_find(memory->devices, cb_backends[i]);
        empty_copies(memory->copies[i], cb_backends[i], device);
        free_copies(memory->copies[i], memory->alloc);
        drop_block(memory->block[i], memory->alloc, cb_backends[i], device);
    }
    pthread_mutex_destroy(&memory->mutex);
    cb_free(memory->alloc, memory);
}

static cb_status new_block(const cb_run_memory *memory, cb_run_block **out, cb_error *err) {
    cb_run_block *made = cb_malloc(memory->alloc, sizeof *made);
    if (!made) return cb_no_memory(err);
    *made = (cb_run_block){.refs = 1};
    *out = made;
    return CB_OK;
}

static cb_status enter(cb_run_memory *memory, const cb_backend *backend, cb_error *err) {
    cb_run_block **block = &memory->block[index_of(backend)];
    cb_run_memory_lock(memory);
    const cb_status status = *block ? CB_OK : new_block(memory, block, err);
    cb_run_memory_unlock(memory);
    return status;
}

cb_status cb_run_memory_join(cb_devices *devices, cb_run_memory *named, const cb_backend *backend,
                             cb_run_memory **out, cb_error *err) {
    if (named && named->devices != devices)
        return cb_fail(err, CB_INVALID, "compile: the memory belongs to another context");
    cb_run_memory *memory = named;
    if (named) atomic_fetch_add(&named->refs, 1);
    else CB_TRY(cb_run_memory_make(devices, &memory, err));
    const cb_status status = enter(memory, backend, err);
    if (status == CB_OK) *out = memory;
    else cb_run_memory_free(memory);
    return status;
}

static cb_status fill_copies(cb_run_memory *memory, const cb_staging *s, cb_error *err) {
    cb_copy **at = &memory->copies[index_of(s->backend)];
    for (uint32_t i = 0; i < s->n_slot; i++, at = &(*at)->next) {
        if (!*at) {
            cb_copy *made = cb_malloc(memory->alloc, sizeof *made);
            if (!made) return cb_no_memory(err);
            *made = (cb_copy){.next = NULL};
            *at = made;
        }
        s->copy[i] = *at;
    }
    return CB_OK;
}

cb_status cb_run_memory_copies(cb_run_memory *memory, const cb_staging *staging, cb_error *err) {
    cb_run_memory_lock(memory);
    const cb_status status = fill_copies(memory, staging, err);
    cb_run_memory_unlock(memory);
    return status;
}

cb_run_block *cb_run_block_of(const cb_run_memory *memory, const cb_backend *backend,
                              cb_run_block *pinned) {
    return pinned ? pinned : memory->block[index_of(backend)];
}

/* ---- growing and releasing ------------------------------------------------------------------- */

/* Waits for the latest run in a block by its event, because its stream may no longer exist.
 * Gradients that the run left in the block are then invalid. */
static cb_status settle(cb_run_block *block, cb_error *err) {
    const cb_turn *last = block->last;
    if (!last) return CB_OK;
    CB_TRY(last->backend->wait(last->device, NULL, last->ended, err));
    CB_TRY(last->backend->sync(last->device, NULL, err));
    if (last->backend->let_go) last->backend->let_go(last->state);
    block->last = NULL;
    return CB_OK;
}

static cb_status empty(cb_run_block *block, const cb_backend *backend, void *device,
                       cb_error *err) {
    void *data = block->data;
    CB_TRY(settle(block, err));
    block->data = NULL;
    block->bytes = 0;
    if (data) backend->free(device, data);
    return CB_OK;
}

/* Gives the memory a new block; steps that have pinned the old one keep it. */
static cb_status replace(cb_run_memory *memory, cb_run_block **block, cb_error *err) {
    cb_run_block *made = NULL;
    CB_TRY(new_block(memory, &made, err));
    (*block)->refs--;
    *block = made;
    return CB_OK;
}

cb_status cb_run_memory_fit(cb_run_memory *memory, const cb_backend *backend, void *device,
                            uint64_t bytes, uint64_t *n_alloc, cb_error *err) {
    cb_run_block **block = &memory->block[index_of(backend)];
    if ((*block)->data && (*block)->bytes >= bytes) return CB_OK;
    if ((*block)->refs > 1) CB_TRY(replace(memory, block, err));
    else CB_TRY(empty(*block, backend, device, err));
    cb_run_block *b = *block;
    void *data = NULL;
    const cb_status status = backend->alloc(device, (size_t)bytes, &data, err);
    if (status == CB_NOMEM) {
        return cb_fail(
            err, CB_NOMEM,
            "%s: no memory for the arena of %llu bytes; a budget, or a lower one, makes it "
            "smaller",
            backend->name, (unsigned long long)bytes);
    }
    CB_TRY(status);
    b->data = data;
    b->bytes = bytes;
    ++*n_alloc;
    return CB_OK;
}

static uint64_t release(cb_run_block *block, const cb_backend *backend, void *device) {
    if (!block || block->refs > 1) return 0;
    const uint64_t bytes = block->bytes;
    return empty(block, backend, device, NULL) == CB_OK ? bytes : 0;
}

uint64_t cb_run_memory_release(cb_run_memory *memory) {
    uint64_t bytes = 0;
    cb_run_memory_lock(memory);
    for (uint32_t i = 0; cb_backends[i]; i++) {
        void *device = cb_devices_find(memory->devices, cb_backends[i]);
        bytes += release(memory->block[i], cb_backends[i], device);
        empty_copies(memory->copies[i], cb_backends[i], device);
    }
    cb_run_memory_unlock(memory);
    return bytes;
}

uint64_t cb_run_memory_bytes(cb_run_memory *memory) {
    uint64_t bytes = 0;
    cb_run_memory_lock(memory);
    for (uint32_t i = 0; cb_backends[i]; i++)
        if (memory->block[i]) bytes += memory->block[i]->bytes;
    cb_run_memory_unlock(memory);
    return bytes;
}

/* The block no longer belongs to the last run of a step. */
static void forget(const cb_run_memory *memory, const cb_turn *turn, cb_run_block *pinned) {
    cb_run_block *const blocks[] = {memory->block[index_of(turn->backend)], pinned};
    for (int i = 0; i < 2; i++)
        if (blocks[i] && blocks[i]->last == turn) blocks[i]->last = NULL;
}

void cb_run_memory_leave(cb_run_memory *memory, const cb_turn *turn, cb_run_block *pinned) {
    if (memory) cb_run_memory_lock(memory);
    if (turn->backend) turn->backend->destroy(turn->state);
    if (!memory) return;
    forget(memory, turn, pinned);
    drop_block(pinned, memory->alloc, turn->backend, turn->device);
    cb_run_memory_unlock(memory);
    cb_run_memory_free(memory);
}
