/* kept.h: a cache of freed blocks for short-lived arrays.
 *
 * The operating system provides a large block page by page, cleared, as it is first written, and
 * reclaims it when it is freed. For arrays that every step creates again, that costs more than
 * writing them. So freed blocks are kept, and the next request for the same number of bytes gets
 * one of them with its old contents. Bytes in use and kept together never exceed the most that was
 * in use at once during the last 512 to 1,024 requests. Small blocks are not kept. Thread-safe. */
#ifndef CB_BASE_KEPT_H
#define CB_BASE_KEPT_H

#include "alloc.h"

#define CB_KEPT_LEAST ((size_t)1 << 16) /* bytes; the C library caches smaller blocks itself */

typedef struct cb_kept cb_kept;

typedef struct cb_kept_stats {
    uint64_t in_use, kept; /* bytes, not counting small blocks */
    uint64_t n_fresh;      /* blocks allocated so far, not counting small ones */
} cb_kept_stats;

/* `alloc` must outlive it. */
CB_MUST_CHECK cb_status cb_kept_new(cb_alloc *alloc, cb_kept **out, cb_error *err);
/* All blocks must have been given back. NULL is fine. */
void cb_kept_free(cb_kept *k);
/* A block aligned to CB_ALIGN. NULL: out of memory, or above the limit. */
void *cb_kept_take(cb_kept *k, size_t bytes);
/* Limits the bytes in use and kept from now on; UINT64_MAX: no limit. Kept blocks above the limit
 * are freed; blocks in use stay. */
void cb_kept_limit(cb_kept *k, uint64_t limit);
void cb_kept_give(cb_kept *k, void *given); /* NULL is fine */
/* Frees all kept blocks; returns their bytes. */
uint64_t cb_kept_release(cb_kept *k);
cb_kept_stats cb_kept_stats_of(cb_kept *k);

#endif
