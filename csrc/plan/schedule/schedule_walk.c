/* The walk: at each step it checks every rule, then handles the step's reads and outputs. */
#include "../model/names.h"
#include "../model/over.h"
#include "schedule_parts.h"

/* ---- steps ----------------------------------------------------------------------------------- */

/* Checks that each inlined value may be inlined into the run and is read by it. */
static cb_status check_taken(const walker *w, uint32_t step, uint32_t op, uint32_t made,
                             uint64_t taken) {
    const cb_problem *p = w->p;
    uint32_t n = p->inline_begin ? p->inline_begin[op + 1] - p->inline_begin[op] : 0;
    if (n < CB_MOST_INLININGS && taken >> n)
        return cb_fail(w->err, CB_INVALID, "step %u: %s has %u inlinings and inlines another", step,
                       p->op_name[op], n);
    uint64_t vain = taken & ~cb_taken_read(p, op, made, taken);
    for (uint32_t i = 0; vain && i < n; i++) {
        if (!(vain >> i & 1)) continue;
        return cb_fail(w->err, CB_INVALID, "step %u: %s inlines value %u, which it does not read",
                       step, p->op_name[op], p->inlining[p->inline_begin[op] + i].value);
    }
    return CB_OK;
}

/* If collectives may run again, their first runs keep the base order, each in its own phase,
 * because other processes wait there. */
static cb_status check_collective(const walker *w, uint32_t step, uint32_t op) {
    const cb_problem *p = w->p;
    if (!p->collective_again || !(p->op_flags[op] & CB_POP_COLLECTIVE) || w->runs[op] > 0)
        return CB_OK;
    if (op < p->backward_starts && step >= w->s->backward_starts) {
        return cb_fail(w->err, CB_INVALID,
                       "step %u: the collective %s belongs to the forward and first runs in the "
                       "backward",
                       step, p->op_name[op]);
    }
    if (w->collective == CB_NONE || w->collective < op) return CB_OK;
    return cb_fail(w->err, CB_INVALID,
                   "step %u: the collective %s first runs after %s, which follows it in the "
                   "problem",
                   step, p->op_name[op], p->op_name[w->collective]);
}

/* Ops that depend on a tangent run once, in the order of their ids, unless the problem says that
 * any op may run again. First runs may then be late as well, but not of ops that run once. */
static cb_status check_order(const walker *w, uint32_t step, uint32_t op) {
    const cb_problem *p = w->p;
    const char *name = p->op_name[op];
    const bool any = p->reruns == CB_RERUNS_ALL, again = w->runs[op] > 0,
               late = !again && w->newest != CB_NONE && w->newest > op;
    if (!(p->op_flags[op] & CB_POP_BACKWARD) || !(again || late)) return CB_OK;
    const bool ended = w->newest != CB_NONE && w->newest >= w->tail && op < w->tail;
    if (again && !any)
        return cb_fail(w->err, CB_INVALID,
                       "step %u: %s depends on a tangent and runs again, but reruns is \"%s\" in "
                       "this problem, not \"%s\"",
                       step, name, cb_reruns_names[p->reruns], cb_reruns_names[CB_RERUNS_ALL]);
    if (late && !any)
        return cb_fail(w->err, CB_INVALID,
                       "step %u: %s depends on a tangent and first runs after %s, which follows it "
                       "in the problem, but reruns is \"%s\" in this problem, not \"%s\"",
                       step, name, p->op_name[w->newest], cb_reruns_names[p->reruns],
                       cb_reruns_names[CB_RERUNS_ALL]);
    if (late && cb_once_flags(p, op))
        return cb_fail(w->err, CB_INVALID,
                       "step %u: %s may run only once (random, effect, collective, mutation or "
                       "unknown), so it may not be late, but it runs after %s, which follows it in "
                       "the problem",
                       step, name, p->op_name[w->newest]);
    if (ended)
        return cb_fail(w->err, CB_INVALID,
                       "step %u: %s runs after %s, one of the effects at the end of the problem, "
                       "which come after all other ops of the backward",
                       step, name, p->op_name[w->newest]);
    return CB_OK;
}

