/* blocks.h: lives with offsets, listed by windows of time, so that gaps for another life are found
 * without examining every life.
 *
 *     CB_TRY(cb_blocks_init(&b, n_moment, arena, err));
 *     begin = cb_blocks_find_gap(&b, bytes, made, last);
 *     ok = cb_blocks_put(&b, (cb_block){begin, begin + bytes, made, last});    false: no memory */
#ifndef CB_PLAN_BLOCKS_H
#define CB_PLAN_BLOCKS_H

#include "../../base/arena.h"
#include "../../base/vec.h"

typedef struct cb_block {
    uint64_t begin, end;
    uint32_t made, last; /* alive from the first to the last of these moments */
} cb_block;

typedef CB_VEC(cb_block) cb_block_list;

typedef struct cb_blocks {
    cb_arena *arena;
    uint32_t n_window, shift; /* a window has 2^shift moments */
    cb_block_list *window;    /* [n_window] lives by each window at which they are alive, in order
                                 of offsets */
    cb_block_list all;        /* likewise, for lives that span more than a few windows */
    uint64_t looks;           /* lives examined so far */
} cb_blocks;

CB_MUST_CHECK cb_status cb_blocks_init(cb_blocks *b, uint32_t n_moment, cb_arena *arena,
                                       cb_error *err);
/* Removes all lives. */
void cb_blocks_clear(cb_blocks *b);
CB_MUST_CHECK bool cb_blocks_put(cb_blocks *b, cb_block block);
/* Returns the lowest of the smallest gaps that hold `bytes` at moments made..last, or the end of
 * the lives there if none is wide enough. */
uint64_t cb_blocks_find_gap(cb_blocks *b, uint64_t bytes, uint32_t made, uint32_t last);

#endif
