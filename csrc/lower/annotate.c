/* The planner does not know shapes or op semantics: this file converts them to bytes, work and
 * flags. Ids are kept, so nothing is translated on the way back.
 *
 * Constraints are given per value, but storages are saved, so all values of one storage get the
 * same constraint: the root's own, or else a save or offload constraint of one of its views (saving
 * a view saves its storage). A recompute constraint on a view has no effect, because a view costs
 * nothing. */
#include "annotate.h"

#include "../ir/work.h"
#include "../plan/model/over.h"
#include "../plan/model/updates.h"
#include "indices.h"

#define SHRINKS 4 /* a reduction that shrinks by more than this does not fuse for free */

typedef struct job {
    const cb_graph *g;
    const cb_annotate_options *options;
    cb_problem *p;
    cb_arena scratch;
    cb_error *err;
} job;

/* Copies a text to the problem's arena; NULL: out of memory. */
static const char *keep_text(job *j, const cb_str *text) {
    return text->failed ? NULL : cb_arena_strdup(&j->p->arena, text->at, text->len);
}

static cb_work_class class_of(cb_dtype dtype) {
    switch (dtype) {
        case CB_F16: return CB_WORK_F16;
        case CB_BF16: return CB_WORK_BF16;
        case CB_F32: return CB_WORK_F32;
        case CB_F64: return CB_WORK_F64;
        default: return CB_WORK_INT;
    }
}

/* Returns the dtype of the arithmetic: the output's, or for comparisons and similar ops the
 * input's. */
static cb_work_class work_class(const cb_graph *g, const cb_op *op, const cb_value_id *ins) {
    cb_work_class class = class_of(g->values.at[op->out_begin].dtype);
    if (class == CB_WORK_INT && op->n_in > 0) class = class_of(g->values.at[ins[0]].dtype);
    return class;
}

static bool shrinks(const cb_graph *g, const cb_op *op, const cb_value_id *ins) {
    int64_t before = cb_numel(&g->values.at[ins[0]].shape);
    int64_t after = cb_numel(&g->values.at[op->out_begin].shape);
    return before / SHRINKS > after;
}

static uint32_t flags_of(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const cb_value_id *ins = cb_op_ins(g, id);
    uint32_t kind = cb_op_flags(g, id), flags = 0;
    if (kind & CB_OPF_SOURCE) flags |= CB_POP_PLACEHOLDER;
    if (kind & CB_OPF_VIEW) flags |= CB_POP_VIEW;
    if (kind & CB_OPF_COMPUTE) flags |= CB_POP_COMPUTE;
    if (kind & CB_OPF_RANDOM) flags |= CB_POP_RANDOM_COUNTER;
    if (kind & (CB_OPF_POINTWISE | CB_OPF_REDUCE)) flags |= CB_POP_FUSIBLE;
    if (op->code == CB_OP_CONCAT || op->code == CB_OP_PAD) flags |= CB_POP_FUSIBLE;
    if ((kind & CB_OPF_REDUCE) && shrinks(g, op, ins)) flags |= CB_POP_REDUCTION;
    if (op->phase == CB_BACKWARD) flags |= CB_POP_BACKWARD;
    return flags;
}

/* Returns a name like "matmul_12", or "w_0" for an input or a value that the user has named. */
static const char *name_of(job *j, cb_op_id id) {
    const cb_op *op = &j->g->ops.at[id];
    const char *stem =
        op->name == CB_NONE ? cb_op_def_of(op->code)->name : cb_graph_name(j->g, op->name);
    cb_str text;
    cb_str_init(&text, &j->scratch);
    cb_str_addf(&text, "%s_%u", stem, id);
    return keep_text(j, &text);
}

static const char *type_of(job *j, const cb_value *value) {
    cb_str text;
    cb_str_init(&text, &j->scratch);
    cb_str_addf(&text, "%s[", cb_dtype_name(value->dtype));
    for (int32_t k = 0; k < value->shape.rank; k++)
        cb_str_addf(&text, k ? ",%lld" : "%lld", (long long)value->shape.dim[k]);
    cb_str_add(&text, "]", 1);
    return keep_text(j, &text);
}

