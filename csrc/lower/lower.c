/* A plan's schedule becomes a program. View steps vanish (they become operands with other strides).
 * fuse.h determines which of the other steps run together, their order, and the offsets of their
 * results. An instance of the plan becomes a buffer, or a local of the group that it does not
 * outlive.
 *
 *     step      0 matmul   1 reshape   2 relu   3 square   4 transpose   5 matmul
 *     group     0          -           1        1          -             2
 *
 * Results belong to the first run of their op: an argument's memory is written once, and a
 * recomputed result gets a separate buffer. */
#include "../fuse/fuse.h"
#include "moves.h"

typedef struct lowering {
    const cb_graph *g;
    const cb_problem *p;
    const cb_plan *plan;     /* op by op */
    const uint32_t *planned; /* [n_step] step of the original plan; NULL: the same */
    cb_program *program;
    cb_arena scratch;
    cb_error *err;
    cb_groups groups;
    uint32_t *memory;         /* [n_instance] its index into buffer, or into locals */
    uint32_t *storage_input;  /* [n_storage] argument that is this storage, CB_NONE */
    uint32_t *storage_output; /* [n_storage] likewise */
    uint32_t *storage_buffer; /* [n_storage] its first life in memory; CB_NONE: not in the arena */
    uint32_t *value_operand;  /* [n_value] newest operand that shows it, CB_NONE */
    uint8_t *again;           /* [n_step] true if its op has run in an earlier step */
    const char **location;    /* [names] copies in the program's arena, NULL: not yet */
    uint32_t n_operand_id;
} lowering;

static cb_status new_ids(lowering *x, size_t n, uint32_t **ids) {
    CB_TRY_NEW(*ids, &x->scratch, n, x->err);
    for (size_t i = 0; i < n; i++) (*ids)[i] = CB_NONE;
    return CB_OK;
}

/* Counts entries, so that every table of the program is allocated once. */
static cb_status make_tables(lowering *x) {
    const cb_graph *g = x->g;
    const cb_groups *groups = &x->groups;
    cb_program *program = x->program;
    size_t n_ids = 0;
    for (uint32_t i = 0; i < groups->n_instr; i++) {
        const cb_op *op = &g->ops.at[x->plan->schedule.step[groups->step[i]]];
        n_ids += op->n_in + op->n_out;
    }
    program->align = x->p->align;
    program->updates_inside = x->p->updates != NULL;
    program->n_group = groups->n_group;
    program->n_instr = groups->n_instr;
    for (uint32_t i = 0; i < x->plan->lives.n_instance; i++) {
        const cb_life *life = &groups->life[i];
        if (life->is_shared) x->memory[i] = x->memory[life->shared];
        else x->memory[i] = life->is_local ? program->n_local++ : program->n_buffer++;
    }
    program->n_input = (uint32_t)g->inputs.len;
    program->n_output = (uint32_t)g->outputs.len;
    /* an upper limit, because some are shared */
    size_t n_operands = n_ids + program->n_input + program->n_output;
    cb_arena *arena = &program->arena;
    CB_TRY_NEW(program->group, arena, program->n_group, x->err);
    CB_TRY_NEW(program->instr, arena, program->n_instr, x->err);
    CB_TRY_NEW(program->operand, arena, n_operands, x->err);
    CB_TRY_NEW(program->operand_id, arena, n_ids, x->err);
    CB_TRY_NEW(program->buffer, arena, program->n_buffer, x->err);
    CB_TRY_NEW(program->locals, arena, program->n_local, x->err);
    CB_TRY_NEW(program->input, arena, program->n_input, x->err);
    CB_TRY_NEW(program->output, arena, program->n_output, x->err);
    return CB_OK;
}

/* Follows the order of the plan, not that of the groups, because results belong to the first run
 * that makes them. */
