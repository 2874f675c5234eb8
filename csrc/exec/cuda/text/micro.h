/* micro.h: writes microcode (micro/microcode.h) as CUDA C. CPU and GPU run a group from the same
 * microcode, so operations and the order of sums are the same on both.
 *
 * A kernel needs only the operations whose results it stores or sums, and their operands.
 * Everything that does not depend on a sum over a row can be recomputed in any kernel from arrays
 * and numbers:
 *
 *     cb_cu_need(&x, k);            marks micro-operation k and its operands as needed
 *     cb_cu_once(&x);               writes the numbers that are the same for all rows
 *     cb_cu_row_numbers(&x);        writes the numbers of a row, after `row` is declared
 *     cb_cu_body(&x);               writes the needed operations for V elements from `e` on
 *
 * The surrounding text declares I (the type of offsets), V, and, for V elements, `row`, `col`, `e`
 * = row * columns + col, and `n`, how many of the V elements exist. */
#ifndef CB_EXEC_CUDA_TEXT_MICRO_H
#define CB_EXEC_CUDA_TEXT_MICRO_H

#include "../../../micro/microcode.h"
#include "code.h"

typedef struct cb_cu_micro {
    cb_cu_code *code;
    const cb_microcode *m;
    bool has_tiles;  /* values that cross phases are in shared memory; else they are recomputed */
    bool is_guarded; /* n may be less than V */
    int vector;      /* V */
    int16_t same_as[CB_X_STREAMS]; /* the first stream of the same array */
    bool is_turned[CB_X_STREAMS];  /* the stream is in shared memory as turned<stream> (turn.h) */
    bool has_leaves;               /* the kernel that walks rows computes the leaves of totals */
    bool stores_with_leaves;       /* the kernel of leaves also stores arrays */
    uint64_t leaves_at[CB_X_TOTALS];
    const char *turned_tile, *turned_at; /* text of the tile, "[slot]", and position in it */
    bool needed[CB_X_MICROS];
    bool is_loaded[CB_X_STREAMS];
    int16_t maker[CB_X_VALUES];     /* the micro-operation that defines a value */
    int16_t in_tile[CB_X_STREAMS];  /* the value that a tile holds; -1: not a tile */
    int16_t with_tile[CB_X_VALUES]; /* the stream of the tile that holds a value; -1: none */
    bool is_cheap[CB_X_STREAMS];    /* the tile is recomputed even with has_tiles */
    bool is_decided[CB_X_STREAMS]; /* used by the search for tiles: is_cheap of the tile is final */
    bool is_held[CB_X_STREAMS];    /* with has_tiles, the array is copied to a tile when read */
    int16_t tile_of[CB_X_STREAMS]; /* the tile of a stream that has one (tiles.h) */
    bool is_filled[CB_X_STREAMS];  /* an earlier phase has filled the tile of the array */
    int phase;                     /* the phase that is being written (cb_cu_need_phase) */
    bool is_constant[CB_X_SCALARS]; /* the number is a constant */
    bool of_row[CB_X_SCALARS];      /* the number depends on a reduction of the row */
    bool is_kept[CB_X_SCALARS];     /* later kernels read the number from extra memory */
    uint64_t kept_at[CB_X_SCALARS];
} cb_cu_micro;

void cb_cu_micro_init(cb_cu_micro *x, cb_cu_code *code, const cb_microcode *m);
void cb_cu_forget(cb_cu_micro *x); /* begins a new kernel: nothing is needed yet */
void cb_cu_need(cb_cu_micro *x, int micro);
/* Keeps, for later kernels, the numbers from reductions of rows that needed operations read. */
void cb_cu_keep_numbers(cb_cu_micro *x);

/* Returns the stream of the array or tile from which an operand is loaded; -1 if it is not
 * loaded. */
int16_t cb_cu_loads(const cb_cu_micro *x, cb_x_ref ref);
/* True if each row reads the same elements of the array. */
bool cb_cu_is_same_in_rows(const cb_cu_micro *x, int stream);

/* Finds the tiles that few operations can recompute from other tiles and from arrays that are the
 * same for each row. Shared memory limits how many rows a multiprocessor processes at a time. */
void cb_cu_find_cheap(cb_cu_micro *x);

/* True if the operation stores an array or a tile that is kept. */
bool cb_cu_is_store(const cb_cu_micro *x, const cb_micro *micro);

/* Returns the number of elements that a thread processes at a time. */
int cb_cu_vector(const cb_microcode *m);
/* Writes the declarations of I, V, ROWS and COLUMNS. */
void cb_cu_head(cb_cu_micro *x, int vector);
void cb_cu_once(void *with);
void cb_cu_row_numbers(void *with);
void cb_cu_kept_numbers(void *with); /* reads the kept numbers of the row from memory */
void cb_cu_number(cb_cu_micro *x, const cb_x_number *number);
/* Writes code that stores number `id` in element `at` of a parameter. */
void cb_cu_narrow_number(cb_cu_micro *x, int param, const char *at, int16_t id);
void cb_cu_body(void *with);
/* The functions above as holes of templates. `n` is the number of the V elements from `col` on that
   exist. */
#define CB_CU_HOLES_OF(x)                                                                     \
    CB_CU_HOLE_PART(once, cb_cu_once, x), CB_CU_HOLE_PART(row_numbers, cb_cu_row_numbers, x), \
        CB_CU_HOLE_PART(kept_numbers, cb_cu_kept_numbers, x),                                 \
        CB_CU_HOLE_PART(body, cb_cu_body, x),                                                 \
        CB_CU_HOLE_TEXT(n, (x)->is_guarded ? "COLUMNS - col < V ? COLUMNS - col : V" : "V")

#endif