static cb_status check_step(const walker *w, uint32_t step, uint32_t op, cb_reading reading) {
    const cb_problem *p = w->p;
    uint32_t flags = p->op_flags[op];
    if ((flags & CB_POP_BACKWARD) && step < w->s->backward_starts) {
        return cb_fail(w->err, CB_INVALID,
                       "step %u: %s depends on a tangent and runs in the forward", step,
                       p->op_name[op]);
    }
    if (cb_once_flags(p, op) && w->runs[op] > 0) {
        return cb_fail(w->err, CB_INVALID,
                       "step %u: %s may run only once (random, effect, collective, mutation or "
                       "unknown) but runs again",
                       step, p->op_name[op]);
    }
    CB_TRY(check_collective(w, step, op));
    CB_TRY(check_order(w, step, op));
    for (uint32_t v; cb_read_next(&reading, &v);) {
        uint32_t from = reading.from;
        if (v == CB_NONE) continue;
        uint32_t s = p->value_storage[v];
        if (!w->have[v]) {
            return cb_fail(w->err, CB_INVALID,
                           "step %u: %s needs value %u of %s, which has not been made", step,
                           p->op_name[from], v, p->op_name[p->value_op[v]]);
        }
        CB_TRY(cb_walk_check_here(w, step, v));
        if (w->mutator[s] != CB_NONE && w->mutator[s] > from) {
            return cb_fail(w->err, CB_INVALID,
                           "step %u: %s reads storage %u after %s has written into it", step,
                           p->op_name[from], s, p->op_name[w->mutator[s]]);
        }
    }
    return CB_OK;
}

static void read_inputs(walker *w, uint32_t step, cb_reading reading) {
    const cb_problem *p = w->p;
    uint32_t *at = w->lives->value_instance_in + w->lives->in_begin[step];
    for (uint32_t v; cb_read_next(&reading, &v);) {
        if (v == CB_NONE) {
            *at++ = CB_NONE;
            continue;
        }
        uint32_t s = p->value_storage[v], instance = w->value_instance[v];
        *at++ = instance;
        cb_walk_hold(w, instance, step);
        w->seen_at[s] = step;
        w->seen_instance[s] = instance;
    }
}

/* Keeps the gradients of parameters that the op reads alive while it runs. */
static void hold_gradients(walker *w, uint32_t step, uint32_t op) {
    for (uint32_t j = cb_follows_begin(&w->follows, op); j < cb_follows_end(&w->follows, op); j++)
        cb_walk_hold(w, w->first[w->follows.gradient[j]], step);
}

/* Does the same for a run and the values inlined into it. */
static void hold_gradients_of_run(walker *w, uint32_t step, uint32_t op, uint64_t taken) {
    const cb_problem *p = w->p;
    hold_gradients(w, step, op);
    for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++)
        if (taken >> i & 1)
            hold_gradients(w, step, p->value_op[p->inlining[p->inline_begin[op] + i].value]);
}

static void make_outputs(walker *w, uint32_t step, uint32_t op, uint32_t made) {
    const cb_problem *p = w->p;
    uint32_t *at = w->lives->value_instance_out + w->lives->out_begin[step];
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        if (!cb_makes(made, v - p->out_begin[op])) {
            *at++ = CB_NONE;
            continue;
        }
        bool alias = w->seen_at[s] == step;
        if (alias && (p->op_flags[op] & CB_POP_MUTATES)) {
            w->mutator[s] = op;
            if (w->lanes) w->lanes->written[s] = step;
        }
        if (!alias) {
            bool given = cb_is_static(p, s) && !w->have[v];
            w->seen_at[s] = step;
            w->seen_instance[s] =
                given ? CB_NONE : cb_walk_add_instance(w, s, step, p->storage_bytes[s]);
            if (!cb_is_static(p, s)) cb_walk_note_newest(w, s);
        }
        w->have[v] = true;
        *at++ = w->seen_instance[s];
        w->value_instance[v] = cb_is_static(p, s) ? CB_NONE : w->seen_instance[s];
    }
}

