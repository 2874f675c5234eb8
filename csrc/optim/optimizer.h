/* optimizer.h: the definition of an optimizer, and one step over a table of tensors.
 *
 * An optimizer is a constant: names, ranges and functions. Its data belong to the caller: states
 * are arrays, hyper-parameters are rows of numbers, one row per group of tensors. The caller may
 * change both between steps. */
#ifndef CB_OPTIM_OPTIMIZER_H
#define CB_OPTIM_OPTIMIZER_H

#include "products.h"

typedef struct cb_optim_table { /* the checked arguments of a step */
    const cb_optimizer *optimizer;
    const cb_optim_row *rows;          /* [n_rows] */
    const double *hyper;               /* [n_groups][n_hyper] */
    void *scratch;                     /* memory of the size that cb_optim_scratch returns */
    const cb_optim_extras *extras;     /* NULL: none */
    double grad_factor;                /* factor of gradients, including clipping; 1: no extras */
    const cb_optim_products *products; /* NULL: there are none */
    uint32_t n_rows, n_groups, n_hyper;
} cb_optim_table;

enum { CB_OPTIM_LANES = 16 }; /* lanes of a sum, the same for every instruction set */

/* Adds up the lanes in pairs, in the same order everywhere. Overwrites them. */
static inline double cb_fold_lanes(double sum[CB_OPTIM_LANES]) {
    for (int half = CB_OPTIM_LANES / 2; half; half /= 2) {
        for (int k = 0; k < half; k++) sum[k] += sum[k + half];
    }
    return sum[0];
}

typedef struct
    cb_hyper { /* the range of a hyper-parameter: [low, high], or [low, high) if `below` */
    const char *name;
    double low, high;
    bool below;
} cb_hyper;

#define CB_HYPER_MOST 1e30 /* `high` of a number without an upper bound; it must be finite */
#define CB_HYPER_LEAST_0(name) {name, 0.0, CB_HYPER_MOST, false}
#define CB_HYPER_0_TO_1(name) {name, 0.0, 1.0, false}
#define CB_HYPER_BELOW_1(name) {name, 0.0, 1.0, true}
#define CB_HYPER_FLAG(name) {name, 0.0, 1.0, false}

struct cb_optimizer {
    const char *name;
    uint32_t n_state, n_hyper;
    const char *const *state;  /* [n_state] names */
    const cb_state_kind *kind; /* [n_state]; NULL: all are CB_STATE_ALIKE */
    const cb_hyper *hyper;     /* [n_hyper] */
    bool is_f32;               /* only f32 rows are accepted */
    bool has_halves;           /* f16 and bf16 rows are accepted although `factors` is NULL */
    bool multiplies;           /* steps need `products` */
    cb_axes axes;
    uint32_t
        most_side; /* the hyper-parameter with the longest side that has CB_STATE_LEFT, _RIGHT */
    /* A group with these hyper-parameters uses the first n states; returns n. NULL: it uses all. */
    uint32_t (*n_used)(const double *hyper);
    /* Replaces the numbers that a parameter keeps besides t by those after step t; with t = 0 sets
     * their initial values. NULL: there are no numbers. */
    void (*count_on)(const double *hyper, int64_t t, double *number);
    uint32_t n_number;
    const char *const *number; /* [n_number] names */
    /* Checks relations between hyper-parameters; may be NULL. */
    cb_status (*check)(const double *hyper, uint32_t group, cb_error *err);
    /* The step. It is called after all checks and cannot fail. Results are bitwise equal for any
     * number of threads. */
    void (*step)(const cb_optim_table *table, cb_threads *pool);
    /* The factors of a row for `formula` (formulas.h), which backends with their own step use.
     * `number` has the values before step t. NULL: the step is not element-wise. */
    void (*factors)(const double *hyper, int64_t t, const double *number, double *factor);
    int formula;
    /* Bytes of scratch memory that a step of these rows needs; NULL: none. */
    size_t (*scratch)(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                      uint32_t n_rows);
};

static inline size_t cb_optim_scratch(const cb_optimizer *o, const double *hyper,
                                      const cb_optim_row *rows, uint32_t n_rows) {
    return o->scratch ? o->scratch(o, hyper, rows, n_rows) : 0;
}

static inline bool cb_optim_is_half(cb_dtype dtype) { return dtype == CB_F16 || dtype == CB_BF16; }
/* Returns the dtype in which the weights of a row are computed, which is also that of its
 * states. */
static inline cb_dtype cb_optim_dtype(const cb_optim_row *row) {
    return cb_optim_is_half(row->dtype) ? CB_F32 : row->dtype;
}

/* Return the size in bytes and the alignment of a state of a row. */
uint64_t cb_optim_state_bytes(const cb_optimizer *o, uint32_t i, const double *hyper,
                              const cb_optim_row *row);
size_t cb_optim_state_align(const cb_optimizer *o, uint32_t i, const cb_optim_row *row);

/* Return the bytes per element of the array `rest` of a row of halves (0: it has none), and its
 * name. */
size_t cb_optim_rest_size(const cb_optim_row *row);
const char *cb_optim_rest_name(const cb_optim_row *row);

/* Checks that the hyper-parameters of all groups are in range. `hyper`: [n_groups][n_hyper]. */
CB_MUST_CHECK cb_status cb_optimizer_check(const cb_optimizer *o, const double *hyper,
                                           uint32_t n_groups, cb_error *err);

/* Checks row `i`: its dtype, group, step number and shape, and that its arrays are not NULL, are
 * aligned and do not overlap. */
CB_MUST_CHECK cb_status cb_optim_check_row(const cb_optimizer *o, const cb_optim_table *x,
                                           uint32_t i, cb_error *err);

/* Checks that the elements of all rows can be counted without overflow. */
CB_MUST_CHECK cb_status cb_optim_check_sizes(const cb_optimizer *o, const cb_optim_table *x,
                                             cb_error *err);

/* Checks that the table has scratch if a step of these rows needs it. */
CB_MUST_CHECK cb_status cb_optim_check_scratch(const cb_optim_table *x, cb_error *err);

/* Makes one step of a table. The caller must have checked that rows and extras do not share memory;
 * everything else is checked before anything is written. */
CB_MUST_CHECK cb_status cb_optim_step(const cb_optim_table *table, cb_threads *pool, cb_error *err);

#endif