static cb_status find_reruns(lowering *x) {
    const cb_schedule *s = &x->plan->schedule;
    const cb_lives *lives = &x->plan->lives;
    uint8_t *ran = CB_NEW(&x->scratch, uint8_t, x->g->ops.len),
            *given = CB_NEW(&x->scratch, uint8_t, x->g->storages.len);
    if (!ran || !given) return cb_no_memory(x->err);
    for (uint32_t step = 0; step < s->n_step; step++) {
        if (cb_action_at(s, step) != CB_ACTION_RUN) continue;
        const cb_op *op = &x->g->ops.at[s->step[step]];
        x->again[step] = ran[s->step[step]];
        ran[s->step[step]] = 1;
        for (uint32_t k = 0; k < op->n_out; k++) {
            const uint32_t instance = lives->value_instance_out[lives->out_begin[step] + k],
                           storage = x->g->values.at[op->out_begin + k].storage;
            if (given[storage] || (instance != CB_NONE && x->groups.life[instance].is_local))
                continue;
            x->storage_buffer[storage] = instance;
            given[storage] = 1;
        }
    }
    return CB_OK;
}

static cb_status make_scratch(lowering *x) {
    const cb_graph *g = x->g;
    CB_TRY_NEW(x->memory, &x->scratch, x->plan->lives.n_instance, x->err);
    CB_TRY(new_ids(x, g->storages.len, &x->storage_input));
    CB_TRY(new_ids(x, g->storages.len, &x->storage_output));
    CB_TRY(new_ids(x, g->storages.len, &x->storage_buffer));
    CB_TRY(new_ids(x, g->values.len, &x->value_operand));
    CB_TRY_NEW(x->again, &x->scratch, x->plan->schedule.n_step, x->err);
    CB_TRY_NEW(x->location, &x->scratch, g->names.len, x->err);
    for (size_t i = 0; i < g->inputs.len; i++) {
        cb_value_id value = g->ops.at[g->inputs.at[i]].out_begin;
        x->storage_input[g->values.at[value].storage] = (uint32_t)i;
    }
    for (size_t i = 0; i < g->outputs.len; i++)
        x->storage_output[g->values.at[g->outputs.at[i].value].storage] = (uint32_t)i;
    return CB_OK;
}

static void lower_buffers(lowering *x) {
    const cb_lives *lives = &x->plan->lives;
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_life *life = &x->groups.life[i];
        const uint64_t bytes = life->is_gone ? 0 : lives->instance[i].bytes;
        if (life->is_shared) continue;
        if (life->is_local) {
            x->program->locals[x->memory[i]] = (cb_local){.bytes = bytes, .group = life->made};
        } else {
            x->program->buffer[x->memory[i]] =
                (cb_buffer){.bytes = bytes,
                            .offset = life->offset,
                            .made = life->made,
                            .last = life->last,
                            .takes_over = life->takes_over,
                            .over = life->takes_over ? x->memory[life->over] : 0};
        }
    }
}

/* Returns the operand that shows `value` in the life `instance` of its storage; CB_NONE: in an
 * argument's memory. The same value in the same memory is one operand. */
static uint32_t operand_of(lowering *x, cb_value_id value, uint32_t instance) {
    const cb_value *v = &x->g->values.at[value];
    cb_operand operand = {.dtype = v->dtype, .shape = v->shape, .offset = v->offset};
    memcpy(operand.stride, v->stride, sizeof operand.stride);
    if (instance != CB_NONE) {
        operand.space = x->groups.life[instance].is_local ? CB_SPACE_LOCAL : CB_SPACE_ARENA;
        operand.buffer = x->memory[instance];
    } else if (x->storage_input[v->storage] != CB_NONE) {
        operand.space = CB_SPACE_INPUT;
        operand.buffer = x->storage_input[v->storage];
    } else {
        operand.space = CB_SPACE_OUTPUT;
        operand.buffer = x->storage_output[v->storage];
    }
    uint32_t known = x->value_operand[value];
    bool same = known != CB_NONE && x->program->operand[known].space == operand.space;
    if (same && x->program->operand[known].buffer == operand.buffer) return known;
    x->value_operand[value] = x->program->n_operand;
    x->program->operand[x->program->n_operand] = operand;
    return x->program->n_operand++;
}

static const char *location_of(lowering *x, const cb_op *op) {
    if (op->location == CB_NONE) return "";
    if (!x->location[op->location]) {
        const char *text = cb_graph_name(x->g, op->location);
        x->location[op->location] = cb_arena_strdup(&x->program->arena, text, strlen(text));
    }
    return x->location[op->location];
}

static uint32_t planned(const lowering *x, uint32_t step) {
    return step == CB_NONE || !x->planned ? step : x->planned[step];
}

