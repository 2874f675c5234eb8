/* record.h: register-threaded code. A program is an array of records; each record's function takes
 * two virtual registers as vector arguments, computes, and jumps to the next record's function: no
 * dispatch loop, and values that are read soon never leave the processor's registers.
 *
 *     {load 0 <- stream 2} {mul 0 <- stream 3} {store 0 -> stream 5} {loop}
 *
 * A virtual register is four hardware vectors: 64 floats with AVX-512, 32 with AVX2, 16 with SSE;
 * f64 has a separate table, and half as many elements. Operands of other forms come from memory:
 *
 *     OTHER, SELF   the other register, or the one that is overwritten
 *     STREAM        p[k] + i: an array of the caller or the arena, or a tile of the thread. Packed
 *                   elements (16-bit floats, bools) are unpacked into a register first
 *     SLOT          64 floats of the thread: a spilled value
 *     SCALAR        s[k] in every lane: constants, and results for the running row
 *
 * If the compiler or the calling convention does not support tail calls (sanitizers, -O0), the same
 * functions keep their registers in the context and return to a loop.
 *
 * Sums have CB_X_LANES lanes on every machine (element i in lane i mod 64), folded after every
 * CB_X_LEAF elements and added in pairs, as in the single-op kernels (kern_rows.h). */
#ifndef CB_EXEC_RECORD_H
#define CB_EXEC_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../../base/philox.h"
#include "../../../micro/microcode.h"

/* Limits of a program of records. */
enum {
    CB_R_STREAMS = 64,
    CB_R_SCALARS = 128,
    CB_R_ACCS = 16,
    CB_X_SLOTS = 16,
};

typedef enum cb_x_form {
    CB_X_OTHER = 0,
    CB_X_SELF,
    CB_X_STREAM,
    CB_X_SLOT,
    CB_X_SCALAR,
    CB_X_FORM_COUNT
} cb_x_form;

typedef void (*cb_x_fn)(void); /* cast to the type that the build for an instruction set defines */

typedef struct cb_record {
    cb_x_fn fn;
    int16_t dst, b, c, to; /* operands; their meaning depends on the function */
#ifdef CB_PROFILE
    _Atomic uint64_t count, ticks; /* number of runs, and their total time */
#endif
} cb_record;

/* Leaves of a sum in pairs: digit k of a binary counter holds the sum of 2^k leaves. */
typedef struct cb_x_pairs {
    uint64_t count;
    void *leaves; /* if not NULL, leaves are written here one after another and combined later */
    union {
        float level[48];
        double level64[48];
    };
} cb_x_pairs;

/* The state of a thread. Fields with 64 in their names are for f64, their twins for f32. */
typedef struct cb_x_context {
    char *p[CB_R_STREAMS]; /* element 0 of the running row in each stream */
    union {
        float s[CB_R_SCALARS];
        double s64[CB_R_SCALARS];
    };
    int64_t end; /* end of the elements to run over, a multiple of 64 after their start */
    const cb_record *again; /* the first record of an iteration */
    int64_t leaf; /* elements between the beginning of a leaf of all elements and that of the row */
    /* Placed right after p and s: a load waits for a recent store at the same offset of a 4 KiB
     * page, and slots are stored to frequently. */
    union {
        _Alignas(64) float slot[CB_X_SLOTS][CB_X_LANES];
        double slot64[CB_X_SLOTS][CB_X_LANES];
    };
    cb_x_pairs sum[CB_R_ACCS];
    union { /* integer keys for amax and amin */
        _Alignas(64) float acc[CB_R_ACCS][CB_X_LANES];
        double acc64[CB_R_ACCS][CB_X_LANES];
    };
    int64_t n_mask; /* lanes that are set in the mask: */
    union {         /* all bits set in valid lanes, for the last records of a row */
        _Alignas(64) float mask[CB_X_LANES];
        double mask64[CB_X_LANES];
    };
    union { /* registers, saved during a slow path */
        _Alignas(64) float far[2 * CB_X_LANES];
        double far64[2 * CB_X_LANES];
    };
    union { /* registers of call-threaded code */
        _Alignas(64) float reg[2][CB_X_LANES];
        double reg64[2][CB_X_LANES];
    };
} cb_x_context;

