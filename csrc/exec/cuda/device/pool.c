/* A caching allocator for the arrays that steps return. The driver allocates memory only if no kept
 * block fits, so steps in a steady state neither allocate nor synchronise.
 *
 * Order. A block comes with the marks of work that may still use it, and its next user must be
 * ordered after them. The stream on which a block was last used may take it at any time, because
 * that ordering costs nothing there. On another stream it would make independent work wait, so a
 * block is taken there only if its marks have been reached. Stream handles are only compared, never
 * used. A new stream may have the handle of an old one, but the marks order it, too.
 *
 * Blocks with unknown users are set aside until the whole device has been waited for.
 *
 * Locks. The lock is held while lists are changed and marks are queried, never while waiting for
 * the device: another thread may hold the GIL and want the lock, and work on the device may need
 * the GIL. A forked child has no access to the memory, so it starts with an empty pool and a new
 * lock. */
#include "pool.h"

#include <pthread.h>
#include <string.h>

enum {
    PARTS = 8, /* buckets per octave: sizes in a bucket differ by at most an eighth */
    BUCKETS = 64 * PARTS,
    MOST_QUERIES = 8, /* event queries in one search */
    NO_TIMING = 2     /* CU_EVENT_DISABLE_TIMING */
};

struct cb_cu_pool {
    pthread_mutex_t lock;
    atomic_uint_fast64_t n_forks; /* cb_fork_count when the lock was made */
    cb_alloc alloc;
    cb_block *bucket[BUCKETS]; /* most recently returned first */
    cb_mark *spare;            /* unused marks, with their events, for reuse */
    cb_block_stats stats;
};

cb_status cb_cu_pool_new(cb_alloc *alloc, cb_cu_pool **out, cb_error *err) {
    cb_cu_pool *p = cb_malloc(alloc, sizeof *p);
    if (!p) return cb_no_memory(err);
    memset(p, 0, sizeof *p);
    cb_alloc_init(&p->alloc);
    atomic_init(&p->n_forks, cb_fork_count());
    if (pthread_mutex_init(&p->lock, NULL) != 0) {
        cb_free(alloc, p);
        return cb_no_memory(err);
    }
    *out = p;
    return CB_OK;
}

void cb_cu_pool_free(cb_alloc *alloc, cb_cu_pool *pool) {
    if (pool) pthread_mutex_destroy(&pool->lock);
    cb_free(alloc, pool);
}

static cb_cu_pool *lock(const cb_cu_gpu *d) {
    cb_cu_pool *p = d->pool;
    uint_fast64_t before = atomic_load(&p->n_forks), now = cb_fork_count();
    if (before != now && atomic_compare_exchange_strong(&p->n_forks, &before, now)) {
        pthread_mutex_init(&p->lock, NULL);
        memset(p->bucket, 0, sizeof p->bucket);
        p->spare = NULL;
        p->stats.kept = 0;
    }
    pthread_mutex_lock(&p->lock);
    return p;
}

static void unlock(cb_cu_pool *p) { pthread_mutex_unlock(&p->lock); }

/* ---- marks ----------------------------------------------------------------------------------- */

static cb_mark *take_spare(const cb_cu_gpu *d) {
    cb_cu_pool *p = lock(d);
    cb_mark *mark = p->spare;
    if (mark) p->spare = mark->next;
    unlock(p);
    return mark;
}

static void unmark(void *device, cb_mark *mark) {
    cb_cu_pool *p = lock(device);
    mark->next = p->spare;
    p->spare = mark;
    unlock(p);
}

/* Needs a current context. */
static cb_status new_mark(cb_cu_gpu *d, cb_mark **out, cb_error *err) {
    void *event = NULL;
    const int code = d->driver.cuEventCreate(&event, NO_TIMING);
    if (code) return cb_cu_failed(&d->driver, "cuEventCreate", code, err);
    cb_mark *mark = cb_malloc(&d->pool->alloc, sizeof *mark);
    if (!mark) {
        (void)d->driver.cuEventDestroy(event);
        return cb_no_memory(err);
    }
    *mark = (cb_mark){.backend = &cb_backend_cuda, .device = d, .event = event};
    *out = mark;
    return CB_OK;
}

static cb_status mark_stream(void *device, cb_stream *stream, cb_mark **out, cb_error *err) {
    cb_cu_gpu *d = device;
    cb_mark *mark = take_spare(d);
    cb_status status = CB_OK;
    if (!mark) {
        CB_TRY(cb_cu_enter(d, err));
        status = cb_cu_leave(d, new_mark(d, &mark, err));
    }
    if (status == CB_OK) status = cb_cu_record(d, stream, mark->event, err);
    if (status != CB_OK) {
        if (mark) unmark(d, mark);
        return status;
    }
    atomic_store(&mark->refs, 1);
    atomic_store(&mark->is_reached, false);
    *out = mark;
    return CB_OK;
}

