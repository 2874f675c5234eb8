/* factored.h: steps that store the mean squared gradient of a matrix by rows and columns. */
#ifndef CB_OPTIM_FACTORED_H
#define CB_OPTIM_FACTORED_H

#include "optimizer.h"

enum {
    CB_FACTORED_WIDE = 8,  /* number of small matrices, or narrow lines, in one loop */
    CB_FACTORED_SMALL = 32 /* maximum number of elements of a small matrix or a narrow line */
};

/* The constants of a row's step, computed from its hyper-parameters and t:
 *
 *     p = p keep - rate max(least_size, rms(p)) u / max(1, rms(u) / most) */
typedef struct cb_factored {
    double scale, share; /* factor of the gradient; a mean moves by `share` towards new squares */
    double least;        /* smallest mean of row means; its square: smallest mean of an element */
    double keep;
    double rate;
    double least_size, most;
} cb_factored;

typedef cb_factored (*cb_factored_fn)(const double *hyper, const cb_optim_row *row);

/* Makes the step of an optimizer whose states are means by rows and columns or, for parameters
 * without matrices, by element. */
void cb_step_factored(const cb_optim_table *table, cb_threads *pool, cb_factored_fn of);
size_t cb_factored_scratch(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                           uint32_t n_rows);

/* True if the lines of the row's matrices are so short that one loop processes several. */
static inline bool cb_factored_is_narrow(const cb_optim_row *row) {
    return row->height && row->width <= CB_FACTORED_SMALL;
}

/* Compiled for each instruction set (kern_factored.c). They process n elements of an f32 or f64 row
 * from `at` on: elements of one line of a matrix or, if lines are narrow, whole lines of one
 * matrix. The mean square of element i of a line is `line` * column[i]. */
typedef struct cb_factored_fns {
    /* Adds the squares of the gradient to `line` and `column`, and those of the weights to
     * `weights` [CB_OPTIM_LANES]. */
    void (*squares)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                    double *line, double *column, double *weights);
    /* Updates the state `whole` element by element; adds the squares of the weights to `weights`.
     */
    void (*move)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                 double *weights);
    /* Adds the squares of u = gradient / sqrt(mean) to `sum` [CB_OPTIM_LANES]. */
    void (*measure)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                    const double *line, const void *column, double *sum);
    void (*apply)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                  const double *line, const void *column);
    /* begin_small does the part of the step that does not depend on the rest of the row, for n
     * small matrices from `at` on: it moves their means and adds the squares of the weights and of
     * u to `weights` and `size` [CB_OPTIM_LANES]. apply_small applies the update. */
    void (*begin_small)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                        double *weights, double *size);
    void (*apply_small)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n);
} cb_factored_fns;

/* Moves a mean by `share` towards `mean`, starting from the nearer end, so that a share of 1 gives
 * exactly `mean`. */
static inline double cb_moved_mean(double old, double mean, double share) {
    return share < 0.5 ? old + share * (mean - old) : mean - (1 - share) * (mean - old);
}

#endif
