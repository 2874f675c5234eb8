/* A kept block stores its own links: one list per size bucket, and one list of all blocks by age.
 * When the bytes in use and kept exceed the limit, the oldest blocks are freed.
 *
 * The limit is the most bytes that were in use at once in this period and the previous one. A
 * period is a fixed number of takes, so a program whose arrays become smaller gets the difference
 * back. */
#include "kept.h"

#include <pthread.h>

#include "sanitize.h"

#define CB_KEPT_BUCKETS 256
#define CB_KEPT_PERIOD 512 /* takes: a few steps of a model with a hundred gradients */

typedef struct block {
    struct block *next, *before;   /* neighbours in the bucket */
    struct block *younger, *older; /* neighbours in the list of all blocks */
} block;

struct cb_kept {
    cb_alloc *alloc;
    pthread_mutex_t lock;
    block *bucket[CB_KEPT_BUCKETS];
    block *youngest, *oldest;
    cb_kept_stats stats;
    uint64_t most, most_before; /* most bytes in use at once, in this period and the previous one */
    uint64_t limit;             /* the caller's limit; UINT64_MAX: none */
    uint32_t n_take;            /* number of takes in this period */
};

cb_status cb_kept_new(cb_alloc *alloc, cb_kept **out, cb_error *err) {
    cb_kept *k = cb_malloc(alloc, sizeof *k);
    if (!k) return cb_no_memory(err);
    *k = (cb_kept){.alloc = alloc, .limit = UINT64_MAX};
    if (pthread_mutex_init(&k->lock, NULL) != 0) {
        cb_free(alloc, k);
        return cb_no_memory(err);
    }
    *out = k;
    return CB_OK;
}

void cb_kept_free(cb_kept *k) {
    if (!k) return;
    (void)cb_kept_release(k);
    pthread_mutex_destroy(&k->lock);
    cb_free(k->alloc, k);
}

static block **bucket_of(cb_kept *k, size_t bytes) {
    return &k->bucket[(bytes / CB_ALIGN * 0x9E3779B97F4A7C15u) >> 56];
}

static void keep(cb_kept *k, block *b, size_t bytes) {
    block **bucket = bucket_of(k, bytes);
    *b = (block){.next = *bucket, .older = k->youngest};
    if (b->next) b->next->before = b;
    *bucket = b;
    if (k->youngest) k->youngest->younger = b;
    else k->oldest = b;
    k->youngest = b;
    k->stats.kept += bytes;
    CB_POISON((char *)b + CB_ALIGN, bytes - CB_ALIGN);
}

static void unlink_block(cb_kept *k, block *b, size_t bytes) {
    if (b->before) b->before->next = b->next;
    else *bucket_of(k, bytes) = b->next;
    if (b->next) b->next->before = b->before;
    if (b->younger) b->younger->older = b->older;
    else k->youngest = b->older;
    if (b->older) b->older->younger = b->younger;
    else k->oldest = b->younger;
    k->stats.kept -= bytes;
    CB_UNPOISON((char *)b + CB_ALIGN, bytes - CB_ALIGN);
}

/* Finds the youngest block of this size, which may still be in the processor's cache. */
static block *find(cb_kept *k, size_t bytes) {
    block *b = *bucket_of(k, bytes);
    while (b && cb_block_bytes(b) != bytes) b = b->next;
    return b;
}

static void let_go_above(cb_kept *k, uint64_t limit) {
    while (k->oldest && k->stats.in_use + k->stats.kept > limit) {
        block *b = k->oldest;
        unlink_block(k, b, cb_block_bytes(b));
        cb_free(k->alloc, b);
    }
}

/* Counts a take and frees blocks above the limit. Takes of small blocks count too, with 0 bytes, so
 * that a program which no longer makes large arrays gets their memory back. */
static void count(cb_kept *k, size_t bytes) {
    k->stats.in_use += bytes;
    if (++k->n_take > CB_KEPT_PERIOD) {
        k->most_before = k->most;
        k->most = 0;
        k->n_take = 0;
    }
    if (k->most < k->stats.in_use) k->most = k->stats.in_use;
    let_go_above(k, k->most > k->most_before ? k->most : k->most_before);
}

/* Makes room for a new block below the caller's limit and counts it as in use while it is being
 * allocated. Returns false if there is no room. */
static bool reserve(cb_kept *k, size_t bytes) {
    if (bytes > k->limit || k->stats.in_use > k->limit - bytes) return false;
    k->stats.in_use += bytes;
    let_go_above(k, k->limit);
    return true;
}

static void *take_fresh(cb_kept *k, size_t bytes) {
    if (bytes > SIZE_MAX / 2) { /* sums below stay far from overflow */
        (void)cb_kept_release(k);
        return NULL;
    }
    pthread_mutex_lock(&k->lock);
    const bool has_room = reserve(k, bytes);
    pthread_mutex_unlock(&k->lock);
    if (!has_room) return NULL;
    block *b = cb_malloc(k->alloc, bytes);
    if (!b && cb_kept_release(k) > 0) b = cb_malloc(k->alloc, bytes);
    pthread_mutex_lock(&k->lock);
    k->stats.in_use -= bytes;
    k->stats.n_fresh += b != NULL;
    if (b) count(k, bytes);
    pthread_mutex_unlock(&k->lock);
    return b;
}

void cb_kept_limit(cb_kept *k, uint64_t limit) {
    pthread_mutex_lock(&k->lock);
    k->limit = limit;
    let_go_above(k, limit);
    pthread_mutex_unlock(&k->lock);
}

void *cb_kept_take(cb_kept *k, size_t bytes) {
    bool small = bytes < CB_KEPT_LEAST;
    pthread_mutex_lock(&k->lock);
    block *b = small ? NULL : find(k, bytes);
    if (small) count(k, 0);
    if (b) {
        unlink_block(k, b, bytes);
        count(k, bytes);
    }
    pthread_mutex_unlock(&k->lock);
    if (b) return b;
    if (!small) return take_fresh(k, bytes);
    b = cb_malloc(k->alloc, bytes);
    return b || cb_kept_release(k) == 0 ? b : cb_malloc(k->alloc, bytes);
}

void cb_kept_give(cb_kept *k, void *given) {
    if (!given) return;
    size_t bytes = cb_block_bytes(given);
    if (bytes < CB_KEPT_LEAST) {
        cb_free(k->alloc, given);
        return;
    }
    pthread_mutex_lock(&k->lock);
    k->stats.in_use -= bytes;
    keep(k, given, bytes);
    let_go_above(k, k->limit);
    pthread_mutex_unlock(&k->lock);
}

uint64_t cb_kept_release(cb_kept *k) {
    pthread_mutex_lock(&k->lock);
    uint64_t kept = k->stats.kept;
    let_go_above(k, 0);
    k->most = k->stats.in_use;
    k->most_before = 0;
    pthread_mutex_unlock(&k->lock);
    return kept;
}

cb_kept_stats cb_kept_stats_of(cb_kept *k) {
    pthread_mutex_lock(&k->lock);
    cb_kept_stats stats = k->stats;
    pthread_mutex_unlock(&k->lock);
    return stats;
}
