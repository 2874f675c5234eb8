/* Averaged stochastic gradient descent (Polyak, Juditsky 1992), as PyTorch defines it: eta and mu
 * of a step are made at the end of the one before.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     p <- p (1 - lambd eta) - eta g
 *     ax <- p where mu is 1, else ax + (p - ax) mu
 *     eta <- lr / (1 + lambd lr t)^alpha, at first lr
 *     mu <- 1 / max(1, t - t0), at first 1 */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

enum { LR, LAMBD, ALPHA, T0, WEIGHT_DECAY, MAXIMIZE, N_HYPER };
enum { ETA, MU };

static const char *const states[] = {"ax"}, *const numbers[] = {"eta", "mu"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = CB_HYPER_LEAST_0("lr"),
    [LAMBD] = CB_HYPER_LEAST_0("lambd"),
    [ALPHA] = CB_HYPER_LEAST_0("alpha"),
    [T0] = CB_HYPER_LEAST_0("t0"),
    [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static void count_on(const double *hyper, int64_t t, double *number) {
    number[ETA] = hyper[LR] / pow(1.0 + hyper[LAMBD] * hyper[LR] * (double)t, hyper[ALPHA]);
    number[MU] = 1.0 / fmax(1.0, (double)t - hyper[T0]);
}

static void factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_ASGD_KEEP] = 1.0 - hyper[LAMBD] * row->number[ETA];
    f[CB_ASGD_RATE] = row->number[ETA];
    f[CB_ASGD_SHARE] = row->number[MU];
}

CB_ELEMENTWISE(asgd, CB_FORMULA_ASGD, factors_of, states, hypers, .count_on = count_on,
               .n_number = 2, .number = numbers);
