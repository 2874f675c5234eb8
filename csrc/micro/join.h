/* join.h: operations of a phase that one record does together with those that they are made of:
 *
 *     x s + y t,  x s + (y t) z     of streams x, y, z and numbers s, t: means that move
 *     sqrt(v) s + t                 of a value v: what such means of squares are divided by
 *
 * Each product and sum rounds, as one record after another does. */
#ifndef CB_MICRO_JOIN_H
#define CB_MICRO_JOIN_H

#include "microcode.h"

enum { CB_X_PARTS = 3 }; /* of a joint, at most */

typedef struct cb_x_joint { /* beside an operation */
    enum { CB_X_SINGLE, CB_X_PART, CB_X_SUM_OF_2, CB_X_SUM_OF_3, CB_X_SCALED_ROOT } kind;
    int16_t x, y, z;          /* streams */
    int16_t s, t;             /* numbers */
    cb_x_ref v;               /* of a root */
    int16_t part[CB_X_PARTS]; /* the operations that it does beside this one */
    int n_part;
} cb_x_joint;

/* `out`: [n_micro]. */
void cb_x_join(const cb_microcode *m, int phase, cb_x_joint *out);

#endif
