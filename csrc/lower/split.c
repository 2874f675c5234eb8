/* Writes the plan's steps as two graphs. Each half is built in two passes over its steps: the first
 * finds what it needs from outside, the second appends the inputs and then the ops.
 *
 *     plan      f0 f1 f2 f3 | b0 f1' b1          f1' runs f1 again
 *     forward   inputs, f0 f1 f2 f3, outputs: results, saved_0 ...
 *     backward  inputs: saved_0 ..., arguments; b0 f1' b1, outputs: gradients
 *
 * Whole storages cross, because whole storages stay in memory: a view of a saved storage that the
 * backward reads but the plan does not run again is cloned at its first use. That costs nothing,
 * and the bytes that cross are those the plan counts. Except for such views, ops are in the order
 * of steps. */
#include "split.h"

typedef struct half {
    const cb_graph *joint;
    const cb_plan *plan;
    cb_arena *scratch;
    cb_error *err;
    cb_graph *out;
    uint32_t begin, end; /* steps */
    uint8_t *made;       /* [n_value] true if a step of this half makes it */
    uint8_t *saved;      /* [n_value] roots that this half takes from the other one */
    uint8_t *argument;   /* [n_op] inputs of the graph that it reads */
    cb_value_id *mapped; /* [n_value] joint value -> value of `out`; CB_NONE: none */
    cb_value_id *first;  /* [n_value] the same for its first run, which outputs use */
    uint32_t *input_at;  /* [n_inputs] argument -> position among the inputs of `out`, CB_NONE */
    uint32_t n_saved;
} half;

static cb_status half_init(half *h) {
    const cb_graph *g = h->joint;
    CB_TRY_NEW(h->made, h->scratch, g->values.len, h->err);
    CB_TRY_NEW(h->saved, h->scratch, g->values.len, h->err);
    CB_TRY_NEW(h->argument, h->scratch, g->ops.len, h->err);
    CB_TRY_NEW(h->mapped, h->scratch, g->values.len, h->err);
    CB_TRY_NEW(h->first, h->scratch, g->values.len, h->err);
    CB_TRY_NEW(h->input_at, h->scratch, g->inputs.len, h->err);
    for (size_t i = 0; i < g->values.len; i++) h->mapped[i] = h->first[i] = CB_NONE;
    for (size_t i = 0; i < g->inputs.len; i++) h->input_at[i] = CB_NONE;
    return CB_OK;
}

static cb_op_id producer(const half *h, cb_value_id v) { return h->joint->values.at[v].producer; }

/* True if the value is a view; `base` then gets the value that it shows. */
static bool is_view(const half *h, cb_value_id v, cb_value_id *base) {
    if (h->joint->values.at[v].out_index != 0 ||
        !(cb_op_flags(h->joint, producer(h, v)) & CB_OPF_VIEW)) {
        return false;
    }
    *base = cb_op_ins(h->joint, producer(h, v))[0];
    return true;
}

/* First pass: notes the values that must come from outside so that this half can read `v`. */
static void need(half *h, cb_value_id v) {
    while (!h->made[v]) {
        if (!is_view(h, v, &v)) break;
    }
    if (h->made[v]) return;
    cb_op_id op = producer(h, v);
    if (h->joint->ops.at[op].code == CB_OP_INPUT) h->argument[op] = 1;
    else h->saved[v] = 1;
}

static void find_needs(half *h) {
    const cb_graph *g = h->joint;
    for (uint32_t s = h->begin; s < h->end; s++) {
        cb_op_id id = h->plan->schedule.step[s];
        const cb_op *op = &g->ops.at[id];
        for (uint32_t k = 0; k < op->n_in; k++) need(h, cb_op_ins(g, id)[k]);
        for (uint32_t k = 0; k < op->n_out; k++) h->made[op->out_begin + k] = 1;
    }
}

