/* scalar.h: the executor's operations on single numbers, per row or per group. Their bits are the
 * same as on vectors. */
#ifndef CB_EXEC_SCALAR_H
#define CB_EXEC_SCALAR_H

#include "record.h"

float cb_x_scalar(cb_x_op op, float x, float y, float z);
double cb_x_scalar64(cb_x_op op, double x, double y, double z);
void cb_x_push(cb_x_pairs *p, float leaf);
void cb_x_push64(cb_x_pairs *p, double leaf);
void cb_x_fence(void); /* called after stores that bypass the caches */

#endif
