/* RMSprop (Hinton 2012), as PyTorch defines it. The centered variant divides by the standard
 * deviation of gradients around their mean h.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     s <- alpha s + (1 - alpha) g^2       h <- alpha h + (1 - alpha) g, centered
 *     q = g / (sqrt(s) + eps), centered: g / (sqrt(s - h^2) + eps)
 *     b <- momentum b + q,                 p <- p - lr b;   without momentum p <- p - lr q */
#include "../elements.h"
#include "../optimizers.h"

#include "rmsprop_factors.h"

static const char *const states[] = {"square_avg", "momentum_buffer"};
static const cb_hyper hypers[N_HYPER] = {
    [LEARNING_RATE] = CB_HYPER_LEAST_0("lr"),  [ALPHA] = CB_HYPER_LEAST_0("alpha"),
    [EPS] = CB_HYPER_LEAST_0("eps"),           [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [MOMENTUM] = CB_HYPER_LEAST_0("momentum"), [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static const char *const centered_states[] = {"square_avg", "grad_avg", "momentum_buffer"};

static uint32_t n_used(const double *hyper) { return hyper[MOMENTUM] != 0.0 ? 2 : 1; }

static uint32_t n_used_centered(const double *hyper) { return n_used(hyper) + 1; }

CB_ELEMENTWISE(rmsprop, CB_FORMULA_RMSPROP, cb_rmsprop_factors, states, hypers, .n_used = n_used);

CB_ELEMENTWISE(rmsprop_centered, CB_FORMULA_RMSPROP_CENTERED, cb_rmsprop_centered_factors,
               centered_states, hypers, .n_used = n_used_centered);
