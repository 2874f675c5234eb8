/* A step runs the members that lead to its outputs and inlined values, each once, in order of ids.
 * Inputs made by the same op or inlined into the step stay inside; the others are read where the
 * plan placed them. The scratch of a step is divided among its members in order; the last gets the
 * rest. */
#include "expand.h"

#include "../base/sort.h"
#include "../plan/model/inlining.h"
#include "contract.h"
#include "steps.h"

#define IN_ARGUMENT CB_NONE

typedef struct expanding {
    const cb_graph *g;
    const cb_problem *single; /* op by op */
    const cb_grouping *by;
    const cb_problem *p;
    const cb_plan *plan;
    cb_expanded *out;
    cb_arena *arena, *scratch;
    cb_error *err;
    uint32_t *value; /* [values of the graph] the value of the problem */
    uint32_t *from;  /* [values of the problem] the value of the graph */
    uint8_t *slice;  /* [ops of the graph] true if it runs in the current step */
    uint32_t *run;   /* ops of the graph that the current step runs */
    uint32_t n_run;
    uint8_t *is_taken;  /* [values of the problem] true if the current step makes it */
    uint32_t *instance; /* [values of the problem] instance that the current step reads */
    uint32_t *inner;    /* [values of the graph] instance that the current step has made */
    uint32_t *ops;      /* [steps written] ops of the graph */
    uint32_t n_step, n_in, n_out, n_instance; /* counts of what has been written so far */
} expanding;

cb_status cb_groups_new(cb_groups *groups, size_t n_group, size_t n_instr, size_t n_instance,
                        cb_arena *arena, cb_error *err) {
    CB_TRY_NEW(groups->begin, arena, n_group + 1, err);
    CB_TRY_NEW(groups->step, arena, n_instr, err);
    CB_TRY_NEW(groups->part, arena, n_instr, err);
    CB_TRY_NEW(groups->domain, arena, n_group, err);
    CB_TRY_NEW(groups->end, arena, n_group, err);
    CB_TRY_NEW(groups->end_step, arena, n_group, err);
    CB_TRY_NEW(groups->end_wait, arena, n_group, err);
    CB_TRY_NEW(groups->life, arena, n_instance, err);
    return CB_OK;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static bool has_bit(uint64_t bits, uint32_t i) { return bits >> i & 1; }

static void mark(expanding *x, uint32_t value) {
    const uint32_t op = x->by->op_of[x->g->values.at[value].producer];
    cb_mark_slice(x->by, x->g, value, x->slice);
    for (uint32_t k = x->by->begin[op]; k < x->by->begin[op + 1]; k++) {
        const uint32_t id = x->by->member[k];
        if (x->slice[id] == 1) x->run[x->n_run++] = id;
        if (x->slice[id]) x->slice[id] = 2;
    }
}

/* Fills x->run with the ops that a step runs, and marks the inlined values. */
static void find_run(expanding *x, uint32_t step) {
    const cb_problem *p = x->p;
    const uint32_t op = x->plan->schedule.step[step],
                   made = cb_made_at(p, &x->plan->schedule, step);
    const uint64_t taken = cb_taken_at(&x->plan->schedule, step);
    for (uint32_t i = 0; i < x->n_run; i++) x->slice[x->run[i]] = 0;
    x->n_run = 0;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
        if (cb_makes(made, v - p->out_begin[op])) mark(x, x->from[v]);
    for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++)
        if (has_bit(taken, i)) mark(x, x->from[p->inlining[p->inline_begin[op] + i].value]);
    cb_sort_ids(x->run, x->n_run);
}

static void note_taken(expanding *x, uint32_t step, uint8_t is_taken) {
    const uint32_t op = x->plan->schedule.step[step];
    const uint64_t taken = cb_taken_at(&x->plan->schedule, step);
    for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++)
        if (has_bit(taken, i))
            x->is_taken[x->p->inlining[x->p->inline_begin[op] + i].value] = is_taken;
}

