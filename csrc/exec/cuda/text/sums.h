/* sums.h: sums over columns, pieces of rows and all elements, in kernels that come after the one
 * that walks rows. */
#ifndef CB_EXEC_CUDA_TEXT_SUMS_H
#define CB_EXEC_CUDA_TEXT_SUMS_H

#include "micro.h"

/* Marks what the sums read, so that numbers of rows among it are kept. */
void cb_cu_need_sums(cb_cu_micro *x);
void cb_cu_sums(cb_cu_micro *x);

/* Memory for the leaves of totals. */
void cb_cu_place_leaves(cb_cu_micro *x);
bool cb_cu_is_total(const cb_microcode *m, const cb_micro *micro);
/* The parameter of the leaves that accumulator `acc` makes. */
int cb_cu_leaves_param(cb_cu_micro *x, int acc);

/* Sums over columns are those of blocks of rows, put together in order. */
typedef struct cb_cu_blocks {
    int64_t n, rows;
} cb_cu_blocks;
cb_cu_blocks cb_cu_blocks_of(const cb_microcode *m);
/* Text: the rows of block `block`, from `begin` to `end`. */
void cb_cu_block_bounds(cb_cu_micro *x, const cb_cu_blocks *b);
/* Text: c<stream> go to b<stream> where a run of rows ends, behind `row`. */
void cb_cu_close_runs(cb_cu_micro *x);
/* Text: a sum of `block` goes where it belongs. */
void cb_cu_close_column(cb_cu_micro *x, const cb_x_columns *column, const cb_cu_blocks *b);
/* The kernel that puts blocks together, if there are several. */
void cb_cu_finish_columns(cb_cu_micro *x, const cb_cu_blocks *b);

#endif
