/* Checks a problem, with one function for each kind of object. Code after cb_problem_verify relies
 * on these checks and does not repeat them. */
#include <math.h>

#include "inlining.h"
#include "names.h"
#include "over.h"
#include "updates.h"

#define MOST_ITEMS ((uint32_t)1 << 26) /* as in problem.c */
#define MOST_BYTES (UINT64_C(1) << 60) /* limit for all storages and scratch together */
#define MOST_TIME (INT64_C(1) << 50)   /* picoseconds of one op: 18 minutes */
#define MOST_ALIGN (UINT64_C(1) << 20)
#define KNOWN_FLAGS ((uint32_t)(CB_POP_PARAMETER << 1) - 1)
#define KNOWN_STORE (CB_STORE_STATIC | CB_STORE_HOLD_FORWARD | CB_STORE_HOLD_END)

static void fill_ids(uint32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) ids[i] = CB_NONE;
}

static cb_status verify_counts(const cb_problem *p, cb_error *err) {
    if (p->align == 0 || p->align > MOST_ALIGN || (p->align & (p->align - 1))) {
        return cb_fail(err, CB_INVALID, "problem: align is %llu, not a power of two up to %llu",
                       (unsigned long long)p->align, (unsigned long long)MOST_ALIGN);
    }
    if (p->backward_starts > p->n_op) {
        return cb_fail(err, CB_INVALID, "problem: backward_starts is %u, but there are %u ops",
                       p->backward_starts, p->n_op);
    }
    if (p->static_bytes > MOST_BYTES || !(p->link_bytes_per_s >= 0) ||
        !isfinite(p->link_bytes_per_s)) {
        return cb_fail(err, CB_INVALID,
                       "problem: static_bytes or link_bytes_per_s is out of range");
    }
    if (!(p->network_bytes_per_s >= 0) || !isfinite(p->network_bytes_per_s)) {
        return cb_fail(err, CB_INVALID,
                       "problem: network_bytes_per_s is %g; it must be finite and at least 0",
                       p->network_bytes_per_s);
    }
    if (p->reruns >= CB_RERUNS_COUNT)
        return cb_fail(err, CB_INVALID, "problem: unknown reruns %u", p->reruns);
    if (p->in_begin[0] != 0 || p->out_begin[0] != 0 || p->out_begin[p->n_op] != p->n_value) {
        return cb_fail(err, CB_INVALID,
                       "problem: the outputs of the ops are not the %u values in order",
                       p->n_value);
    }
    for (uint32_t i = 0; i < p->n_op; i++) {
        if (p->in_begin[i + 1] < p->in_begin[i] || p->out_begin[i + 1] < p->out_begin[i] ||
            p->in_begin[i + 1] > MOST_ITEMS || p->out_begin[i + 1] > p->n_value) {
            return cb_fail(err, CB_INVALID,
                           "op %u (%s): the lists of inputs and outputs are out of order", i,
                           p->op_name[i]);
        }
        if (p->member_begin && (p->member_begin[0] != 0 || p->member_begin[i + 1] > MOST_ITEMS ||
                                p->member_begin[i + 1] < p->member_begin[i])) {
            return cb_fail(err, CB_INVALID, "op %u (%s): the list of members is out of order", i,
                           p->op_name[i]);
        }
        if (p->inline_begin && (p->inline_begin[0] != 0 || p->inline_begin[i + 1] > MOST_ITEMS ||
                                p->inline_begin[i + 1] < p->inline_begin[i])) {
            return cb_fail(err, CB_INVALID, "op %u (%s): the list of inlinings is out of order", i,
                           p->op_name[i]);
        }
        if (p->over_begin && (p->over_begin[0] != 0 || p->over_begin[i + 1] > MOST_ITEMS ||
                              p->over_begin[i + 1] < p->over_begin[i])) {
            return cb_fail(err, CB_INVALID,
                           "op %u (%s): the list of memory taken over is out of order", i,
                           p->op_name[i]);
        }
    }
    return CB_OK;
}

static cb_status verify_storages(const cb_problem *p, cb_error *err) {
    uint64_t sum = 0;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (p->storage_flags[s] & ~KNOWN_STORE)
            return cb_fail(err, CB_INVALID, "storage %u: unknown flags %u", s, p->storage_flags[s]);
        if (p->storage_bytes[s] > MOST_BYTES) {
            return cb_fail(err, CB_INVALID, "storage %u: %llu bytes; the limit is 2^60", s,
                           (unsigned long long)p->storage_bytes[s]);
        }
        sum += p->storage_bytes[s] > MOST_BYTES - sum ? MOST_BYTES - sum + 1 : p->storage_bytes[s];
        if (sum > MOST_BYTES)
            return cb_fail(err, CB_INVALID, "problem: all storages together exceed 2^60 bytes");
    }
    for (uint32_t i = 0; i < p->n_op; i++) {
        uint64_t room = MOST_BYTES - sum, scratch = p->op_workspace[i];
        bool fits = scratch <= room;
        for (uint32_t m = p->member_begin ? p->member_begin[i] : 0;
             fits && p->member_begin && m < p->member_begin[i + 1]; m++) {
            fits = p->member[m].workspace <= room - scratch;
            scratch += p->member[m].workspace;
        }
        for (uint32_t j = p->inline_begin ? p->inline_begin[i] : 0;
             fits && p->inline_begin && j < p->inline_begin[i + 1]; j++) {
            fits = p->inlining[j].workspace <= room - scratch;
            scratch += p->inlining[j].workspace;
        }
        if (!fits) {
            return cb_fail(
                err, CB_INVALID,
                "op %u (%s): with its scratch of %llu bytes all memory exceeds 2^60 bytes", i,
                p->op_name[i], (unsigned long long)scratch);
        }
    }
    return CB_OK;
}

