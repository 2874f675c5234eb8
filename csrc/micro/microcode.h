/* microcode.h: a group of a program, decomposed into what a backend runs on each row: vector
 * operations in phases, and scalars ("numbers") that are computed between phases.
 *
 *     phase 0   sum += x
 *     then      mean = sum / columns
 *     phase 1   d = x - mean; sum += d d
 *     then      rstd = 1 / sqrt(sum / columns + eps)
 *     phase 2   y = (x - mean) rstd weight + bias
 *
 * A phase walks the row once. Elements that a later phase reads are in a stream: an array of the
 * program or a tile, which is scratch of the thread. */
#ifndef CB_MICRO_MICROCODE_H
#define CB_MICRO_MICROCODE_H

#include "../lower/program.h"
#include "ops.h"
#include "sums.h"

typedef enum cb_x_kind { CB_X_NONE = 0, CB_X_VALUE, CB_X_IN_STREAM, CB_X_NUMBER } cb_x_kind;

typedef struct cb_x_ref { /* an operand: a vector value, a stream or a number */
    cb_x_kind kind;
    int16_t id;
} cb_x_ref;

typedef struct cb_micro {
    cb_x_op op;
    cb_x_ref in[3];
    int16_t value, second; /* the values that it defines; -1: none */
    int16_t dst;           /* the accumulator, stream or number that it writes; -1: none */
    int16_t phase;
    bool is_dead;
} cb_micro;

/* A number computed from the numbers a, b, c, or read from accumulator `a` if op is CB_X_ACC (a
 * sum), CB_X_AMAX or CB_X_AMIN. */
typedef struct cb_x_number {
    cb_x_op op;
    int16_t dst, a, b, c;
    int16_t after; /* it is computed after this phase; -1: before the first */
    enum { CB_X_OF_ROW, CB_X_BEFORE_ALL, CB_X_AFTER_ALL, CB_X_OF_LINE } when;
} cb_x_number;

/* The element format of a stream. */
typedef enum cb_x_format {
    CB_X_REAL = 0, /* the type of the arithmetic: f32, or f64 if is_wide */
    CB_X_BF16,
    CB_X_F16,
    CB_X_BYTE, /* bool: 0 or 1 */
    CB_X_FORMAT_COUNT
} cb_x_format;

typedef enum cb_x_source {
    CB_X_ARRAY,    /* contiguous rows of a tensor */
    CB_X_TILE,     /* a tile of the thread, written by the microcode */
    CB_X_GATHERED, /* a tile, filled from a tensor of any strides before each row */
    CB_X_KEPT,     /* a tile: 1 where dropout keeps an element, otherwise 0 */
    CB_X_TRIANGLE, /* a tile: 1 where tril keeps an element, otherwise 0 */
    CB_X_BITS,     /* a tile of bools, unpacked from or packed to the bits of a tensor */
    CB_X_SUMS,     /* column sums of the current block of rows */
    CB_X_PIECES,   /* one element for each piece of a row */
    CB_X_REPEATED, /* a tile: a row that is the same for all rows, once for each row of a batch */
    CB_X_SPREAD,   /* a tile: the number of each row of a batch, once for each element of the row */
    CB_X_VECTORS   /* a vector of rows that are side by side, with one element per row */
} cb_x_source;

typedef struct cb_x_stream {
    cb_x_source source;
    uint32_t tensor; /* position in cb_program.operand_id */
    uint32_t instr;  /* KEPT, TRIANGLE, SUMS: the instruction with the attributes and scratch */
    int16_t part;    /* SUMS: index of the instruction's sum; VECTORS: index of the vector; SPREAD:
                        the number */
    cb_x_format format;
    uint8_t size; /* bytes of an element */
    bool is_read, is_written;
    bool is_line;        /* VECTORS: elements that are summed over lines, line by line */
    bool is_read_later;  /* a phase after the one that writes it reads it: keep it in cache */
    int16_t first_phase; /* the first phase that reads it */
    int32_t tile;        /* index of the thread's tile; -1: none */
    int16_t over;        /* the stream whose array it overwrites in the same phase; -1: none */
} cb_x_stream;

typedef struct cb_x_row_value { /* a tensor with one number per row, or with a single number */
    uint32_t tensor;
    int16_t number;
    bool is_index;   /* the number is a position in the row; -1 if the tensor has `ignored` there */
    int64_t ignored; /* -1: no index is ignored */
    uint32_t instr;  /* is_index: the instruction that reads the index */
} cb_x_row_value;

typedef struct cb_x_total { /* a sum over all elements */
    uint32_t tensor;        /* the result */
    bool is_local;          /* the result is local: it has no memory */
    int16_t acc, number;
    bool is_mean;
} cb_x_total;