static void drop_marks(cb_uses *uses) {
    for (uint32_t i = 0; i < uses->n; i++) cb_mark_drop(uses->mark[i]);
    uses->n = 0;
}

/* ---- finding a block ------------------------------------------------------------------------- */

static uint32_t bucket_of(size_t bytes) {
    const uint64_t n = bytes < PARTS ? PARTS : bytes;
    const uint32_t octave = 63 - (uint32_t)__builtin_clzll(n);
    return octave * PARTS + (uint32_t)(n >> (octave - 3)) % PARTS;
}

typedef struct search {
    const cb_cu_gpu *d;
    const void *stream;
    int n_query;
    const cb_mark *pending; /* the last mark that was found not reached */
} search;

/* Needs a current context. A mark that has been reached stays so while references to it exist. */
static bool is_reached(search *s, cb_mark *mark) {
    if (atomic_load(&mark->is_reached)) return true;
    if (mark == s->pending || s->n_query == MOST_QUERIES) return false;
    s->n_query++;
    const bool reached = s->d->driver.cuEventQuery(mark->event) == 0;
    if (reached) atomic_store(&mark->is_reached, true);
    else s->pending = mark;
    return reached;
}

static bool is_done(search *s, const cb_uses *uses) {
    for (uint32_t i = 0; i < uses->n; i++)
        if (!is_reached(s, uses->mark[i])) return false;
    return true;
}

static bool may_take(search *s, const cb_block *b) {
    if (b->uses.is_unknown) return false;
    return b->uses.home == s->stream || is_done(s, &b->uses);
}

/* Takes a kept block of exactly this size, or else a larger one of the same bucket. Needs the lock
 * and a current context. */
static cb_block *take_kept(cb_cu_pool *p, search *s, size_t bytes) {
    cb_block **at = &p->bucket[bucket_of(bytes)], **larger = NULL;
    for (; *at; at = &(*at)->next) {
        if ((*at)->bytes == bytes && may_take(s, *at)) break;
        if (!larger && (*at)->bytes > bytes && may_take(s, *at)) larger = at;
    }
    if (!*at && larger) at = larger;
    cb_block *found = *at;
    if (found) *at = found->next;
    return found;
}

static void count_taken(cb_cu_pool *p, const cb_block *b, bool is_kept) {
    if (is_kept) p->stats.kept -= b->bytes;
    else p->stats.n_fresh++;
    p->stats.in_use += b->bytes;
    if (p->stats.peak < p->stats.in_use) p->stats.peak = p->stats.in_use;
}

static bool has_unknown(const cb_cu_pool *p, size_t bytes) {
    for (const cb_block *b = p->bucket[bucket_of(bytes)]; b; b = b->next)
        if (b->uses.is_unknown && b->bytes >= bytes) return true;
    return false;
}

/* Finds a kept block, or returns NULL. `settles` is set if waiting for the device would make one
 * available. Needs a current context. */
static cb_block *find(const cb_cu_gpu *d, size_t bytes, const void *stream, bool *settles) {
    search s = {.d = d, .stream = stream};
    cb_cu_pool *p = lock(d);
    cb_block *found = take_kept(p, &s, bytes);
    if (found) count_taken(p, found, true);
    *settles = !found && has_unknown(p, bytes);
    unlock(p);
    return found;
}

/* ---- blocks with unknown users --------------------------------------------------------------- */

static cb_block *detach_unknown(const cb_cu_gpu *d) {
    cb_block *all = NULL;
    cb_cu_pool *p = lock(d);
    for (int i = 0; i < BUCKETS; i++) {
        for (cb_block **at = &p->bucket[i]; *at;) {
            cb_block *b = *at;
            if (!b->uses.is_unknown) {
                at = &b->next;
                continue;
            }
            *at = b->next;
            b->next = all;
            all = b;
        }
    }
    unlock(p);
    return all;
}

static void keep(cb_cu_pool *p, cb_block *b) {
    cb_block **bucket = &p->bucket[bucket_of(b->bytes)];
    b->next = *bucket;
    *bucket = b;
}

/* Waits for the device, after which nothing uses the blocks that were set aside. Needs a
 * current context. */
static void settle(const cb_cu_gpu *d) {
    cb_block *all = detach_unknown(d);
    const bool settled = d->driver.cuCtxSynchronize() == 0;
    for (cb_block *b = all; settled && b; b = b->next) {
        drop_marks(&b->uses);
        b->uses = (cb_uses){0};
    }
    cb_cu_pool *p = lock(d);
    while (all) {
        cb_block *b = all;
        all = b->next;
        keep(p, b);
    }
    unlock(p);
}

/* ---- taking and giving ----------------------------------------------------------------------- */

