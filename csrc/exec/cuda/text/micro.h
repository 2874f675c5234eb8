/* micro.h: microcode (micro/microcode.h) as CUDA C. Both machines run a group by the same
 * microcode, so each operation, and each order of a sum, is the same on both.
 *
 * A kernel needs some of it: what it stores or sums up, and all that this comes from. Whatever does
 * not come from a sum over a row can be computed again anywhere, from arrays and numbers:
 *
 *     cb_cu_need(&x, k);            micro-operation k, with what it reads
 *     cb_cu_once(&x);               text: numbers that are the same for all rows
 *     cb_cu_row_numbers(&x);        text: numbers of the row, behind `row`
 *     cb_cu_body(&x);               text: what was asked for, for V elements from `e` on
 *
 * The text around it declares I (the type of offsets), V, and, for V elements, `row`, `col`,
 * `e` = row * columns + col, and `n`, how many of the V there are. */
#ifndef CB_EXEC_CUDA_TEXT_MICRO_H
#define CB_EXEC_CUDA_TEXT_MICRO_H

#include "../../../micro/microcode.h"
#include "code.h"

typedef struct cb_cu_micro {
    cb_cu_code *code;
    const cb_microcode *m;
    bool has_tiles;  /* what crosses phases is in shared memory; else it is computed again */
    bool is_guarded; /* n may be less than V */
    int vector;      /* V */
    bool is_turned[CB_X_STREAMS]; /* it is in shared memory, turned<stream> (turn.h), ... */
    bool has_leaves;              /* the kernel that walks rows adds up the leaves of totals */
    bool stores_with_leaves;      /* the kernel of leaves stores arrays, too */
    uint64_t leaves_at[CB_X_TOTALS];
    const char *turned_tile, *turned_at; /* ... in which tile, "[slot]", and where, "row, column" */
    bool needed[CB_X_MICROS];
    bool is_loaded[CB_X_STREAMS];
    int16_t maker[CB_X_VALUES];     /* the micro-operation that makes a value */
    int16_t in_tile[CB_X_STREAMS];  /* the value that a tile holds, -1: it is none */
    bool is_cheap[CB_X_STREAMS];    /* a tile that is computed again nevertheless */
    bool is_constant[CB_X_SCALARS]; /* numbers that are text */
    bool of_row[CB_X_SCALARS];      /* numbers that are there when all of the row was seen */
    bool is_kept[CB_X_SCALARS];     /* later kernels read it from extra memory */
    uint64_t kept_at[CB_X_SCALARS];
} cb_cu_micro;

void cb_cu_micro_init(cb_cu_micro *x, cb_cu_code *code, const cb_microcode *m);
void cb_cu_forget(cb_cu_micro *x); /* a new kernel begins: nothing is needed */
void cb_cu_need(cb_cu_micro *x, int micro);
/* Numbers that come out of sums over rows, and that what is needed reads, are to be kept. */
void cb_cu_keep_numbers(cb_cu_micro *x);

/* Finds the tiles that are computed again from others, and from what is the same in each row, with
 * few operations: shared memory is what limits how many rows a multiprocessor works on. */
void cb_cu_find_cheap(cb_cu_micro *x);

/* Whether it stores an array, or a tile that is kept. */
bool cb_cu_is_store(const cb_cu_micro *x, const cb_micro *micro);

/* How much one thread takes at a time. */
int cb_cu_vector(const cb_microcode *m);
/* The declarations of I and V, and of ROWS and COLUMNS. */
void cb_cu_head(cb_cu_micro *x, int vector);
void cb_cu_once(void *with);
void cb_cu_row_numbers(void *with);
void cb_cu_kept_numbers(void *with); /* likewise, those of sums, from memory */
void cb_cu_number(cb_cu_micro *x, const cb_x_number *number);
/* Text: number `id` goes to element `at` of a parameter. */
void cb_cu_narrow_number(cb_cu_micro *x, int param, const char *at, int16_t id);
void cb_cu_body(void *with);
/* These four, which take a cb_cu_micro, as holes of templates; `n` is how many of the V elements
 * from `col` on there are. */
#define CB_CU_HOLES_OF(x)                                                                     \
    CB_CU_HOLE_PART(once, cb_cu_once, x), CB_CU_HOLE_PART(row_numbers, cb_cu_row_numbers, x), \
        CB_CU_HOLE_PART(kept_numbers, cb_cu_kept_numbers, x),                                 \
        CB_CU_HOLE_PART(body, cb_cu_body, x),                                                 \
        CB_CU_HOLE_TEXT(n, (x)->is_guarded ? "COLUMNS - col < V ? COLUMNS - col : V" : "V")

#endif
