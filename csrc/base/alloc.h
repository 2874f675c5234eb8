/* alloc.h: the allocator behind all memory of the core. It counts bytes, and it can fail the n-th
 * call so that tests can walk every out-of-memory path. Thread-safe. Blocks are aligned to CB_ALIGN
 * and carry their size. */
#ifndef CB_BASE_ALLOC_H
#define CB_BASE_ALLOC_H

#include <stdatomic.h>

#include "status.h"

#define CB_ALIGN 64 /* bytes: a cache line, the widest vector, and the arena's grain */

typedef struct cb_alloc {
    atomic_uint_fast64_t n_alloc;    /* successful allocations so far */
    atomic_uint_fast64_t live_bytes; /* requested bytes held now */
    atomic_uint_fast64_t peak_bytes;
    atomic_uint_fast64_t fail_in; /* number of the allocation that fails, from now; 0: off */
} cb_alloc;

void cb_alloc_init(cb_alloc *a);
/* Returns NULL if out of memory; bytes == 0 gives a valid block. */
void *cb_malloc(cb_alloc *a, size_t bytes);
void cb_free(cb_alloc *a, void *block);   /* NULL is fine */
size_t cb_block_bytes(const void *block); /* returns the size that was requested */
cb_memory_stats cb_alloc_stats(const cb_alloc *a);
/* Makes the nth allocation from now fail (1: the next); 0 turns this off. */
void cb_alloc_fail(cb_alloc *a, uint64_t nth);
/* Returns the number of allocations until the one that fails; 0 if it has failed, or if none was
 * requested. */
uint64_t cb_alloc_left(const cb_alloc *a);

/* Checked size arithmetic: returns false on overflow and does not change `out`. */
bool cb_mul_size(size_t a, size_t b, size_t *out);
bool cb_add_size(size_t a, size_t b, size_t *out);
bool cb_mul_i64(int64_t a, int64_t b, int64_t *out); /* for a, b >= 0 */
size_t cb_align_up(size_t n); /* rounds up to CB_ALIGN; the caller knows that n is far from
                                 SIZE_MAX */

#endif
