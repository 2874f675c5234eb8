/* A group opens with the first unit, a group of the plan, that has not run, and grows over those
 * that come next in the schedule (grow.h). It keeps the longest prefix of them that fits (room.h).
 *
 *     schedule   add gelu | matmul | dropout? | ...     dropout reads the matmul's result: deferred
 *     groups     {add gelu} {matmul dropout?}           a matmul does not fuse
 *
 * Groups get new offsets, because lives have become shorter or have vanished. Placement is a
 * heuristic, so the arena may become larger than the plan's: then groups with buffers that could
 * not be placed are split, and in the end all groups. */
#include "fuse.h"

#include "grow.h"
#include "room.h"

typedef struct tactic {
    uint32_t deferred; /* maximum number of units passed over */
    uint32_t members;  /* maximum number of steps of a group; 1: the plan unchanged */
    uint32_t rounds;   /* maximum number of rounds in which groups are split */
} tactic;
static const tactic tactics[] = {
    {8, CB_GROUP_MOST, 8}, {0, CB_GROUP_MOST, 8}, {0, 8, 8}, {0, 1, 1}};

typedef struct fusing {
    cb_steps steps;
    cb_joining joining;
    cb_room room;
    const cb_groups *units;
    cb_groups out;
    tactic by;
    uint8_t *alone;      /* [units] true if it must not join a group */
    uint32_t first, end; /* units: the first that has not run, one past the last examined */
    uint32_t n_taken, taken[CB_GROUP_MOST]; /* units of the current group */
    uint32_t *order;                        /* [units] in the order in which they run */
    uint32_t *unit_begin;                   /* [units + 1] first unit of each group in `order` */
    uint32_t group;                         /* current group in take_over */
    cb_arena *arena;
    cb_error *err;
} fusing;

/* ---- groups ---------------------------------------------------------------------------------- */

/* Returns the step that makes an input of this one that neither exists nor is made in the group, or
 * CB_NONE. */
static uint32_t waits_for(const fusing *x, uint32_t step) {
    const cb_op *op = cb_step_op(&x->steps, step);
    for (uint32_t k = 0; k < op->n_in; k++) {
        const uint32_t place = cb_place_in(&x->steps, step, k), maker = x->steps.maker[place];
        if (maker == CB_NONE || x->joining.made[place]) continue;
        const uint32_t unit = x->room.unit_of[maker];
        if (x->room.group[unit] == CB_NONE && unit != x->room.unit_of[step]) return maker;
    }
    return CB_NONE;
}

static uint32_t unit_waits_for(const fusing *x, uint32_t unit) {
    uint32_t maker = CB_NONE;
    for (uint32_t i = x->units->begin[unit]; i < x->units->begin[unit + 1] && maker == CB_NONE; i++)
        maker = waits_for(x, x->units->step[i]);
    return maker;
}

static void begin_group(void *user) { ((fusing *)user)->n_taken = 0; }

static bool has_run(void *user, uint32_t unit) {
    return ((const fusing *)user)->room.group[unit] != CB_NONE;
}

/* Adds all steps of a unit; the rows that it is planned with may be longer than those of its
 * ops. */
static cb_group_end join_steps(fusing *x, uint32_t unit, cb_domain *longer) {
    const cb_groups *u = x->units;
    const uint32_t n = x->joining.n;
    for (uint32_t i = u->begin[unit]; i < u->begin[unit + 1]; i++) {
        const cb_group_end end = cb_join(&x->joining, u->step[i]);
        if (end == CB_END_NONE) continue;
        if (end == CB_END_DOMAIN && longer->count == 0) {
            const cb_domain has = x->joining.domain, planned = u->domain[unit];
            const bool fits = n == 0 || planned.count == has.count;
            *longer = cb_longer_rows(&x->joining, u->step[i]);
            const bool is_longer = planned.columns > has.columns && (!has.inner || planned.inner);
            if (longer->count == 0 && fits && is_longer) *longer = planned;
        }
        if (x->joining.n > n) cb_joining_cut(&x->joining, n);
        return end;
    }
    return CB_END_NONE;
}

static cb_group_end take_unit(void *user, uint32_t unit, cb_domain *longer) {
    fusing *x = user;
    const uint32_t n = x->units->begin[unit + 1] - x->units->begin[unit];
    if (x->alone[unit] || x->by.members == 1) return CB_END_ROOM;
    if (x->joining.n + n > x->by.members) return CB_END_LIMIT;
    if (unit_waits_for(x, unit) != CB_NONE) return CB_END_WAIT;
    const cb_group_end end = join_steps(x, unit, longer);
    if (end == CB_END_NONE) x->taken[x->n_taken++] = unit;
    return end;
}

