/* Gaps are the nodes of a treap, sorted from left to right by width and position, and from the root
 * down by a hash of their number. So paths are short for any widths. A gap is removed from the tree
 * before its width changes. */
#include "best_fit.h"

#define IN_USE (CB_NONE - 1) /* value of `left` for a block that is not in the tree */

static bool is_gap(const cb_fit *w, uint32_t i) {
    return i != CB_NONE && w->block.at[i].left != IN_USE;
}

static uint64_t width_of(const cb_fit *w, uint32_t i) {
    const cb_fit_block *b = &w->block.at[i];
    return (b->behind == CB_NONE ? w->top : w->block.at[b->behind].begin) - b->begin;
}

static bool is_less(const cb_fit *w, uint32_t a, uint32_t b) {
    const uint64_t x = width_of(w, a), y = width_of(w, b);
    return x != y ? x < y : w->block.at[a].begin < w->block.at[b].begin;
}

static uint32_t rank_of(uint32_t i) {
    const uint32_t mixed = (i + 1) * UINT32_C(2654435769); /* Knuth's multiplicative hash */
    return mixed ^ mixed >> 15;
}

static uint32_t *side_of(cb_fit *w, uint32_t node, bool left) {
    return left ? &w->block.at[node].left : &w->block.at[node].right;
}

static void add_gap(cb_fit *w, uint32_t node) {
    uint32_t *link = &w->root;
    while (*link != CB_NONE && rank_of(*link) >= rank_of(node))
        link = side_of(w, *link, is_less(w, node, *link));
    uint32_t rest = *link, *low = &w->block.at[node].left, *high = &w->block.at[node].right;
    *link = node;
    while (rest != CB_NONE) { /* splits the subtree at the new node */
        uint32_t **end = is_less(w, rest, node) ? &low : &high;
        **end = rest;
        *end = side_of(w, rest, end == &high);
        rest = **end;
    }
    *low = *high = CB_NONE;
}

static void remove_gap(cb_fit *w, uint32_t node) {
    uint32_t *link = &w->root;
    while (*link != node) link = side_of(w, *link, is_less(w, node, *link));
    uint32_t low = w->block.at[node].left, high = w->block.at[node].right;
    while (low != CB_NONE && high != CB_NONE) {
        const bool takes_low = rank_of(low) > rank_of(high);
        uint32_t *next = takes_low ? &low : &high;
        *link = *next;
        link = side_of(w, *next, !takes_low);
        *next = *link;
    }
    *link = low == CB_NONE ? high : low;
    w->block.at[node].left = IN_USE;
}

static uint32_t find_gap(const cb_fit *w, uint64_t bytes) {
    uint32_t best = CB_NONE;
    for (uint32_t at = w->root; at != CB_NONE;) {
        const bool fits = width_of(w, at) >= bytes;
        if (fits) best = at;
        at = fits ? w->block.at[at].left : w->block.at[at].right;
    }
    return best;
}

/* Adds a block in use that begins at `begin`, before block `behind` (CB_NONE: at the end). */
static uint32_t add_block(cb_fit *w, uint64_t begin, uint32_t behind) {
    uint32_t i = w->spare;
    if (i == CB_NONE) {
        i = (uint32_t)w->block.len;
        if (!CB_PUSH(w->arena, w->block, (cb_fit_block){0})) return CB_NONE;
    } else {
        w->spare = w->block.at[i].behind;
    }
    const uint32_t before = behind == CB_NONE ? w->last : w->block.at[behind].before;
    w->block.at[i] = (cb_fit_block){begin, before, behind, IN_USE, CB_NONE};
    if (before != CB_NONE) w->block.at[before].behind = i;
    if (behind == CB_NONE) w->last = i;
    else w->block.at[behind].before = i;
    return i;
}

/* Merges block `i` with the block after it. */
static void join_behind(cb_fit *w, uint32_t i) {
    const uint32_t gone = w->block.at[i].behind, behind = w->block.at[gone].behind;
    w->block.at[i].behind = behind;
    if (behind == CB_NONE) w->last = i;
    else w->block.at[behind].before = i;
    w->block.at[gone].behind = w->spare;
    w->spare = gone;
}

void cb_fit_init(cb_fit *w, cb_arena *arena) {
    *w = (cb_fit){.arena = arena, .root = CB_NONE, .last = CB_NONE, .spare = CB_NONE};
}

bool cb_fit_take(cb_fit *w, uint64_t bytes, uint32_t *block) {
    uint32_t gap = find_gap(w, bytes);
    if (gap == CB_NONE) { /* add memory at the top, beginning with a gap that ends there */
        *block = is_gap(w, w->last) ? w->last : add_block(w, w->top, CB_NONE);
        if (*block == CB_NONE) return false;
        if (is_gap(w, *block)) remove_gap(w, *block);
        w->top = w->block.at[*block].begin + bytes;
        return true;
    }
    *block = gap;
    if (width_of(w, gap) == bytes) {
        remove_gap(w, gap);
        return true;
    }
    *block = add_block(w, w->block.at[gap].begin, gap);
    if (*block == CB_NONE) return false;
    remove_gap(w, gap);
    w->block.at[gap].begin += bytes;
    add_gap(w, gap);
    return true;
}

void cb_fit_give(cb_fit *w, uint32_t block) {
    const uint32_t before = w->block.at[block].before, behind = w->block.at[block].behind;
    if (is_gap(w, behind)) {
        remove_gap(w, behind);
        join_behind(w, block);
    }
    if (is_gap(w, before)) {
        remove_gap(w, before);
        join_behind(w, before);
        block = before;
    }
    add_gap(w, block);
}
