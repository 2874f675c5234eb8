/* best_fit.h: a best-fit allocator that runs with the schedule: each request gets the smallest gap
 * that holds it, and the lowest of equal gaps. Internal. */
#ifndef CB_PLAN_BEST_FIT_H
#define CB_PLAN_BEST_FIT_H

#include "../../base/vec.h"

typedef struct cb_fit_block { /* a gap, or memory in use */
    uint64_t begin;
    uint32_t before, behind; /* neighbours in memory; CB_NONE: none */
    uint32_t left, right;    /* children of a gap in the tree */
} cb_fit_block;

typedef struct cb_fit {
    cb_arena *arena;
    CB_VEC(cb_fit_block) block; /* contiguous in memory, up to `top` */
    uint32_t root;              /* root of the tree of gaps, sorted by width and position */
    uint32_t last;              /* block that ends at `top`; CB_NONE: none */
    uint32_t spare;             /* block that is not in use; `behind` leads to the next */
    uint64_t top;
} cb_fit;

void cb_fit_init(cb_fit *w, cb_arena *arena);
/* `block` receives the handle for cb_fit_give. Returns false if out of memory. */
CB_MUST_CHECK bool cb_fit_take(cb_fit *w, uint64_t bytes, uint32_t *block);
void cb_fit_give(cb_fit *w, uint32_t block);

#endif