static cb_status annotate_ops(job *j) {
    const cb_graph *g = j->g;
    cb_problem *p = j->p;
    uint32_t n_in = 0, n_out = 0;
    for (cb_op_id id = 0; id < p->n_op; id++) {
        const cb_op *op = &g->ops.at[id];
        const cb_value_id *ins = cb_op_ins(g, id);
        cb_work work = cb_op_work(g, id);
        const char *location = cb_graph_name(g, op->location);
        p->op_flags[id] = flags_of(g, id);
        p->op_flops[id] = work.flops;
        p->op_bytes[id] = work.bytes;
        p->op_workspace[id] = j->options->workspace(g, id);
        p->op_class[id] = (uint8_t)work_class(g, op, ins);
        p->op_region[id] = op->region;
        p->op_kind[id] = cb_op_def_of(op->code)->name;
        p->op_name[id] = name_of(j, id);
        p->op_location[id] = cb_arena_strdup(&p->arena, location, strlen(location));
        if (!p->op_name[id] || !p->op_location[id]) return cb_no_memory(j->err);
        p->in_begin[id] = n_in;
        for (uint32_t k = 0; k < op->n_in; k++) p->in_value[n_in++] = ins[k];
        p->out_begin[id] = n_out;
        n_out += op->n_out;
    }
    p->in_begin[p->n_op] = n_in;
    p->out_begin[p->n_op] = n_out;
    return CB_OK;
}

static cb_status annotate_values(job *j) {
    const cb_graph *g = j->g;
    cb_problem *p = j->p;
    for (cb_value_id v = 0; v < p->n_value; v++) {
        p->value_op[v] = g->values.at[v].producer;
        p->value_storage[v] = g->values.at[v].storage;
        p->value_type[v] = type_of(j, &g->values.at[v]);
        if (!p->value_type[v]) return cb_no_memory(j->err);
    }
    for (cb_storage_id s = 0; s < p->n_storage; s++) p->storage_bytes[s] = g->storages.at[s].bytes;
    for (size_t i = 0; i < g->inputs.len; i++) {
        cb_value_id value = g->ops.at[g->inputs.at[i]].out_begin;
        p->storage_flags[g->values.at[value].storage] |= CB_STORE_STATIC;
    }
    return CB_OK;
}

static bool is_must(uint8_t constraint) {
    return constraint == CB_MUST_SAVE || constraint == CB_MUST_RECOMPUTE ||
           constraint == CB_MUST_OFFLOAD;
}

static bool is_recompute(uint8_t constraint) {
    return constraint == CB_MUST_RECOMPUTE || constraint == CB_PREFER_RECOMPUTE;
}

/* Passes the constraint of view `v` to its storage's root, unless the root has its own
 * constraint. */
static cb_status constrain_root(job *j, cb_value_id root, cb_value_id v, uint8_t asked) {
    cb_problem *p = j->p;
    uint8_t own = p->value_constraint[root];
    if (asked == CB_FREE || is_recompute(asked) || asked == own) return CB_OK;
    if (is_must(own) && is_must(asked)) {
        return cb_fail(
            j->err, CB_INVALID,
            "%s and its view %s share one storage but have contradicting constraints; drop one",
            p->op_name[p->value_op[root]], p->op_name[p->value_op[v]]);
    }
    if (own == CB_FREE || is_must(asked)) p->value_constraint[root] = asked;
    return CB_OK;
}

/* Sets constraints. Only forward values that the step stores can be saved or recomputed; others
 * stay FREE. */
static cb_status annotate_constraints(job *j) {
    const cb_graph *g = j->g;
    cb_problem *p = j->p;
    for (cb_value_id v = 0; v < p->n_value; v++) {
        const cb_op *op = &g->ops.at[p->value_op[v]];
        cb_storage_id storage = p->value_storage[v];
        cb_value_id root = g->storages.at[storage].root;
        if (op->phase == CB_BACKWARD || (p->storage_flags[storage] & CB_STORE_STATIC)) continue;
        if (v == root) p->value_constraint[v] = op->constraint;
        else CB_TRY(constrain_root(j, root, v, op->constraint));
    }
    for (cb_value_id v = 0; v < p->n_value; v++)
        p->value_constraint[v] = p->value_constraint[g->storages.at[p->value_storage[v]].root];
    return CB_OK;
}

static cb_status annotate_regions(job *j) {
    const cb_graph *g = j->g;
    cb_problem *p = j->p;
    size_t n = g->regions.len;
    CB_TRY_NEW(p->region_name, &p->arena, n, j->err);
    CB_TRY_NEW(p->region_parent, &p->arena, n, j->err);
    CB_TRY_NEW(p->region_limit, &p->arena, n, j->err);
    p->n_region = (uint32_t)n;
    for (size_t r = 0; r < n; r++) {
        const cb_region *region = &g->regions.at[r];
        const char *name = cb_graph_name(g, region->name);
        p->region_name[r] = cb_arena_strdup(&p->arena, name, strlen(name));
        if (!p->region_name[r]) return cb_no_memory(j->err);
        p->region_parent[r] = region->parent;
        p->region_limit[r] = region->saved_limit;
    }
    return CB_OK;
}