static cb_status make_scratch(expanding *x) {
    const size_t n_value = x->g->values.len, n_op = x->g->ops.len;
    CB_TRY(cb_contracted_values(x->g, x->by, x->scratch, &x->value, x->err));
    CB_TRY_NEW(x->from, x->scratch, x->p->n_value, x->err);
    CB_TRY_NEW(x->slice, x->scratch, n_op, x->err);
    CB_TRY_NEW(x->run, x->scratch, n_op, x->err);
    CB_TRY_NEW(x->is_taken, x->scratch, x->p->n_value, x->err);
    CB_TRY_NEW(x->instance, x->scratch, x->p->n_value, x->err);
    CB_TRY_NEW(x->inner, x->scratch, n_value, x->err);
    for (uint32_t v = 0; v < n_value; v++)
        if (x->by->root[v] == v && x->value[v] != CB_NONE) x->from[x->value[v]] = v;
    return CB_OK;
}

/* Allocates arrays for everything that the steps run. */
static cb_status make_arrays(expanding *x) {
    const uint32_t n_old = x->plan->schedule.n_step;
    uint32_t n = 0, n_in = 0, n_out = 0;
    for (uint32_t t = 0; t < n_old; t++) {
        find_run(x, t);
        n += x->n_run;
        for (uint32_t i = 0; i < x->n_run; i++) n_in += x->g->ops.at[x->run[i]].n_in;
        for (uint32_t i = 0; i < x->n_run; i++) n_out += x->g->ops.at[x->run[i]].n_out;
    }
    const size_t n_instance = x->plan->lives.n_instance + (size_t)n_out + n;
    cb_lives *lives = &x->out->plan.lives;
    CB_TRY_NEW(x->out->step, x->arena, n, x->err);
    CB_TRY_NEW(x->ops, x->arena, n, x->err);
    CB_TRY_NEW(lives->instance, x->arena, n_instance, x->err);
    CB_TRY_NEW(lives->value_instance_in, x->arena, n_in, x->err);
    CB_TRY_NEW(lives->value_instance_out, x->arena, n_out, x->err);
    CB_TRY_NEW(lives->in_begin, x->arena, n + (size_t)1, x->err);
    CB_TRY_NEW(lives->out_begin, x->arena, n + (size_t)1, x->err);
    CB_TRY_NEW(lives->scratch_instance, x->arena, n, x->err);
    return cb_groups_new(&x->out->groups, n_old, n, n_instance, x->arena, x->err);
}

/* ---- lives ----------------------------------------------------------------------------------- */

/* Copies the plan's lives: each step is a group. */
static void copy_lives(expanding *x) {
    const cb_lives *old = &x->plan->lives;
    for (uint32_t i = 0; i < old->n_instance; i++) {
        const cb_instance *life = &old->instance[i];
        x->out->plan.lives.instance[i] = *life;
        x->out->groups.life[i] =
            (cb_life){.made = life->made, .last = life->last, .offset = life->offset};
    }
    x->n_instance = old->n_instance;
}

static uint32_t add_life(expanding *x, uint32_t storage, uint64_t bytes, cb_life life) {
    x->out->plan.lives.instance[x->n_instance] = (cb_instance){.storage = storage,
                                                               .made = life.made,
                                                               .last = life.last,
                                                               .bytes = bytes,
                                                               .offset = life.offset};
    x->out->groups.life[x->n_instance] = life;
    return x->n_instance++;
}

/* Finds the instances that a step reads, in the order of the plan's list. */
static void find_instances(expanding *x, uint32_t step) {
    const cb_lives *old = &x->plan->lives;
    const uint32_t op = x->plan->schedule.step[step];
    cb_reading reading = cb_read_run(x->p, op, cb_made_at(x->p, &x->plan->schedule, step),
                                     cb_taken_at(&x->plan->schedule, step));
    const uint32_t *at = old->value_instance_in + old->in_begin[step];
    for (uint32_t v; cb_read_next(&reading, &v); at++)
        if (v != CB_NONE) x->instance[v] = *at;
}

/* ---- one step -------------------------------------------------------------------------------- */

static uint32_t instance_read(const expanding *x, uint32_t id, uint32_t value) {
    const uint32_t root = x->by->root[value], maker = x->g->values.at[root].producer;
    const bool inside = x->by->op_of[maker] == x->by->op_of[id] ||
                        (x->value[root] != CB_NONE && x->is_taken[x->value[root]]);
    return inside ? x->inner[root] : x->instance[x->value[root]];
}

