/* elements.h: the step of optimizers that update each element separately, with one formula for all
 * elements of a row. */
#ifndef CB_OPTIM_ELEMENTS_H
#define CB_OPTIM_ELEMENTS_H

#include "formulas.h"

/* Computes the factors of a row in double, from its hyper-parameters, t and numbers, into
 * factor[CB_MAX_FACTORS]. Factors that the optimizer does not set are 0. */
void cb_factors_of(const cb_optim_table *table, const cb_optim_row *row, double *factor);

/* Makes the step of such an optimizer. */
void cb_step_elements(const cb_optim_table *table, cb_threads *pool);

/* The hyper-parameters that Adam and its variants share, by the names in their enums. */
#define CB_ADAPTIVE_HYPERS                                                         \
    [LEARNING_RATE] = CB_HYPER_LEAST_0("lr"), [BETA1] = CB_HYPER_BELOW_1("beta1"), \
    [BETA2] = CB_HYPER_BELOW_1("beta2"), [EPS] = CB_HYPER_LEAST_0("eps"),          \
    [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay")

/* Defines cb_optimizer_NAME from a formula, its factors, and the lists of states and
 * hyper-parameters. Further members may follow. */
#define CB_ELEMENTWISE(name_, formula_, factors_, states_, hypers_, ...)                      \
    const cb_optimizer cb_optimizer_##name_ = {.name = #name_,                                \
                                               .n_state = sizeof states_ / sizeof states_[0], \
                                               .n_hyper = sizeof hypers_ / sizeof hypers_[0], \
                                               .state = states_,                              \
                                               .hyper = hypers_,                              \
                                               .step = cb_step_elements,                      \
                                               .factors = factors_,                           \
                                               .formula = formula_,                           \
                                               __VA_ARGS__}

#endif
