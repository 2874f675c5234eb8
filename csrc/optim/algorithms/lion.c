/* Lion (Chen et al. 2023): steps of one size, in the direction of a momentum's sign.
 *
 *     g <- -g with maximize;  p <- p (1 - lr weight_decay)
 *     p <- p - lr sign(beta1 m + (1 - beta1) g)
 *     m <- beta2 m + (1 - beta2) g */
#include "../elements.h"
#include "../optimizers.h"

enum { LR, BETA1, BETA2, WEIGHT_DECAY, MAXIMIZE, N_HYPER };

static const char *const states[] = {"m"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = CB_HYPER_LEAST_0("lr"),          [BETA1] = CB_HYPER_BELOW_1("beta1"),
    [BETA2] = CB_HYPER_BELOW_1("beta2"),    [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static void factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    (void)row;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_LION_KEEP] = cb_decay(f, hyper[LR], hyper[WEIGHT_DECAY], true);
    f[CB_LION_B1] = hyper[BETA1];
    f[CB_LION_A1] = 1.0 - hyper[BETA1];
    f[CB_LION_B2] = hyper[BETA2];
    f[CB_LION_A2] = 1.0 - hyper[BETA2];
    f[CB_LION_RATE] = hyper[LR];
}

CB_ELEMENTWISE(lion, CB_FORMULA_LION, factors_of, states, hypers);
