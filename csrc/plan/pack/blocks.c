#include "blocks.h"

#define LEAST_SHIFT 6    /* log2 of the minimum number of moments of a window */
#define WINDOWS_MOST 256 /* a life has an entry in each of its windows */
#define MERGED_MOST 4    /* windows whose lives are merged for a query */

cb_status cb_blocks_init(cb_blocks *b, uint32_t n_moment, cb_arena *arena, cb_error *err) {
    *b = (cb_blocks){.arena = arena, .shift = LEAST_SHIFT};
    while (n_moment >> b->shift >= WINDOWS_MOST) b->shift++;
    b->n_window = (n_moment >> b->shift) + 1;
    CB_TRY_NEW(b->window, arena, b->n_window, err);
    return CB_OK;
}

void cb_blocks_clear(cb_blocks *b) {
    b->all.len = 0;
    for (uint32_t w = 0; w < b->n_window; w++) b->window[w].len = 0;
}

static bool insert(cb_blocks *b, cb_block_list *list, cb_block block) {
    size_t low = 0, high = list->len;
    if (!CB_RESERVE(b->arena, *list, 1)) return false;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (list->at[middle].begin <= block.begin) low = middle + 1;
        else high = middle;
    }
    memmove(list->at + low + 1, list->at + low, (list->len - low) * sizeof block);
    list->at[low] = block;
    list->len++;
    return true;
}

bool cb_blocks_put(cb_blocks *b, cb_block block) {
    for (uint32_t w = block.made >> b->shift; w <= block.last >> b->shift; w++)
        if (!insert(b, &b->window[w], block)) return false;
    return insert(b, &b->all, block);
}

typedef struct gap { /* the gap of a query, which sees lives in order of offsets */
    uint64_t bytes;
    uint32_t made, last;
    uint64_t end;         /* end of the lives so far */
    uint64_t best, width; /* UINT64_MAX: none */
} gap;

static inline void pass(gap *g, const cb_block *block) {
    if (block->made > g->last || g->made > block->last) return;
    if (block->begin > g->end) {
        const uint64_t width = block->begin - g->end;
        if (width >= g->bytes && width < g->width) {
            g->best = g->end;
            g->width = width;
        }
    }
    if (block->end > g->end) g->end = block->end;
}

static void pass_list(cb_blocks *b, gap *g, const cb_block_list *list) {
    for (size_t i = 0; i < list->len && g->width > g->bytes; i++) pass(g, &list->at[i]);
    b->looks += list->len;
}

/* A life in several windows is passed several times, which makes no difference. */
static void pass_merged(cb_blocks *b, gap *g, const cb_block_list *list, uint32_t n) {
    size_t at[MERGED_MOST] = {0};
    while (g->width > g->bytes) {
        uint32_t from = n;
        for (uint32_t w = 0; w < n; w++) {
            if (at[w] == list[w].len) continue;
            if (from == n || list[w].at[at[w]].begin < list[from].at[at[from]].begin) from = w;
        }
        if (from == n) return;
        pass(g, &list[from].at[at[from]++]);
        b->looks++;
    }
}

uint64_t cb_blocks_find_gap(cb_blocks *b, uint64_t bytes, uint32_t made, uint32_t last) {
    gap g = {bytes, made, last, 0, UINT64_MAX, UINT64_MAX};
    const uint32_t first = made >> b->shift, n = (last >> b->shift) - first + 1;
    if (n == 1) pass_list(b, &g, &b->window[first]);
    else if (n <= MERGED_MOST) pass_merged(b, &g, b->window + first, n);
    else pass_list(b, &g, &b->all);
    return g.best == UINT64_MAX ? g.end : g.best;
}
