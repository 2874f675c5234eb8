/* rows.h: the kernel of a group that walks rows, or elements: all of it but sums that end outside
 * of a row. Its parts serve mixed.c, too. */
#ifndef CB_EXEC_CUDA_TEXT_ROWS_H
#define CB_EXEC_CUDA_TEXT_ROWS_H

#include "turn.h"

enum { CB_CU_TURNED_MOST = 4 };

typedef struct cb_cu_layout { /* of a block that walks rows */
    int64_t leaves;
    int teams, rows; /* teams of a row, rows of a block */
    int64_t pitch;   /* elements of a row in a tile */
    int n_tile;
    int n_turned; /* arrays that lie across, which come through tiles (turn.h) */
    struct {
        int stream;
        cb_walk walk;
        cb_cu_tile tile;
    } turned[CB_CU_TURNED_MOST];
} cb_cu_layout;

/* Whether something ends at a row, so that a block walks rows. */
bool cb_cu_walks_rows(const cb_microcode *m);
void cb_cu_rows(cb_cu_micro *x);

/* Whether it is a sum or an extreme over the row alone. */
bool cb_cu_is_row_acc(const cb_microcode *m, const cb_micro *micro);
/* Text: shared memory for leaves of rows. */
void cb_cu_declare_parts(const cb_cu_micro *x, const cb_cu_layout *l);
/* Text: all that ends in a phase, with the numbers of the row that are there then. */
void cb_cu_row_phase(cb_cu_micro *x, const cb_cu_layout *l, int phase);
/* Text: numbers of `row` that are results. */
void cb_cu_store_numbers(cb_cu_micro *x);

#endif