static cb_status verify_work(const cb_problem *p, uint32_t op, cb_error *err) {
    const char *name = p->op_name[op];
    if (p->op_flags[op] & ~KNOWN_FLAGS)
        return cb_fail(err, CB_INVALID, "op %u (%s): unknown flags", op, name);
    if (!isfinite(p->op_flops[op]) || p->op_flops[op] < 0)
        return cb_fail(err, CB_INVALID, "op %u (%s): flops must be finite and at least 0", op,
                       name);
    if (p->op_bytes[op] > MOST_BYTES)
        return cb_fail(err, CB_INVALID, "op %u (%s): moves more than 2^60 bytes", op, name);
    if (p->op_class[op] >= CB_WORK_CLASS_COUNT)
        return cb_fail(err, CB_INVALID, "op %u (%s): unknown work class %u", op, name,
                       p->op_class[op]);
    if (p->op_time_ps[op] < -1 || p->op_time_ps[op] > MOST_TIME) {
        return cb_fail(err, CB_INVALID,
                       "op %u (%s): the time is %lld ps; it must be -1 (unknown) or 0..2^50", op,
                       name, (long long)p->op_time_ps[op]);
    }
    if (p->op_region[op] != CB_NONE && p->op_region[op] >= p->n_region) {
        return cb_fail(err, CB_INVALID, "op %u (%s): is in region %u, but there are %u regions", op,
                       name, p->op_region[op], p->n_region);
    }
    return CB_OK;
}

/* Checks order and phase: inputs of an op exist, and ops that depend on a tangent are in the
 * backward. */
static cb_status verify_inputs(const cb_problem *p, uint32_t op, cb_error *err) {
    uint32_t flags = p->op_flags[op];
    if ((flags & CB_POP_PLACEHOLDER) && p->in_begin[op] != p->in_begin[op + 1]) {
        return cb_fail(err, CB_INVALID, "op %u (%s): a placeholder has no inputs", op,
                       p->op_name[op]);
    }
    if ((flags & (CB_POP_BACKWARD | CB_POP_PLACEHOLDER)) == CB_POP_BACKWARD &&
        op < p->backward_starts) {
        return cb_fail(
            err, CB_INVALID,
            "op %u (%s): depends on a tangent but is before the backward, which starts at %u", op,
            p->op_name[op], p->backward_starts);
    }
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t value = p->in_value[j];
        if (value >= p->out_begin[op]) {
            return cb_fail(err, CB_INVALID, "op %u (%s): reads value %u, which no earlier op makes",
                           op, p->op_name[op], value);
        }
        if ((p->op_flags[p->value_op[value]] & CB_POP_BACKWARD) && !(flags & CB_POP_BACKWARD)) {
            return cb_fail(err, CB_INVALID,
                           "op %u (%s): reads value %u of %s, which depends on a tangent, but is "
                           "not marked backward",
                           op, p->op_name[op], value, p->op_name[p->value_op[value]]);
        }
    }
    return CB_OK;
}

/* State of each storage while the ops are checked in order. */
typedef struct storage_facts {
    uint32_t *root; /* the op that allocates it; CB_NONE: not yet known */
    uint32_t *read; /* the last op that reads it; CB_NONE: not yet known */
} storage_facts;

/* Checks that one op allocates each storage, and that all its other values are views (or the same
 * memory, mutated). */