/* Returns the instance of an output of an op of the graph: that of the step, or a local. */
static uint32_t instance_made(expanding *x, uint32_t step, uint32_t id, uint32_t value) {
    const cb_problem *p = x->p;
    const uint32_t op = x->plan->schedule.step[step], v = x->value[value];
    const bool own = x->by->op_of[id] == op && v != CB_NONE;
    const cb_storage_id storage = x->g->values.at[value].storage;
    if (own && cb_makes(cb_made_at(p, &x->plan->schedule, step), v - p->out_begin[op])) {
        const cb_lives *old = &x->plan->lives;
        return old->value_instance_out[old->out_begin[step] + (v - p->out_begin[op])];
    }
    return add_life(x, storage, x->g->storages.at[storage].bytes,
                    (cb_life){.made = step, .last = step, .is_local = true});
}

/* Adds an op. Returns true if it makes a local. */
static bool add_op(expanding *x, uint32_t step, uint32_t id) {
    const cb_op *op = &x->g->ops.at[id];
    cb_lives *lives = &x->out->plan.lives;
    bool any = false;
    for (uint32_t k = 0; k < op->n_in; k++)
        lives->value_instance_in[x->n_in++] = instance_read(x, id, cb_op_ins(x->g, id)[k]);
    for (uint32_t v = op->out_begin; v < op->out_begin + op->n_out; v++) {
        x->inner[v] = lives->value_instance_out[x->n_out++] = instance_made(x, step, id, v);
        any |= x->inner[v] != IN_ARGUMENT && x->out->groups.life[x->inner[v]].is_local;
    }
    x->out->step[x->n_step] = step;
    x->out->groups.step[x->n_step] = x->n_step;
    x->n_step++;
    lives->in_begin[x->n_step] = x->n_in;
    lives->out_begin[x->n_step] = x->n_out;
    return any;
}

/* Divides the scratch of the step among the members that need some. */
static void share_scratch(expanding *x, uint32_t step, uint32_t first) {
    const cb_lives *old = &x->plan->lives;
    cb_lives *lives = &x->out->plan.lives;
    const uint32_t whole = old->scratch_instance[step];
    uint32_t last = CB_NONE, instance = whole;
    for (uint32_t i = first; i < x->n_step; i++) {
        lives->scratch_instance[i] = CB_NONE;
        if (x->single->op_workspace[x->ops[i]] > 0) last = i;
    }
    if (last == CB_NONE) return;
    uint64_t begin = old->instance[whole].offset, left = old->instance[whole].bytes;
    for (uint32_t i = first; i <= last; i++) {
        const uint64_t own = x->single->op_workspace[x->ops[i]];
        if (own == 0) continue;
        const uint64_t bytes = i == last ? left : (own + x->p->align - 1) & ~(x->p->align - 1);
        if (instance == CB_NONE)
            instance = add_life(x, CB_NONE, bytes, (cb_life){.made = step, .last = step});
        lives->instance[instance].bytes = bytes;
        x->out->groups.life[instance].offset = begin;
        lives->scratch_instance[i] = instance;
        begin += bytes;
        left -= bytes;
        instance = CB_NONE; /* the first one has the scratch of the plan */
    }
}

static cb_part part_of(const expanding *x, uint32_t id, const cb_domain *domain) {
    const cb_shaped op = cb_shaped_op(x->g, id);
    return cb_part_of(&op, domain);
}

/* A group of one instruction has a domain only if it makes a local. */
static void add_step(expanding *x, uint32_t step) {
    cb_groups *groups = &x->out->groups;
    const cb_domain domain = x->by->domain[x->plan->schedule.step[step]];
    const uint32_t first = x->n_step;
    bool fuses = false;
    find_run(x, step);
    find_instances(x, step);
    note_taken(x, step, 1);
    for (uint32_t i = 0; i < x->n_run; i++) {
        x->ops[x->n_step] = x->run[i];
        fuses |= add_op(x, step, x->run[i]);
    }
    note_taken(x, step, 0);
    fuses |= x->n_run > 1;
    for (uint32_t i = first; i < x->n_step; i++)
        groups->part[i] = (uint8_t)(fuses ? part_of(x, x->ops[i], &domain) : CB_PART_NONE);
    groups->domain[step] = fuses ? domain : (cb_domain){0};
    groups->begin[step + 1] = x->n_step;
    groups->end[step] = CB_END_PLAN;
    groups->end_step[step] = groups->end_wait[step] = CB_NONE;
    share_scratch(x, step, first);
}

