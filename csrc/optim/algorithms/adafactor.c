/* Adafactor (Shazeer, Stern 2018), as PyTorch defines it. For a matrix, only the mean squares of
 * its rows and columns are stored. An array with more than two axes is a batch of matrices, its
 * last two axes. b = t^beta2_decay.
 *
 *     rho = min(lr, 1 / sqrt(t))           alpha = max(eps2, RMS(p)) rho
 *     p <- p (1 - lr weight_decay)
 *     r <- r + b (mean of g^2 in each row - r)
 *     c <- c + b (mean of g^2 in each column - c)          v = r c / max(mean of r, eps1)
 *     v <- v + b (g^2 - v)                                 instead, for arrays without matrices
 *     u = g / sqrt(max(v, eps1^2))
 *     p <- p - alpha u / max(1, RMS(u) / d)
 *
 * eps1 = -1 means the machine epsilon of the dtype. */
#include "../elements.h"
#include "../factored.h"
#include "../optimizers.h"

#include <float.h>
#include <math.h>

#define CB_EPS1_OF_TYPE (-1.0)

static const char *const states[] = {"row_var", "col_var", "variance"};
static const cb_state_kind kinds[] = {CB_STATE_ROWS, CB_STATE_COLUMNS, CB_STATE_WHOLE};
static const cb_hyper hypers[CB_N_ADAFACTOR] = {
    [CB_ADAFACTOR_LR] = CB_HYPER_LEAST_0("lr"),
    [CB_ADAFACTOR_BETA2_DECAY] = {"beta2_decay", -CB_HYPER_MOST, 0, false},
    [CB_ADAFACTOR_EPS1] = {"eps1", CB_EPS1_OF_TYPE, CB_HYPER_MOST, false},
    [CB_ADAFACTOR_EPS2] = CB_HYPER_LEAST_0("eps2"),
    [CB_ADAFACTOR_D] = {"d", 1.0, CB_HYPER_MOST, false},
    [CB_ADAFACTOR_WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [CB_ADAFACTOR_MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static cb_status check_eps(const double *hyper, uint32_t group, cb_error *err) {
    if (hyper[CB_ADAFACTOR_EPS1] >= 0 || hyper[CB_ADAFACTOR_EPS1] == CB_EPS1_OF_TYPE) return CB_OK;
    return cb_fail(err, CB_INVALID, "adafactor: group %u has eps1=%g; it must be >= 0, or -1",
                   group, hyper[CB_ADAFACTOR_EPS1]);
}

static cb_factored factored_of(const double *hyper, const cb_optim_row *row) {
    const double spacing = cb_optim_dtype(row) == CB_F32 ? (double)FLT_EPSILON : DBL_EPSILON;
    double factor[CB_MAX_FACTORS] = {0};
    cb_adafactor_factors(hyper, row->t, row->number, factor);
    const double least = factor[CB_ADAFACTOR_LEAST];
    return (cb_factored){.scale = factor[CB_GRAD_SCALE],
                         .share = factor[CB_ADAFACTOR_SHARE],
                         .least = least < 0 ? spacing : least,
                         .keep = factor[CB_ADAFACTOR_KEEP],
                         .rate = factor[CB_ADAFACTOR_RATE],
                         .least_size = factor[CB_ADAFACTOR_LEAST_SIZE],
                         .most = factor[CB_ADAFACTOR_MOST]};
}

static void step(const cb_optim_table *table, cb_threads *pool) {
    cb_step_factored(table, pool, factored_of);
}

const cb_optimizer cb_optimizer_adafactor = {.name = "adafactor",
                                             .n_state = 3,
                                             .n_hyper = CB_N_ADAFACTOR,
                                             .state = states,
                                             .kind = kinds,
                                             .hyper = hypers,
                                             .has_halves = true,
                                             .axes = CB_AXES_LAST,
                                             .check = check_eps,
                                             .step = step,
                                             .scratch = cb_factored_scratch};
