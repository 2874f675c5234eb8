/* A member does the arithmetic of an op, or reads one input for all members that use it, so a run
 * reads each input once. The planner counts writes per value, and one launch per run. Scratch is
 * rounded up to the arena's alignment, so that a run's scratch can be divided among its members. */
#include "contract.h"

#include "../base/sort.h"
#include "../plan/model/inlining.h"
#include "../plan/model/updates.h"

typedef struct contracting {
    const cb_graph *g;
    const cb_problem *p; /* op by op */
    const cb_grouping *by;
    cb_problem *out;
    cb_arena scratch;
    cb_error *err;
    uint32_t *value;  /* [values of the graph] */
    uint32_t *member; /* [values of the graph] index among its op's values, if it is a member's */
    uint8_t *slice;   /* [ops of the graph] */
    uint8_t load[CB_MOST_INNER_INPUTS]; /* in the current group, the member that reads an input */
    uint32_t n_in, n_value, n_member;
} contracting;

static bool is_group(const contracting *x, uint32_t op) { return cb_group_size(x->by, op) > 1; }

static const char *keep(contracting *x, const char *text) {
    return cb_arena_strdup(&x->out->arena, text, strlen(text));
}

cb_status cb_contracted_values(const cb_graph *joint, const cb_grouping *grouping, cb_arena *arena,
                               uint32_t **value, cb_error *err) {
    uint32_t *ids = CB_NEW(arena, uint32_t, joint->values.len), n = 0;
    if (!ids) return cb_no_memory(err);
    for (uint32_t op = 0; op < grouping->n_op; op++) {
        for (uint32_t k = grouping->begin[op]; k < grouping->begin[op + 1]; k++) {
            const cb_op *member = &joint->ops.at[grouping->member[k]];
            for (uint32_t v = member->out_begin; v < member->out_begin + member->n_out; v++)
                ids[v] = grouping->is_given[v] ? n++ : CB_NONE;
        }
    }
    for (uint32_t v = 0; v < joint->values.len; v++) ids[v] = ids[grouping->root[v]];
    *value = ids;
    return CB_OK;
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* Returns the index of a value in the list of inputs that begins at `first`, and adds it if it is
 * new. */
static uint32_t input_place(contracting *x, uint32_t first, uint32_t value) {
    for (uint32_t k = first; k < x->n_in; k++)
        if (x->out->in_value[k] == value) return k - first;
    x->out->in_value[x->n_in] = value;
    return x->n_in++ - first;
}

/* Returns the bytes that reading this value takes; elements repeated by a view count once. */
static uint64_t read_bytes(const contracting *x, uint32_t v) {
    const cb_value *value = &x->g->values.at[v];
    const uint64_t shown = (uint64_t)cb_numel(&value->shape) * cb_dtype_size(value->dtype),
                   all = x->g->storages.at[value->storage].bytes;
    return shown < all ? shown : all;
}

static uint64_t round_up(const contracting *x, uint64_t bytes) {
    return (bytes + x->p->align - 1) & ~(x->p->align - 1);
}

/* Adds a member to a group and stores its number in *n. */
static cb_status next_member(contracting *x, uint32_t id, cb_member m, uint32_t *n) {
    if (*n == CB_MOST_MEMBERS)
        return cb_fail(
            x->err, CB_UNSUPPORTED,
            "groups: the group of %s reads and makes more than %d values; make it smaller",
            x->p->op_name[id], CB_MOST_MEMBERS);
    x->out->member[x->n_member++] = m;
    (*n)++;
    return CB_OK;
}

/* True if the value comes from an op that mostly runs in the same kernel, so that reading it costs
 * nothing. */
static bool is_near(const contracting *x, uint32_t op, uint32_t value) {
    const uint32_t maker = x->by->op_of[x->g->values.at[x->by->root[value]].producer];
    return x->by->kernel[op] != CB_NONE && x->by->kernel[maker] == x->by->kernel[op];
}

/* Adds to `uses` the bit of the member that reads this value from memory for all its users. */
static cb_status load(contracting *x, uint32_t op, uint32_t id, uint32_t in, uint32_t *n,
                      uint64_t *uses) {
    const uint32_t first = x->out->in_begin[op], known = x->n_in - first,
                   place = input_place(x, first, x->value[x->by->root[in]]);
    if (place >= CB_MOST_INNER_INPUTS)
        return cb_fail(x->err, CB_UNSUPPORTED,
                       "groups: the group of %s reads more than %d values; make it smaller",
                       x->p->op_name[id], CB_MOST_INNER_INPUTS);
    if (place == known) {
        x->load[place] = (uint8_t)*n;
        const cb_member m = {.reads = UINT64_C(1) << place,
                             .size = x->p->storage_bytes[x->p->value_storage[in]],
                             .time_ps = -1,
                             .flags = CB_POP_FUSIBLE};
        CB_TRY(next_member(x, id, m, n));
    }
    cb_member *m = &x->out->member[x->n_member - *n + x->load[place]];
    const uint64_t bytes = is_near(x, op, in) ? 0 : read_bytes(x, in);
    if (bytes > m->bytes) m->bytes = bytes;
    *uses |= UINT64_C(1) << x->load[place];
    return CB_OK;
}

/* Adds the members of one op of the graph, after those for inputs that it is the first to read: the
 * first output does the work, the other outputs cost nothing more. */
static cb_status add_members(contracting *x, uint32_t op, uint32_t id, uint32_t *n) {
    const cb_op *from = &x->g->ops.at[id];
    cb_member m = {.time_ps = -1,
                   .flops = x->p->op_flops[id],
                   .workspace = round_up(x, x->p->op_workspace[id]),
                   .flags = x->p->op_flags[id] & CB_POP_INNER,
                   .work_class = x->p->op_class[id]};
    for (uint32_t k = 0; k < from->n_in; k++) {
        const uint32_t in = cb_op_ins(x->g, id)[k], root = x->by->root[in];
        if (x->by->op_of[x->g->values.at[root].producer] == op)
            m.uses |= UINT64_C(1) << x->member[root];
        else CB_TRY(load(x, op, id, in, n, &m.uses));
    }
    for (uint32_t v = from->out_begin; v < from->out_begin + from->n_out; v++) {
        if (!cb_is_member_value(x->by, x->g, v)) continue;
        m.size = x->p->storage_bytes[x->p->value_storage[v]];
        x->member[v] = *n;
        CB_TRY(next_member(x, id, m, n));
        if (v == from->out_begin)
            m = (cb_member){.uses = UINT64_C(1) << x->member[v], .flags = m.flags};
    }
    return CB_OK;
}

static cb_status name_group(contracting *x, uint32_t op) {
    const uint32_t *member = x->by->member + x->by->begin[op], n = cb_group_size(x->by, op);
    cb_str text;
    cb_str_init(&text, &x->scratch);
    cb_str_addf(&text, "%s..%s", x->p->op_name[member[0]], x->p->op_name[member[n - 1]]);
    if (text.failed) return cb_no_memory(x->err);
    x->out->op_name[op] = keep(x, text.at);
    x->out->op_kind[op] = "group";
    return CB_OK;
}

static cb_status add_group(contracting *x, uint32_t op) {
    const uint32_t *member = x->by->member + x->by->begin[op];
    uint32_t n = 0;
    x->out->op_flags[op] = 0;
    for (uint32_t k = 0; k < cb_group_size(x->by, op); k++) {
        x->out->op_flags[op] |= x->p->op_flags[member[k]] & CB_POP_BACKWARD;
        CB_TRY(add_members(x, op, member[k], &n));
    }
    return name_group(x, op);
}

static cb_status add_single(contracting *x, uint32_t op) {
    const uint32_t id = x->by->member[x->by->begin[op]];
    cb_problem *out = x->out;
    out->op_flags[op] = x->p->op_flags[id];
    out->op_flops[op] = x->p->op_flops[id];
    out->op_bytes[op] = x->p->op_bytes[id];
    out->op_workspace[op] = x->p->op_workspace[id];
    out->op_class[op] = x->p->op_class[id];
    out->op_kind[op] = x->p->op_kind[id];
    out->op_name[op] = keep(x, x->p->op_name[id]);
    for (uint32_t k = 0; k < x->g->ops.at[id].n_in; k++)
        out->in_value[x->n_in++] = x->value[cb_op_ins(x->g, id)[k]];
    return CB_OK;
}

static cb_status add_value(contracting *x, uint32_t op, uint32_t v) {
    cb_problem *out = x->out;
    const uint32_t at = x->n_value++, storage = x->p->value_storage[v];
    out->value_op[at] = op;
    out->value_storage[at] = at;
    out->value_constraint[at] = x->p->value_constraint[v];
    out->value_type[at] = keep(x, x->p->value_type[v]);
    out->storage_bytes[at] = x->p->storage_bytes[storage];
    out->storage_flags[at] = x->p->storage_flags[storage];
    if (out->value_member) out->value_member[at] = (uint8_t)x->member[v];
    return out->value_type[at] ? CB_OK : cb_no_memory(x->err);
}

static cb_status add_ops(contracting *x) {
    cb_problem *out = x->out;
    out->backward_starts = out->n_op;
    for (uint32_t op = 0; op < out->n_op; op++) {
        const uint32_t *member = x->by->member + x->by->begin[op];
        out->in_begin[op] = x->n_in;
        out->out_begin[op] = x->n_value;
        if (out->member_begin) out->member_begin[op] = x->n_member;
        CB_TRY(is_group(x, op) ? add_group(x, op) : add_single(x, op));
        out->op_region[op] = x->p->op_region[member[0]];
        out->op_location[op] = keep(x, x->p->op_location[member[0]]);
        if (!out->op_name[op] || !out->op_location[op]) return cb_no_memory(x->err);
        for (uint32_t k = 0; k < cb_group_size(x->by, op); k++) {
            const cb_op *from = &x->g->ops.at[member[k]];
            for (uint32_t v = from->out_begin; v < from->out_begin + from->n_out; v++)
                if (x->by->is_given[v]) CB_TRY(add_value(x, op, v));
        }
        if (member[0] >= x->g->backward_starts && op < out->backward_starts)
            out->backward_starts = op;
    }
    out->in_begin[out->n_op] = x->n_in;
    out->out_begin[out->n_op] = x->n_value;
    if (out->member_begin) out->member_begin[out->n_op] = x->n_member;
    return CB_OK;
}

/* ---- inlinings ------------------------------------------------------------------------------- */

static int by_op_and_value(const void *a, const void *b) {
    const cb_inlining *x = a, *y = b;
    if (x->op != y->op) return x->op < y->op ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

/* True if any of the ops reads the storage of this value. */
static bool any_reads(const contracting *x, const uint32_t *op, uint32_t n, uint32_t root) {
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < x->g->ops.at[op[i]].n_in; k++)
            if (x->by->root[cb_op_ins(x->g, op[i])[k]] == root) return true;
    return false;
}

/* Marks with 2 the members of the current slice that other inlined values of the op need as
 * well. */
static void mark_shared(contracting *x, const cb_grouped_inlining *at, uint32_t maker) {
    for (const cb_grouped_inlining *i = at; i-- > x->by->inlining && i->op == at->op;) {
        const uint32_t producer = x->g->values.at[i->value].producer;
        if (x->slice[producer] && x->by->op_of[producer] == maker) x->slice[producer] = 2;
    }
    for (uint32_t k = x->by->begin[maker + 1]; k-- > x->by->begin[maker];) {
        const uint32_t id = x->by->member[k];
        for (uint32_t j = 0; j < x->g->ops.at[id].n_in && x->slice[id] == 2; j++) {
            const uint32_t root = x->by->root[cb_op_ins(x->g, id)[j]],
                           producer = x->g->values.at[root].producer;
            if (x->by->op_of[producer] == maker) x->slice[producer] = 2;
        }
    }
}

/* Inlining a value adds the work of the members that it needs, except those that an earlier value
 * needs as well, because both are mostly inlined together. Only inputs that the op does not read
 * anyway count; the value itself is not read. All scratch counts, because the other inlined values
 * are unknown. */
static cb_inlining inlining_of(contracting *x, const cb_grouped_inlining *from) {
    const uint32_t maker = x->by->op_of[x->g->values.at[from->value].producer],
                   *host = x->by->member + x->by->begin[from->op],
                   n_host = cb_group_size(x->by, from->op);
    const uint64_t own = any_reads(x, host, n_host, from->value) ? read_bytes(x, from->value) : 0;
    cb_inlining out = {.value = x->value[from->value], .op = from->op, .time_ps = -1};
    cb_mark_slice(x->by, x->g, from->value, x->slice);
    mark_shared(x, from, maker);
    for (uint32_t k = x->by->begin[maker]; k < x->by->begin[maker + 1]; k++) {
        const uint32_t id = x->by->member[k];
        const bool shared = x->slice[id] == 2;
        if (!x->slice[id]) continue;
        out.workspace += round_up(x, x->p->op_workspace[id]);
        out.flops += shared ? 0 : x->p->op_flops[id];
        out.work_class = x->p->op_class[id];
        for (uint32_t j = 0; j < x->g->ops.at[id].n_in && !shared; j++) {
            const uint32_t in = cb_op_ins(x->g, id)[j], root = x->by->root[in];
            if (x->by->op_of[x->g->values.at[root].producer] != maker &&
                !any_reads(x, host, n_host, root))
                out.bytes += read_bytes(x, in);
        }
    }
    for (uint32_t k = x->by->begin[maker]; k < x->by->begin[maker + 1]; k++)
        x->slice[x->by->member[k]] = 0;
    out.bytes = out.bytes > own ? out.bytes - own : 0;
    return out;
}

static void add_inlinings(contracting *x) {
    cb_problem *out = x->out;
    const uint32_t n = x->by->n_inlining;
    if (n == 0) return;
    for (uint32_t k = 0; k < n; k++) {
        out->inlining[k] = inlining_of(x, &x->by->inlining[k]);
        out->inline_begin[out->inlining[k].op + 1]++;
    }
    for (uint32_t op = 0; op < out->n_op; op++) out->inline_begin[op + 1] += out->inline_begin[op];
    cb_sort(out->inlining, n, sizeof *out->inlining, by_op_and_value);
}

/* ---- all ------------------------------------------------------------------------------------- */

static cb_status copy_regions(contracting *x) {
    cb_problem *out = x->out;
    const uint32_t n = out->n_region = x->p->n_region;
    CB_TRY_NEW(out->region_name, &out->arena, n, x->err);
    CB_TRY_NEW(out->region_parent, &out->arena, n, x->err);
    CB_TRY_NEW(out->region_limit, &out->arena, n, x->err);
    for (uint32_t r = 0; r < n; r++) {
        out->region_name[r] = keep(x, x->p->region_name[r]);
        if (!out->region_name[r]) return cb_no_memory(x->err);
        out->region_parent[r] = x->p->region_parent[r];
        out->region_limit[r] = x->p->region_limit[r];
    }
    return CB_OK;
}

static cb_status copy_ends(contracting *x, const uint32_t *from, uint32_t n, uint32_t **to) {
    CB_TRY_NEW(*to, &x->out->arena, n, x->err);
    for (uint32_t k = 0; k < n; k++) (*to)[k] = x->value[from[k]];
    return CB_OK;
}

/* Copies updates. Values are storages here. A gradient whose parameter no op reads stays to the
 * end. */
static cb_status copy_updates(contracting *x) {
    const cb_problem *p = x->p;
    for (uint32_t v = 0; p->updates && v < p->n_value; v++) {
        const uint32_t storage = p->value_storage[v], to = x->value[v];
        if (!cb_is_updating(p, storage) || x->by->root[v] != v || to == CB_NONE) continue;
        const uint32_t root = x->g->storages.at[p->updates[storage]].root;
        const uint32_t parameter = x->value[root];
        if (parameter == CB_NONE) x->out->storage_flags[to] |= CB_STORE_HOLD_END;
        else CB_TRY(cb_set_update(x->out, to, parameter, x->err));
    }
    return CB_OK;
}

static cb_status fill_in(contracting *x) {
    cb_problem *out = x->out;
    CB_TRY(add_ops(x));
    add_inlinings(x);
    CB_TRY(copy_updates(x));
    CB_TRY(copy_regions(x));
    out->align = x->p->align;
    out->static_bytes = x->p->static_bytes;
    out->link_bytes_per_s = x->p->link_bytes_per_s;
    out->reruns = x->p->reruns;
    out->collective_again = x->p->collective_again;
    out->keep_saved = x->p->keep_saved;
    out->network_bytes_per_s = x->p->network_bytes_per_s;
    out->n_forward_output = x->p->n_forward_output;
    out->n_backward_output = x->p->n_backward_output;
    CB_TRY(copy_ends(x, x->p->forward_output, out->n_forward_output, &out->forward_output));
    return copy_ends(x, x->p->backward_output, out->n_backward_output, &out->backward_output);
}

/* Returns the maximum sizes for allocation; the writer sets the actual counts. */
static cb_problem_sizes sizes_of(const contracting *x) {
    cb_problem_sizes n = {.n_op = x->by->n_op, .n_inlining = x->by->n_inlining};
    for (uint32_t op = 0; op < x->by->n_op; op++) {
        for (uint32_t k = x->by->begin[op]; k < x->by->begin[op + 1]; k++) {
            const cb_op *member = &x->g->ops.at[x->by->member[k]];
            n.n_in += member->n_in;
            n.n_member += is_group(x, op) ? member->n_in + member->n_out : 0;
            for (uint32_t v = member->out_begin; v < member->out_begin + member->n_out; v++)
                n.n_value += x->by->is_given[v];
        }
    }
    n.n_storage = n.n_value;
    return n;
}

cb_status cb_contract(const cb_graph *joint, const cb_problem *single, const cb_grouping *grouping,
                      cb_alloc *alloc, cb_problem **out, cb_error *err) {
    contracting x = {.g = joint, .p = single, .by = grouping, .err = err};
    CB_TRY(cb_problem_create(alloc, sizes_of(&x), &x.out, err));
    cb_arena_init(&x.scratch, alloc);
    cb_status status = cb_contracted_values(joint, grouping, &x.scratch, &x.value, err);
    x.member = CB_NEW(&x.scratch, uint32_t, joint->values.len);
    x.slice = CB_NEW(&x.scratch, uint8_t, joint->ops.len);
    if (status == CB_OK) status = x.member && x.slice ? fill_in(&x) : cb_no_memory(err);
    cb_arena_free(&x.scratch);
    if (status == CB_OK) status = cb_problem_verify(x.out, err);
    if (status != CB_OK) {
        cb_problem_free(x.out);
        return status;
    }
    *out = x.out;
    return CB_OK;
}
