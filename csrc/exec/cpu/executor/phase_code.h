/* phase_code.h: the records of one phase, and functions that run them over a part of a row: in
 * whole iterations, then on the remaining elements. */
#ifndef CB_EXEC_PHASE_CODE_H
#define CB_EXEC_PHASE_CODE_H

#include "assemble.h"

extern const cb_x_limits cb_x_record_limits; /* the limits of a context */

typedef struct cb_x_touched { /* a stream of an array that a phase reads or writes */
    int16_t stream;
    uint8_t size;
    bool is_read, is_written;
} cb_x_touched;

typedef struct cb_x_copied { /* a stream that a phase stores to another */
    bool is_all;             /* the phase does nothing else, and nothing else reads `from` */
    int16_t from, to;
} cb_x_copied;

typedef struct cb_x_phase {
    cb_record *code; /* not const: each run chooses the kind of its stores */
    const cb_record *masked;
    const cb_x_store *store;
    int n_record, n_prefetch; /* the first n_prefetch may be left out */
    bool has_work;            /* there are records other than prefetches and the loop */
    int16_t first_sum, n_sum, first_total, n_total;
    cb_x_copied copied;
    cb_x_touched *touched; /* [n_touched] */
    int n_touched;
} cb_x_phase;

/* Creates phase `at`. Returns CB_UNSUPPORTED if it needs more slots than there are. */
CB_MUST_CHECK cb_status cb_x_phase_make(const cb_microcode *m, int at, const cb_x_table *table,
                                        cb_arena *memory, cb_x_phase *out, cb_error *err);
/* Runs elements first..last of the current row. If `is_end` is true, no elements follow, so sums
 * over everything end with these. */
void cb_x_phase_run(const cb_x_table *table, cb_x_context *c, const cb_x_phase *ph, int64_t first,
                    int64_t last, bool is_end);
/* Does the same for a phase without sums whose stores overwrite arrays that it reads (`over`). */
void cb_x_phase_run_over(const cb_x_table *table, cb_x_context *c, const cb_x_phase *ph,
                         int64_t first, int64_t last);
float cb_x_sum_of(cb_x_pairs *p); /* returns the sum of all leaves, and clears them */
double cb_x_sum_of64(cb_x_pairs *p);

#endif
