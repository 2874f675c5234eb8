/* List scheduling with a small lookahead. A group opens with the first step that has not run, goes
 * on through the schedule, and takes what belongs to it (join.h); what does not is deferred.
 * Of what was found it keeps the longest part that fits (room.h).
 *
 *     schedule   add gelu | matmul | dropout? | ...     dropout reads the matmul's result: deferred
 *     groups     {add gelu} {matmul dropout?}           a matmul fuses with nothing
 *
 * Offsets are new where groups are: lives have become shorter, some are gone. Placement is a
 * heuristic, so the arena may come out larger than the plan's: then the groups of what found no
 * room are taken apart, and at last all. */
#include "fuse.h"

#include "join.h"
#include "room.h"

typedef struct tactic {
    uint32_t deferred; /* steps passed over, at most */
    uint32_t members;  /* of a group, at most; 1: the plan as it is */
    uint32_t rounds;   /* in which groups are taken apart, at most */
} tactic;
static const tactic tactics[] = {
    {8, CB_GROUP_MOST, 8}, {0, CB_GROUP_MOST, 8}, {0, 8, 8}, {0, 1, 1}};

typedef struct fusing {
    cb_steps steps;
    cb_joining joining;
    cb_room room;
    cb_groups *out;
    tactic by;
    uint8_t *alone;      /* [n_step] joins no group */
    uint32_t first, end; /* in steps.real: the first that has not run, after the last that has */
    cb_group_end why;    /* of the group at hand, see cb_group */
    uint32_t end_step, end_wait;
    cb_arena *arena;
    cb_error *err;
} fusing;

/* ---- groups ---------------------------------------------------------------------------------- */

/* The step that makes what this one reads and is neither there nor made in the group; CB_NONE: all
 * is there. */
static uint32_t waits_for(const fusing *x, uint32_t step) {
    const cb_op *op = cb_step_op(&x->steps, step);
    for (uint32_t k = 0; k < op->n_in; k++) {
        const uint32_t place = cb_place_in(&x->steps, step, k), maker = x->steps.maker[place];
        if (maker != CB_NONE && x->room.group[maker] == CB_NONE && !x->joining.made[place])
            return maker;
    }
    return CB_NONE;
}

/* Adds a step to x->joining: CB_END_NONE; or says what keeps it out. */
static cb_group_end try_step(fusing *x, uint32_t step) {
    if (x->alone[step] || x->by.members == 1) return CB_END_ROOM;
    return waits_for(x, step) == CB_NONE ? cb_join(&x->joining, step) : CB_END_WAIT;
}

/* What comes of a step: CB_END_NONE, or the group at hand ends before it so far. */
static void note_end(fusing *x, uint32_t step, cb_group_end end) {
    x->why = end == CB_END_NONE || cb_can_join(&x->joining, step) ? end : CB_END_OP;
    x->end_step = step;
    x->end_wait = x->why == CB_END_WAIT ? waits_for(x, step) : CB_NONE;
}

static uint32_t not_run(const fusing *x, uint32_t at) {
    while (at < x->steps.n_real && x->room.group[x->steps.real[at]] != CB_NONE) at++;
    return at;
}

/* Fills x->joining from the first step on, and notes why it ends there; returns the end of what was
 * looked at. */
static uint32_t gather(fusing *x) {
    cb_joining *group = &x->joining;
    const uint32_t *real = x->steps.real;
    uint32_t at = x->first + 1, deferred = 0;
    cb_joining_cut(group, 0);
    x->why = CB_END_BACKEND;
    x->end_step = x->end_wait = CB_NONE;
    if (group->fuses) note_end(x, real[x->first], try_step(x, real[x->first]));
    if (x->why != CB_END_NONE) return at;
    for (; (at = not_run(x, at)) < x->steps.n_real && group->n < x->by.members; at++) {
        const cb_group_end end = try_step(x, real[at]);
        if (end == CB_END_NONE || x->why == CB_END_NONE) note_end(x, real[at], end);
        if (end != CB_END_NONE && deferred++ == x->by.deferred) break;
    }
    if (x->why != CB_END_NONE) return at;
    x->why = at < x->steps.n_real ? CB_END_LIMIT : CB_END_PROGRAM;
    x->end_step = at < x->steps.n_real ? real[at] : CB_NONE;
    return at;
}

static void close_group(fusing *x, const uint32_t *step, uint32_t n) {
    cb_groups *out = x->out;
    out->begin[out->n_group] = out->n_instr;
    out->domain[out->n_group] = n > 1 ? x->joining.domain : (cb_domain){0};
    out->end[out->n_group] = (uint8_t)x->why;
    out->end_step[out->n_group] = x->end_step;
    out->end_wait[out->n_group] = x->end_wait;
    if (out->backward_starts == CB_NONE && step[0] >= x->steps.plan->schedule.backward_starts) {
        out->backward_starts = out->n_group;
    }
    for (uint32_t i = 0; i < n; i++) {
        out->step[out->n_instr] = step[i];
        out->part[out->n_instr++] = (uint8_t)(n > 1 ? x->joining.part[i] : CB_PART_NONE);
    }
    cb_room_take(&x->room, step, n);
    out->n_group++;
}

