/* turn.h: reads arrays with strided rows, such as transposed arrays, through tiles in shared memory
 * (turn.cuh), so that memory accesses are coalesced. */
#ifndef CB_EXEC_CUDA_TEXT_TURN_H
#define CB_EXEC_CUDA_TEXT_TURN_H

#include "../../../micro/walk.h"
#include "micro.h"
#include "op.h"

/* The axes of a result in row-major order: [outer][rows][between][columns]. In the array, `columns`
 * is strided and `rows` is contiguous. */
typedef struct cb_cu_turn {
    int64_t outer, rows, between, columns;
} cb_cu_turn;

/* Returns false if the array does not have this layout, or is too small for a tile to be
 * worthwhile. */
bool cb_cu_turn_of(const cb_walk *w, cb_cu_turn *turn);

typedef struct cb_cu_tile { /* a tile of one array */
    int param, size, width; /* parameter; bytes per element; elements per word */
    int64_t rows, columns, pitch;
} cb_cu_tile;

/* Returns a tile of `rows` x `columns` elements, in words of at most `most` elements. */
cb_cu_tile cb_cu_tile_of(cb_dtype dtype, int64_t rows, int64_t columns, int most);
int64_t cb_cu_tile_bytes(const cb_cu_tile *tile);
/* Declares `turned<name>[slots]` in shared memory. */
void cb_cu_tile_declare(cb_cu_code *c, const cb_cu_tile *tile, int name, int slots);
/* The arguments of cb_cu_tile_fill, which fills tile `to` with `rows` x `columns` elements from
 * element `first` of the result on. `threads` threads do it, each with number `thread`. Strings are
 * texts of expressions. */
typedef struct cb_cu_fill {
    const char *to, *first, *rows, *columns, *thread;
    int threads;
} cb_cu_fill;
void cb_cu_tile_fill(cb_cu_code *c, const cb_cu_tile *tile, const cb_walk *w,
                     const cb_cu_fill *fill);

/* Adds the kernel of a group without rows that reads such arrays; it computes the group's stores
 * (cb_cu_need) tile by tile. Returns false if the group reads no such array. */
bool cb_cu_turned_elements(cb_cu_micro *x);
/* Adds the kernel of an op that copies such an array. Returns false for other ops. */
bool cb_cu_turned_copy(const cb_cu_op *x);

#endif
