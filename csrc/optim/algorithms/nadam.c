/* NAdam (Dozat 2016): Adam with Nesterov's momentum, whose share grows with t.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p, or decoupled: p <- p (1 - lr weight_decay)
 *     mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2)         mu_product_t = mu_1 mu_2 ... mu_t
 *     m <- beta1 m + (1 - beta1) g         v <- beta2 v + (1 - beta2) g^2
 *     p <- p - lr ((1 - mu_t) / (1 - mu_product_t) g + mu_(t+1) / (1 - mu_product_(t+1)) m)
 *              / (sqrt(v / (1 - beta2^t)) + eps) */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MOMENTUM_DECAY, DECOUPLED, MAXIMIZE, N_HYPER };

static const char *const states[] = {"m", "v"}, *const numbers[] = {"mu_product"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [MOMENTUM_DECAY] = CB_HYPER_LEAST_0("momentum_decay"),
    [DECOUPLED] = CB_HYPER_FLAG("decoupled_weight_decay"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static double mu_of(const double *hyper, int64_t t) {
    return hyper[BETA1] * (1.0 - 0.5 * pow(0.96, (double)t * hyper[MOMENTUM_DECAY]));
}

static void count_on(const double *hyper, int64_t t, double *number) {
    number[0] = t == 0 ? 1.0 : number[0] * mu_of(hyper, t);
}

static void factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    const double mu = mu_of(hyper, row->t), next = mu_of(hyper, row->t + 1);
    const double product = row->number[0] * mu;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_NADAM_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], hyper[DECOUPLED] != 0.0);
    f[CB_NADAM_B1] = hyper[BETA1];
    f[CB_NADAM_A1] = 1.0 - hyper[BETA1];
    f[CB_NADAM_B2] = hyper[BETA2];
    f[CB_NADAM_A2] = 1.0 - hyper[BETA2];
    f[CB_NADAM_NOW] = hyper[LR] * (1.0 - mu) / (1.0 - product);
    f[CB_NADAM_PAST] = hyper[LR] * next / (1.0 - product * next);
    f[CB_NADAM_ROOT] = 1.0 / sqrt(1.0 - pow(hyper[BETA2], (double)row->t));
    f[CB_NADAM_EPS] = hyper[EPS];
}

CB_ELEMENTWISE(nadam, CB_FORMULA_NADAM, factors_of, states, hypers, .count_on = count_on,
               .n_number = 1, .number = numbers);
