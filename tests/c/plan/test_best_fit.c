/* Best fit in a tree against the same rule on a map of single bytes. */
#include "plan/schedule/best_fit.h"

#include "check.h"
#include "problems.h"

#define MOST_BYTES 4096
#define MOST_LIVES 64
#define ROUNDS 4000

static cb_alloc alloc;

typedef struct life {
    uint32_t block;
    uint64_t begin, bytes;
} life;

typedef struct byte_map {
    bool used[MOST_BYTES];
    uint64_t top; /* the end of the highest block ever used */
} byte_map;

/* Takes the first of the smallest gaps that fit; if none does, the space after the last block. */
static uint64_t take_bytes(byte_map *m, uint64_t bytes) {
    uint64_t best = m->top, least = UINT64_MAX;
    for (uint64_t i = 0, end; i < m->top; i = end + 1) {
        for (end = i; end < m->top && !m->used[end];) end++;
        if (end - i < bytes || end - i >= least) continue;
        least = end - i;
        best = i;
    }
    while (least == UINT64_MAX && best > 0 && !m->used[best - 1]) best--;
    CHECK(best + bytes <= MOST_BYTES);
    memset(m->used + best, true, bytes);
    if (best + bytes > m->top) m->top = best + bytes;
    return best;
}

static void take_and_give(cb_fit *fit, uint64_t *state, uint32_t largest) {
    static byte_map map;
    life lives[MOST_LIVES];
    uint32_t n = 0;
    map = (byte_map){0};
    for (int round = 0; round < ROUNDS; round++) {
        if (n == MOST_LIVES || (n > 0 && maker_draw(state, 2))) {
            const uint32_t i = maker_draw(state, n);
            CHECK(fit->block.at[lives[i].block].begin == lives[i].begin);
            memset(map.used + lives[i].begin, false, lives[i].bytes);
            cb_fit_give(fit, lives[i].block);
            lives[i] = lives[--n];
        } else {
            life *l = &lives[n++];
            l->bytes = 1 + maker_draw(state, largest);
            CHECK(cb_fit_take(fit, l->bytes, &l->block));
            l->begin = fit->block.at[l->block].begin;
            CHECK(l->begin == take_bytes(&map, l->bytes));
        }
        CHECK(fit->top == map.top);
    }
}

TEST(tree_takes_what_the_rule_says) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cb_arena arena;
        cb_fit fit;
        uint64_t state = seed;
        cb_arena_init(&arena, &alloc);
        cb_fit_init(&fit, &arena);
        take_and_give(&fit, &state, seed % 2 ? 8 : 40); /* many equal gaps, or few */
        CHECK(fit.block.len <= 2 * MOST_LIVES + 1);
        cb_arena_free(&arena);
    }
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(tree_takes_what_the_rule_says);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