static void take_group(fusing *x) {
    const uint32_t *real = x->steps.real, end = gather(x);
    uint32_t n = 1;
    if (x->joining.n > 1) {
        const uint32_t horizon = end > x->end ? end : x->end;
        n = cb_room_for(&x->room, x->joining.step, x->joining.n, real + x->first,
                        horizon - x->first);
    }
    if (n < x->joining.n) {
        x->why = CB_END_ROOM;
        x->end_step = x->joining.step[n];
        x->end_wait = CB_NONE;
    }
    if (n > 1) {
        if (n < x->joining.n) cb_joining_cut(&x->joining, n);
        close_group(x, x->joining.step, n);
    } else {
        close_group(x, real + x->first, 1);
    }
    if (end > x->end) x->end = end;
    while (x->first < x->steps.n_real && x->room.group[real[x->first]] != CB_NONE) x->first++;
}

static cb_status make_groups(fusing *x) {
    const uint32_t n = x->steps.n_real;
    cb_groups *out = x->out;
    *out = (cb_groups){.backward_starts = CB_NONE};
    out->begin = CB_NEW(x->arena, uint32_t, n + (size_t)1);
    out->step = CB_NEW(x->arena, uint32_t, n);
    out->part = CB_NEW(x->arena, uint8_t, n);
    out->domain = CB_NEW(x->arena, cb_domain, n);
    out->end = CB_NEW(x->arena, uint8_t, n);
    out->end_step = CB_NEW(x->arena, uint32_t, n);
    out->end_wait = CB_NEW(x->arena, uint32_t, n);
    out->life = CB_NEW(x->arena, cb_life, x->steps.plan->lives.n_instance);
    if (!out->begin || !out->step || !out->part || !out->domain || !out->end || !out->end_step ||
        !out->end_wait || !out->life) {
        return cb_no_memory(x->err);
    }
    CB_TRY(cb_room_init(&x->room, &x->steps, x->arena, x->err));
    x->first = x->end = 0;
    while (x->first < n) take_group(x);
    out->begin[out->n_group] = out->n_instr;
    if (out->backward_starts == CB_NONE) out->backward_starts = out->n_group;
    return CB_OK;
}

/* ---- lives ----------------------------------------------------------------------------------- */

/* Each step is a group, and the plan has the offsets. What is brought back from the host is made
 * for the next step that runs. Reading by views alone ends with the last group before the view. */
static void keep_lives(fusing *x) {
    const cb_lives *lives = &x->steps.plan->lives;
    const uint32_t n_step = x->steps.plan->schedule.n_step, n_group = x->out->n_group;
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_instance *life = &lives->instance[i];
        cb_life *to = &x->out->life[i];
        const uint32_t made = cb_count_before(x->steps.real, x->steps.n_real, life->made),
                       end = life->last == n_step
                                 ? n_group + 1
                                 : cb_count_before(x->steps.real, x->steps.n_real, life->last + 1);
        to->is_gone = made == n_group || end <= made;
        to->made = made < n_group ? made : n_group - 1;
        to->last = to->is_gone ? to->made : end - 1;
        to->offset = life->offset;
    }
}

/* Members of a group that copy the same indices do so to one place. */
static void share_scratch(fusing *x, uint32_t group) {
    const uint32_t *scratch = x->steps.plan->lives.scratch_instance, *step = x->out->step;
    for (uint32_t i = x->out->begin[group]; i < x->out->begin[group + 1]; i++) {
        for (uint32_t k = x->out->begin[group]; k < i; k++) {
            if (!cb_step_shares_scratch(&x->steps, step[i], step[k])) continue;
            x->out->life[scratch[step[i]]].is_shared = true;
            x->out->life[scratch[step[i]]].shared = scratch[step[k]];
            break; /* the first has a place of its own */
        }
    }
}

static void find_lives(fusing *x) {
    const cb_lives *lives = &x->steps.plan->lives;
    const cb_groups *out = x->out;
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const uint32_t group = x->room.group[lives->instance[i].made];
        out->life[i] = (cb_life){.made = group, .last = group};
        if (cb_place_held(&x->steps, i)) out->life[i].last = out->n_group;
    }
    for (uint32_t g = 0; g < out->n_group; g++) {
        for (uint32_t i = out->begin[g]; i < out->begin[g + 1]; i++) {
            for (uint32_t k = 0; k < cb_step_op(&x->steps, out->step[i])->n_in; k++) {
                const uint32_t place = cb_place_in(&x->steps, out->step[i], k);
                if (place < lives->n_instance && out->life[place].last < g)
                    out->life[place].last = g;
            }
        }
    }
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        cb_life *life = &out->life[i];
        const bool is_alone = out->begin[life->made + 1] - out->begin[life->made] == 1;
        life->is_local =
            !is_alone && life->last == life->made && lives->instance[i].storage != CB_NONE;
    }
    for (uint32_t g = 0; g < out->n_group; g++) share_scratch(x, g);
}