static cb_status lower_instr(lowering *x, uint32_t at) {
    const cb_lives *lives = &x->plan->lives;
    cb_program *program = x->program;
    const uint32_t step = x->groups.step[at], scratch = lives->scratch_instance[step];
    cb_op_id id = x->plan->schedule.step[step];
    const cb_op *op = &x->g->ops.at[id];
    cb_instr *instr = &program->instr[at];
    *instr = (cb_instr){
        .code = op->code,
        .attrs = *cb_op_attrs(x->g, id),
        .n_in = op->n_in,
        .n_out = op->n_out,
        .op = id,
        .step = planned(x, step),
        .scratch = scratch == CB_NONE ? CB_NONE : x->memory[scratch],
        .part = (cb_part)x->groups.part[at],
        .recomputed = x->again[step],
        .location = location_of(x, op),
    };
    if (!instr->location) return cb_no_memory(x->err);
    instr->in_begin = x->n_operand_id;
    for (uint32_t k = 0; k < op->n_in; k++) {
        uint32_t instance = lives->value_instance_in[lives->in_begin[step] + k];
        program->operand_id[x->n_operand_id++] = operand_of(x, cb_op_ins(x->g, id)[k], instance);
    }
    instr->out_begin = x->n_operand_id;
    for (uint32_t k = 0; k < op->n_out; k++) {
        cb_value_id value = op->out_begin + k;
        uint32_t instance = lives->value_instance_out[lives->out_begin[step] + k];
        program->operand_id[x->n_operand_id++] = operand_of(x, value, instance);
    }
    return CB_OK;
}

static cb_status lower_groups(lowering *x) {
    const cb_groups *groups = &x->groups;
    for (uint32_t g = 0; g < groups->n_group; g++) {
        x->program->group[g] = (cb_group){.instr_begin = groups->begin[g],
                                          .n_instr = groups->begin[g + 1] - groups->begin[g],
                                          .domain = groups->domain[g],
                                          .end = (cb_group_end)groups->end[g],
                                          .end_step = planned(x, groups->end_step[g]),
                                          .end_wait = planned(x, groups->end_wait[g])};
    }
    for (uint32_t i = 0; i < groups->n_instr; i++) CB_TRY(lower_instr(x, i));
    x->program->backward_starts = groups->backward_starts;
    return CB_OK;
}

static cb_status lower_argument(lowering *x, cb_value_id value, uint32_t name, cb_argument *out) {
    const cb_value *v = &x->g->values.at[value];
    const char *text = cb_graph_name(x->g, name);
    *out = (cb_argument){
        .name = cb_arena_strdup(&x->program->arena, text, strlen(text)),
        .dtype = v->dtype,
        .shape = v->shape,
        .bytes = (uint64_t)cb_numel(&v->shape) * cb_dtype_size(v->dtype),
        .input = CB_NONE,
        .operand = operand_of(x, value, x->storage_buffer[v->storage]),
    };
    return out->name ? CB_OK : cb_no_memory(x->err);
}

static cb_status lower_arguments(lowering *x) {
    const cb_graph *g = x->g;
    for (size_t i = 0; i < g->inputs.len; i++) {
        const cb_op *op = &g->ops.at[g->inputs.at[i]];
        cb_argument *input = &x->program->input[i];
        CB_TRY(lower_argument(x, op->out_begin, op->name, input));
        input->role_or_kind = (uint32_t)g->attrs.at[op->attrs].i[0];
    }
    for (size_t i = 0; i < g->outputs.len; i++) {
        const cb_output *from = &g->outputs.at[i];
        cb_argument *output = &x->program->output[i];
        CB_TRY(lower_argument(x, from->value, from->name, output));
        output->role_or_kind = from->kind;
        output->input = from->input;
    }
    return CB_OK;
}

/* Computes the peak of live bytes over groups and the arena's end from the buffers. With `exact`
 * they must equal the plan's. */
