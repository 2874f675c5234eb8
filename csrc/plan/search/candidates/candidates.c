/* A full set drops the candidate whose neighbours are closest in size, so the front stays evenly
 * covered and keeps its ends. */
#include "candidates.h"
#include "../tuning.h"

static void drop(cb_candidates *set, uint32_t i) {
    cb_arena_free(&set->at[i].arena);
    set->n--;
    memmove(&set->at[i], &set->at[i + 1], (set->n - i) * sizeof *set->at);
}

static void thin(cb_candidates *set) {
    uint32_t closest = 1;
    double least = 1e300;
    for (uint32_t i = 1; i + 1 < set->n; i++) {
        double ratio = (double)set->at[i + 1].size / ((double)set->at[i - 1].size + 1);
        if (ratio >= least) continue;
        least = ratio;
        closest = i;
    }
    drop(set, closest);
}

void cb_candidates_free(cb_candidates *set) {
    while (set->n > 0) drop(set, set->n - 1);
}

uint32_t cb_candidates_fitting(const cb_candidates *set, uint64_t size) {
    uint32_t n = 0;
    while (n < set->n && set->at[n].size <= size) n++;
    return n > 0 ? n - 1 : CB_NONE;
}

/* Inserts `c`; it then belongs to the set. */
static void insert(cb_candidates *set, cb_candidate c) {
    for (uint32_t i = set->n; i-- > 0;) {
        if (set->at[i].size >= c.size && set->at[i].time_ps >= c.time_ps) drop(set, i);
    }
    uint32_t place = 0;
    while (place < set->n && set->at[place].size < c.size) place++;
    memmove(&set->at[place + 1], &set->at[place], (set->n - place) * sizeof *set->at);
    set->at[place] = c;
    set->n++;
    if (set->n > CB_CANDIDATES_MOST) thin(set);
}

static bool is_beaten(const cb_candidates *set, uint64_t size, int64_t time_ps) {
    uint32_t rival = cb_candidates_fitting(set, size);
    return rival != CB_NONE && set->at[rival].time_ps <= time_ps;
}

cb_status cb_candidates_offer(cb_candidates *set, uint64_t size, int64_t time_ps,
                              const cb_pair *pair, size_t n_pair, cb_error *err) {
    if (is_beaten(set, size, time_ps)) return CB_OK;
    cb_candidate c = {.size = size, .time_ps = time_ps, .n_pair = n_pair};
    cb_arena_init(&c.arena, set->alloc);
    CB_TRY_NEW(c.pair, &c.arena, n_pair, err);
    if (n_pair > 0) memcpy(c.pair, pair, n_pair * sizeof *pair);
    insert(set, c);
    return CB_OK;
}

void cb_candidates_borrow(cb_candidates *set, const cb_candidates *from) {
    for (uint32_t i = 0; i < from->n; i++) {
        cb_candidate c = from->at[i];
        if (is_beaten(set, c.size, c.time_ps)) continue;
        cb_arena_init(&c.arena, set->alloc); /* owns nothing yet */
        insert(set, c);
    }
}