/* The functions of one instruction set, by register (the one that is overwritten or read). */
typedef struct cb_x_table {
    bool is_wide;
    int register_bytes;
    cb_x_fn binary[CB_X_N_BINARY][2][CB_X_FORM_COUNT]; /* dst = op(dst, b) */
    /* Two operations in one (kern_scaled.h): dst = b s[c], where b has form OTHER, STREAM or SLOT;
     * dst = op(b s[c], the operand numbered dst); and the latter, also stored to the stream `to`.
     * Indexed by the forms of both operands. NULL: there is no such function; f64 has none. */
    cb_x_fn scaled[2][CB_X_FORM_COUNT];
    cb_x_fn of_scaled[CB_X_N_OF_SCALED][2][CB_X_FORM_COUNT][CB_X_FORM_COUNT];
    cb_x_fn store_scaled[CB_X_N_SUMS][2][CB_X_FORM_COUNT][CB_X_FORM_COUNT];
    /* Several operations in one (kern_made.h): a register = op(x, y), where x has the form STREAM,
     * SLOT or OTHER, or, if the result is also stored to the stream `to`, SELF. y has the form SELF
     * if it is x. NULL: f64 has none. */
    cb_x_fn made[CB_X_N_MADE][2][CB_X_FORM_COUNT][CB_X_FORM_COUNT];
    cb_x_fn store_made[CB_X_N_MADE][2][CB_X_FORM_COUNT][CB_X_FORM_COUNT];
    /* Several operations in one (join.h). sum_of, [with a third stream][register]: x s + y t, or
     * x s + (y t) z, where b is x, c is s and t << 8, dst is y and z << 8. store_sum_of also stores
     * the result to the stream `to`. scaled_root: the register's root times s[c], plus s[dst].
     * NULL: f64 has none. */
    cb_x_fn sum_of[2][2], store_sum_of[2][2], scaled_root[2];
    cb_x_fn unary[CB_X_N_UNARY][2]; /* dst = op(dst) */
    cb_x_fn pair[CB_X_N_PAIR][2];   /* dst and the other = op(dst) */
    cb_x_fn select[2][3][3];        /* dst = dst ? b : c, of the forms STREAM, SLOT, SCALAR */
    cb_x_fn load[2][CB_X_FORM_COUNT];
    cb_x_fn unpack[CB_X_FORMAT_COUNT][2];      /* REAL: none */
    cb_x_fn store[CB_X_FORMAT_COUNT][2];       /* rounds to the format */
    cb_x_fn store_far[CB_X_FORMAT_COUNT][2];   /* bypasses the caches; BYTE: none */
    cb_x_fn acc[2][2], amax[2][2], amin[2][2]; /* [masked][register] */
    cb_x_fn take[2];                           /* s[dst] = the element at position s[b] */
    cb_x_fn add_at[2]; /* adds s[c] to the element at position s[b]; a position < 0 changes none */
    cb_x_fn column[2], column_max[2], column_min[2], spill[2];
    cb_x_fn prefetch[CB_X_FORMAT_COUNT];            /* BYTE: none */
    cb_x_fn totals, piece[2], loop, loop_sums, end; /* piece: sums, means */
    void (*run)(cb_x_context *c, const cb_record *code, int64_t begin);
    /* Folds the lanes of accumulators first..first+n, adds them to their sums, and clears the
     * lanes. */
    void (*fold)(cb_x_context *c, int first, int n);
    void (*add)(void *to, const void *from, int64_t n); /* elements */
    /* For adjacent rows of `columns` elements (kern_together.h): compute the sums of rows; compute
     * their maxima or minima; repeat each row's number for its elements; add rows to a row of
     * sums. */
    void (*row_sums)(void *to, const void *from, int64_t rows, int64_t columns);
    void (*row_largest)(void *to, const void *from, int64_t rows, int64_t columns, bool is_min);
    void (*spread)(void *to, const void *numbers, int64_t rows, int64_t columns);
    void (*add_rows)(void *to, const void *from, int64_t rows, int64_t columns);
    /* Computes op(x, y) on the numbers of n rows and writes whole vectors; step 0: one number for
     * all rows. Returns false, and does nothing, for some operations. */
    bool (*numbers_of_rows)(cb_x_op op, void *to, const void *const in[2], const bool step[2],
                            int64_t n);
    /* Adds elements at..at+n to accumulator k, and folds its leaves. */
    void (*to_lanes)(cb_x_context *c, int k, int64_t at, const void *line, int64_t n);
    /* Stores the maximum of accumulator k (or the minimum, if keys are negated) in s[to] and resets
     * the accumulator. */
    void (*largest)(cb_x_context *c, int k, int to, bool is_min);
    /* Writes 1 if dropout keeps an element, otherwise 0, for elements first..first+n; first is a
     * multiple of 8. `out` has room up to the next multiple of 128. */
    void (*keep)(const cb_philox *random, uint64_t first, uint32_t threshold, void *out, int64_t n);
} cb_x_table;

/* Returns the table for the chosen instruction set; `is_wide`: in f64. */
const cb_x_table *cb_x_table_of(bool is_wide);

#endif
