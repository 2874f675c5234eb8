/* factored.h: steps whose mean of squared gradients is kept by rows and columns of matrices. */
#ifndef CB_OPTIM_FACTORED_H
#define CB_OPTIM_FACTORED_H

#include "optimizer.h"

enum {
    CB_FACTORED_WIDE = 8,  /* matrices of at most ... */
    CB_FACTORED_SMALL = 32 /* ... elements go through their loops at once */
};

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

/* Whether the lines of a row's matrices are so short that many go through a loop at once. */
static inline bool cb_factored_is_narrow(const cb_optim_row *row) {
    return row->height && row->width <= CB_FACTORED_SMALL;
}

/* Builds for each instruction set (kern_factored.c), for n elements of a row from `at` on, of f32
 * or f64: of one line of a matrix or, where these are narrow, so many whole lines of one. A mean of
 * squares for element i of a line is its `line` * column[i]. */
typedef struct cb_factored_fns {
    /* The squares of the gradient are added to `line` and `column`, those of weights to `weights`
     * [CB_OPTIM_LANES]. */
    void (*squares)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                    double *line, double *column, double *weights);
    /* Moves the state `whole`, element by element. */
    void (*move)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                 double *weights);
    /* Adds the squares of u = gradient / root of the mean to `sum` [CB_OPTIM_LANES]. */
    void (*measure)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                    const double *line, const void *column, double *sum);
    void (*apply)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                  const double *line, const void *column);
    /* Of n small matrices from `at` on, all up to what the whole row has to be known for: moves
     * their means, and adds the squares of weights and of u to `weights` and `size`
     * [CB_OPTIM_LANES]; then the update. */
    void (*begin_small)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                        double *weights, double *size);
    void (*apply_small)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n);
} cb_factored_fns;

/* A mean after it has moved by a share towards the mean of squares. Both ways are exact where they
 * end: a share of 1 gives the mean of squares itself. */
static inline double cb_moved_mean(double old, double mean, double share) {
    return share < 0.5 ? old + share * (mean - old) : mean - (1 - share) * (mean - old);
}

#endif