/* Returns the part of `made` that no run has inlined before. */
static uint32_t not_inlined(const walker *w, uint32_t op, uint32_t made) {
    const cb_problem *p = w->p;
    for (uint32_t v = p->out_begin[op]; w->inlined && v < p->out_begin[op + 1]; v++)
        if (w->inlined[v]) made &= cb_has_inside(p, op) ? ~cb_made_value(p, v) : 0;
    return made;
}

/* `once_ps` counts one run of everything that the op ever makes, or that is inlined before it is
 * made. */
static void take_time(walker *w, uint32_t op, uint32_t made) {
    const cb_problem *p = w->p;
    uint32_t before = w->ever[op], now = before | not_inlined(w, op, made);
    w->clock = cb_after(w->clock, cb_run_time_ps(p, op, made, w->device));
    if (now != before) w->lives->once_ps += cb_run_time_ps(p, op, now, w->device);
    if (now != before && before != 0) w->lives->once_ps -= cb_run_time_ps(p, op, before, w->device);
    bool again = w->runs[op]++ > 0 || (now == before && before == 0);
    w->ever[op] = now;
    w->lives->n_recomputed += again;
}

/* Does the same for values inlined into a run. */
static void take_inlined_time(walker *w, uint32_t op, uint64_t taken) {
    const cb_problem *p = w->p;
    for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++) {
        if (!(taken >> i & 1)) continue;
        uint32_t at = p->inline_begin[op] + i, v = p->inlining[at].value;
        bool before = w->inlined[v] || (w->ever[p->value_op[v]] & cb_made_value(p, v));
        int64_t time = cb_inline_time_ps(p, at, w->device);
        w->clock = cb_after(w->clock, time);
        w->lives->once_ps += before ? 0 : time;
        w->lives->n_recomputed += before;
        w->inlined[v] |= !before;
    }
}

static cb_status run_op(walker *w, uint32_t step, uint32_t op) {
    const cb_problem *p = w->p;
    cb_lives *lives = w->lives;
    lanes *m = w->lanes;
    uint32_t made = cb_made_at(p, w->s, step);
    uint64_t taken = cb_taken_at(w->s, step);
    if (taken) CB_TRY(check_taken(w, step, op, made, taken));
    cb_reading reading = cb_read_run(p, op, made, taken);
    CB_TRY(check_step(w, step, op, reading));
    if (m) cb_walk_free_gone(w, step, w->clock);
    read_inputs(w, step, reading);
    for (uint32_t v; m && cb_read_next(&reading, &v);) {
        if (v != CB_NONE && w->value_instance[v] != CB_NONE)
            cb_walk_stall_until(w, m->ready[p->value_op[v]]);
    }
    make_outputs(w, step, op, made);
    if (p->updates) hold_gradients_of_run(w, step, op, taken);
    if (m) {
        m->made_at[op] = step;
        m->ready[op] = 0;
    }
    uint64_t workspace = cb_run_workspace(p, op, made) + cb_taken_workspace(p, op, taken);
    if (workspace > 0)
        lives->scratch_instance[step] = cb_walk_add_instance(w, CB_NONE, step, workspace);
    bool first = w->runs[op] == 0;
    if (first && (p->op_flags[op] & CB_POP_COLLECTIVE)) w->collective = op;
    if ((p->op_flags[op] & CB_POP_BACKWARD) && (w->newest == CB_NONE || w->newest < op))
        w->newest = op;
    take_time(w, op, made);
    take_inlined_time(w, op, taken);
    return CB_OK;
}

