/* orthogonal.h: steps along matrices that are made orthogonal, all of one shape at once. */
#ifndef CB_OPTIM_ORTHOGONAL_H
#define CB_OPTIM_ORTHOGONAL_H

#include "optimizer.h"

/* What a group asks for, made of its hyper-parameters for a matrix [height, width]. */
typedef struct cb_orthogonal {
    double rest;    /* m = m + rest (g - m) */
    bool ahead;     /* m + rest (g - m) once more takes the place of m */
    double a, b, c; /* x <- a x + (b (x x^T) + c (x x^T)^2) x, `turns` times, ... */
    int turns;
    double least;           /* ... beginning with x / max(norm of x, least) */
    bool has_rows;          /* row by row x / (sqrt(v) + eps), v = beta v + (1 - beta) mean x^2, */
    double beta, eps, size; /* and then made `size` long */
    double keep, rate;      /* p = p keep - rate x */
} cb_orthogonal;

typedef cb_orthogonal (*cb_orthogonal_fn)(const double *hyper, const cb_optim_row *row);

/* The step of an optimizer with the states m and, where a group has rows, v. */
void cb_step_orthogonal(const cb_optim_table *table, cb_threads *pool, cb_orthogonal_fn of);
size_t cb_orthogonal_scratch(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                             uint32_t n_rows);

#endif
