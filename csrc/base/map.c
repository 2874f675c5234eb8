/* Open addressing with linear probing, at most three quarters full. */
#include "map.h"

#define FIRST_CAP 16 /* a power of two, as every capacity is */

/* The finaliser of splitmix64: every bit of the key reaches every bit of the slot. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

void cb_map_init(cb_map *m, cb_arena *arena) { *m = (cb_map){.arena = arena}; }

/* Returns the slot that holds `key`, or the free slot where it belongs. */
static size_t slot_of(const cb_map *m, uint64_t key) {
    size_t slot = (size_t)mix(key) & (m->cap - 1);
    while (m->used[slot] && m->key[slot] != key) slot = (slot + 1) & (m->cap - 1);
    return slot;
}

static void set_slot(cb_map *m, uint64_t key, uint32_t value) {
    size_t slot = slot_of(m, key);
    m->len += !m->used[slot];
    m->used[slot] = 1;
    m->key[slot] = key;
    m->value[slot] = value;
}

/* The old arrays stay in the arena. All of them together are smaller than the new ones. */
static bool grow(cb_map *m) {
    size_t cap = m->cap ? 2 * m->cap : FIRST_CAP;
    cb_map bigger = {.arena = m->arena, .cap = cap};
    bigger.key = CB_NEW(m->arena, uint64_t, cap);
    bigger.value = CB_NEW(m->arena, uint32_t, cap);
    bigger.used = CB_NEW(m->arena, uint8_t, cap);
    if (!bigger.key || !bigger.value || !bigger.used) return false;
    for (size_t i = 0; i < m->cap; i++)
        if (m->used[i]) set_slot(&bigger, m->key[i], m->value[i]);
    *m = bigger;
    return true;
}

bool cb_map_put(cb_map *m, uint64_t key, uint32_t value) {
    if (4 * (m->len + 1) > 3 * m->cap && !grow(m)) return false;
    set_slot(m, key, value);
    return true;
}

bool cb_map_get(const cb_map *m, uint64_t key, uint32_t *out) {
    if (m->cap == 0) return false;
    size_t slot = slot_of(m, key);
    if (!m->used[slot]) return false;
    *out = m->value[slot];
    return true;
}

void cb_names_init(cb_names *s, cb_arena *arena) {
    *s = (cb_names){.arena = arena};
    cb_map_init(&s->index, arena);
}

bool cb_names_intern(cb_names *s, const char *text, size_t length, uint32_t *id) {
    length = strnlen(text, length);
    uint64_t hash = cb_hash_bytes(text, length, 0);
    uint32_t found;
    /* If two texts have the same hash, the later one is stored under the next free hash. */
    for (; cb_map_get(&s->index, hash, &found); hash++) {
        if (strncmp(s->text[found], text, length) != 0 || s->text[found][length] != '\0') continue;
        *id = found;
        return true;
    }
    if (s->len == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : FIRST_CAP;
        const char **bigger = CB_NEW(s->arena, const char *, cap);
        if (!bigger) return false;
        if (s->len) memcpy((void *)bigger, (const void *)s->text, s->len * sizeof *bigger);
        s->text = bigger;
        s->cap = cap;
    }
    char *copy = cb_arena_strdup(s->arena, text, length);
    if (!copy || !cb_map_put(&s->index, hash, (uint32_t)s->len)) return false;
    s->text[s->len] = copy;
    *id = (uint32_t)s->len++;
    return true;
}

/* Each round mixes eight bytes, read as little-endian on every machine. The tail is padded with
 * zeros; the length is mixed in so that texts which differ only in trailing zeros differ. */
uint64_t cb_hash_bytes(const void *data, size_t n, uint64_t seed) {
    const uint8_t *at = data;
    uint64_t hash = mix(seed ^ UINT64_C(0x9E3779B97F4A7C15)) ^ mix(n);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = 0;
        for (size_t j = 0; j < 8 && i + j < n; j++) word |= (uint64_t)at[i + j] << (8 * j);
        hash = mix((hash ^ word) * UINT64_C(0x9FB21C651E98DF25));
    }
    return hash;
}