static cb_status take_step(walker *w, uint32_t step) {
    const cb_problem *p = w->p;
    cb_lives *lives = w->lives;
    uint32_t op = w->s->step[step];
    cb_action action = cb_action_at(w->s, step);
    bool runs = action == CB_ACTION_RUN, makes = runs || action == CB_ACTION_IN;
    lives->scratch_instance[step] = CB_NONE;
    CB_TRY(runs ? run_op(w, step, op) : cb_walk_copy(w, step, op, action));
    uint32_t n_in = cb_count_reads(p, op, cb_taken_at(w->s, step)),
             n_out = p->out_begin[op + 1] - p->out_begin[op];
    lives->in_begin[step + 1] = lives->in_begin[step] + (runs ? n_in : 0);
    lives->out_begin[step + 1] = lives->out_begin[step] + (makes ? n_out : 0);
    return CB_OK;
}

/* ---- forward to backward, and the end -------------------------------------------------------- */

/* Holds an instance to the end on behalf of a value. */
static void keep(walker *w, uint32_t value, uint32_t instance) {
    lanes *m = w->lanes;
    if (!m || instance == CB_NONE) return;
    uint32_t made = m->made_at[w->p->value_op[value]];
    bool first = m->keeper[instance] == CB_NONE || m->keeper[instance] == made;
    m->keeper[instance] = first ? made : w->s->n_step;
}

/* Returns the instance that is held for a value. */
static uint32_t held_for(const walker *w, uint32_t value) {
    uint32_t first = w->first[w->p->value_storage[value]];
    return first == CB_NONE ? w->value_instance[value] : first;
}

/* Checks, between forward and backward, that the values for the caller of the forward exist. */
static cb_status enter_backward(walker *w) {
    const cb_problem *p = w->p;
    uint32_t starts = w->s->backward_starts;
    for (uint32_t i = 0; i < p->n_forward_output; i++) {
        uint32_t v = p->forward_output[i];
        if (!w->have[v]) {
            return cb_fail(w->err, CB_INVALID,
                           "forward output %u of %s does not exist when the backward starts", i,
                           p->op_name[p->value_op[v]]);
        }
        bool end = p->storage_flags[p->value_storage[v]] & CB_STORE_HOLD_END;
        CB_TRY(cb_walk_check_here(w, starts, v));
        if (end) keep(w, v, held_for(w, v));
        cb_walk_hold(w, held_for(w, v), end ? w->s->n_step : starts);
    }
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (!(p->storage_flags[s] & CB_STORE_HOLD_FORWARD) || cb_is_static(p, s)) continue;
        if (w->first[s] == CB_NONE)
            return cb_fail(w->err, CB_INVALID,
                           "storage %u must be alive when the backward starts, but is not", s);
        cb_walk_hold(w, w->first[s], starts);
    }
    return CB_OK;
}

static cb_status end_walk(walker *w) {
    const cb_problem *p = w->p;
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i];
        if (!w->have[v]) {
            return cb_fail(w->err, CB_INVALID, "backward output %u of %s does not exist at the end",
                           i, p->op_name[p->value_op[v]]);
        }
        CB_TRY(cb_walk_check_here(w, w->s->n_step, v));
        bool first = p->storage_flags[p->value_storage[v]] & CB_STORE_HOLD_END;
        cb_walk_hold(w, first ? held_for(w, v) : w->value_instance[v], w->s->n_step);
    }
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (!(p->storage_flags[s] & CB_STORE_HOLD_END) || cb_is_static(p, s)) continue;
        if (w->first[s] == CB_NONE)
            return cb_fail(w->err, CB_INVALID, "storage %u must be alive at the end, but is not",
                           s);
        cb_walk_hold(w, w->first[s], w->s->n_step);
    }
    for (uint32_t s = 0; p->updates && s < p->n_storage; s++) {
        if (!cb_is_updating(p, s)) continue;
        if (w->first[s] == CB_NONE)
            return cb_fail(w->err, CB_INVALID,
                           "storage %u is never made, so storage %u has no "
                           "update",
                           s, p->updates[s]);
        cb_walk_hold(w, w->first[s], w->s->backward_starts);
    }
    for (uint32_t op = 0; op < p->n_op; op++) {
        if ((p->op_flags[op] & CB_POP_ACTS) && w->runs[op] == 0 &&
            !(p->op_flags[op] & CB_POP_PLACEHOLDER)) {
            return cb_fail(w->err, CB_INVALID, "%s must run once, but does not run",
                           p->op_name[op]);
        }
    }
    return CB_OK;
}

