/* NAdam (Dozat 2016): Adam with Nesterov momentum; the momentum mu grows with t.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p, or decoupled: p <- p (1 - lr weight_decay)
 *     mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2)         mu_product_t = mu_1 mu_2 ... mu_t
 *     m <- beta1 m + (1 - beta1) g         v <- beta2 v + (1 - beta2) g^2
 *     p <- p - lr ((1 - mu_t) / (1 - mu_product_t) g + mu_(t+1) / (1 - mu_product_(t+1)) m)
 *              / (sqrt(v / (1 - beta2^t)) + eps) */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

#include "nadam_factors.h"

static const char *const states[] = {"m", "v"}, *const numbers[] = {"mu_product"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [MOMENTUM_DECAY] = CB_HYPER_LEAST_0("momentum_decay"),
    [DECOUPLED] = CB_HYPER_FLAG("decoupled_weight_decay"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

CB_ELEMENTWISE(nadam, CB_FORMULA_NADAM, cb_nadam_factors, states, hypers,
               .count_on = cb_nadam_count_on, .n_number = 1, .number = numbers);