/* ---- a plan of single ops -------------------------------------------------------------------- */

/* Keeps the plan's lives: a step that runs and is not a view is a group, and offsets come from the
 * plan. A value brought back from the host is made for the next step that runs. A life that only
 * views read ends with the last group before the view. */
static void keep_lives(expanding *x) {
    const cb_lives *lives = &x->plan->lives;
    const cb_groups *groups = &x->out->groups;
    const uint32_t n_group = groups->n_group;
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_instance *life = &lives->instance[i];
        cb_life *to = &groups->life[i];
        const uint32_t made = cb_count_before(groups->step, n_group, life->made),
                       end = life->last == x->plan->schedule.n_step
                                 ? n_group + 1
                                 : cb_count_before(groups->step, n_group, life->last + 1);
        to->is_gone = made == n_group || end <= made;
        to->made = made < n_group ? made : n_group - 1;
        to->last = to->is_gone ? to->made : end - 1;
        to->offset = life->offset;
        if (!lives->over || lives->over[i] == CB_NONE) continue;
        to->takes_over = true;
        to->over = lives->over[i];
    }
}

static cb_status keep_steps(expanding *x) {
    const cb_schedule *s = &x->plan->schedule;
    cb_groups *groups = &x->out->groups;
    x->out->plan = *x->plan;
    const uint32_t n_instance = x->plan->lives.n_instance;
    CB_TRY(cb_groups_new(groups, s->n_step, s->n_step, n_instance, x->arena, x->err));
    for (uint32_t t = 0; t < s->n_step; t++) {
        if (t == s->backward_starts) groups->backward_starts = groups->n_group;
        if (x->p->op_flags[s->step[t]] & CB_POP_VIEW || cb_action_at(s, t) != CB_ACTION_RUN)
            continue;
        groups->end[groups->n_group] = CB_END_BACKEND;
        groups->end_step[groups->n_group] = groups->end_wait[groups->n_group] = CB_NONE;
        groups->step[groups->n_group++] = t;
        groups->begin[groups->n_group] = groups->n_group;
    }
    if (s->backward_starts >= s->n_step) groups->backward_starts = groups->n_group;
    groups->n_instr = groups->n_group;
    keep_lives(x);
    return CB_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

static cb_status expand_all(expanding *x) {
    const cb_schedule *s = &x->plan->schedule;
    cb_expanded *out = x->out;
    if (s->action)
        return cb_fail(x->err, CB_UNSUPPORTED,
                       "a plan in groups moves values to the host, which runs op by op only: plan "
                       "without groups, or without offload");
    CB_TRY(make_scratch(x));
    CB_TRY(make_arrays(x));
    copy_lives(x);
    for (uint32_t t = 0; t < s->n_step; t++) add_step(x, t);
    out->plan.schedule = (cb_schedule){.n_step = x->n_step,
                                       .step = x->ops,
                                       .backward_starts = out->groups.begin[s->backward_starts]};
    out->plan.lives.n_instance = x->n_instance;
    out->plan.device = x->plan->device;
    out->plan.live_bytes = x->plan->live_bytes;
    out->plan.arena_bytes = x->plan->arena_bytes;
    out->groups.n_group = s->n_step;
    out->groups.n_instr = x->n_step;
    out->groups.backward_starts = s->backward_starts;
    return CB_OK;
}

cb_status cb_expand(const cb_graph *joint, const cb_problem *single, const cb_grouping *grouping,
                    const cb_problem *p, const cb_plan *plan, cb_arena *arena, cb_expanded *out,
                    cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, arena->alloc);
    *out = (cb_expanded){0};
    expanding x = {.g = joint,
                   .single = single,
                   .by = grouping,
                   .p = p,
                   .plan = plan,
                   .out = out,
                   .arena = arena,
                   .scratch = &scratch,
                   .err = err};
    const cb_status status = grouping ? expand_all(&x) : keep_steps(&x);
    cb_arena_free(&scratch);
    return status;
}
