/* lanes.h: per-row numbers for rows whose elements are interleaved in memory (micro/across.h). Each
 * number is a vector with one lane for each row. Also sums over lines; a line has one element of
 * each row.
 *
 * A phase stores the operands of sums over lines in vectors, line after line. The leaves of a sum
 * over everything need not begin where lines or tasks begin: elements of a leaf that two tasks
 * share are kept until both have run. */
#ifndef CB_EXEC_LANES_H
#define CB_EXEC_LANES_H

#include "../executor/prepare.h"

typedef struct cb_x_lanes {
    const cb_x_fused *f;
    cb_x_context *c; /* context with the numbers that are the same for all rows */
    char *vector;    /* vector k at k * f->pitch elements */
    int64_t n;       /* lanes in use: the lanes of a line, times the lines of a band */
} cb_x_lanes;

char *cb_x_lane_vector(const cb_x_lanes *l, int k);
/* Empties all accumulators. */
void cb_x_lanes_clear(const cb_x_lanes *l);
/* Call it after `done` bands: adds the sums of runs and blocks that end there to the sums around
 * them. Returns the number of bands after which to call it next; with `done` = 0 it does nothing
 * else. */
int64_t cb_x_lanes_fold(const cb_x_lanes *l, int phase, int64_t done);
/* Copies accumulators to `rest`, or back, in the lanes from the end of a band of n elements to the
 * end of the iteration that contains it. */
typedef struct cb_x_lanes_rest {
    char acc[CB_X_ACCS][CB_X_LANES * sizeof(double)];
} cb_x_lanes_rest;
void cb_x_lanes_copy_rest(const cb_x_lanes *l, int64_t n, cb_x_lanes_rest *rest, bool is_back);
/* Computes the numbers that follow a phase; with -1, those before the first phase. */
void cb_x_lanes_after(const cb_x_lanes *l, int phase);
/* Repeats the number of each lane for every line of a band. */
void cb_x_lanes_repeat(const cb_x_lanes *l, int number);
/* Copy numbers from and to tensors that have one element per row; `element` is that of the first
 * lane. */
void cb_x_lanes_load(const cb_x_lanes *l, int number, const cb_x_row_value *v, const cb_tensor *t,
                     int64_t element);
void cb_x_lanes_store(const cb_x_lanes *l, int number, const cb_tensor *t, int64_t element);

typedef struct cb_x_lines {
    cb_x_lanes lanes;
    const cb_tensor *tensor; /* indexed like cb_executable.tensor */
    int64_t begin, end;      /* elements of the task */
} cb_x_lines;

/* Called after a phase has run over n lines; the first one begins with element `first`. */
void cb_x_lines_add(const cb_x_lines *l, int phase, int64_t first, int64_t n);
/* Adds elements first..first+n of everything, which are at `kept`, to a total. */
void cb_x_lines_total(const cb_x_lines *l, const cb_x_line_sum *s, int64_t first, int64_t n,
                      const char *kept);
/* Called at the end of a task. */
void cb_x_lines_end(const cb_x_lines *l);
/* Called when all tasks have run: adds the leaves that they share. `c` is a context that no thread
 * uses. */
void cb_x_lines_join(const cb_x_fused *f, cb_x_context *c);

#endif
