#include "moves.h"

#include <string.h>

typedef struct moving {
    const cb_problem *p;
    const cb_plan *plan;
    const cb_groups *groups;
    const uint32_t *memory;
    cb_program *program;
    cb_arena *scratch;
    cb_error *err;
    uint32_t *instance; /* [n_value] the instance that holds it now */
    uint32_t *left;     /* [n_storage] its newest move out, in the order of the plan */
    cb_move *move;      /* [n_move] in the order of the plan */
    uint32_t *group;    /* [n_move] */
    cb_lives host;      /* one life for each move out */
    uint32_t *life;     /* [n_move] the life of the move out, or of the move out that it brings
                           back */
    uint32_t n_move;
} moving;

static cb_status make_tables(moving *x) {
    const cb_schedule *s = &x->plan->schedule;
    size_t most = 0;
    for (uint32_t t = 0; t < s->n_step; t++) {
        const uint32_t op = s->step[t];
        if (cb_action_at(s, t) != CB_ACTION_RUN)
            most += x->p->out_begin[op + 1] - x->p->out_begin[op];
    }
    CB_TRY_NEW(x->instance, x->scratch, x->p->n_value, x->err);
    CB_TRY_NEW(x->left, x->scratch, x->p->n_storage, x->err);
    CB_TRY_NEW(x->move, x->scratch, most, x->err);
    CB_TRY_NEW(x->group, x->scratch, most, x->err);
    CB_TRY_NEW(x->life, x->scratch, most, x->err);
    CB_TRY_NEW(x->host.instance, x->scratch, most, x->err);
    for (uint32_t v = 0; v < x->p->n_value; v++) x->instance[v] = CB_NONE;
    for (uint32_t k = 0; k < x->p->n_storage; k++) x->left[k] = CB_NONE;
    return CB_OK;
}

static void add(moving *x, cb_move move, uint32_t group, uint32_t life) {
    x->move[x->n_move] = move;
    x->group[x->n_move] = group;
    x->life[x->n_move++] = life;
}

/* A buffer that is brought back and leaves again before anything runs leaves after the group for
 * which it was brought back. */
static void move_out(moving *x, uint32_t step, uint32_t storage, uint32_t instance) {
    const uint32_t buffer = x->memory[instance], made = x->program->buffer[buffer].made;
    uint32_t group = cb_count_before(x->groups->step, x->groups->n_group, step) - 1;
    if (group < made || group == CB_NONE) group = made;
    x->left[storage] = x->n_move;
    x->host.instance[x->host.n_instance] = (cb_instance){
        .storage = storage, .made = group, .last = group, .bytes = x->p->storage_bytes[storage]};
    add(x, (cb_move){.buffer = buffer, .from = CB_NONE}, group, x->host.n_instance++);
}

/* A value that comes back and is freed before anything runs has no reader. */
static void move_in(moving *x, uint32_t step, uint32_t storage, uint32_t instance) {
    const uint32_t group = cb_count_before(x->groups->step, x->groups->n_group, step),
                   out = x->left[storage];
    if (x->groups->life[instance].is_gone || out == CB_NONE) return;
    x->host.instance[x->life[out]].last = group;
    add(x, (cb_move){.buffer = x->memory[instance], .from = out}, group, x->life[out]);
}

/* Moves each storage made by the op once. */
static void take_step(moving *x, uint32_t step) {
    const cb_problem *p = x->p;
    const cb_lives *lives = &x->plan->lives;
    const uint32_t op = x->plan->schedule.step[step], begin = p->out_begin[op],
                   end = p->out_begin[op + 1];
    const cb_action action = cb_action_at(&x->plan->schedule, step);
    if (action == CB_ACTION_WAIT) return;
    const uint32_t first = x->n_move;
    for (uint32_t v = begin; v < end; v++) {
        if (action != CB_ACTION_OUT)
            x->instance[v] = lives->value_instance_out[lives->out_begin[step] + v - begin];
        const uint32_t instance = x->instance[v];
        bool moves =
            action != CB_ACTION_RUN && instance != CB_NONE && !x->groups->life[instance].is_gone;
        for (uint32_t m = first; moves && m < x->n_move; m++)
            moves = x->move[m].buffer != x->memory[instance];
        if (moves && action == CB_ACTION_OUT) move_out(x, step, p->value_storage[v], instance);
        else if (moves) move_in(x, step, p->value_storage[v], instance);
    }
}

/* Sorts by group; within a group, values that come back before those that leave, otherwise in the
 * order of the plan. */
static cb_status sort_moves(moving *x) {
    cb_program *program = x->program;
    uint32_t *at, *next; /* a move's place in the program; the next place of a group */
    CB_TRY_NEW(at, x->scratch, x->n_move, x->err);
    CB_TRY_NEW(next, x->scratch, program->n_group, x->err);
    CB_TRY_NEW(program->move, &program->arena, x->n_move, x->err);
    CB_TRY_NEW(program->move_begin, &program->arena, program->n_group + (size_t)1, x->err);
    for (uint32_t m = 0; m < x->n_move; m++) program->move_begin[x->group[m] + 1]++;
    for (uint32_t g = 0; g < program->n_group; g++)
        program->move_begin[g + 1] += program->move_begin[g];
    memcpy(next, program->move_begin, program->n_group * sizeof *next);
    for (int out = 0; out < 2; out++) {
        for (uint32_t m = 0; m < x->n_move; m++)
            if ((x->move[m].from == CB_NONE) == (out == 1)) at[m] = next[x->group[m]]++;
    }
    for (uint32_t m = 0; m < x->n_move; m++) {
        cb_move *to = &program->move[at[m]];
        *to = x->move[m];
        to->host = x->host.instance[x->life[m]].offset;
        if (to->from != CB_NONE) to->from = at[to->from];
    }
    program->n_move = x->n_move;
    return CB_OK;
}

cb_status cb_lower_moves(const cb_problem *p, const cb_plan *plan, const cb_groups *groups,
                         const uint32_t *memory, cb_arena *scratch, cb_program *program,
                         cb_error *err) {
    moving x = {.p = p,
                .plan = plan,
                .groups = groups,
                .memory = memory,
                .program = program,
                .scratch = scratch,
                .err = err};
    if (!plan->schedule.action) return CB_OK;
    CB_TRY(make_tables(&x));
    for (uint32_t t = 0; t < plan->schedule.n_step; t++) take_step(&x, t);
    CB_TRY(cb_place(p, &x.host, scratch, (cb_poll){0}, &program->host_bytes, err));
    return sort_moves(&x);
}
