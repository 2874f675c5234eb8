/* optimizer.h: what an optimizer is, and one step of any of them over a table of tensors.
 *
 * An optimizer is a constant: names, ranges and functions. What it works on is data: its states are
 * arrays that the caller owns, its hyper-parameters rows of numbers, one row a group of tensors.
 * Changing them changes nothing else. */
#ifndef CB_OPTIM_OPTIMIZER_H
#define CB_OPTIM_OPTIMIZER_H

#include "products.h"

typedef struct cb_optim_table { /* what a step works on, checked */
    const cb_optimizer *optimizer;
    const cb_optim_row *rows;          /* [n_rows] */
    const double *hyper;               /* [n_groups][n_hyper] */
    void *scratch;                     /* as large as the optimizer asked for */
    const cb_optim_extras *extras;     /* NULL: none */
    double grad_factor;                /* of gradients, with what shortens them; 1 without extras */
    const cb_optim_products *products; /* NULL: there are none */
    uint32_t n_rows, n_groups, n_hyper;
} cb_optim_table;

enum { CB_OPTIM_LANES = 16 }; /* of a sum, the same for every instruction set */

/* Adds up the lanes, in pairs, so that the order is the same everywhere. They are overwritten. */
static inline double cb_fold_lanes(double sum[CB_OPTIM_LANES]) {
    for (int half = CB_OPTIM_LANES / 2; half; half /= 2) {
        for (int k = 0; k < half; k++) sum[k] += sum[k + half];
    }
    return sum[0];
}

typedef struct cb_hyper { /* a hyper-parameter is in [low, high], or with `below` in [low, high) */
    const char *name;
    double low, high;
    bool below;
} cb_hyper;

#define CB_HYPER_MOST 1e30 /* `high` of a number that has only to be finite */
#define CB_HYPER_LEAST_0(name) {name, 0.0, CB_HYPER_MOST, false}
#define CB_HYPER_0_TO_1(name) {name, 0.0, 1.0, false}
#define CB_HYPER_BELOW_1(name) {name, 0.0, 1.0, true}
#define CB_HYPER_FLAG(name) {name, 0.0, 1.0, false}

struct cb_optimizer {
    const char *name;
    uint32_t n_state, n_hyper;
    const char *const *state;  /* [n_state] names */
    const cb_state_kind *kind; /* [n_state]; NULL: all are alike their parameters */
    const cb_hyper *hyper;     /* [n_hyper] */
    bool is_f32;               /* all other rows are refused */
    bool has_halves;           /* rows of halves are stepped, though there are no factors */
    bool multiplies;           /* steps need products */
    cb_axes axes;
    uint32_t most_side; /* the number that says how long sides with CB_STATE_LEFT or _RIGHT are */
    /* How many of the states, counted from the first, a group with this row has; NULL: all. */
    uint32_t (*n_used)(const double *hyper);
    /* Numbers that a parameter keeps beside t: what they are after step t, made of what they were
     * before; at t = 0 what they begin with. NULL: there are none. */
    void (*count_on)(const double *hyper, int64_t t, double *number);
    uint32_t n_number;
    const char *const *number; /* [n_number] names */
    /* What the ranges do not say; may be NULL. */
    cb_status (*check)(const double *hyper, uint32_t group, cb_error *err);
    /* The step, after all checks: it cannot fail. The same bits for any number of threads. */
    void (*step)(const cb_optim_table *table, cb_threads *pool);
    /* What the step is made of, for backends that do it themselves: the factors of a row, and the
     * formula (formulas.h) that they go into; `number` is before step t. NULL: it is made of
     * something else. */
    void (*factors)(const double *hyper, int64_t t, const double *number, double *factor);
    int formula;
    /* Bytes that a step of these rows needs beside them; NULL: none. */
    size_t (*scratch)(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                      uint32_t n_rows);
};

static inline size_t cb_optim_scratch(const cb_optimizer *o, const double *hyper,
                                      const cb_optim_row *rows, uint32_t n_rows) {
    return o->scratch ? o->scratch(o, hyper, rows, n_rows) : 0;
}

static inline bool cb_optim_is_half(cb_dtype dtype) { return dtype == CB_F16 || dtype == CB_BF16; }
/* What the weights of a row are computed in, and its states are of. */
static inline cb_dtype cb_optim_dtype(const cb_optim_row *row) {
    return cb_optim_is_half(row->dtype) ? CB_F32 : row->dtype;
}

/* Bytes of a state of a row, and what its address is a multiple of. */
uint64_t cb_optim_state_bytes(const cb_optimizer *o, uint32_t i, const double *hyper,
                              const cb_optim_row *row);
size_t cb_optim_state_align(const cb_optimizer *o, uint32_t i, const cb_optim_row *row);

/* Bytes of an element of what a row of halves keeps besides, 0: nothing; and its name. */
size_t cb_optim_rest_size(const cb_optim_row *row);
const char *cb_optim_rest_name(const cb_optim_row *row);

/* Whether every hyper-parameter of each group is in its range. `hyper`: [n_groups][n_hyper]. */
CB_MUST_CHECK cb_status cb_optimizer_check(const cb_optimizer *o, const double *hyper,
                                           uint32_t n_groups, cb_error *err);

/* Whether row `i` is whole: its arrays are there, aligned, and none shares memory with another. */
CB_MUST_CHECK cb_status cb_optim_check_row(const cb_optimizer *o, const cb_optim_table *x,
                                           uint32_t i, cb_error *err);

/* Whether the elements of all rows can be counted. */
CB_MUST_CHECK cb_status cb_optim_check_sizes(const cb_optimizer *o, const cb_optim_table *x,
                                             cb_error *err);

/* Whether a step of these rows needs no scratch. */
CB_MUST_CHECK cb_status cb_optim_check_scratch(const cb_optim_table *x, cb_error *err);

/* One step of a table whose rows, and what its extras write, are known to share no memory.
 * Everything else is checked before anything is written. Optimizers that need scratch are refused:
 * they step only the tables of table.h. */
CB_MUST_CHECK cb_status cb_optim_step(const cb_optim_table *table, cb_threads *pool, cb_error *err);

#endif