/* Sets the attributes of the next appended op; `id` is the corresponding op of the joint graph. */
static cb_status carry(half *h, cb_op_id id) {
    const cb_op *op = &h->joint->ops.at[id];
    h->out->phase = op->phase;
    h->out->constraint = op->constraint;
    h->out->region = op->region;
    h->out->location = CB_NONE;
    if (op->location == CB_NONE) return CB_OK;
    return cb_graph_intern(h->out, cb_graph_name(h->joint, op->location), &h->out->location,
                           h->err);
}

static cb_status add_input(half *h, cb_value_id v, const char *name, cb_role role) {
    const cb_value *value = &h->joint->values.at[v];
    CB_TRY(carry(h, producer(h, v)));
    h->out->phase = CB_FORWARD;
    h->out->constraint = CB_FREE;
    CB_TRY(cb_graph_append_input(h->out, name, role, value->dtype, &value->shape, &h->mapped[v],
                                 h->err));
    h->out->ops.at[h->out->values.at[h->mapped[v]].producer].origin = producer(h, v);
    return CB_OK;
}

static const char *saved_name(half *h, uint32_t k) {
    cb_str text;
    cb_str_init(&text, h->scratch);
    cb_str_addf(&text, "saved_%u", k);
    return text.failed ? NULL : text.at;
}

static cb_status add_inputs(half *h) {
    const cb_graph *g = h->joint;
    for (cb_value_id v = 0; v < g->values.len; v++) {
        if (!h->saved[v]) continue;
        const char *name = saved_name(h, h->n_saved++);
        if (!name) return cb_no_memory(h->err);
        CB_TRY(add_input(h, v, name, CB_ROLE_DATA));
    }
    for (uint32_t i = 0; i < g->inputs.len; i++) {
        if (!h->argument[g->inputs.at[i]]) continue;
        const cb_op *op = &g->ops.at[g->inputs.at[i]];
        h->input_at[i] = (uint32_t)h->out->inputs.len;
        CB_TRY(add_input(h, op->out_begin, cb_graph_name(g, op->name),
                         (cb_role)g->attrs.at[op->attrs].i[0]));
    }
    return CB_OK;
}

/* Appends op `id` of the joint graph, whose inputs are all mapped. */
static cb_status clone(half *h, cb_op_id id) {
    const cb_graph *g = h->joint;
    const cb_op *op = &g->ops.at[id];
    cb_op_id made;
    cb_value_id *ins = CB_NEW(h->scratch, cb_value_id, op->n_in);
    if (!ins) return cb_no_memory(h->err);
    for (uint32_t k = 0; k < op->n_in; k++) ins[k] = h->mapped[cb_op_ins(g, id)[k]];
    CB_TRY(carry(h, id));
    CB_TRY(cb_graph_append(h->out, op->code, op->n_in, ins, cb_op_attrs(g, id), &made, h->err));
    cb_op *copy = &h->out->ops.at[made];
    copy->origin = id;
    for (uint32_t k = 0; k < op->n_out; k++) {
        cb_value_id v = op->out_begin + k;
        h->mapped[v] = copy->out_begin + k;
        if (h->first[v] == CB_NONE) h->first[v] = h->mapped[v];
    }
    if (op->name == CB_NONE) return CB_OK;
    return cb_graph_intern(h->out, cb_graph_name(g, op->name), &h->out->ops.at[made].name, h->err);
}

/* Makes `v` readable in this half by cloning the views between it and an existing value. Views of
 * views are few, so searching for the lowest missing one repeatedly is cheap. */
static cb_status reach(half *h, cb_value_id v) {
    while (h->mapped[v] == CB_NONE) {
        cb_value_id lowest = v, base;
        while (is_view(h, lowest, &base) && h->mapped[base] == CB_NONE) lowest = base;
        if (!is_view(h, lowest, &base)) {
            return cb_fail(h->err, CB_INTERNAL, "split: value %u is read before it is made",
                           lowest);
        }
        CB_TRY(clone(h, producer(h, lowest)));
    }
    return CB_OK;
}

