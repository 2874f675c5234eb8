/* turn.h: arrays whose rows lie across memory, as those of a transposed array do, are read through
 * tiles of shared memory (turn.cuh), so that memory is read and written along its lines. */
#ifndef CB_EXEC_CUDA_TEXT_TURN_H
#define CB_EXEC_CUDA_TEXT_TURN_H

#include "../../../micro/walk.h"
#include "micro.h"
#include "op.h"

/* Elements of a result in row-major order as [outer][rows][between][columns], of which `columns`
 * lie across in an array, while neighbours of `rows` are neighbours there. */
typedef struct cb_cu_turn {
    int64_t outer, rows, between, columns;
} cb_cu_turn;

/* False: the array does not lie so, or is not worth a tile. */
bool cb_cu_turn_of(const cb_walk *w, cb_cu_turn *turn);

typedef struct cb_cu_tile { /* of one array; sizes in elements */
    int param, size, width; /* bytes of an element; elements of a word */
    int64_t rows, columns, pitch;
} cb_cu_tile;

/* Of so many rows and columns, in words of `most` elements at most. */
cb_cu_tile cb_cu_tile_of(cb_dtype dtype, int64_t rows, int64_t columns, int most);
int64_t cb_cu_tile_bytes(const cb_cu_tile *tile);
/* Text: `turned<name>[slots]` in shared memory. */
void cb_cu_tile_declare(cb_cu_code *c, const cb_cu_tile *tile, int name, int slots);
/* Text: element number `first` of the result and what follows in so many rows and columns goes to
 * tile `to`, by so many threads, of which each is number `thread`. All but their count are text. */
typedef struct cb_cu_fill {
    const char *to, *first, *rows, *columns, *thread;
    int threads;
} cb_cu_fill;
void cb_cu_tile_fill(cb_cu_code *c, const cb_cu_tile *tile, const cb_walk *w,
                     const cb_cu_fill *fill);

/* The kernel of a group without rows, some of whose arrays lie across: what it stores (cb_cu_need)
 * is made tile by tile. False: there is none. */
bool cb_cu_turned_elements(cb_cu_micro *x);
/* The kernel of an op that copies such an array as it is. False: it is not one. */
bool cb_cu_turned_copy(const cb_cu_op *x);

#endif
