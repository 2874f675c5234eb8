/* The public functions that look up and describe optimizers. */
#include "optimizers.h"

#include <string.h>

static const cb_optimizer *const known[] = {
    &cb_optimizer_adam,       &cb_optimizer_adamw,
    &cb_optimizer_radam,      &cb_optimizer_adamax,
    &cb_optimizer_adagrad,    &cb_optimizer_adadelta,
    &cb_optimizer_rmsprop,    &cb_optimizer_rmsprop_centered,
    &cb_optimizer_lion,       &cb_optimizer_sgd,
    &cb_optimizer_nadam,      &cb_optimizer_ademamix,
    &cb_optimizer_adopt,      &cb_optimizer_asgd,
    &cb_optimizer_rprop,      &cb_optimizer_schedule_free,
    &cb_optimizer_adamw_8bit, &cb_optimizer_muon,
    &cb_optimizer_normuon,    &cb_optimizer_adafactor,
    &cb_optimizer_soap};
#define N_KNOWN (sizeof known / sizeof known[0])

const cb_optimizer *cb_optimizer_at(uint32_t i) { return i < N_KNOWN ? known[i] : NULL; }

const cb_optimizer *cb_optimizer_find(const char *name) {
    for (size_t i = 0; name && i < N_KNOWN; i++)
        if (strcmp(known[i]->name, name) == 0) return known[i];
    return NULL;
}

const char *cb_optimizer_name(const cb_optimizer *o) { return o->name; }

const char *cb_optimizer_state_name(const cb_optimizer *o, uint32_t i) {
    return i < o->n_state ? o->state[i] : NULL;
}

cb_state_kind cb_optimizer_state_kind(const cb_optimizer *o, uint32_t i) {
    return o->kind && i < o->n_state ? o->kind[i] : CB_STATE_ALIKE;
}

cb_axes cb_optimizer_axes(const cb_optimizer *o) { return o->axes; }

bool cb_optimizer_see(const cb_optimizer *o, int rank, const int64_t *dim, cb_optim_row *row) {
    if (o->axes == CB_AXES_NONE) return true;
    if (o->axes == CB_AXES_TWO && rank != 2) return false;
    if (rank < 2) return true;
    row->height = o->axes == CB_AXES_FIRST ? dim[0] : dim[rank - 2];
    row->width = dim[rank - 1];
    for (int k = 1; o->axes == CB_AXES_FIRST && k < rank - 1; k++) row->width *= dim[k];
    return true;
}

const char *cb_optimizer_hyper_name(const cb_optimizer *o, uint32_t i) {
    return i < o->n_hyper ? o->hyper[i].name : NULL;
}

const char *cb_optimizer_number_name(const cb_optimizer *o, uint32_t i) {
    return i < o->n_number ? o->number[i] : NULL;
}