static cb_status add_steps(half *h) {
    const cb_graph *g = h->joint;
    for (uint32_t s = h->begin; s < h->end; s++) {
        cb_op_id id = h->plan->schedule.step[s];
        for (uint32_t k = 0; k < g->ops.at[id].n_in; k++) CB_TRY(reach(h, cb_op_ins(g, id)[k]));
        CB_TRY(clone(h, id));
    }
    return CB_OK;
}

static cb_status add_regions(half *h) {
    uint32_t id;
    for (size_t r = 0; r < h->joint->regions.len; r++) {
        const cb_region *region = &h->joint->regions.at[r];
        CB_TRY(cb_graph_append_region(h->out, cb_graph_name(h->joint, region->name), region->parent,
                                      region->saved_limit, &id, h->err));
    }
    return CB_OK;
}

/* Adds the outputs of this half. An output belongs to the half that makes it first. */
static cb_status add_outputs(half *h, const half *before) {
    const cb_graph *g = h->joint;
    for (size_t i = 0; i < g->outputs.len; i++) {
        const cb_output *output = &g->outputs.at[i];
        if ((before && before->made[output->value]) || !h->made[output->value]) continue;
        uint32_t input = output->input == CB_NONE ? CB_NONE : h->input_at[output->input];
        CB_TRY(cb_graph_append_output(h->out, h->first[output->value],
                                      cb_graph_name(g, output->name), output->kind, input, h->err));
    }
    return CB_OK;
}

static cb_status add_saved(half *forward, const half *backward) {
    uint32_t k = 0;
    for (cb_value_id v = 0; v < forward->joint->values.len; v++) {
        if (!backward->saved[v]) continue;
        const char *name = saved_name(forward, k++);
        if (!name) return cb_no_memory(forward->err);
        CB_TRY(reach(forward, v));
        CB_TRY(cb_graph_append_output(forward->out, forward->mapped[v], name, CB_OUTPUT_RESULT,
                                      CB_NONE, forward->err));
    }
    return CB_OK;
}

static cb_status build(half *h) {
    CB_TRY(add_regions(h));
    CB_TRY(add_inputs(h));
    return add_steps(h);
}

static cb_status split_all(half *forward, half *backward) {
    CB_TRY(half_init(forward));
    CB_TRY(half_init(backward));
    find_needs(forward);
    find_needs(backward);
    CB_TRY(build(forward));
    if (forward->n_saved) {
        return cb_fail(forward->err, CB_INTERNAL,
                       "split: the forward reads what only the backward makes");
    }
    CB_TRY(build(backward));
    backward->out->backward_starts = (cb_op_id)backward->out->inputs.len;
    CB_TRY(add_outputs(forward, NULL));
    CB_TRY(add_outputs(backward, forward));
    return add_saved(forward, backward);
}

cb_status cb_split_make(const cb_graph *joint, const cb_plan *plan, cb_alloc *alloc, cb_split *out,
                        cb_error *err) {
    cb_split made = {0};
    cb_arena scratch;
    cb_arena_init(&scratch, alloc);
    cb_status status;
    CB_TRY_DONE(cb_graph_create(alloc, &made.forward, err));
    CB_TRY_DONE(cb_graph_create(alloc, &made.backward, err));
    const cb_schedule *s = &plan->schedule;
    half forward = {.joint = joint,
                    .plan = plan,
                    .scratch = &scratch,
                    .err = err,
                    .out = made.forward,
                    .end = s->backward_starts};
    half backward = {.joint = joint,
                     .plan = plan,
                     .scratch = &scratch,
                     .err = err,
                     .out = made.backward,
                     .begin = s->backward_starts,
                     .end = s->n_step};
    CB_TRY_DONE(split_all(&forward, &backward));
    made.n_saved = backward.n_saved;
    *out = made;
done:
    cb_arena_free(&scratch);
    if (status != CB_OK) cb_split_free(&made);
    return status;
}

void cb_split_free(cb_split *s) {
    cb_graph_free(s->forward);
    cb_graph_free(s->backward);
    *s = (cb_split){0};
}
