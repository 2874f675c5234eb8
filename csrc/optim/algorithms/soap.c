/* SOAP (Vyas et al. 2024): Adam in the eigenbasis of Shampoo's factors. A gradient matrix G is
 * written as Q G' R^T in the bases Q and R of its sides; m' is m in these bases:
 *
 *     m <- beta1 m + (1 - beta1) G         v <- beta2 v + (1 - beta2) G'^2
 *     p <- p - lr sqrt(1 - beta2^k) / (1 - beta1^k) Q (m' / (sqrt(v) + eps)) R^T, k = t - 1
 *     p <- p (1 - lr weight_decay)
 *     left <- beta left + (1 - beta) G G^T,          right <- beta right + (1 - beta) G^T G
 *     every precondition_frequency steps: Q <- orthonormal basis of left Q, columns sorted by
 *     decreasing eigenvalue, and v reordered with them; R likewise
 *
 * The first step computes the bases, which are eigenvectors, and does not change p. A side longer
 * than max_precond_dim has no basis and is not rotated. If neither side has one, this is Adam
 * delayed by one step. */
#include "../soap.h"
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

enum {
    LEARNING_RATE,
    BETA1,
    BETA2,
    SHAMPOO_BETA,
    EPS,
    WEIGHT_DECAY,
    PRECONDITION_FREQUENCY,
    MAX_PRECOND_DIM,
    N_HYPER
};

static const char *const states[] = {"m", "v", "left", "right"};
static const cb_state_kind kinds[] = {CB_STATE_ALIKE, CB_STATE_ALIKE, CB_STATE_LEFT,
                                      CB_STATE_RIGHT};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [SHAMPOO_BETA] = CB_HYPER_BELOW_1("shampoo_beta"),
    [PRECONDITION_FREQUENCY] = {"precondition_frequency", 1, 1e9, false},
    [MAX_PRECOND_DIM] = {"max_precond_dim", 0, 1e6, false},
};

static cb_soap soap_of(const double *hyper, const cb_optim_row *row) {
    const double k = (double)(row->t - 1);
    return (cb_soap){.beta1 = hyper[BETA1],
                     .beta2 = hyper[BETA2],
                     .beta = hyper[SHAMPOO_BETA],
                     .eps = hyper[EPS],
                     .keep = 1 - hyper[LEARNING_RATE] * hyper[WEIGHT_DECAY],
                     .rate = hyper[LEARNING_RATE] * sqrt(1 - pow(hyper[BETA2], k)) /
                             (1 - pow(hyper[BETA1], k)),
                     .refreshes = fmod(k, floor(hyper[PRECONDITION_FREQUENCY])) == 0};
}

static void step(const cb_optim_table *table, cb_threads *pool) {
    cb_step_soap(table, pool, soap_of);
}

const cb_optimizer cb_optimizer_soap = {.name = "soap",
                                        .n_state = 4,
                                        .n_hyper = N_HYPER,
                                        .state = states,
                                        .kind = kinds,
                                        .hyper = hypers,
                                        .most_side = MAX_PRECOND_DIM,
                                        .multiplies = true,
                                        .axes = CB_AXES_FIRST,
                                        .step = step,
                                        .scratch = cb_soap_scratch};