/* Checks that every output of an op with an inside is read by a step or an update, or held. */
static cb_status check_use(const walker *w) {
    const cb_problem *p = w->p;
    const cb_lives *lives = w->lives;
    for (uint32_t t = 0; t < w->s->n_step; t++) {
        uint32_t op = w->s->step[t];
        if (!cb_has_inside(p, op)) continue;
        for (uint32_t i = lives->out_begin[t]; i < lives->out_begin[t + 1]; i++) {
            uint32_t instance = lives->value_instance_out[i];
            if (instance == CB_NONE || lives->instance[instance].last > t) continue;
            const uint32_t storage = lives->instance[instance].storage;
            if (cb_is_updating(w->p, storage) && w->first[storage] == instance) continue;
            return cb_fail(w->err, CB_INVALID, "step %u: %s makes output %u, which no op reads", t,
                           p->op_name[op], i - lives->out_begin[t]);
        }
    }
    return CB_OK;
}

/* True if the memory of this life goes to an output of `step`, the last that reads it. */
static bool may_go(const walker *w, const cb_instance *life, uint32_t step) {
    uint32_t starts = w->s->backward_starts;
    if (w->p->keep_saved && life->made < starts && step >= starts) return false;
    return life->last == step;
}

/* Returns the instance whose memory the output of a run takes over: the first listed input whose
 * life ends with the step, or CB_NONE. */
static uint32_t find_over(const walker *w, uint32_t step) {
    const cb_lives *lives = w->lives;
    uint32_t op = w->s->step[step], n = cb_count_over(w->p, op);
    if (n == 0 || cb_action_at(w->s, step) != CB_ACTION_RUN || cb_taken_at(w->s, step))
        return CB_NONE;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = lives->value_instance_in[lives->in_begin[step] + cb_over_of(w->p, op)[i]];
        if (from != CB_NONE && may_go(w, &lives->instance[from], step)) return from;
    }
    return CB_NONE;
}

/* Counts memory taken over once while the step runs: subtracts it from live_bytes, as
 * differences. */
static cb_status take_over(walker *w, cb_arena *arena) {
    cb_lives *lives = w->lives;
    if (!w->p->over_begin) return CB_OK;
    CB_TRY_NEW(lives->over, arena, lives->n_instance, w->err);
    cb_fill_none(lives->over, lives->n_instance);
    for (uint32_t t = 0; t < w->s->n_step; t++) {
        uint32_t from = find_over(w, t);
        if (from == CB_NONE) continue;
        uint32_t to = lives->value_instance_out[lives->out_begin[t]];
        lives->over[to] = from;
        lives->live_bytes[t] -= lives->instance[to].bytes;
        lives->live_bytes[t + 1] += lives->instance[to].bytes;
    }
    return CB_OK;
}

/* live_bytes first holds the differences at each step (modulo 2^64), then their sums. */
static void measure(walker *w) {
    cb_lives *lives = w->lives;
    uint32_t n_step = w->s->n_step, starts = w->s->backward_starts;
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_instance *life = &lives->instance[i];
        lives->live_bytes[life->made] += life->bytes;
        if (life->last < n_step) lives->live_bytes[life->last + 1] -= life->bytes;
        if (life->made < starts && life->last >= starts) lives->saved_bytes += life->bytes;
    }
    for (uint32_t t = 0; t < n_step; t++) {
        if (t > 0) lives->live_bytes[t] += lives->live_bytes[t - 1];
        if (lives->live_bytes[t] <= lives->peak_bytes) continue;
        lives->peak_bytes = lives->live_bytes[t];
        lives->peak_step = t;
    }
}

