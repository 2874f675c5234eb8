/* arena.h: bump allocation with one bulk free. Every stage puts its result in its own arena and its
 * scratch data in a local one, so an error path is one cb_arena_free.
 *
 *     cb_arena a;  cb_arena_init(&a, alloc);
 *     uint32_t *order = CB_NEW(&a, uint32_t, n);   // NULL: out of memory
 *     cb_arena_free(&a);
 */
#ifndef CB_BASE_ARENA_H
#define CB_BASE_ARENA_H

#include <string.h>

#include "alloc.h"

typedef struct cb_arena_chunk cb_arena_chunk;
typedef struct cb_arena {
    cb_alloc *alloc;
    cb_arena_chunk *head; /* newest chunk */
} cb_arena;

void cb_arena_init(cb_arena *a, cb_alloc *alloc);
void cb_arena_free(cb_arena *a); /* may be called twice */
/* Returns `count` zeroed items of `size` bytes, 16-byte aligned; NULL on overflow or if out of
 * memory. */
void *cb_arena_get(cb_arena *a, size_t count, size_t size);
uint64_t cb_arena_bytes(const cb_arena *a); /* size of all chunks */
/* Frees an item of `bytes` bytes if it is large enough to have its own chunk; otherwise it stays
 * until the arena is freed. Growing arrays use this. */
void cb_arena_return(cb_arena *a, const void *item, size_t bytes);
char *cb_arena_strdup(cb_arena *a, const char *text, size_t length); /* adds the final 0 */

#define CB_NEW(arena, type, count) ((type *)cb_arena_get((arena), (size_t)(count), sizeof(type)))

/* Allocates `count` items of the type that `to` points to and sets `to`. If there is no memory, the
 * calling function returns CB_NOMEM. */
#define CB_TRY_NEW(to, arena, count, err)                            \
    do {                                                             \
        (to) = cb_arena_get((arena), (size_t)(count), sizeof *(to)); \
        if (!(to)) return cb_no_memory(err);                         \
    } while (0)

#endif
