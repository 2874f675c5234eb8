/* AdEMAMix (Pagliardini, Ablin, Grangier 2024): Adam with a second, slow average of gradients. Its
 * weight alpha and its decay beta3 grow during warm-ups of T_a and T_b steps (0: no warm-up).
 *
 *     g <- -g with maximize
 *     alpha_t = alpha min(1, t / T_a)
 *     beta3_t = min(beta3, exp(ln beta1 ln beta3 / ((1 - t / T_b) ln beta3 + t / T_b ln beta1)))
 *     m <- beta1 m + (1 - beta1) g         l <- beta3_t l + (1 - beta3_t) g
 *     v <- beta2 v + (1 - beta2) g^2
 *     p <- p (1 - lr weight_decay)
 *     p <- p - lr (m / (1 - beta1^t) + alpha_t l) / (sqrt(v / (1 - beta2^t)) + eps) */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

#include "ademamix_factors.h"

static const char *const states[] = {"m", "l", "v"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [BETA3] = CB_HYPER_BELOW_1("beta3"),
    [ALPHA] = CB_HYPER_LEAST_0("alpha"),
    [ALPHA_WARMUP] = CB_HYPER_LEAST_0("alpha_warmup"),
    [BETA3_WARMUP] = CB_HYPER_LEAST_0("beta3_warmup"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

CB_ELEMENTWISE(ademamix, CB_FORMULA_ADEMAMIX, cb_ademamix_factors, states, hypers);
