/* elements.h: for optimizers that update every element by itself, with the same formula for all
 * elements of a row. */
#ifndef CB_OPTIM_ELEMENTS_H
#define CB_OPTIM_ELEMENTS_H

#include "formulas.h"

/* What is the same for all elements of a row, by its t and numbers, computed once, in double.
 * `factor` has room for CB_MAX_FACTORS. */
typedef void (*cb_factors_fn)(const double *hyper, const cb_optim_row *row, double *factor);

void cb_step_elements(const cb_optim_table *table, cb_threads *pool, cb_factors_fn factors,
                      cb_formula formula);

static inline double cb_sign_of(double maximize) { return maximize != 0.0 ? -1.0 : 1.0; }

/* Defines cb_optimizer_NAME by a formula, its factors, and lists of states and hyper-parameters;
 * other members may follow. */
#define CB_ELEMENTWISE(name_, formula_, factors_, states_, hypers_, ...)                      \
    static void step_##name_(const cb_optim_table *table, cb_threads *pool) {                 \
        cb_step_elements(table, pool, factors_, formula_);                                    \
    }                                                                                         \
    const cb_optimizer cb_optimizer_##name_ = {.name = #name_,                                \
                                               .n_state = sizeof states_ / sizeof states_[0], \
                                               .n_hyper = sizeof hypers_ / sizeof hypers_[0], \
                                               .state = states_,                              \
                                               .hyper = hypers_,                              \
                                               .step = step_##name_,                          \
                                               .factors = factors_,                           \
                                               .formula = formula_,                           \
                                               __VA_ARGS__}

#endif