cb_status cb_cu_take(const cb_cu_gpu *d, uint64_t bytes, uint64_t *out, cb_error *err) {
    enum { OUT_OF_MEMORY = 2 };
    const size_t wanted = bytes ? (size_t)bytes : 1;
    uint64_t address = 0;
    int code = d->driver.cuMemAlloc(&address, wanted);
    if (code == OUT_OF_MEMORY && cb_cu_pool_release(d) > 0)
        code = d->driver.cuMemAlloc(&address, wanted);
    if (code) return cb_cu_failed(&d->driver, "cuMemAlloc", code, err);
    *out = address;
    return CB_OK;
}

/* Needs a current context. */
static cb_status take_fresh(const cb_cu_gpu *d, size_t bytes, cb_block **out, cb_error *err) {
    uint64_t address = 0;
    cb_block *b = cb_malloc(&d->pool->alloc, sizeof *b);
    if (!b) return cb_no_memory(err);
    const cb_status status = cb_cu_take(d, bytes, &address, err);
    if (status != CB_OK) {
        cb_free(&d->pool->alloc, b);
        return status;
    }
    *b = (cb_block){.data = (void *)(uintptr_t)address, .bytes = bytes};
    cb_cu_pool *p = lock(d);
    count_taken(p, b, false);
    unlock(p);
    *out = b;
    return CB_OK;
}

static cb_status find_or_take(const cb_cu_gpu *d, size_t bytes, const void *stream, cb_block **out,
                              cb_error *err) {
    bool settles;
    if ((*out = find(d, bytes, stream, &settles))) return CB_OK;
    if (settles) {
        settle(d);
        if ((*out = find(d, bytes, stream, &settles))) return CB_OK;
    }
    return take_fresh(d, bytes, out, err);
}

static cb_status take(void *device, size_t bytes, cb_stream *stream, cb_block **out, cb_uses *after,
                      cb_error *err) {
    const cb_cu_gpu *d = device;
    CB_TRY(cb_cu_enter(d, err));
    const int mode = cb_cu_begin_aside(d);
    const cb_status status = find_or_take(d, bytes, stream, out, err);
    cb_cu_end_aside(d, mode);
    CB_TRY(cb_cu_leave(d, status));
    /* on another stream, all its marks have been reached */
    if ((*out)->uses.home != stream) drop_marks(&(*out)->uses);
    *after = (*out)->uses;
    (*out)->uses = (cb_uses){0};
    return CB_OK;
}

static void give(void *device, cb_block *block, const cb_uses *uses) {
    cb_cu_pool *p = lock(device);
    block->uses = *uses;
    keep(p, block);
    p->stats.in_use -= block->bytes;
    p->stats.kept += block->bytes;
    unlock(p);
}

/* ---- releasing ------------------------------------------------------------------------------- */

static cb_block *detach_all(const cb_cu_gpu *d) {
    cb_block *all = NULL;
    cb_cu_pool *p = lock(d);
    for (int i = 0; i < BUCKETS; i++) {
        while (p->bucket[i]) {
            cb_block *b = p->bucket[i];
            p->bucket[i] = b->next;
            b->next = all;
            all = b;
        }
    }
    p->stats.kept = 0;
    unlock(p);
    return all;
}

static void free_spare(const cb_cu_gpu *d, bool is_entered) {
    cb_cu_pool *p = lock(d);
    cb_mark *spare = p->spare;
    p->spare = NULL;
    unlock(p);
    while (spare) {
        cb_mark *next = spare->next;
        if (is_entered) (void)d->driver.cuEventDestroy(spare->event);
        cb_free(&p->alloc, spare);
        spare = next;
    }
}

static uint64_t free_blocks(const cb_cu_gpu *d, cb_block *all, bool is_entered) {
    uint64_t bytes = 0;
    while (all) {
        cb_block *b = all;
        all = b->next;
        drop_marks(&b->uses);
        bytes += b->bytes;
        if (is_entered) (void)d->driver.cuMemFree((uint64_t)(uintptr_t)b->data);
        cb_free(&d->pool->alloc, b);
    }
    return bytes;
}

uint64_t cb_cu_pool_release(const cb_cu_gpu *d) {
    cb_block *all = detach_all(d);
    const bool is_entered = cb_cu_enter(d, NULL) == CB_OK;
    const int mode = is_entered ? cb_cu_begin_aside(d) : 0;
    if (is_entered && all) (void)d->driver.cuCtxSynchronize();
    const uint64_t bytes = free_blocks(d, all, is_entered);
    free_spare(d, is_entered);
    if (is_entered) {
        cb_cu_end_aside(d, mode);
        (void)cb_cu_leave(d, CB_OK);
    }
    return bytes;
}

static uint64_t release(void *device) { return cb_cu_pool_release(device); }

static cb_block_stats stats(void *device, bool resets_peak) {
    cb_cu_pool *p = lock(device);
    if (resets_peak) p->stats.peak = p->stats.in_use;
    const cb_block_stats now = p->stats;
    unlock(p);
    return now;
}

const cb_pooled cb_cu_pooled = {
    .mark = mark_stream,
    .unmark = unmark,
    .take = take,
    .give = give,
    .release = release,
    .stats = stats,
};
