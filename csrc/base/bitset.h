/* bitset.h: fixed-size sets of integers in 0..n-1, in an arena. Bounds are not checked. */
#ifndef CB_BASE_BITSET_H
#define CB_BASE_BITSET_H

#include "arena.h"

typedef struct cb_bitset {
    uint64_t *word;
    size_t n; /* bits */
} cb_bitset;

static inline bool cb_bitset_init(cb_bitset *b, cb_arena *arena, size_t n) {
    b->n = n;
    b->word = CB_NEW(arena, uint64_t, n / 64 + 1);
    return b->word != NULL;
}
static inline void cb_bitset_add(cb_bitset *b, size_t i) {
    b->word[i / 64] |= UINT64_C(1) << (i % 64);
}
static inline bool cb_bitset_has(const cb_bitset *b, size_t i) {
    return b->word[i / 64] >> (i % 64) & 1;
}

#endif
