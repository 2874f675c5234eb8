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

enum { LEARNING_RATE, BETA2_DECAY, EPS1, EPS2, CLIP_THRESHOLD, WEIGHT_DECAY, MAXIMIZE, N_HYPER };
#define CB_EPS1_OF_TYPE (-1.0)

static const char *const states[] = {"row_var", "col_var", "variance"};
static const cb_state_kind kinds[] = {CB_STATE_ROWS, CB_STATE_COLUMNS, CB_STATE_WHOLE};
static const cb_hyper hypers[N_HYPER] = {
    [LEARNING_RATE] = CB_HYPER_LEAST_0("lr"),
    [BETA2_DECAY] = {"beta2_decay", -CB_HYPER_MOST, 0, false},
    [EPS1] = {"eps1", CB_EPS1_OF_TYPE, CB_HYPER_MOST, false},
    [EPS2] = CB_HYPER_LEAST_0("eps2"),
    [CLIP_THRESHOLD] = {"d", 1.0, CB_HYPER_MOST, false},
    [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static cb_status check_eps(const double *hyper, uint32_t group, cb_error *err) {
    if (hyper[EPS1] >= 0 || hyper[EPS1] == CB_EPS1_OF_TYPE) return CB_OK;
    return cb_fail(err, CB_INVALID, "adafactor: group %u has eps1=%g; it must be >= 0, or -1",
                   group, hyper[EPS1]);
}

static cb_factored factored_of(const double *hyper, const cb_optim_row *row) {
    const double spacing = cb_optim_dtype(row) == CB_F32 ? (double)FLT_EPSILON : DBL_EPSILON;
    return (cb_factored){.scale = cb_sign_of(hyper[MAXIMIZE]),
                         .share = pow((double)row->t, hyper[BETA2_DECAY]),
                         .least = hyper[EPS1] < 0 ? spacing : hyper[EPS1],
                         .keep = 1 - hyper[LEARNING_RATE] * hyper[WEIGHT_DECAY],
                         .rate = fmin(hyper[LEARNING_RATE], 1 / sqrt((double)row->t)),
                         .least_size = hyper[EPS2],
                         .most = hyper[CLIP_THRESHOLD]};
}

static void step(const cb_optim_table *table, cb_threads *pool) {
    cb_step_factored(table, pool, factored_of);
}

const cb_optimizer cb_optimizer_adafactor = {.name = "adafactor",
                                             .n_state = 3,
                                             .n_hyper = N_HYPER,
                                             .state = states,
                                             .kind = kinds,
                                             .hyper = hypers,
                                             .has_halves = true,
                                             .axes = CB_AXES_LAST,
                                             .check = check_eps,
                                             .step = step,
                                             .scratch = cb_factored_scratch};
