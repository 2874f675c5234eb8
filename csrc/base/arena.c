/* Chunks form a list, newest first; items are allocated from the head. Chunk sizes double from
 * 4 KiB to 1 MiB. A request that does not fit a new chunk gets a separate chunk, linked behind the
 * head so that the head's free space stays in use.
 *
 *     | header (one cache line) | item | item | free ... |
 *
 * Under AddressSanitizer free space is poisoned and items are separated by red zones, so overruns
 * inside an arena are found like those of malloc'ed blocks. */
#include "arena.h"

#include "sanitize.h"

#define FIRST_CHUNK ((size_t)4096)
#define LARGEST_CHUNK ((size_t)1 << 20)
#define CB_ARENA_GRAIN ((size_t)16)             /* alignment of items */
#define RED_ZONE (CB_ASAN ? CB_ARENA_GRAIN : 0) /* poisoned bytes after each item */

struct cb_arena_chunk {
    cb_arena_chunk *next;
    size_t room; /* bytes after the header */
    size_t used;
};
_Static_assert(sizeof(cb_arena_chunk) <= CB_ALIGN, "the header takes one cache line");

static char *data_of(cb_arena_chunk *chunk) { return (char *)chunk + CB_ALIGN; }

void cb_arena_init(cb_arena *a, cb_alloc *alloc) { *a = (cb_arena){.alloc = alloc}; }

void cb_arena_free(cb_arena *a) {
    while (a->head) {
        cb_arena_chunk *chunk = a->head;
        a->head = chunk->next;
        CB_UNPOISON(data_of(chunk), chunk->room);
        cb_free(a->alloc, chunk);
    }
}

uint64_t cb_arena_bytes(const cb_arena *a) {
    uint64_t bytes = 0;
    for (const cb_arena_chunk *c = a->head; c; c = c->next) bytes += cb_block_bytes(c);
    return bytes;
}

/* Returns the bytes after the header of the next ordinary chunk. */
static size_t next_room(const cb_arena *a) {
    size_t whole = a->head ? 2 * (a->head->room + CB_ALIGN) : FIRST_CHUNK;
    if (whole < FIRST_CHUNK) whole = FIRST_CHUNK;
    if (whole > LARGEST_CHUNK) whole = LARGEST_CHUNK;
    return whole - CB_ALIGN;
}

/* Allocates a chunk with room for `need` bytes and links it into the list. */
static cb_arena_chunk *add_chunk(cb_arena *a, size_t need) {
    size_t room = next_room(a);
    bool own = need > room;
    if (own) room = need;
    cb_arena_chunk *chunk = cb_malloc(a->alloc, CB_ALIGN + room);
    if (!chunk) return NULL;
    *chunk = (cb_arena_chunk){.room = room};
    CB_POISON(data_of(chunk), room);
    if (own && a->head) {
        chunk->next = a->head->next;
        a->head->next = chunk;
    } else {
        chunk->next = a->head;
        a->head = chunk;
    }
    return chunk;
}

void *cb_arena_get(cb_arena *a, size_t count, size_t size) {
    size_t bytes, need;
    if (!cb_mul_size(count, size, &bytes) || !cb_add_size(bytes, 2 * CB_ALIGN, &need)) return NULL;
    need = (bytes + CB_ARENA_GRAIN - 1) / CB_ARENA_GRAIN * CB_ARENA_GRAIN + RED_ZONE;
    cb_arena_chunk *chunk = a->head;
    if (!chunk || chunk->room - chunk->used < need) chunk = add_chunk(a, need);
    if (!chunk) return NULL;
    char *item = data_of(chunk) + chunk->used;
    chunk->used += need;
    CB_UNPOISON(item, bytes);
    memset(item, 0, bytes);
    return item;
}

/* Smaller chunks hold several items, or are the head. */
void cb_arena_return(cb_arena *a, const void *item, size_t bytes) {
    if (bytes < LARGEST_CHUNK) return;
    cb_arena_chunk **link = &a->head;
    while (*link && data_of(*link) != item) link = &(*link)->next;
    cb_arena_chunk *chunk = *link;
    if (!chunk) return;
    *link = chunk->next;
    CB_UNPOISON(data_of(chunk), chunk->room);
    cb_free(a->alloc, chunk);
}

char *cb_arena_strdup(cb_arena *a, const char *text, size_t length) {
    size_t room;
    if (!cb_add_size(length, 1, &room)) return NULL;
    char *copy = cb_arena_get(a, room, 1);
    if (copy && length) memcpy(copy, text, length);
    return copy;
}
