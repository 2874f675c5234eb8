/* eigen_loops.h: the loops of eigenvectors.c, compiled for each instruction set. */
#ifndef CB_OPTIM_EIGEN_LOOPS_H
#define CB_OPTIM_EIGEN_LOOPS_H

#include <stdint.h>

enum { CB_ROTATED = 32 }; /* maximum number of columns that are rotated at once */

typedef struct cb_rotation { /* rotates vectors i and i + 1 */
    double c, s;
    int64_t i;
} cb_rotation;

typedef struct cb_eigen_fns { /* functions on n elements */
    double (*dot)(const double *x, const double *y, int64_t n);
    void (*add)(double *x, double by, const double *y, int64_t n); /* x <- x + by y */
    /* x <- x - a y - b z; returns the dot product of the new x and `next`. */
    double (*reduce)(double *x, double a, const double *y, double b, const double *z,
                     const double *next, int64_t n);
    /* Applies the rotations in order to n columns of the vectors, which are rows `stride` apart. */
    void (*rotate)(const cb_rotation *rotations, int64_t n_rotations, double *vectors,
                   int64_t stride, int64_t n);
} cb_eigen_fns;

#endif
