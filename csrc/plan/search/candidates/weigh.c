#include "weigh.h"

cb_status cb_weigh_schedule(const cb_facts *f, const cb_goal *goal, cb_placings *known,
                            const cb_schedule *s, cb_weight *out, cb_error *err) {
    cb_arena scratch;
    cb_lives lives;
    uint64_t arena_bytes = 0;
    cb_status status;
    cb_arena_init(&scratch, f->alloc);
    CB_TRY_DONE(cb_schedule_walk(f->p, s, f->device, &scratch, &lives, err));
    if (goal->measure == CB_MEASURE_ARENA)
        CB_TRY_DONE(cb_place_again(known, &lives, &scratch, goal->poll, &arena_bytes, err));
    *out = (cb_weight){.bytes = cb_measured(f->p, goal->measure, &lives, arena_bytes),
                       .time_ps = lives.time_ps,
                       .peak_op = s->n_step > 0 ? s->step[lives.peak_step] : CB_NONE};
done:
    cb_arena_free(&scratch);
    return status;
}
