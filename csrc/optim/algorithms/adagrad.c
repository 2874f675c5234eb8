/* Adagrad (Duchi, Hazan, Singer 2011).
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     s <- s + g^2, where s begins with initial_accumulator_value
 *     p <- p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) */
#include "../elements.h"
#include "../optimizers.h"

enum { LR, LR_DECAY, WEIGHT_DECAY, INITIAL, EPS, MAXIMIZE, N_HYPER };

static const char *const states[] = {"sum"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = CB_HYPER_LEAST_0("lr"),
    [LR_DECAY] = CB_HYPER_LEAST_0("lr_decay"),
    [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [INITIAL] = CB_HYPER_LEAST_0("initial_accumulator_value"),
    [EPS] = CB_HYPER_LEAST_0("eps"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static void factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_ADAGRAD_FIRST] = row->t == 1 ? hyper[INITIAL] : 0.0;
    f[CB_ADAGRAD_RATE] = hyper[LR] / (1.0 + (double)(row->t - 1) * hyper[LR_DECAY]);
    f[CB_ADAGRAD_EPS] = hyper[EPS];
}

CB_ELEMENTWISE(adagrad, CB_FORMULA_ADAGRAD, factors_of, states, hypers);
