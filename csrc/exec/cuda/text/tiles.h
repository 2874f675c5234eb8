/* tiles.h: the data that a kernel of rows keeps in shared memory from phase to phase: values that
 * are expensive to compute, and arrays that several phases read. */
#ifndef CB_EXEC_CUDA_TEXT_TILES_H
#define CB_EXEC_CUDA_TEXT_TILES_H

#include "micro.h"

bool cb_cu_is_acc(cb_x_op op);
/* True for sums and extremes over the row. */
bool cb_cu_is_row_acc(const cb_microcode *m, const cb_micro *micro);
bool cb_cu_is_take(const cb_micro *micro);
/* True if the operation is a total whose leaves this kernel computes, because no row ends within a
 * leaf. */
bool cb_cu_is_leaf(const cb_cu_micro *x, const cb_micro *micro);

/* Marks the stores, sums and takes of a phase, with their operands, as needed. Returns false if
 * there are none. */
bool cb_cu_need_phase(cb_cu_micro *x, int phase);

/* Decides which streams have a tile (is_cheap, is_held), and which tile (tile_of). Tiles whose
 * lifetimes do not overlap share memory. `holds`: arrays may have tiles, too. Returns the number of
 * tiles; has_tiles must be set. */
int cb_cu_find_tiles(cb_cu_micro *x, bool holds);

#endif
