/* microcode.h: a group of a program, taken apart into what a backend runs on a row: vector
 * operations in phases, with numbers of the row between them.
 *
 *     phase 0   sum += x
 *     then      mean = sum / columns
 *     phase 1   d = x - mean; sum += d d
 *     then      rstd = 1 / sqrt(sum / columns + eps)
 *     phase 2   y = (x - mean) rstd weight + bias
 *
 * A phase walks the row once. What a later phase reads again is a stream: an array of the program,
 * or a tile of the thread. */
#ifndef CB_MICRO_MICROCODE_H
#define CB_MICRO_MICROCODE_H

#include "../lower/program.h"
#include "ops.h"
#include "sums.h"

typedef enum cb_x_kind { CB_X_NONE = 0, CB_X_VALUE, CB_X_IN_STREAM, CB_X_NUMBER } cb_x_kind;

typedef struct cb_x_ref { /* an operand: a vector value, a stream or a number (s[]) */
    cb_x_kind kind;
    int16_t id;
} cb_x_ref;

typedef struct cb_micro {
    cb_x_op op;
    cb_x_ref in[3];
    int16_t value, second; /* that it defines, -1: none */
    int16_t dst;           /* accumulator, stream or number that it writes */
    int16_t phase;
    bool is_dead;
} cb_micro;

/* A number from numbers, or from the accumulator `a` (op CB_X_ACC: a sum, CB_X_AMAX, CB_X_AMIN). */
typedef struct cb_x_number {
    cb_x_op op;
    int16_t dst, a, b, c;
    int16_t after; /* phase; -1: before the first */
    enum { CB_X_OF_ROW, CB_X_BEFORE_ALL, CB_X_AFTER_ALL } when;
} cb_x_number;

/* Of the elements of a stream. */
typedef enum cb_x_format {
    CB_X_REAL = 0, /* what is computed with */
    CB_X_BF16,
    CB_X_F16,
    CB_X_BYTE, /* bools: 0 or 1 */
    CB_X_FORMAT_COUNT
} cb_x_format;

typedef enum cb_x_source {
    CB_X_ARRAY,    /* rows of a tensor, one element after another */
    CB_X_TILE,     /* of the thread, written by the code itself */
    CB_X_GATHERED, /* likewise, filled from a tensor of any strides before a row */
    CB_X_KEPT,     /* 1 where dropout keeps, else 0 */
    CB_X_TRIANGLE, /* 1 where tril keeps, else 0 */
    CB_X_SUMS,     /* of columns, for the running block of rows */
    CB_X_PIECES    /* one element for each piece of a row */
} cb_x_source;

typedef struct cb_x_stream {
    cb_x_source source;
    uint32_t tensor; /* position in cb_program.operand_id */
    uint32_t instr;  /* KEPT, TRIANGLE, SUMS: whose attributes; SUMS: whose scratch */
    int16_t part;    /* SUMS: which of the instruction's sums */
    cb_x_format format;
    uint8_t size; /* bytes of an element */
    bool is_read, is_written;
    bool is_read_later;  /* after the phase that writes it: keep it near */
    int16_t first_phase; /* that reads it */
    int32_t tile;        /* which tile of the thread, -1: none */
    int16_t over;        /* the stream whose array it writes anew in the same phase, -1: none */
} cb_x_stream;

typedef struct cb_x_row_value { /* a number for each row, or one for all, in a tensor */
    uint32_t tensor;
    int16_t number;
    bool is_index;   /* a position in the row, -1 where it is `ignored` */
    int64_t ignored; /* -1: none is */
    uint32_t instr;  /* is_index: whose */
} cb_x_row_value;

typedef struct cb_x_total { /* a sum over everything */
    uint32_t tensor;        /* of the result */
    bool is_local;          /* which then has no memory */
    int16_t acc, number;
    bool is_mean;
} cb_x_total;

typedef struct cb_x_columns { /* sums of columns over blocks of rows */
    int16_t stream;
    uint32_t tensor; /* of the result */
    bool is_mean;
} cb_x_columns;

typedef struct cb_x_pieces { /* sums of pieces of rows */
    int16_t stream, acc;
    int16_t log_length; /* a piece has 2^log_length elements */
    bool is_mean;
} cb_x_pieces;

typedef enum cb_x_acc_kind {
    CB_X_ROW_SUM = 0,
    CB_X_TOTAL_SUM,
    CB_X_PIECE_SUM,
    CB_X_LARGEST,
    CB_X_ACC_KIND_COUNT
} cb_x_acc_kind;

/* Sizes of the tables. */
enum {
    CB_X_STREAMS = 64,
    CB_X_SCALARS = 128,
    CB_X_ACCS = 16,
    CB_X_MICROS = 512,
    CB_X_NUMBERS = 128,
    CB_X_ROW_VALUES = 64,
    CB_X_TOTALS = 8,
    CB_X_PHASES = 16,
    CB_X_VALUES = 512
};

/* What the backend that runs a group has room for: at most the sizes of the tables. */
typedef struct cb_x_limits {
    int streams, scalars, accs;
} cb_x_limits;

/* The tables of a group: type, name, how many are in it, and how many there may be. The first holds
 * nothing once records are made of it. */
/* clang-format off */
#define CB_X_TABLES(X)                                                                    \
    X(cb_micro, micro, n_micro, CB_X_MICROS)                                              \
    X(cb_x_number, number, n_number, CB_X_NUMBERS)                                        \
    X(cb_x_stream, stream, n_stream, CB_X_STREAMS)                                        \
    X(double, constant, n_scalar, CB_X_SCALARS)           /* numbers that never change */ \
    X(cb_x_row_value, load, n_load, CB_X_ROW_VALUES)      /* one for each row, read */    \
    X(cb_x_row_value, store, n_store, CB_X_ROW_VALUES)    /* written */                   \
    X(cb_x_row_value, once, n_once, CB_X_ROW_VALUES)      /* one for all rows, read */    \
    X(cb_x_row_value, give, n_give, CB_X_ROW_VALUES)      /* written, at the end */       \
    X(cb_x_total, total, n_total, CB_X_TOTALS)                                            \
    X(cb_x_columns, column, n_columns, CB_X_ROW_VALUES)                                   \
    X(cb_x_pieces, pieces, n_pieces, CB_X_ACCS)                                           \
    X(cb_x_acc_kind, acc_kind, n_acc, CB_X_ACCS)
/* clang-format on */

/* The tables of one group while it is taken apart. */
#define CB_X_SPACE(type, name, n, most) type name[most];
typedef struct cb_x_room {
    CB_X_TABLES(CB_X_SPACE)
} cb_x_room;

#define CB_X_POINTER(type, name, n, most) type *name;
typedef struct cb_microcode {
    int64_t rows, columns; /* columns: of a row; a flat domain chooses them */
    bool has_rows;         /* rows must not be cut */
    bool is_wide;          /* computes in f64 */
    int n_micro, n_number, n_stream, n_value, n_phase, n_scalar;
    int n_load, n_store, n_once, n_give, n_total, n_columns, n_pieces, n_tile, n_acc;
    CB_X_TABLES(CB_X_POINTER)
} cb_microcode;

#endif
