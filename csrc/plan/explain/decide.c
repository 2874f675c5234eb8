/* A forward value is SAVEd if the backward reads the result of its forward run, and RECOMPUTEd if
 * its op runs again, or only in the backward. It is neither if the backward does not use it. It is
 * OFFLOADed if its storage comes back from the host. */
#include "decide.h"

#include "../cut/mincut.h"

typedef struct decider {
    const cb_facts *f;
    cb_plan *plan;
    bool *crosses; /* [n_value] made in the forward, read in the backward */
    bool *again;   /* [n_value] made in the backward or more than once; if held to the end, that
                      run is read */
    bool *copied;  /* [n_value] the latest run made a copy of a value held to the end */
    bool *fetched; /* [n_storage] brought back from the host */
    const bool *at_peak; /* [n_storage] alive at the peak of the save-everything schedule */
} decider;

/* Notes that an inlined value is recomputed there, or made late. */
static void note_taken(const decider *d, uint32_t step, const uint32_t *made_at) {
    const cb_problem *p = d->f->p;
    const cb_schedule *s = &d->plan->schedule;
    uint64_t taken = cb_taken_at(s, step);
    for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++) {
        if (!(taken >> i & 1)) continue;
        uint32_t v = p->inlining[p->inline_begin[s->step[step]] + i].value;
        d->again[v] |= made_at[v] != CB_NONE || step >= s->backward_starts;
    }
}

static void follow_schedule(const decider *d, uint32_t *made_at) {
    const cb_problem *p = d->f->p;
    const cb_schedule *s = &d->plan->schedule;
    for (uint32_t v = 0; v < p->n_value; v++) made_at[v] = CB_NONE;
    for (uint32_t t = 0; t < s->n_step; t++) {
        uint32_t op = s->step[t];
        cb_action action = cb_action_at(s, t);
        if (action == CB_ACTION_OUT || action == CB_ACTION_WAIT) continue;
        for (uint32_t v = p->out_begin[op]; action == CB_ACTION_IN && v < p->out_begin[op + 1]; v++)
            d->fetched[p->value_storage[v]] = true;
        if (action == CB_ACTION_IN) continue;
        uint32_t made = cb_made_at(p, s, t);
        cb_reading r = cb_read_run(p, op, made, cb_taken_at(s, t));
        note_taken(d, t, made_at);
        for (uint32_t v; cb_read_next(&r, &v);) {
            if (v == CB_NONE) continue;
            if (t >= s->backward_starts && made_at[v] != CB_NONE && made_at[v] < s->backward_starts)
                d->crosses[v] = true;
            d->again[v] |= d->copied[v];
        }
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            if (!cb_makes(made, v - p->out_begin[op])) continue;
            bool rerun = made_at[v] != CB_NONE;
            d->copied[v] = rerun && cb_stays_to_end(d->f, p->value_storage[v]);
            if (!d->copied[v]) d->again[v] = rerun || t >= s->backward_starts;
            made_at[v] = t;
        }
    }
}

static cb_reason reason_to_save(const decider *d, uint32_t op, uint32_t storage) {
    const cb_facts *f = d->f;
    bool free_choice = d->plan->budget_bytes != UINT64_MAX;
    if (f->held[storage]) return CB_REASON_HELD;
    if (f->wish[op] == CB_MUST_SAVE || f->wish[op] == CB_PREFER_SAVE) return CB_REASON_POLICY;
    if (f->once[op]) return CB_REASON_FORBIDDEN;
    if (free_choice) return CB_REASON_CUT;
    if (d->plan->preset == CB_PRESET_AUTOGRAD) return CB_REASON_PRESET;
    return cb_preset_allows(f, d->plan->preset, op) ? CB_REASON_CUT : CB_REASON_FORBIDDEN;
}

static cb_reason reason_to_recompute(const decider *d, uint32_t op, uint32_t storage) {
    const cb_facts *f = d->f;
    if (f->wish[op] == CB_MUST_RECOMPUTE || f->wish[op] == CB_PREFER_RECOMPUTE)
        return CB_REASON_POLICY;
    if (d->plan->budget_bytes != UINT64_MAX)
        return d->at_peak[storage] ? CB_REASON_PEAK : CB_REASON_CHEAP;
    if (d->plan->preset == CB_PRESET_RECOMPUTE_ALL) return CB_REASON_PRESET;
    return cb_preset_allows(f, d->plan->preset, op) ? CB_REASON_CHEAP
                                                    : CB_REASON_POLICY; /* the limit of a region */
}

static cb_reason reason_to_offload(const decider *d, uint32_t op, uint32_t storage) {
    uint8_t wish = d->f->wish[op];
    if (wish == CB_MUST_OFFLOAD || wish == CB_PREFER_OFFLOAD) return CB_REASON_POLICY;
    return d->at_peak[storage] ? CB_REASON_PEAK : CB_REASON_CHEAP;
}

static void set_decisions(const decider *d) {
    const cb_facts *f = d->f;
    for (uint32_t v = 0; v < f->p->n_value; v++) {
        uint32_t storage = f->p->value_storage[v], op = f->unit[storage];
        if (op == CB_NONE || f->position[op] >= f->base_backward) continue;
        if (f->position[f->p->value_op[v]] == CB_NONE ||
            f->position[f->p->value_op[v]] >= f->base_backward)
            continue;
        if (d->fetched[storage]) {
            d->plan->decision[v] = CB_DECISION_OFFLOAD;
            d->plan->reason[v] = (uint8_t)reason_to_offload(d, op, storage);
        } else if (d->again[v]) {
            d->plan->decision[v] = CB_DECISION_RECOMPUTE;
            d->plan->reason[v] = (uint8_t)reason_to_recompute(d, op, storage);
        } else if (d->crosses[v]) {
            d->plan->decision[v] = CB_DECISION_SAVE;
            d->plan->reason[v] = (uint8_t)reason_to_save(d, op, storage);
        }
    }
}

void cb_mark_peak(const cb_lives *lives, bool *at_peak) {
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_instance *life = &lives->instance[i];
        bool alive = life->made <= lives->peak_step && life->last >= lives->peak_step;
        if (alive && life->storage != CB_NONE) at_peak[life->storage] = true;
    }
}

cb_status cb_decide(const cb_facts *f, const bool *at_peak, cb_plan *plan, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, plan->arena.alloc);
    cb_status status = CB_OK;
    decider d = {.f = f, .plan = plan, .at_peak = at_peak};
    d.crosses = CB_NEW(&scratch, bool, f->p->n_value);
    d.copied = CB_NEW(&scratch, bool, f->p->n_value);
    d.again = CB_NEW(&scratch, bool, f->p->n_value);
    d.fetched = CB_NEW(&scratch, bool, f->p->n_storage);
    uint32_t *made_at = CB_NEW(&scratch, uint32_t, f->p->n_value);
    plan->decision = CB_NEW(&plan->arena, uint8_t, f->p->n_value);
    plan->reason = CB_NEW(&plan->arena, uint8_t, f->p->n_value);
    if (!d.crosses || !d.again || !d.copied || !d.fetched || !made_at || !plan->decision ||
        !plan->reason) {
        status = cb_no_memory(err);
        goto done;
    }
    follow_schedule(&d, made_at);
    set_decisions(&d);
done:
    cb_arena_free(&scratch);
    return status;
}