/* ---- from the first step to the last --------------------------------------------------------- */

/* Checks the outputs that a step makes: only ops with an inside have a choice, and it is never
 * empty. */
static cb_status check_made(const cb_problem *p, const cb_schedule *s, uint32_t step,
                            cb_error *err) {
    uint32_t op = s->step[step], made = s->made[step], all = cb_all_made(p, op);
    bool partial = made != all && made != CB_ALL_OUTPUTS;
    if (cb_has_inside(p, op) ? !partial || (made && !(made & ~all)) : !partial) return CB_OK;
    if (!cb_has_inside(p, op)) {
        return cb_fail(err, CB_INVALID,
                       "step %u: %s has no inside and makes all of its outputs in every run", step,
                       p->op_name[op]);
    }
    return cb_fail(err, CB_INVALID, "step %u: %s makes %s", step, p->op_name[op],
                   made ? "an output that it does not have" : "none of its outputs");
}

/* Sets from files may exceed the op's outputs; the walk refuses them. */
static uint32_t count_reads(const cb_problem *p, uint32_t op, uint64_t taken) {
    uint32_t n = taken ? p->inline_begin[op + 1] - p->inline_begin[op] : 0;
    return cb_count_reads(p, op, n < CB_MOST_INLININGS ? taken & ((UINT64_C(1) << n) - 1) : taken);
}

static cb_status check_steps(const cb_problem *p, const cb_schedule *s, uint64_t *n_in,
                             uint64_t *n_out, cb_error *err) {
    *n_in = *n_out = 0;
    for (uint32_t t = 0; t < s->n_step; t++) {
        uint32_t op = s->step[t];
        if (op >= p->n_op)
            return cb_fail(err, CB_INVALID, "step %u: names op %u, but there are %u ops", t, op,
                           p->n_op);
        if (p->op_flags[op] & CB_POP_PLACEHOLDER) {
            return cb_fail(err, CB_INVALID, "step %u: %s is a placeholder, which is never run", t,
                           p->op_name[op]);
        }
        cb_action action = cb_action_at(s, t);
        if (action != CB_ACTION_RUN && cb_has_inside(p, op)) {
            return cb_fail(err, CB_INVALID,
                           "step %u: %s has an inside, so its results cannot be offloaded", t,
                           p->op_name[op]);
        }
        if (s->made && action == CB_ACTION_RUN) CB_TRY(check_made(p, s, t, err));
        uint64_t taken = cb_taken_at(s, t);
        if (taken && (action != CB_ACTION_RUN || !p->inline_begin))
            return cb_fail(err, CB_INVALID, "step %u: %s inlines a value that it may never inline",
                           t, p->op_name[op]);
        if (action == CB_ACTION_RUN) *n_in += count_reads(p, op, taken);
        if (action != CB_ACTION_WAIT) *n_out += p->out_begin[op + 1] - p->out_begin[op];
    }
    if (s->backward_starts > s->n_step) {
        return cb_fail(err, CB_INVALID, "the backward starts at step %u, but the plan has %u steps",
                       s->backward_starts, s->n_step);
    }
    if (*n_in + 2 * *n_out + s->n_step >= CB_NONE)
        return cb_fail(err, CB_INVALID,
                       "a schedule of %u steps is too long: its steps, reads and twice its outputs "
                       "must be fewer than 2^32 - 1 in all",
                       s->n_step);
    return CB_OK;
}

