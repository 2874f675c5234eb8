#include "reference.h"

#include "explain/decide.h"
#include "model/over.h"

static cb_status make(cb_sim *sim, cb_poll poll, cb_arena *scratch, cb_reference *out,
                      cb_error *err) {
    cb_schedule schedule;
    cb_lives lives;
    const cb_problem apart = cb_without_over(sim->f->p);
    CB_TRY(cb_sim_run(sim, NULL, 0, err));
    CB_TRY(cb_sim_schedule(sim, scratch, &schedule, err));
    CB_TRY(cb_schedule_walk(&apart, &schedule, sim->f->device, scratch, &lives, err));
    CB_TRY(cb_place(&apart, &lives, scratch, poll, &out->arena_bytes, err));
    out->live_bytes = lives.peak_bytes;
    out->saved_bytes = lives.saved_bytes;
    cb_mark_peak(&lives, out->at_peak);
    return CB_OK;
}

cb_status cb_reference_make(cb_sim *sim, cb_poll poll, cb_arena *arena, cb_reference *out,
                            cb_error *err) {
    cb_arena scratch;
    CB_TRY_NEW(out->at_peak, arena, sim->f->p->n_storage, err);
    cb_arena_init(&scratch, arena->alloc);
    const cb_status status = make(sim, poll, &scratch, out, err);
    cb_arena_free(&scratch);
    return status;
}

uint64_t cb_reference_bytes(const cb_reference *r, const cb_problem *p, cb_measure measure) {
    const cb_lives lives = {.peak_bytes = r->live_bytes, .saved_bytes = r->saved_bytes};
    return cb_measured(p, measure, &lives, r->arena_bytes);
}
