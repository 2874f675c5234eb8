/* lanes.h: numbers of rows that lie side by side across memory: a vector of each, one lane for each
 * row (micro/across.h). */
#ifndef CB_EXEC_LANES_H
#define CB_EXEC_LANES_H

#include "prepare.h"

typedef struct cb_x_lanes {
    const cb_x_fused *f;
    cb_x_context *c; /* with numbers that are the same for all rows */
    char *vector;    /* vector k at k * f->pitch elements */
    int64_t n;       /* lanes in use */
} cb_x_lanes;

char *cb_x_lane_vector(const cb_x_lanes *l, int k);
/* Empties all accumulators. */
void cb_x_lanes_clear(const cb_x_lanes *l);
/* After element `done` - 1 of each row: sums of a phase whose run or block ends there go on. */
void cb_x_lanes_fold(const cb_x_lanes *l, int phase, int64_t done);
/* The numbers that come after a phase; -1: before the first. */
void cb_x_lanes_after(const cb_x_lanes *l, int phase);
/* From and to tensors that have an element for each row; `element`: of the first lane. */
void cb_x_lanes_load(const cb_x_lanes *l, int number, const cb_x_row_value *v, const cb_tensor *t,
                     int64_t element);
void cb_x_lanes_store(const cb_x_lanes *l, int number, const cb_tensor *t, int64_t element);

#endif
