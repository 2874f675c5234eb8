#include "steps.h"

#include "../plan/model/updates.h"

static bool reads(const cb_graph *g, cb_op_id id, cb_value_id first, uint32_t n) {
    const cb_value_id *ins = cb_op_ins(g, id);
    bool is = false;
    for (uint32_t k = 0; k < g->ops.at[id].n_in; k++) is |= ins[k] - first < n;
    return is;
}

/* True if no op reads the outputs after the first. This happens only for norms with a constant
 * weight, such as norms of groups of channels. */
static bool has_one_result(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const bool is_norm = op->code == CB_OP_LAYER_NORM_BWD || op->code == CB_OP_RMS_NORM_BWD;
    if (!is_norm) return false;
    const cb_op_id maker = g->values.at[cb_op_ins(g, id)[2]].producer;
    const cb_value_id first = op->out_begin + 1;
    bool is_read = g->ops.at[maker].code != CB_OP_FULL;
    for (uint32_t k = 0; k < g->outputs.len && !is_read; k++)
        is_read = g->outputs.at[k].value - first < op->n_out - 1;
    for (cb_op_id at = id + 1; at < g->ops.len && !is_read; at++)
        is_read = reads(g, at, first, op->n_out - 1);
    return !is_read;
}

cb_shaped cb_shaped_op(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const cb_value *values = g->values.at;
    const cb_value_id *ins = cb_op_ins(g, id);
    return (cb_shaped){
        .code = op->code,
        .attrs = cb_op_attrs(g, id),
        .in0 = op->n_in > 0 ? &values[ins[0]].shape : NULL,
        .in1 = op->n_in > 1 ? &values[ins[1]].shape : NULL,
        .out0 = &values[op->out_begin].shape,
        .has_one_result = has_one_result(g, id),
    };
}

static bool is_run(const cb_steps *s, uint32_t step) {
    return !(s->p->op_flags[cb_step_id(s, step)] & CB_POP_VIEW) &&
           cb_action_at(&s->plan->schedule, step) == CB_ACTION_RUN;
}

/* Finds gradients. A gradient comes from its op's first run. */
static cb_status find_gradients(cb_steps *s, cb_arena *arena, cb_error *err) {
    const cb_problem *p = s->p;
    const uint32_t n_step = s->plan->schedule.n_step, n_instance = s->plan->lives.n_instance;
    if (!p->updates) return CB_OK;
    CB_TRY_NEW(s->gradient_at, arena, s->n_place, err);
    for (uint32_t i = 0; i < s->n_place; i++) s->gradient_at[i] = CB_NONE;
    for (uint32_t step = 0; step < n_step; step++) {
        for (uint32_t k = 0; is_run(s, step) && k < cb_step_op(s, step)->n_out; k++) {
            const uint32_t storage = p->value_storage[cb_step_op(s, step)->out_begin + k];
            if (!cb_is_updating(p, storage)) continue;
            uint32_t *at = &s->gradient_at[n_instance + p->updates[storage]];
            if (*at == CB_NONE) *at = cb_place_out(s, step, k);
        }
    }
    for (uint32_t step = 0; step < n_step; step++) {
        for (uint32_t k = 0; is_run(s, step) && k < cb_step_op(s, step)->n_in; k++) {
            const uint32_t gradient = cb_gradient_of(s, cb_place_in(s, step, k));
            if (gradient != CB_NONE) s->reads[gradient]++;
        }
    }
    return CB_OK;
}