static bool is_inside(const job *j) {
    return j->options->keep_gradients && j->options->updates_inside;
}

static cb_status annotate_update(job *j, const cb_output *output) {
    const cb_value_id parameter = j->g->ops.at[j->g->inputs.at[output->input]].out_begin;
    return cb_set_update(j->p, j->p->value_storage[output->value], j->p->value_storage[parameter],
                         j->err);
}

/* Forbids to recompute copies of the caller's indices, so that all readers see the numbers that
 * were checked. */
static void keep_indices(job *j) {
    cb_problem *p = j->p;
    for (cb_op_id id = 0; is_inside(j) && id < p->n_op; id++)
        if (cb_copies_indices(j->g, id)) p->op_flags[id] |= CB_POP_UNKNOWN;
}

/* Sets the flags of outputs. Results are written to the caller's buffers; new states, and gradients
 * that an optimizer will read, stay in the arena to the end. Outputs that do not depend on a
 * tangent must exist when the backward starts. */
static cb_status annotate_outputs(job *j) {
    const cb_graph *g = j->g;
    cb_problem *p = j->p;
    CB_TRY_NEW(p->forward_output, &p->arena, g->outputs.len, j->err);
    CB_TRY_NEW(p->backward_output, &p->arena, g->outputs.len, j->err);
    for (size_t i = 0; i < g->outputs.len; i++) {
        const cb_output *output = &g->outputs.at[i];
        if (output->kind == CB_OUTPUT_GRAD && is_inside(j)) {
            CB_TRY(annotate_update(j, output));
            continue;
        }
        bool kept = output->kind == CB_OUTPUT_STATE ||
                    (output->kind == CB_OUTPUT_GRAD && j->options->keep_gradients);
        p->storage_flags[p->value_storage[output->value]] |=
            kept ? CB_STORE_HOLD_END : CB_STORE_STATIC;
        bool in_forward = output->kind != CB_OUTPUT_GRAD &&
                          g->ops.at[p->value_op[output->value]].phase == CB_FORWARD;
        if (in_forward) p->forward_output[p->n_forward_output++] = output->value;
        else p->backward_output[p->n_backward_output++] = output->value;
    }
    return CB_OK;
}

/* Kernels of pointwise ops read element i of their inputs before they write element i. Ops that
 * only move elements do not, because their kernels copy whole rows. A product may be added to its
 * base in place. */
static bool may_be_over(const void *context, const cb_problem *p, uint32_t op, uint32_t at) {
    const cb_graph *g = context;
    const cb_value *in = &g->values.at[p->in_value[p->in_begin[op] + at]],
                   *out = &g->values.at[p->out_begin[op]];
    const cb_opcode code = g->ops.at[op].code;
    const bool moves = code == CB_OP_CONTIGUOUS || code == CB_OP_TRIL || code == CB_OP_CAST;
    const bool adds = code == CB_OP_MATMUL_ADD && at == 2;
    const bool by_element = (cb_op_flags(g, op) & CB_OPF_POINTWISE) && !moves;
    return (by_element || adds) && in->dtype == out->dtype && in->offset == 0 &&
           cb_is_contiguous(&in->shape, in->stride);
}

static cb_status annotate_all(job *j) {
    CB_TRY(annotate_ops(j));
    CB_TRY(annotate_values(j));
    CB_TRY(annotate_outputs(j));
    keep_indices(j);
    CB_TRY(annotate_constraints(j));
    CB_TRY(annotate_regions(j));
    j->p->backward_starts = j->g->backward_starts;
    j->p->align = j->options->alignment;
    j->p->static_bytes = j->options->static_bytes;
    j->p->reruns = (uint8_t)j->options->reruns;
    return j->options->takes_over ? cb_list_over(j->p, may_be_over, j->g, j->err) : CB_OK;
}

cb_status cb_annotate(const cb_graph *joint, const cb_annotate_options *options, cb_alloc *alloc,
                      cb_problem **out, cb_error *err) {
    uint32_t n_in = 0;
    for (size_t i = 0; i < joint->ops.len; i++) n_in += joint->ops.at[i].n_in;
    job j = {.g = joint, .options = options, .err = err};
    const cb_problem_sizes n = {.n_op = (uint32_t)joint->ops.len,
                                .n_in = n_in,
                                .n_value = (uint32_t)joint->values.len,
                                .n_storage = (uint32_t)joint->storages.len};
    CB_TRY(cb_problem_create(alloc, n, &j.p, err));
    cb_arena_init(&j.scratch, alloc);
    cb_status status = annotate_all(&j);
    cb_arena_free(&j.scratch);
    if (status != CB_OK) {
        cb_problem_free(j.p);
        return status;
    }
    *out = j.p;
    return CB_OK;
}
