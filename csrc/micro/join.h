/* join.h: joins operations of a phase so that one record computes them together:
 *
 *     x s + y t,  x s + (y t) z     for streams x, y, z and numbers s, t: moving averages
 *     sqrt(v) s + t                 for a value v: denominators made of moving averages of squares
 *
 * Each product and sum is rounded, as it is by separate records. */
#ifndef CB_MICRO_JOIN_H
#define CB_MICRO_JOIN_H

#include "microcode.h"

enum { CB_X_PARTS = 3 }; /* maximum number of parts of a joint */

typedef struct cb_x_joint { /* the operations that are joined to another one */
    enum { CB_X_SINGLE, CB_X_PART, CB_X_SUM_OF_2, CB_X_SUM_OF_3, CB_X_SCALED_ROOT } kind;
    int16_t x, y, z;          /* streams */
    int16_t s, t;             /* numbers */
    cb_x_ref v;               /* operand of the root */
    int16_t part[CB_X_PARTS]; /* the operations that it computes in addition to this one */
    int n_part;
} cb_x_joint;

/* Finds the joints of a phase: out[n_micro]. */
void cb_x_join(const cb_microcode *m, int phase, cb_x_joint *out);

#endif