typedef struct cb_x_columns { /* sums of columns over blocks of rows */
    int16_t stream;
    int16_t terms, phase; /* the stream that holds the summands (together.h); -1: none */
    uint32_t tensor;      /* the result */
    bool is_mean;
} cb_x_columns;

typedef struct cb_x_pieces { /* sums of pieces of rows */
    int16_t stream, acc;
    bool is_whole;      /* a power of two elements: whole lanes, one leaf (fuse/domain.h) */
    int16_t log_length; /* if is_whole: a piece has 2^log_length elements */
    int16_t phase;      /* the phase after which batches add it up (together.h) */
    int64_t length;
    bool is_mean;
} cb_x_pieces;

/* If rows are side by side, a line is one element of each. Its sum goes to the result, or is part
 * of a total whose leaves do not begin where lines do. The phase stores the elements of several
 * lines, one after another, in vectors from acc_lanes[acc] on. */
typedef struct cb_x_line_sum {
    uint32_t tensor; /* the result, one element per line; unused for a total */
    int16_t acc, number, phase;
    int16_t total; /* -1: none */
    bool is_mean;
} cb_x_line_sum;

typedef enum cb_x_acc_kind {
    CB_X_ROW_SUM = 0,
    CB_X_TOTAL_SUM,
    CB_X_PIECE_SUM,
    CB_X_LINE_SUM,
    CB_X_LARGEST, /* AMAX, and AMIN as the largest negated element */
    CB_X_ACC_KIND_COUNT
} cb_x_acc_kind;

/* Largest sizes of the tables. */
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

/* The limits of a backend: numbers of streams, numbers and accumulators, at most the sizes
 * above. */
typedef struct cb_x_limits {
    int streams, scalars, accs;
    bool together; /* it runs batches of rows (together.h) */
} cb_x_limits;

/* The tables of a group: type, name, field with the length, largest length. The first is empty once
 * records have been made of it. */
/* clang-format off */
#define CB_X_TABLES(X)                                                                    \
    X(cb_micro, micro, n_micro, CB_X_MICROS)                                              \
    X(cb_x_number, number, n_number, CB_X_NUMBERS)                                        \
    X(cb_x_stream, stream, n_stream, CB_X_STREAMS)                                        \
    X(double, constant, n_scalar, CB_X_SCALARS)           /* numbers that never change */ \
    X(cb_x_row_value, load, n_load, CB_X_ROW_VALUES)      /* one per row, read */         \
    X(cb_x_row_value, store, n_store, CB_X_ROW_VALUES)    /* one per row, written */      \
    X(cb_x_row_value, once, n_once, CB_X_ROW_VALUES)      /* one for all rows, read */    \
    X(cb_x_row_value, give, n_give, CB_X_ROW_VALUES)      /* one for all, written last */ \
    X(cb_x_row_value, line, n_line, CB_X_ROW_VALUES)      /* one per line, read */        \
    X(cb_x_line_sum, line_sum, n_line_sum, CB_X_ACCS)                                     \
    X(cb_x_total, total, n_total, CB_X_TOTALS)                                            \
    X(cb_x_columns, column, n_columns, CB_X_ROW_VALUES)                                   \
    X(cb_x_pieces, pieces, n_pieces, CB_X_ACCS)                                           \
    X(cb_x_acc_kind, acc_kind, n_acc, CB_X_ACCS)                                          \
    X(int16_t, acc_lanes, n_acc, CB_X_ACCS)               /* its vectors (across.h), -1: none */ \
    X(int16_t, number_lanes, n_scalar, CB_X_SCALARS)
/* clang-format on */

/* The tables of one group while it is decomposed. */
#define CB_X_SPACE(type, name, n, most) type name[most];
typedef struct cb_x_room {
    CB_X_TABLES(CB_X_SPACE)
} cb_x_room;

#define CB_X_POINTER(type, name, n, most) type *name;
typedef struct cb_microcode {
    int64_t rows, columns; /* columns: length of a row, chosen freely if !has_rows */
    int64_t inner;         /* rows that are side by side; 0: each row is contiguous */
    int64_t together;      /* rows of a batch (together.h); 0: nothing needs batches */
    bool has_rows;         /* the domain has rows, which must not be split */
    bool is_wide;          /* computes in f64 */
    int n_micro, n_number, n_stream, n_value, n_phase, n_scalar;
    int n_load, n_store, n_once, n_give, n_line, n_total, n_columns, n_pieces, n_line_sum, n_tile;
    int n_acc;
    int n_lanes; /* vectors of rows that are side by side */
    CB_X_TABLES(CB_X_POINTER)
} cb_microcode;

#endif
