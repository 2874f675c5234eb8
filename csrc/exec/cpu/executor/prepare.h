/* prepare.h: prepares a group to run. */
#ifndef CB_EXEC_PREPARE_H
#define CB_EXEC_PREPARE_H

#include "../../executable.h"
#include "../move/kern_copy.h"
#include "phase_code.h"

#define CB_X_RELOCATE INT64_MIN
#define CB_X_TILE_PAD 128 /* elements after a tile; random numbers are drawn in such pieces */

typedef struct cb_x_fused { /* one group, ready to run */
    cb_microcode m;
    cb_x_phase *phase;         /* [n_phase] */
    cb_walk *walk, *load_walk; /* [n_stream], [n_load] */
    cb_walk *line_walk;        /* [n_line] */
    const cb_x_table *table;
    int64_t real;              /* bytes of a number of the compute type */
    void *leaf[CB_X_TOTALS];   /* sums of leaves, in order */
    void *shared[CB_X_TOTALS]; /* the elements of leaves that two tasks share (lanes.h) */
    char **column;             /* [n_stream] sums of columns, if a result cannot hold them */
    bool *is_whole;            /* [n_stream] */
    int64_t
        *step; /* [n_stream] bytes from one row to the next; CB_X_RELOCATE: found for each row */
    bool *one_a_row; /* [n_load] true if the number of row r is element r */
    int16_t *order;  /* [n_number] per-row numbers, ordered by the phase that they come after */
    int16_t first_number[CB_X_PHASES + 2]; /* [phase + 1] index of a phase's first number in
                                              `order` */
    int64_t n_task, rows_in_task, chunks;  /* chunks: tasks of one row */
    size_t n_tile, tile_bytes;             /* tiles of a thread, and their bytes */
    int64_t batch;                         /* strided rows that are gathered together */
    int32_t *across; /* [n_stream] the tile of the first strided row; -1: not strided */
    /* For strided rows (m.inner), a task is rows_in_task units. A unit is `lanes` rows, and
     * `strips` units make up all rows at one index of the outer axes. */
    int64_t lanes, strips, n_unit;
    int64_t band_lines, bands; /* lines of a band (micro/sums.h), and bands of a unit */
    int64_t pitch;             /* elements of a band, filled up to whole iterations */
    int64_t bands_in_block;    /* bands of a block of a row's sum */
    size_t lane_bytes;         /* bytes for a thread's vectors, after its tiles */
    /* True if an iteration may begin in a line and end after it: the excess is overwritten
     * later. */
    bool runs_over;
} cb_x_fused;

/* Prepares a group in `memory`; `room` is temporary. *out is NULL if the group is too large. */
CB_MUST_CHECK cb_status cb_x_prepare(const cb_executable *x, uint32_t group, cb_x_room *room,
                                     cb_arena *memory, cb_x_fused **out, cb_error *err);

#endif
