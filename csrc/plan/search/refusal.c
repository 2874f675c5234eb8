#include "refusal.h"

#include <stdio.h>

#include "floor.h"

/* False for the spare ops that the search adds to a problem, which users do not know. */
static bool is_named(const cb_facts *f, uint32_t op) {
    return op != CB_NONE && (!f->spared || op < f->first_spare);
}

static cb_status set_floor(const cb_chooser *k, const cb_ladder *d, cb_refusal *out,
                           cb_error *err) {
    const cb_facts *f = k->t->f;
    cb_floor floor;
    if (!d) return CB_OK;
    CB_TRY(cb_find_floor(&d->first.ledger, k->t->scratch, &floor, err));
    if (floor.op == CB_NONE) return CB_OK;
    out->floor_bytes = floor.bytes + cb_beside_bytes(f, k->t->goal);
    if (is_named(f, floor.op))
        (void)snprintf(out->floor_op, sizeof out->floor_op, "%s", f->p->op_name[floor.op]);
    return CB_OK;
}

/* True if a constraint requires saving a value, so that relaxing it may help. */
static bool demands_saving(const cb_facts *f) {
    for (uint32_t i = 0; i < f->n_unit; i++)
        if (f->wish[i] == CB_MUST_SAVE) return true;
    return false;
}

cb_status cb_fail_time(const cb_goal *goal, uint64_t smallest, cb_error *err) {
    const cb_refusal refusal = {.reason = CB_REFUSED_TIME,
                                .budget_bytes = UINT64_MAX,
                                .max_extra = goal->share,
                                .smallest_bytes = smallest == UINT64_MAX ? 0 : smallest};
    return cb_refuse(err, &refusal);
}

cb_status cb_fail_budget(const cb_chooser *k, const cb_ladder *d, cb_error *err) {
    const cb_trial *t = k->t;
    cb_refusal refusal = {.reason = CB_REFUSED_CONSTRAINTS, .budget_bytes = UINT64_MAX};
    if (t->candidates->n == 0) return cb_refuse(err, &refusal);
    if (t->goal->smallest) return cb_fail_time(t->goal, k->smallest, err);
    refusal.reason = CB_REFUSED_BUDGET;
    refusal.budget_bytes = t->goal->bytes;
    refusal.smallest_bytes = k->smallest == UINT64_MAX ? 0 : k->smallest;
    refusal.must_save = demands_saving(t->f);
    if (is_named(t->f, k->smallest_op)) cb_refusal_set_op(&refusal, t->f->p, k->smallest_op);
    CB_TRY(set_floor(k, d, &refusal, err));
    return cb_refuse(err, &refusal);
}

cb_status cb_fail_ended(const cb_goal *goal, cb_error *err) {
    const cb_refusal refusal = {.reason = CB_REFUSED_STOPPED,
                                .budget_bytes = goal->smallest ? UINT64_MAX : goal->bytes};
    return cb_refuse(err, &refusal);
}
