#include "refusal.h"

#include <math.h>
#include <stdio.h>

#include "../model/names.h"
#include "floor.h"

/* "; no plan of this order of ops is below ..." */
static cb_status put_floor(const cb_chooser *k, const cb_ladder *d, char *text, size_t room,
                           cb_error *err) {
    const cb_trial *t = k->t;
    char op[CB_OP_TEXT];
    cb_floor floor;
    text[0] = 0;
    if (!d) return CB_OK;
    CB_TRY(cb_find_floor(&d->first.ledger, t->scratch, &floor, err));
    uint64_t bytes = floor.bytes + cb_beside_bytes(t->f, t->goal);
    if (floor.op == CB_NONE || bytes == 0) return CB_OK; /* "below 0 bytes" says nothing */
    bool named = !t->f->spared || floor.op < t->f->first_spare;
    (void)snprintf(text, room,
                   "; in this order of ops, and running only forward ops again, none is below %llu "
                   "bytes%s%s",
                   (unsigned long long)bytes, named ? ", set by op " : "",
                   named ? cb_op_text(t->f->p, floor.op, op) : "");
    return CB_OK;
}

/* Is a value there that must be saved, so that relaxing that may help? */
static bool demands_saving(const cb_facts *f) {
    for (uint32_t i = 0; i < f->n_unit; i++)
        if (f->wish[i] == CB_MUST_SAVE) return true;
    return false;
}

/* "; the smallest share is 0.21x of ..., of which ... are held to the end" */
static void put_shares(const cb_chooser *k, const cb_ladder *d, char *text, size_t room) {
    const cb_trial *t = k->t;
    uint64_t held = cb_held_bytes(t->f);
    text[0] = 0;
    if (!d || t->goal->measure == CB_MEASURE_ARENA || k->smallest == UINT64_MAX) return;
    double whole = (double)(d->whole + cb_beside_bytes(t->f, t->goal)) + 1e-9;
    double least = ceil(1000 * (double)k->smallest / whole) / 1000; /* who asks for it gets it */
    (void)snprintf(text, room,
                   "; saving everything takes %llu bytes, so the smallest share is %.3fx (results "
                   "and gradients that every plan holds in the end are %.3fx)",
                   (unsigned long long)(d->whole + cb_beside_bytes(t->f, t->goal)), least,
                   (double)(held + cb_beside_bytes(t->f, t->goal)) / whole);
}

cb_status cb_fail_time(const cb_goal *goal, uint64_t smallest, cb_error *err) {
    return cb_fail(err, CB_INFEASIBLE,
                   "no plan was found that takes at most %.6g %% more time than running each op "
                   "once: the constraints make ops run again, or move values; the smallest found "
                   "at any price needs %llu bytes; allow more time (max_extra), or free some "
                   "values of their MUST_RECOMPUTE or MUST_OFFLOAD",
                   100 * goal->share, (unsigned long long)smallest);
}

cb_status cb_fail_budget(const cb_chooser *k, const cb_ladder *d, cb_error *err) {
    const cb_trial *t = k->t;
    char op[CB_OP_TEXT], floor[CB_OP_TEXT + 160], shares[200];
    if (t->candidates->n == 0) {
        return cb_fail(err, CB_INFEASIBLE,
                       "no plan found that keeps all constraints: free some values of their "
                       "MUST_RECOMPUTE or widen a region's limit");
    }
    CB_TRY(put_floor(k, d, floor, sizeof floor, err));
    if (t->goal->smallest) return cb_fail_time(t->goal, k->smallest, err);
    put_shares(k, d, shares, sizeof shares);
    return cb_fail(err, CB_INFEASIBLE,
                   "no plan fits %llu bytes (%s): the smallest found needs %llu bytes, at op "
                   "%s%s%s; raise the budget%s",
                   (unsigned long long)t->goal->bytes, cb_measure_names[t->goal->measure],
                   (unsigned long long)k->smallest,
                   k->smallest_op == CB_NONE ? "none" : cb_op_text(t->f->p, k->smallest_op, op),
                   floor, shares,
                   demands_saving(t->f) ? ", use a smaller batch, or relax MUST_SAVE constraints"
                                        : " or use a smaller batch");
}

cb_status cb_fail_ended(const cb_goal *goal, cb_error *err) {
    if (goal->smallest)
        return cb_fail(err, CB_INFEASIBLE,
                       "the search was ended before it had a plan; give it more time");
    return cb_fail(err, CB_INFEASIBLE,
                   "the search was ended before a plan fitted %llu bytes; give it more time or "
                   "raise the budget",
                   (unsigned long long)goal->bytes);
}