static void note_end(fusing *x, cb_group_end end, uint32_t unit) {
    cb_groups *out = &x->out;
    const uint32_t step = unit == CB_NONE ? CB_NONE : x->units->step[x->units->begin[unit]];
    const bool is_known = end == CB_END_LIMIT || end == CB_END_PROGRAM;
    if (!is_known && !cb_can_join(&x->joining, step)) end = CB_END_OP;
    out->end[out->n_group] = (uint8_t)end;
    out->end_step[out->n_group] = step;
    out->end_wait[out->n_group] = end == CB_END_WAIT ? unit_waits_for(x, unit) : CB_NONE;
}

/* Forms a group of the first n units taken; a single unit stays as planned. */
static void close_group(fusing *x, uint32_t n) {
    const cb_groups *u = x->units;
    cb_groups *out = &x->out;
    const uint32_t first = x->taken[0];
    out->begin[out->n_group] = out->n_instr;
    out->domain[out->n_group] = n > 1 ? x->joining.domain : u->domain[first];
    if (out->backward_starts == CB_NONE && first >= u->backward_starts)
        out->backward_starts = out->n_group;
    for (uint32_t i = 0; i < n; i++) {
        x->order[x->unit_begin[out->n_group] + i] = x->taken[i];
        for (uint32_t k = u->begin[x->taken[i]]; k < u->begin[x->taken[i] + 1]; k++) {
            const uint32_t at = out->n_instr - out->begin[out->n_group];
            out->part[out->n_instr] = n > 1 ? (uint8_t)x->joining.part[at] : u->part[k];
            out->step[out->n_instr++] = u->step[k];
        }
    }
    cb_room_take(&x->room, x->taken, n);
    out->n_group++;
    x->unit_begin[out->n_group] = x->unit_begin[out->n_group - 1] + n;
}

static void take_group(fusing *x) {
    cb_growing g = {.joining = &x->joining,
                    .n_unit = x->units->n_group,
                    .user = x,
                    .deferred = x->by.deferred,
                    .members = x->by.members,
                    .begin = begin_group,
                    .passes = has_run,
                    .take = take_unit};
    const uint32_t end = cb_grow(&g, x->first), taken = x->n_taken;
    uint32_t n = 1;
    if (taken == 0) x->taken[0] = x->first;
    if (taken > 1)
        n = cb_room_for(&x->room, &x->joining, x->taken, taken, x->first,
                        end > x->end ? end : x->end);
    if (n < taken) note_end(x, CB_END_ROOM, x->taken[n]);
    else note_end(x, g.end, g.end_unit);
    if (n > 1 && n < taken) {
        uint32_t n_step = 0;
        for (uint32_t i = 0; i < n; i++)
            n_step += x->units->begin[x->taken[i] + 1] - x->units->begin[x->taken[i]];
        cb_joining_cut(&x->joining, n_step);
    }
    close_group(x, n);
    if (end > x->end) x->end = end;
    while (x->first < x->units->n_group && has_run(x, x->first)) x->first++;
}

static void make_groups(fusing *x) {
    cb_groups *out = &x->out;
    out->n_group = out->n_instr = 0;
    out->backward_starts = CB_NONE;
    cb_room_reset(&x->room);
    x->first = x->end = 0;
    while (x->first < x->units->n_group) take_group(x);
    out->begin[out->n_group] = out->n_instr;
    if (out->backward_starts == CB_NONE) out->backward_starts = out->n_group;
}

/* ---- lives ----------------------------------------------------------------------------------- */

/* Shares scratch: members of a group that copy the same indices share one copy. */
static void share_scratch(fusing *x, uint32_t group) {
    const uint32_t *scratch = x->steps.plan->lives.scratch_instance, *step = x->out.step;
    for (uint32_t i = x->out.begin[group]; i < x->out.begin[group + 1]; i++) {
        for (uint32_t k = x->out.begin[group]; k < i; k++) {
            if (!cb_step_shares_scratch(&x->steps, step[i], step[k])) continue;
            x->out.life[scratch[step[i]]].is_shared = true;
            x->out.life[scratch[step[i]]].shared = scratch[step[k]];
            break; /* the first has its own copy */
        }
    }
}

static bool ends_here(const void *user, uint32_t instance) {
    const fusing *x = user;
    return x->out.life[instance].last == x->group;
}