static cb_status verify_outputs(const cb_problem *p, uint32_t op, storage_facts *f, cb_error *err) {
    uint32_t flags = p->op_flags[op], *root = f->root;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++)
        f->read[p->value_storage[p->in_value[j]]] = op;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        if (p->value_op[v] != op)
            return cb_fail(err, CB_INVALID, "value %u: its op is not op %u (%s)", v, op,
                           p->op_name[op]);
        if (s >= p->n_storage)
            return cb_fail(err, CB_INVALID,
                           "value %u of %s: is in storage %u, but there are %u storages", v,
                           p->op_name[op], s, p->n_storage);
        if (p->value_bytes[v] != UINT64_MAX && p->value_bytes[v] > MOST_BYTES)
            return cb_fail(err, CB_INVALID, "value %u of %s: %llu bytes; the limit is 2^60", v,
                           p->op_name[op], (unsigned long long)p->value_bytes[v]);
        if (p->value_constraint[v] >= CB_CONSTRAINT_COUNT)
            return cb_fail(err, CB_INVALID, "value %u of %s: unknown constraint", v,
                           p->op_name[op]);
        bool is_static = p->storage_flags[s] & CB_STORE_STATIC;
        if ((flags & CB_POP_PLACEHOLDER) && !is_static) {
            return cb_fail(err, CB_INVALID,
                           "value %u of placeholder %s: its storage %u must be static, because it "
                           "belongs to the caller",
                           v, p->op_name[op], s);
        }
        bool alias = f->read[s] == op;
        if ((flags & CB_POP_VIEW) && !alias) {
            return cb_fail(err, CB_INVALID, "value %u of view %s: no input is in its storage %u", v,
                           p->op_name[op], s);
        }
        if (alias && !(flags & (CB_POP_VIEW | CB_POP_MUTATES))) {
            return cb_fail(err, CB_INVALID,
                           "value %u of %s: is in storage %u of an input, but the op is neither "
                           "a view nor mutates",
                           v, p->op_name[op], s);
        }
        if (root[s] == CB_NONE) root[s] = op;
        if (!alias && !is_static && root[s] != op) {
            return cb_fail(err, CB_INVALID,
                           "value %u of %s: storage %u was made by %s, which %s does not read", v,
                           p->op_name[op], s, p->op_name[root[s]], p->op_name[op]);
        }
    }
    return CB_OK;
}

static cb_status verify_ends(const cb_problem *p, const uint32_t *root, cb_error *err) {
    for (uint32_t i = 0; i < p->n_forward_output; i++) {
        uint32_t v = p->forward_output[i];
        if (v >= p->n_value)
            return cb_fail(err, CB_INVALID,
                           "forward output %u is value %u, but there are %u values", i, v,
                           p->n_value);
        uint32_t op = p->value_op[v];
        if (op >= p->backward_starts && !(p->op_flags[op] & CB_POP_PLACEHOLDER)) {
            return cb_fail(err, CB_INVALID, "forward output %u: %s runs in the backward", i,
                           p->op_name[op]);
        }
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        if (p->backward_output[i] >= p->n_value) {
            return cb_fail(err, CB_INVALID,
                           "backward output %u is value %u, but there are %u values", i,
                           p->backward_output[i], p->n_value);
        }
    }
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (!(p->storage_flags[s] & (CB_STORE_HOLD_FORWARD | CB_STORE_HOLD_END)) ||
            (p->storage_flags[s] & CB_STORE_STATIC))
            continue;
        if (root[s] == CB_NONE)
            return cb_fail(err, CB_INVALID, "storage %u: must be held, but no op makes it", s);
        if ((p->storage_flags[s] & CB_STORE_HOLD_FORWARD) && root[s] >= p->backward_starts) {
            return cb_fail(err, CB_INVALID,
                           "storage %u: must be alive when the backward starts, but %s makes it in "
                           "the backward",
                           s, p->op_name[root[s]]);
        }
    }
    for (uint32_t r = 0; r < p->n_region; r++) {
        if (p->region_parent[r] != CB_NONE && p->region_parent[r] >= r) {
            return cb_fail(err, CB_INVALID,
                           "region %u (%s): its parent is %u; a parent comes before its children",
                           r, p->region_name[r], p->region_parent[r]);
        }
    }
    return CB_OK;
}

static cb_status verify_ops(const cb_problem *p, storage_facts *f, cb_error *err) {
    fill_ids(f->root, p->n_storage);
    fill_ids(f->read, p->n_storage);
    for (uint32_t op = 0; op < p->n_op; op++) {
        CB_TRY(verify_work(p, op, err));
        CB_TRY(verify_inputs(p, op, err));
        CB_TRY(verify_outputs(p, op, f, err));
        if (cb_has_inside(p, op)) CB_TRY(cb_verify_inside(p, op, f->root, err));
    }
    if (p->inline_begin) CB_TRY(cb_verify_inlinings(p, f->root, err));
    CB_TRY(verify_ends(p, f->root, err));
    CB_TRY(cb_verify_updates(p, f->root, err));
    return cb_verify_over(p, err);
}

cb_status cb_problem_verify(const cb_problem *p, cb_error *err) {
    CB_TRY(verify_counts(p, err));
    CB_TRY(verify_storages(p, err));
    cb_arena scratch;
    cb_arena_init(&scratch, p->arena.alloc);
    storage_facts f = {CB_NEW(&scratch, uint32_t, p->n_storage),
                       CB_NEW(&scratch, uint32_t, p->n_storage)};
    cb_status status = f.root && f.read ? verify_ops(p, &f, err) : cb_no_memory(err);
    cb_arena_free(&scratch);
    return status;
}
