/* factored.h: steps whose mean of squared gradients is kept by rows and columns of matrices. */
#ifndef CB_OPTIM_FACTORED_H
#define CB_OPTIM_FACTORED_H

#include "optimizer.h"

enum { CB_FACTORED_LANES = 16 }; /* of a sum, the same for every instruction set */

/* What a row asks for, made of its hyper-parameters and t. */
typedef struct cb_factored {
    double scale, share; /* of the gradient; a mean moves by `share` towards new squares */
    double least;        /* of a mean of rows; its square of a mean for an element */
    double keep;         /* p = p keep - rate u / max(1, root of the mean of u^2 / most), */
    double rate;         /* where rate is multiplied by max(least_size, root of the mean of p^2) */
    double least_size, most;
} cb_factored;

typedef cb_factored (*cb_factored_fn)(const double *hyper, const cb_optim_row *row);

/* The step of an optimizer with the states row, column and, of parameters without matrices, whole.
 */
void cb_step_factored(const cb_optim_table *table, cb_threads *pool, cb_factored_fn of);
size_t cb_factored_scratch(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                           uint32_t n_rows);

/* Builds for each instruction set (kern_factored.c), for n elements of a row from `at` on, of f32
 * or f64. A mean of squares for element i is line * column[i]. */
typedef struct cb_factored_fns {
    /* The sum of the gradient's squares, which are added to `column` as well; those of weights are
     * added to `weights` [CB_FACTORED_LANES]. */
    double (*squares)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                      double *column, double *weights);
    /* Moves the state `whole`, element by element. */
    void (*move)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                 double *weights);
    /* Adds the squares of u = gradient / root of the mean to `sum` [CB_FACTORED_LANES]. */
    void (*measure)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                    double line, const void *column, double *sum);
    void (*apply)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n, double line,
                  const void *column);
} cb_factored_fns;

#endif
