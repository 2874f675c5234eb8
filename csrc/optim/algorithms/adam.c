/* Adam (Kingma, Ba 2015) with the weight decay of L2 regularisation, and AdamW (Loshchilov, Hutter
 * 2019), whose decay does not pass through the moments. With amsgrad (Reddi, Kale, Kumar 2018) the
 * largest v so far takes the place of v.
 *
 *     g <- -g with maximize;  Adam: g <- g + weight_decay p;  AdamW: p <- p (1 - lr weight_decay)
 *     m <- beta1 m + (1 - beta1) g         v <- beta2 v + (1 - beta2) g^2
 *     p <- p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 *
 * `formulas.h` has it as it is computed. */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, AMSGRAD, MAXIMIZE, N_HYPER };

static const char *const states[] = {"m", "v", "v_max"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [AMSGRAD] = CB_HYPER_FLAG("amsgrad"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static uint32_t n_used(const double *hyper) { return hyper[AMSGRAD] != 0.0 ? 3 : 2; }

static void factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_ADAM_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], false);
    f[CB_ADAM_B1] = hyper[BETA1];
    f[CB_ADAM_A1] = 1.0 - hyper[BETA1];
    f[CB_ADAM_B2] = hyper[BETA2];
    f[CB_ADAM_A2] = 1.0 - hyper[BETA2];
    f[CB_ADAM_RATE] = hyper[LR] / (1.0 - pow(hyper[BETA1], (double)row->t));
    f[CB_ADAM_ROOT] = 1.0 / sqrt(1.0 - pow(hyper[BETA2], (double)row->t));
    f[CB_ADAM_EPS] = hyper[EPS];
    f[CB_ADAM_AMS] = hyper[AMSGRAD];
}

static void decoupled_factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    factors_of(hyper, row, f);
    f[CB_ADAM_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], true);
}

CB_ELEMENTWISE(adam, CB_FORMULA_ADAM, factors_of, states, hypers, .n_used = n_used);

CB_ELEMENTWISE(adamw, CB_FORMULA_ADAM, decoupled_factors_of, states, hypers, .n_used = n_used);