/* Places the lives, and measures them. What lives a little longer than in the plan is placed near
 * the plan's offsets where placing anew takes more than the plan, or did so before. */
static cb_status place(fusing *x, bool anew, uint64_t *live_bytes, uint64_t *arena_bytes) {
    const cb_lives *lives = &x->steps.plan->lives;
    cb_lives shorter = {.n_instance = lives->n_instance};
    shorter.instance = CB_NEW(x->arena, cb_instance, lives->n_instance);
    uint64_t *change = CB_NEW(x->arena, uint64_t, x->out->n_group + (size_t)2), live = 0;
    if (!shorter.instance || !change) return cb_no_memory(x->err);
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_life *life = &x->out->life[i];
        shorter.instance[i] = (cb_instance){
            .made = life->made,
            .last = life->last,
            .bytes = life->is_local || life->is_shared ? 0 : lives->instance[i].bytes};
        change[life->made] += shorter.instance[i].bytes;
        change[life->last + 1] -= shorter.instance[i].bytes;
    }
    *live_bytes = 0;
    for (uint32_t g = 0; g < x->out->n_group; g++) {
        live += change[g];
        if (live > *live_bytes) *live_bytes = live;
    }
    *arena_bytes = UINT64_MAX;
    if (anew) CB_TRY(cb_place(x->steps.p, &shorter, x->arena, (cb_poll){0}, arena_bytes, x->err));
    if (*arena_bytes > x->steps.plan->arena_bytes) {
        for (uint32_t i = 0; i < lives->n_instance; i++)
            shorter.instance[i].offset = lives->instance[i].offset;
        CB_TRY(cb_place_near(x->steps.p, &shorter, x->arena, (cb_poll){0}, arena_bytes, x->err));
    }
    for (uint32_t i = 0; i < lives->n_instance; i++)
        x->out->life[i].offset = shorter.instance[i].offset;
    return CB_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* The step of the plan runs by itself from now on; with `all`, so do the others of its group.
 * False: it did already. */
static bool leave(fusing *x, uint32_t group, uint32_t step, bool all) {
    const cb_groups *out = x->out;
    if (group == out->n_group || out->begin[group + 1] - out->begin[group] == 1) return false;
    for (uint32_t k = out->begin[group]; k < out->begin[group + 1]; k++)
        if (all || out->step[k] == step) x->alone[out->step[k]] = 1;
    return all || x->alone[step];
}

/* What makes or last reads something that found no room leaves its group, or, with `all`, takes it
 * apart; false: there is no such group. */
static bool split_groups(fusing *x, bool all) {
    const cb_plan *plan = x->steps.plan;
    bool any = false;
    for (uint32_t i = 0; i < plan->lives.n_instance; i++) {
        const cb_life *life = &x->out->life[i];
        const cb_instance *as_planned = &plan->lives.instance[i];
        if (life->is_local || life->is_shared) continue;
        if (life->offset + as_planned->bytes <= plan->arena_bytes) continue;
        if (leave(x, life->made, as_planned->made, all)) any = true;
        if (leave(x, life->last, as_planned->last, all)) any = true;
    }
    return any;
}

static cb_status attempt(fusing *x, bool anew, bool *good) {
    const cb_plan *plan = x->steps.plan;
    uint64_t live_bytes = 0, arena_bytes = 0;
    CB_TRY(make_groups(x));
    *good = true;
    if (x->out->n_group == x->out->n_instr) {
        keep_lives(x);
        return CB_OK;
    }
    find_lives(x);
    CB_TRY(place(x, anew, &live_bytes, &arena_bytes));
    *good = live_bytes <= plan->live_bytes && arena_bytes <= plan->arena_bytes;
    return CB_OK;
}

cb_status cb_fuse(const cb_graph *joint, const cb_problem *p, const cb_plan *plan,
                  cb_fuses_fn fuses, cb_arena *arena, cb_groups *out, cb_error *err) {
    const size_t n = sizeof tactics / sizeof tactics[0];
    fusing x = {.out = out, .arena = arena, .err = err};
    CB_TRY(cb_steps_init(&x.steps, joint, p, plan, arena, err));
    CB_TRY(cb_joining_init(&x.joining, &x.steps, fuses, arena, err));
    x.alone = CB_NEW(arena, uint8_t, plan->schedule.n_step);
    if (!x.alone) return cb_no_memory(err);
    bool good = false;
    const bool is_as_planned = !fuses || plan->schedule.action; /* what moves keeps its order */
    for (size_t i = is_as_planned ? n - 1 : 0; i < n && !good; i++) {
        x.by = tactics[i];
        memset(x.alone, 0, plan->schedule.n_step);
        for (uint32_t round = 0; round < x.by.rounds && !good; round++) {
            CB_TRY(attempt(&x, round == 0, &good));
            if (!good && !split_groups(&x, 2 * round >= x.by.rounds)) break;
        }
    }
    return CB_OK;
}
