/* map.h: hash maps to ids, from integers (cb_map) and from strings (cb_names). They live in an
 * arena and never shrink. */
#ifndef CB_BASE_MAP_H
#define CB_BASE_MAP_H

#include "arena.h"

typedef struct cb_map { /* uint64 -> uint32 */
    cb_arena *arena;
    uint64_t *key;
    uint32_t *value;
    uint8_t *used;
    size_t len, cap;
} cb_map;
void cb_map_init(cb_map *m, cb_arena *arena);
bool cb_map_put(cb_map *m, uint64_t key, uint32_t value);      /* replaces; false: out of memory */
bool cb_map_get(const cb_map *m, uint64_t key, uint32_t *out); /* false: absent */

typedef struct cb_names { /* interned strings: text <-> id 0.. in order of first use */
    cb_arena *arena;
    const char **text; /* [len] */
    size_t len, cap;
    cb_map index;
} cb_names;
void cb_names_init(cb_names *s, cb_arena *arena);
/* Sets `id` to the id of a text, which is copied when it is new. `text` ends at `length` or at a 0
 * byte. False: out of memory. */
bool cb_names_intern(cb_names *s, const char *text, size_t length, uint32_t *id);

uint64_t cb_hash_bytes(const void *data, size_t n, uint64_t seed); /* stable across machines */

#endif
