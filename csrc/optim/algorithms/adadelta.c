/* Adadelta (Zeiler 2012).
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     s <- rho s + (1 - rho) g^2           d = sqrt(a + eps) / sqrt(s + eps) g
 *     a <- rho a + (1 - rho) d^2           p <- p - lr d */
#include "../elements.h"
#include "../optimizers.h"

enum { LR, RHO, EPS, WEIGHT_DECAY, MAXIMIZE, N_HYPER };

static const char *const states[] = {"square_avg", "acc_delta"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = CB_HYPER_LEAST_0("lr"),          [RHO] = CB_HYPER_0_TO_1("rho"),
    [EPS] = CB_HYPER_LEAST_0("eps"),        [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static void factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    (void)row;
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_ADADELTA_RHO] = hyper[RHO];
    f[CB_ADADELTA_REST] = 1.0 - hyper[RHO];
    f[CB_ADADELTA_RATE] = hyper[LR];
    f[CB_ADADELTA_EPS] = hyper[EPS];
}

CB_ELEMENTWISE(adadelta, CB_FORMULA_ADADELTA, factors_of, states, hypers);
