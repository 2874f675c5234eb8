/* Adadelta (Zeiler 2012).
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     s <- rho s + (1 - rho) g^2           d = sqrt(a + eps) / sqrt(s + eps) g
 *     a <- rho a + (1 - rho) d^2           p <- p - lr d */
#include "../elements.h"
#include "../optimizers.h"

#include "adadelta_factors.h"

static const char *const states[] = {"square_avg", "acc_delta"};
static const cb_hyper hypers[N_HYPER] = {
    [LEARNING_RATE] = CB_HYPER_LEAST_0("lr"), [RHO] = CB_HYPER_0_TO_1("rho"),
    [EPS] = CB_HYPER_LEAST_0("eps"),          [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

CB_ELEMENTWISE(adadelta, CB_FORMULA_ADADELTA, cb_adadelta_factors, states, hypers);
