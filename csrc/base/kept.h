/* kept.h: memory of arrays that come and go: what is given back waits for the next of its size.
 *
 * The system hands out large blocks page by page, cleared, when they are first written, and takes
 * them back when they are freed. For arrays that every step makes anew, that costs more than
 * writing them. So blocks that were given back are kept, and the next request of as many bytes gets
 * one of them, with whatever it holds. What is in use and what is kept are together never more than
 * what was lately in use at once. Small blocks are not kept. Thread-safe. */
#ifndef CB_BASE_KEPT_H
#define CB_BASE_KEPT_H

#include "alloc.h"

#define CB_KEPT_LEAST ((size_t)1 << 16) /* bytes: of fewer the C library keeps its own */

typedef struct cb_kept cb_kept;

typedef struct cb_kept_stats {
    uint64_t in_use, kept; /* bytes, of blocks that may be kept */
    uint64_t n_fresh;      /* of them, taken from the system so far */
} cb_kept_stats;

/* `alloc` outlives it. */
CB_MUST_CHECK cb_status cb_kept_new(cb_alloc *alloc, cb_kept **out, cb_error *err);
/* All blocks have been given back. NULL is fine. */
void cb_kept_free(cb_kept *k);
/* A block aligned to CB_ALIGN. NULL: out of memory, or above the limit. */
void *cb_kept_take(cb_kept *k, size_t bytes);
/* Most bytes that are in use and kept from now on, UINT64_MAX: no limit. Kept blocks above it are
 * freed; blocks in use stay. */
void cb_kept_limit(cb_kept *k, uint64_t limit);
void cb_kept_give(cb_kept *k, void *given); /* NULL is fine */
/* Gives the system what is kept; returns how many bytes. */
uint64_t cb_kept_release(cb_kept *k);
cb_kept_stats cb_kept_stats_of(cb_kept *k);

#endif