static cb_status start_walk(walker *w, cb_arena *scratch, cb_arena *arena) {
    const cb_problem *p = w->p;
    uint64_t n_in, n_out;
    uint32_t n_step = w->s->n_step;
    CB_TRY(check_steps(p, w->s, &n_in, &n_out, w->err));
    w->value_instance = CB_NEW(scratch, uint32_t, p->n_value);
    w->have = CB_NEW(scratch, bool, p->n_value);
    w->latest = CB_NEW(scratch, uint32_t, p->n_storage);
    w->first = CB_NEW(scratch, uint32_t, p->n_storage);
    w->seen_at = CB_NEW(scratch, uint32_t, p->n_storage);
    w->seen_instance = CB_NEW(scratch, uint32_t, p->n_storage);
    w->mutator = CB_NEW(scratch, uint32_t, p->n_storage);
    w->runs = CB_NEW(scratch, uint32_t, p->n_op);
    w->ever = CB_NEW(scratch, uint32_t, p->n_op);
    if (w->s->taken) w->inlined = CB_NEW(scratch, bool, p->n_value);
    cb_lives *lives = w->lives;
    uint64_t n_instance = w->s->action ? 2 * n_out + n_step : n_out + n_step;
    lives->instance = CB_NEW(arena, cb_instance, n_instance);
    lives->value_instance_in = CB_NEW(arena, uint32_t, n_in);
    lives->in_begin = CB_NEW(arena, uint32_t, (size_t)n_step + 1);
    lives->value_instance_out = CB_NEW(arena, uint32_t, n_out);
    lives->out_begin = CB_NEW(arena, uint32_t, (size_t)n_step + 1);
    lives->scratch_instance = CB_NEW(arena, uint32_t, n_step);
    lives->live_bytes = CB_NEW(arena, uint64_t, (size_t)n_step + 1);
    if ((w->s->taken && !w->inlined) || !w->value_instance || !w->have || !w->latest || !w->first ||
        !w->seen_at || !w->seen_instance || !w->mutator || !w->runs || !w->ever ||
        !lives->instance || !lives->value_instance_in || !lives->in_begin ||
        !lives->value_instance_out || !lives->out_begin || !lives->scratch_instance ||
        !lives->live_bytes) {
        return cb_no_memory(w->err);
    }
    cb_fill_none(w->value_instance, p->n_value);
    cb_fill_none(w->latest, p->n_storage);
    cb_fill_none(w->first, p->n_storage);
    cb_fill_none(w->seen_at, p->n_storage);
    cb_fill_none(w->mutator, p->n_storage);
    for (uint32_t v = 0; v < p->n_value; v++)
        w->have[v] = p->op_flags[p->value_op[v]] & CB_POP_PLACEHOLDER;
    CB_TRY(cb_list_follows(p, scratch, &w->follows, w->err));
    return w->s->action ? cb_walk_start_copies(w, scratch, n_instance, n_out) : CB_OK;
}

static cb_status walk(walker *w, cb_arena *scratch, cb_arena *arena) {
    CB_TRY(start_walk(w, scratch, arena));
    for (uint32_t t = 0; t < w->s->n_step; t++) {
        if (t == w->s->backward_starts) CB_TRY(enter_backward(w));
        CB_TRY(take_step(w, t));
    }
    if (w->s->backward_starts == w->s->n_step) CB_TRY(enter_backward(w));
    CB_TRY(end_walk(w));
    if (w->p->member_begin) CB_TRY(check_use(w));
    w->lives->time_ps = w->clock;
    if (w->lanes) {
        cb_walk_free_gone(w, w->s->n_step, INT64_MAX);
        CB_TRY(cb_walk_measure_host(w, scratch));
    }
    CB_TRY(take_over(w, arena));
    measure(w);
    return CB_OK;
}

cb_status cb_schedule_walk(const cb_problem *p, const cb_schedule *s, const cb_device *device,
                           cb_arena *arena, cb_lives *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, arena->alloc);
    cb_lives lives = {0};
    walker w = {.p = p,
                .s = s,
                .device = device,
                .lives = &lives,
                .collective = CB_NONE,
                .newest = CB_NONE,
                .tail = cb_problem_tail(p),
                .err = err};
    cb_status status = walk(&w, &scratch, arena);
    cb_arena_free(&scratch);
    if (status == CB_OK) *out = lives;
    return status;
}