static cb_status measure(lowering *x, bool exact) {
    cb_program *program = x->program;
    uint64_t *starts = CB_NEW(&x->scratch, uint64_t, program->n_group + (size_t)1);
    uint64_t *ends = CB_NEW(&x->scratch, uint64_t, program->n_group + (size_t)1);
    if (!starts || !ends) return cb_no_memory(x->err);
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const cb_buffer *buffer = &program->buffer[b];
        starts[buffer->made] += buffer->bytes;
        ends[buffer->last] += buffer->bytes;
        if (buffer->takes_over) { /* the two buffers are one */
            starts[buffer->made] -= buffer->bytes;
            ends[buffer->made] -= buffer->bytes;
        }
        uint64_t end =
            (buffer->offset + buffer->bytes + program->align - 1) & ~(program->align - 1);
        if (end > program->arena_bytes) program->arena_bytes = end;
    }
    uint64_t live = 0;
    for (uint32_t group = 0; group < program->n_group; group++) {
        live += starts[group];
        if (live > program->live_bytes) program->live_bytes = live;
        live -= ends[group];
    }
    const bool over = program->live_bytes > x->plan->live_bytes ||
                      program->arena_bytes > x->plan->arena_bytes,
               same = program->live_bytes == x->plan->live_bytes &&
                      program->arena_bytes == x->plan->arena_bytes;
    if (over || (exact && !same)) {
        return cb_fail(
            x->err, CB_INTERNAL,
            "lower: live %llu and arena %llu bytes; the plan says %llu and %llu",
            (unsigned long long)program->live_bytes, (unsigned long long)program->arena_bytes,
            (unsigned long long)x->plan->live_bytes, (unsigned long long)x->plan->arena_bytes);
    }
    return CB_OK;
}

/* Refuses plans of groups. Ops of the problem must be those of the graph, so that no op is made in
 * part or inlined. */
static cb_status refuse_groups(const cb_problem *p, const cb_plan *plan, cb_error *err) {
    const cb_schedule *s = &plan->schedule;
    CB_TRY(cb_refuse_insides(p, "lower, op by op", err));
    for (uint32_t t = 0; t < s->n_step; t++) {
        if (!cb_taken_at(s, t)) continue;
        return cb_fail(
            err, CB_UNSUPPORTED,
            "lower, op by op: step %u (%s) inlines a value that no kernel computes itself", t,
            p->op_name[s->step[t]]);
    }
    return CB_OK;
}

static cb_status lower_all(lowering *x, const cb_expanded *expanded) {
    CB_TRY(make_scratch(x));
    CB_TRY(find_reruns(x));
    CB_TRY(make_tables(x));
    lower_buffers(x);
    CB_TRY(cb_lower_moves(x->p, x->plan, &x->groups, x->memory, &x->scratch, x->program, x->err));
    CB_TRY(lower_groups(x));
    CB_TRY(lower_arguments(x));
    return measure(x, expanded->step && !expanded->is_fused);
}

static cb_status lower_expanded(const cb_graph *joint, const cb_problem *single,
                                const cb_expanded *expanded, cb_alloc *alloc, cb_program **out,
                                cb_error *err) {
    cb_arena arena;
    cb_arena_init(&arena, alloc);
    cb_program *program = CB_NEW(&arena, cb_program, 1);
    if (!program) {
        cb_arena_free(&arena);
        return cb_no_memory(err);
    }
    program->arena = arena;
    lowering x = {.g = joint,
                  .p = single,
                  .plan = &expanded->plan,
                  .planned = expanded->step,
                  .groups = expanded->groups,
                  .program = program,
                  .err = err};
    cb_arena_init(&x.scratch, alloc);
    const cb_status status = lower_all(&x, expanded);
    cb_arena_free(&x.scratch);
    if (status == CB_OK) *out = program;
    else cb_program_free(program);
    return status;
}

cb_status cb_lower_plan(const cb_lowered *of, const cb_plan *plan, cb_arena *arena,
                        cb_expanded *expanded, cb_program **out, cb_error *err) {
    const bool is_single = !of->grouping;
    if (is_single) CB_TRY(refuse_groups(of->single, plan, err));
    CB_TRY(cb_expand(of->joint, of->single, of->grouping, of->p, plan, arena, expanded, err));
    if (of->fuses) CB_TRY(cb_fuse(of->joint, of->single, of->fuses, arena, expanded, err));
    return lower_expanded(of->joint, of->single, expanded, arena->alloc, out, err);
}

void cb_program_free(cb_program *program) {
    if (!program) return;
    cb_arena arena = program->arena; /* the program is allocated in it */
    cb_arena_free(&arena);
}
