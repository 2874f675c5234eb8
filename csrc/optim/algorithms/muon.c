/* Muon (Jordan et al. 2024), as PyTorch defines it, and NorMuon (Li et al. 2025). Both
 * orthogonalize the momentum; NorMuon also divides its rows by the roots of their mean squares.
 *
 *     m <- momentum m + (1 - momentum) g       u = momentum m + (1 - momentum) g, nesterov; else m
 *     x = u after ns_steps iterations of orthogonal.h with the coefficients a, b, c
 *     Muon:     p <- p (1 - lr weight_decay) - lr s x,
 *               s = sqrt(max(1, height / width)), or 0.2 sqrt(max(height, width)) with match_rms
 *     NorMuon:  v <- beta2 v + (1 - beta2) mean of x^2 in each row;   y = x / (sqrt(v) + eps)
 *               p <- p (1 - lr weight_decay) - 0.2 lr sqrt(height width) / norm(y) y */
#include "../formula_factors.h"
#include "../optimizers.h"
#include "../orthogonal.h"

#include <math.h>

#define CB_HYPER_ANY(name) {name, -CB_HYPER_MOST, CB_HYPER_MOST, false}
#define CB_MUON_HYPERS                                                                           \
    [CB_MUON_LEARNING_RATE] = CB_HYPER_LEAST_0("lr"),                                            \
    [CB_MUON_WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),                                   \
    [CB_MUON_MOMENTUM] = CB_HYPER_LEAST_0("momentum"),                                           \
    [CB_MUON_NESTEROV] = CB_HYPER_FLAG("nesterov"), [CB_MUON_COEFFICIENT_A] = CB_HYPER_ANY("a"), \
    [CB_MUON_COEFFICIENT_B] = CB_HYPER_ANY("b"), [CB_MUON_COEFFICIENT_C] = CB_HYPER_ANY("c"),    \
    [CB_MUON_EPS] = CB_HYPER_LEAST_0("eps"), [CB_MUON_NS_STEPS] = {"ns_steps", 0.0, 99.0, false}

static const char *const states[] = {"m", "v"};
static const cb_state_kind kinds[] = {CB_STATE_ALIKE, CB_STATE_ROWS};
static const cb_hyper muon_hypers[CB_N_MUON] = {
    CB_MUON_HYPERS,
    [CB_MUON_SCALES_TO_RMS] = CB_HYPER_FLAG("match_rms"),
};
static const cb_hyper normuon_hypers[CB_N_NORMUON] = {
    CB_MUON_HYPERS, [CB_NORMUON_BETA2] = CB_HYPER_BELOW_1("beta2"),
    [CB_NORMUON_ROW_EPS] = CB_HYPER_LEAST_0("row_eps")};

static cb_orthogonal common(const double *hyper, const double *factor) {
    return (cb_orthogonal){.rest = factor[CB_MUON_REST],
                           .ahead = factor[CB_MUON_AHEAD] != 0,
                           .a = factor[CB_MUON_A],
                           .b = factor[CB_MUON_B],
                           .c = factor[CB_MUON_C],
                           .turns = (int)hyper[CB_MUON_NS_STEPS],
                           .least = factor[CB_MUON_LEAST],
                           .keep = factor[CB_MUON_KEEP],
                           .rate = factor[CB_MUON_RATE]};
}

static cb_orthogonal muon_of(const double *hyper, const cb_optim_row *row) {
    const double height = (double)row->height, width = (double)row->width;
    double factor[CB_MAX_FACTORS] = {0};
    cb_muon_factors(hyper, row->t, row->number, factor);
    cb_orthogonal o = common(hyper, factor);
    o.rate *= factor[CB_MUON_MATCH_RMS] != 0 ? 0.2 * sqrt(fmax(height, width))
                                             : sqrt(fmax(1, height / width));
    return o;
}

static cb_orthogonal normuon_of(const double *hyper, const cb_optim_row *row) {
    double factor[CB_MAX_FACTORS] = {0};
    cb_normuon_factors(hyper, row->t, row->number, factor);
    cb_orthogonal o = common(hyper, factor);
    o.has_rows = true;
    o.beta = factor[CB_MUON_BETA];
    o.eps = factor[CB_MUON_ROW_EPS];
    o.size = 0.2 * sqrt((double)row->n);
    return o;
}

static cb_status check_turns(const char *name, const double *hyper, uint32_t group, cb_error *err) {
    if (hyper[CB_MUON_NS_STEPS] == floor(hyper[CB_MUON_NS_STEPS])) return CB_OK;
    return cb_fail(err, CB_INVALID, "%s: group %u has ns_steps=%g; it must be a whole number", name,
                   group, hyper[CB_MUON_NS_STEPS]);
}

static cb_status check_muon(const double *hyper, uint32_t group, cb_error *err) {
    return check_turns("muon", hyper, group, err);
}

static cb_status check_normuon(const double *hyper, uint32_t group, cb_error *err) {
    return check_turns("normuon", hyper, group, err);
}

static void step_muon(const cb_optim_table *table, cb_threads *pool) {
    cb_step_orthogonal(table, pool, muon_of);
}

static void step_normuon(const cb_optim_table *table, cb_threads *pool) {
    cb_step_orthogonal(table, pool, normuon_of);
}

const cb_optimizer cb_optimizer_muon = {.name = "muon",
                                        .n_state = 1,
                                        .n_hyper = CB_N_MUON,
                                        .state = states,
                                        .hyper = muon_hypers,
                                        .axes = CB_AXES_TWO,
                                        .multiplies = true,
                                        .check = check_muon,
                                        .step = step_muon,
                                        .scratch = cb_orthogonal_scratch};

const cb_optimizer cb_optimizer_normuon = {.name = "normuon",
                                           .n_state = 2,
                                           .n_hyper = CB_N_NORMUON,
                                           .state = states,
                                           .kind = kinds,
                                           .hyper = normuon_hypers,
                                           .axes = CB_AXES_TWO,
                                           .multiplies = true,
                                           .check = check_normuon,
                                           .step = step_normuon,
                                           .scratch = cb_orthogonal_scratch};