cb_status cb_steps_init(cb_steps *s, const cb_graph *g, const cb_problem *p, const cb_plan *plan,
                        cb_arena *arena, cb_error *err) {
    const uint32_t n_step = plan->schedule.n_step;
    *s = (cb_steps){.g = g, .p = p, .plan = plan};
    s->n_place = plan->lives.n_instance + (uint32_t)g->storages.len;
    CB_TRY_NEW(s->maker, arena, s->n_place, err);
    CB_TRY_NEW(s->reads, arena, s->n_place, err);
    for (uint32_t i = 0; i < s->n_place; i++) s->maker[i] = CB_NONE;
    for (uint32_t step = 0; step < n_step; step++) {
        if (!is_run(s, step)) continue;
        const cb_op *op = cb_step_op(s, step);
        for (uint32_t k = 0; k < op->n_in; k++) s->reads[cb_place_in(s, step, k)]++;
        for (uint32_t k = 0; k < op->n_out; k++) {
            uint32_t *maker = &s->maker[cb_place_out(s, step, k)];
            if (*maker == CB_NONE) *maker = step;
        }
    }
    return find_gradients(s, arena, err);
}

cb_status cb_steps_once(cb_steps *s, cb_plan *plan, const cb_graph *g, const cb_problem *p,
                        cb_arena *arena, cb_error *err) {
    const uint32_t n = (uint32_t)g->ops.len;
    uint32_t *step = CB_NEW(arena, uint32_t, n), *in = CB_NEW(arena, uint32_t, n + (size_t)1),
             *out = CB_NEW(arena, uint32_t, n + (size_t)1);
    if (!step || !in || !out) return cb_no_memory(err);
    for (uint32_t i = 0; i < n; i++) {
        step[i] = i;
        in[i + 1] = in[i] + g->ops.at[i].n_in;
        out[i + 1] = out[i] + g->ops.at[i].n_out;
    }
    uint32_t *none = CB_NEW(arena, uint32_t, (size_t)in[n] + out[n]);
    if (!none) return cb_no_memory(err);
    for (uint32_t i = 0; i < in[n] + out[n]; i++) none[i] = CB_NONE;
    plan->schedule = (cb_schedule){.n_step = n, .step = step};
    plan->lives = (cb_lives){
        .value_instance_in = none, .value_instance_out = none, .in_begin = in, .out_begin = out};
    return cb_steps_init(s, g, p, plan, arena, err);
}

bool cb_step_shares_scratch(const cb_steps *s, uint32_t step, uint32_t other) {
    const int a = cb_op_index_input(cb_step_op(s, step)->code),
              b = cb_op_index_input(cb_step_op(s, other)->code);
    const uint64_t bytes = cb_step_scratch(s, step);
    if (a < 0 || b < 0 || bytes == 0 || cb_step_scratch(s, other) != bytes) return false;
    const cb_value_id index = cb_op_ins(s->g, cb_step_id(s, step))[a];
    if (cb_op_ins(s->g, cb_step_id(s, other))[b] != index) return false;
    const cb_value *v = &s->g->values.at[index];
    return bytes == cb_align_up((size_t)cb_numel(&v->shape) * cb_dtype_size(v->dtype));
}

static bool is_made_here(const cb_taking *x, uint32_t instance) {
    const uint32_t maker = x->steps->maker[instance];
    bool is = false;
    for (uint32_t i = 0; i < x->n && !is; i++) is = x->step[i] == maker;
    return is;
}

/* Returns how often the group reads an instance. */
static uint32_t count_reads(const cb_taking *x, uint32_t instance) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->n; i++)
        for (uint32_t k = 0; k < cb_step_op(x->steps, x->step[i])->n_in; k++)
            n += cb_place_in(x->steps, x->step[i], k) == instance;
    return n;
}

uint32_t cb_taken(const cb_taking *x, uint32_t at) {
    const cb_lives *lives = &x->steps->plan->lives;
    const uint32_t out = cb_place_out(x->steps, x->step[at], 0);
    if (out >= lives->n_instance) return CB_NONE;
    uint32_t from = lives->over[out];
    while (from != CB_NONE && x->ends(x->user, from) && is_made_here(x, from))
        from = lives->over[from];
    const bool takes = from != CB_NONE && x->ends(x->user, from) && !is_made_here(x, from) &&
                       count_reads(x, from) == 1;
    return takes ? from : CB_NONE;
}