/* Finds the memory that results of a group take over. */
static void take_over(fusing *x, uint32_t group) {
    const uint32_t first = x->out.begin[group];
    const cb_taking taking = {.steps = &x->steps,
                              .step = x->out.step + first,
                              .n = x->out.begin[group + 1] - first,
                              .ends = ends_here,
                              .user = x};
    for (uint32_t i = 0; i < taking.n && taking.n > 1; i++)
        if (!cb_part_may_take((cb_part)x->out.part[first + i])) return;
    x->group = group;
    for (uint32_t i = 0; i < taking.n; i++) {
        const uint32_t to = cb_place_out(&x->steps, taking.step[i], 0);
        if (to >= x->steps.plan->lives.n_instance || x->out.life[to].is_local) continue;
        const uint32_t from = cb_taken(&taking, i);
        if (from == CB_NONE) continue;
        x->out.life[to].takes_over = true;
        x->out.life[to].over = from;
    }
}

/* Keeps a gradient alive until its update. The update comes after the forward, so that the run can
 * no longer fail, and after the last group that reads its parameter (plan/model/updates.h). */
static void keep_gradients(fusing *x) {
    const cb_steps *s = &x->steps;
    const cb_groups *out = &x->out;
    const uint32_t n_instance = s->plan->lives.n_instance;
    uint32_t forward = 0;
    for (uint32_t g = 0; g < out->n_group; g++) {
        for (uint32_t i = out->begin[g]; i < out->begin[g + 1]; i++) {
            if (out->step[i] < s->plan->schedule.backward_starts) forward = g;
            for (uint32_t k = 0; k < cb_step_op(s, out->step[i])->n_in; k++) {
                const uint32_t at = cb_gradient_of(s, cb_place_in(s, out->step[i], k));
                if (at < n_instance && out->life[at].last < g) out->life[at].last = g;
            }
        }
    }
    for (uint32_t i = 0; i < s->n_place; i++) {
        const uint32_t at = cb_gradient_of(s, i);
        if (at >= n_instance) continue;
        if (out->life[at].last < forward) out->life[at].last = forward;
        out->life[at].is_local = false;
    }
}

/* Finds lives. A value that is used only in its own group of several steps is a local. */
static void find_lives(fusing *x) {
    const cb_lives *lives = &x->steps.plan->lives;
    const cb_groups *out = &x->out;
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_life *planned = &x->units->life[i];
        const uint32_t group = x->room.group[planned->made];
        out->life[i] = *planned;
        out->life[i].takes_over = false;
        out->life[i].made = out->life[i].last = group;
        if (planned->last == x->units->n_group) out->life[i].last = out->n_group;
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
        life->is_local |=
            !is_alone && life->last == life->made && lives->instance[i].storage != CB_NONE;
    }
    if (x->steps.gradient_at) keep_gradients(x);
    for (uint32_t g = 0; g < out->n_group; g++) share_scratch(x, g);
    for (uint32_t g = 0; g < out->n_group && lives->over; g++) take_over(x, g);
}

/* Places the lives and measures the arena. If placing from scratch takes more than the plan, or did
 * so before, lives that are a little longer than in the plan are placed near the plan's offsets. */
static cb_status place(fusing *x, bool from_start, uint64_t *live_bytes, uint64_t *arena_bytes) {
    const cb_lives *lives = &x->steps.plan->lives;
    const cb_groups *out = &x->out;
    cb_lives shorter = {.n_instance = lives->n_instance};
    uint64_t *change, live = 0;
    CB_TRY_NEW(shorter.instance, x->arena, lives->n_instance, x->err);
    CB_TRY_NEW(change, x->arena, out->n_group + (size_t)2, x->err);
    CB_TRY_NEW(shorter.over, x->arena, lives->n_instance, x->err);
    for (uint32_t i = 0; i < lives->n_instance; i++) shorter.over[i] = CB_NONE;
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_life *life = &out->life[i];
        shorter.instance[i] = (cb_instance){
            .made = life->made,
            .last = life->last,
            .bytes = life->is_local || life->is_shared ? 0 : lives->instance[i].bytes};
        change[life->made] += shorter.instance[i].bytes;
        change[life->last + 1] -= shorter.instance[i].bytes;
        if (!life->takes_over) continue;
        shorter.over[i] = life->over;
        change[life->made] -= shorter.instance[i].bytes;
        change[life->made + 1] += shorter.instance[i].bytes;
    }
    *live_bytes = 0;
    for (uint32_t g = 0; g < out->n_group; g++) {
        live += change[g];
        if (live > *live_bytes) *live_bytes = live;
    }
    *arena_bytes = UINT64_MAX;
    if (from_start)
        CB_TRY(cb_place(x->steps.p, &shorter, x->arena, (cb_poll){0}, arena_bytes, x->err));
    if (*arena_bytes > x->steps.plan->arena_bytes) {
        for (uint32_t i = 0; i < lives->n_instance; i++)
            shorter.instance[i].offset = x->units->life[i].offset;
        CB_TRY(cb_place_near(x->steps.p, &shorter, x->arena, (cb_poll){0}, arena_bytes, x->err));
    }
    for (uint32_t i = 0; i < lives->n_instance; i++)
        out->life[i].offset = shorter.instance[i].offset;
    return CB_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Makes the unit run separately from now on; with `all`, also the others of its group. Returns
 * false if it already did. */
