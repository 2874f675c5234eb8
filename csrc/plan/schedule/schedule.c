#include "schedule.h"

const char *const cb_action_names[CB_ACTION_COUNT] = {"run", "out", "wait", "in"};

cb_status cb_schedule_copy(const cb_schedule *s, cb_arena *arena, cb_schedule *out, cb_error *err) {
    uint32_t *step = CB_NEW(arena, uint32_t, s->n_step);
    uint8_t *action = s->action ? CB_NEW(arena, uint8_t, s->n_step) : NULL;
    uint32_t *made = s->made ? CB_NEW(arena, uint32_t, s->n_step) : NULL;
    uint64_t *taken = s->taken ? CB_NEW(arena, uint64_t, s->n_step) : NULL;
    if (!step || (s->action && !action) || (s->made && !made) || (s->taken && !taken))
        return cb_no_memory(err);
    if (s->n_step > 0) memcpy(step, s->step, s->n_step * sizeof *step);
    if (s->n_step > 0 && action) memcpy(action, s->action, s->n_step);
    if (s->n_step > 0 && made) memcpy(made, s->made, s->n_step * sizeof *made);
    if (s->n_step > 0 && taken) memcpy(taken, s->taken, s->n_step * sizeof *taken);
    *out = *s;
    out->step = step;
    out->action = action;
    out->made = made;
    out->taken = taken;
    return CB_OK;
}
