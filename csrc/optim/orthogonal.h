/* orthogonal.h: steps along orthogonalized matrices. Matrices of one shape are processed together.
 */
#ifndef CB_OPTIM_ORTHOGONAL_H
#define CB_OPTIM_ORTHOGONAL_H

#include "optimizer.h"

/* The constants of a step, computed from the hyper-parameters for a matrix [height, width]. The
 * step is, in this order:
 *
 *     m = m + rest (g - m);  x = m, or with `ahead` m + rest (g - m) with the new m
 *     x = x / max(norm(x), least)
 *     x = a x + (b (x x^T) + c (x x^T)^2) x, repeated `turns` times
 *     with has_rows: v = beta v + (1 - beta) mean(x^2) and x = x / (sqrt(v) + eps) for each row,
 *                    then x = size x / norm(x)
 *     p = p keep - rate x */
typedef struct cb_orthogonal {
    double rest;
    bool ahead;
    double a, b, c;
    int turns;
    double least;
    bool has_rows;
    double beta, eps, size;
    double keep, rate;
} cb_orthogonal;

typedef cb_orthogonal (*cb_orthogonal_fn)(const double *hyper, const cb_optim_row *row);

/* Makes the step of an optimizer with the states m and, with has_rows, v. */
void cb_step_orthogonal(const cb_optim_table *table, cb_threads *pool, cb_orthogonal_fn of);
size_t cb_orthogonal_scratch(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                             uint32_t n_rows);

#endif
