/* A block is preceded by one cache line that holds its size:
 *
 *     raw            raw + CB_ALIGN = the pointer that the caller gets
 *     | size | pad   | bytes, rounded up to CB_ALIGN |
 *
 * so cb_free needs no size argument, and every block starts on a cache line. */
#include "alloc.h"

#include <stdlib.h>
#include <string.h>

#include "sanitize.h"

/* Larger than the memory of any machine. The sanitizers abort on sizes they cannot serve, so their
 * builds use a smaller bound, which keeps hostile sizes ordinary errors there too. */
#define LARGEST_BLOCK ((size_t)1 << (CB_ASAN || CB_TSAN ? 36 : 46))

void cb_alloc_init(cb_alloc *a) {
    atomic_init(&a->n_alloc, 0);
    atomic_init(&a->live_bytes, 0);
    atomic_init(&a->peak_bytes, 0);
    atomic_init(&a->fail_in, 0);
}

/* Counts down to the allocation that should fail; returns true for that one. */
static bool must_fail(cb_alloc *a) {
    uint_fast64_t left = atomic_load_explicit(&a->fail_in, memory_order_relaxed);
    while (left != 0) {
        if (atomic_compare_exchange_weak(&a->fail_in, &left, left - 1)) return left == 1;
    }
    return false;
}

static void count_block(cb_alloc *a, size_t bytes) {
    uint_fast64_t live = atomic_fetch_add(&a->live_bytes, bytes) + bytes;
    uint_fast64_t peak = atomic_load_explicit(&a->peak_bytes, memory_order_relaxed);
    while (peak < live && !atomic_compare_exchange_weak(&a->peak_bytes, &peak, live)) {}
    atomic_fetch_add(&a->n_alloc, 1);
}

void *cb_malloc(cb_alloc *a, size_t bytes) {
    if (bytes > LARGEST_BLOCK || must_fail(a)) return NULL;
    char *raw = aligned_alloc(CB_ALIGN, CB_ALIGN + cb_align_up(bytes));
    if (!raw) return NULL;
    memcpy(raw, &bytes, sizeof bytes);
    count_block(a, bytes);
    return raw + CB_ALIGN;
}

size_t cb_block_bytes(const void *block) {
    size_t bytes;
    memcpy(&bytes, (const char *)block - CB_ALIGN, sizeof bytes);
    return bytes;
}

void cb_free(cb_alloc *a, void *block) {
    if (!block) return;
    atomic_fetch_sub(&a->live_bytes, cb_block_bytes(block));
    free((char *)block - CB_ALIGN);
}

cb_memory_stats cb_alloc_stats(const cb_alloc *a) {
    return (cb_memory_stats){
        .n_alloc = atomic_load(&a->n_alloc),
        .live_bytes = atomic_load(&a->live_bytes),
        .peak_bytes = atomic_load(&a->peak_bytes),
    };
}

void cb_alloc_fail(cb_alloc *a, uint64_t nth) { atomic_store(&a->fail_in, nth); }

uint64_t cb_alloc_left(const cb_alloc *a) { return atomic_load(&a->fail_in); }

bool cb_mul_size(size_t a, size_t b, size_t *out) {
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}

bool cb_add_size(size_t a, size_t b, size_t *out) {
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return false;
    *out = sum;
    return true;
}

bool cb_mul_i64(int64_t a, int64_t b, int64_t *out) {
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}

size_t cb_align_up(size_t n) { return (n + CB_ALIGN - 1) / CB_ALIGN * CB_ALIGN; }