static bool leave(fusing *x, uint32_t group, uint32_t unit, bool all) {
    const uint32_t *begin = x->unit_begin;
    if (group == x->out.n_group || begin[group + 1] - begin[group] == 1) return false;
    for (uint32_t k = begin[group]; k < begin[group + 1]; k++)
        if (all || x->order[k] == unit) x->alone[x->order[k]] = 1;
    return all || x->alone[unit];
}

/* Removes from its group each unit that makes or last reads a buffer that could not be placed, or,
 * with `all`, splits its group. Returns false if there is no such group. */
static bool split_groups(fusing *x, bool all) {
    const cb_plan *plan = x->steps.plan;
    bool any = false;
    for (uint32_t i = 0; i < plan->lives.n_instance; i++) {
        const cb_life *life = &x->out.life[i], *planned = &x->units->life[i];
        if (life->is_local || life->is_shared) continue;
        if (life->offset + plan->lives.instance[i].bytes <= plan->arena_bytes) continue;
        if (leave(x, life->made, planned->made, all)) any = true;
        if (leave(x, life->last, planned->last, all)) any = true;
    }
    return any;
}

static cb_status attempt(fusing *x, bool from_start, bool *good) {
    const cb_plan *plan = x->steps.plan;
    const size_t n_instance = plan->lives.n_instance;
    uint64_t live_bytes = 0, arena_bytes = 0;
    make_groups(x);
    *good = true;
    if (x->out.n_group == x->units->n_group) {
        if (n_instance) memcpy(x->out.life, x->units->life, n_instance * sizeof *x->out.life);
        return CB_OK;
    }
    find_lives(x);
    CB_TRY(place(x, from_start, &live_bytes, &arena_bytes));
    *good = live_bytes <= plan->live_bytes && arena_bytes <= plan->arena_bytes;
    return CB_OK;
}

static cb_status make_tables(fusing *x) {
    const uint32_t n = x->units->n_group, n_instance = x->steps.plan->lives.n_instance;
    CB_TRY_NEW(x->alone, x->arena, n, x->err);
    CB_TRY_NEW(x->order, x->arena, n, x->err);
    CB_TRY_NEW(x->unit_begin, x->arena, n + (size_t)1, x->err);
    return cb_groups_new(&x->out, n, x->units->n_instr, n_instance, x->arena, x->err);
}

cb_status cb_fuse(const cb_graph *joint, const cb_problem *single, cb_fuses_fn fuses,
                  cb_arena *arena, cb_expanded *e, cb_error *err) {
    const size_t n = sizeof tactics / sizeof tactics[0];
    fusing x = {.units = &e->groups, .arena = arena, .err = err};
    CB_TRY(cb_steps_init(&x.steps, joint, single, &e->plan, arena, err));
    CB_TRY(cb_joining_init(&x.joining, &x.steps, fuses, arena, err));
    CB_TRY(cb_room_init(&x.room, &x.steps, x.units, arena, err));
    CB_TRY(make_tables(&x));
    bool good = false;
    const bool moves = e->plan.schedule.action; /* moved units keep their order */
    for (size_t i = moves ? n - 1 : 0; i < n && !good; i++) {
        x.by = tactics[i];
        memset(x.alone, 0, x.units->n_group);
        for (uint32_t round = 0; round < x.by.rounds && !good; round++) {
            CB_TRY(attempt(&x, round == 0, &good));
            if (!good && !split_groups(&x, 2 * round >= x.by.rounds)) break;
        }
    }
    e->is_fused = x.out.n_group < x.units->n_group;
    e->groups = x.out;
    return CB_OK;
}
