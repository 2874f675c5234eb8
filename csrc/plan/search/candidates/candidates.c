/* A full pool gives up the candidate whose neighbours are closest in size: the front stays evenly
 * covered and its ends stay. */
#include "candidates.h"
#include "../tuning.h"

static void drop(cb_candidates *pool, uint32_t i) {
    cb_arena_free(&pool->at[i].arena);
    pool->n--;
    memmove(&pool->at[i], &pool->at[i + 1], (pool->n - i) * sizeof *pool->at);
}

static void thin(cb_candidates *pool) {
    uint32_t closest = 1;
    double least = 1e300;
    for (uint32_t i = 1; i + 1 < pool->n; i++) {
        double ratio = (double)pool->at[i + 1].size / ((double)pool->at[i - 1].size + 1);
        if (ratio >= least) continue;
        least = ratio;
        closest = i;
    }
    drop(pool, closest);
}

void cb_candidates_free(cb_candidates *pool) {
    while (pool->n > 0) drop(pool, pool->n - 1);
}

uint32_t cb_candidates_fitting(const cb_candidates *pool, uint64_t size) {
    uint32_t n = 0;
    while (n < pool->n && pool->at[n].size <= size) n++;
    return n > 0 ? n - 1 : CB_NONE;
}

/* Puts `c` in its place; it then belongs to the pool. */
static void insert(cb_candidates *pool, cb_candidate c) {
    for (uint32_t i = pool->n; i-- > 0;) {
        if (pool->at[i].size >= c.size && pool->at[i].time_ps >= c.time_ps) drop(pool, i);
    }
    uint32_t place = 0;
    while (place < pool->n && pool->at[place].size < c.size) place++;
    memmove(&pool->at[place + 1], &pool->at[place], (pool->n - place) * sizeof *pool->at);
    pool->at[place] = c;
    pool->n++;
    if (pool->n > CB_CANDIDATES_MOST) thin(pool);
}

static bool is_beaten(const cb_candidates *pool, uint64_t size, int64_t time_ps) {
    uint32_t rival = cb_candidates_fitting(pool, size);
    return rival != CB_NONE && pool->at[rival].time_ps <= time_ps;
}

cb_status cb_candidates_offer(cb_candidates *pool, uint64_t size, int64_t time_ps,
                              const cb_pair *pair, size_t n_pair, cb_error *err) {
    if (is_beaten(pool, size, time_ps)) return CB_OK;
    cb_candidate c = {.size = size, .time_ps = time_ps, .n_pair = n_pair};
    cb_arena_init(&c.arena, pool->alloc);
    c.pair = CB_NEW(&c.arena, cb_pair, n_pair);
    if (!c.pair) return cb_no_memory(err);
    if (n_pair > 0) memcpy(c.pair, pair, n_pair * sizeof *pair);
    insert(pool, c);
    return CB_OK;
}

void cb_candidates_borrow(cb_candidates *pool, const cb_candidates *from) {
    for (uint32_t i = 0; i < from->n; i++) {
        cb_candidate c = from->at[i];
        if (is_beaten(pool, c.size, c.time_ps)) continue;
        cb_arena_init(&c.arena, pool->alloc); /* owns nothing */
        insert(pool, c);
    }
}
