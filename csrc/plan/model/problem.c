/* Creation, checks and fingerprint of a problem. Everything after cb_problem_verify relies on what
 * it checks and looks at nothing twice; the rules stand in one function a kind of thing. */
#include <math.h>

#include "../../base/map.h"
#include "problem.h"

#define MOST_ITEMS \
    ((uint32_t)1 << 28) /* ops, values, inputs, storages: sums of them stay in 32 bits */
#define MOST_BYTES (UINT64_C(1) << 60) /* of all storages and scratch together */
#define MOST_TIME (INT64_C(1) << 50)   /* picoseconds of one op: 18 minutes */
#define MOST_ALIGN (UINT64_C(1) << 20)
#define KNOWN_FLAGS ((uint32_t)(CB_POP_PARAMETER << 1) - 1)
#define KNOWN_STORE (CB_STORE_STATIC | CB_STORE_HOLD_FORWARD | CB_STORE_HOLD_END)

static void fill_ids(uint32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) ids[i] = CB_NONE;
}

static void fill_text(const char **text, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) text[i] = "";
}

static bool create_ops(cb_problem *p, uint32_t n_op, uint32_t n_in) {
    cb_arena *a = &p->arena;
    p->n_op = n_op;
    p->op_flags = CB_NEW(a, uint32_t, n_op);
    p->op_flops = CB_NEW(a, double, n_op);
    p->op_bytes = CB_NEW(a, uint64_t, n_op);
    p->op_class = CB_NEW(a, uint8_t, n_op);
    p->op_time_ps = CB_NEW(a, int64_t, n_op);
    p->op_workspace = CB_NEW(a, uint64_t, n_op);
    p->op_group = CB_NEW(a, uint32_t, n_op);
    p->op_region = CB_NEW(a, uint32_t, n_op);
    p->op_kind = CB_NEW(a, const char *, n_op);
    p->op_name = CB_NEW(a, const char *, n_op);
    p->op_location = CB_NEW(a, const char *, n_op);
    p->in_begin = CB_NEW(a, uint32_t, (size_t)n_op + 1);
    p->in_value = CB_NEW(a, uint32_t, n_in);
    p->out_begin = CB_NEW(a, uint32_t, (size_t)n_op + 1);
    if (!p->op_flags || !p->op_flops || !p->op_bytes || !p->op_class || !p->op_time_ps ||
        !p->op_workspace || !p->op_group || !p->op_region || !p->op_kind || !p->op_name ||
        !p->op_location || !p->in_begin || !p->in_value || !p->out_begin) {
        return false;
    }
    for (uint32_t i = 0; i < n_op; i++) p->op_time_ps[i] = -1;
    fill_ids(p->op_group, n_op);
    fill_ids(p->op_region, n_op);
    fill_ids(p->in_value, n_in);
    fill_text(p->op_kind, n_op);
    fill_text(p->op_name, n_op);
    fill_text(p->op_location, n_op);
    return true;
}

static bool create_values(cb_problem *p, uint32_t n_value, uint32_t n_storage) {
    cb_arena *a = &p->arena;
    p->n_value = n_value;
    p->n_storage = n_storage;
    p->value_op = CB_NEW(a, uint32_t, n_value);
    p->value_storage = CB_NEW(a, uint32_t, n_value);
    p->value_constraint = CB_NEW(a, uint8_t, n_value);
    p->value_bytes = CB_NEW(a, uint64_t, n_value);
    p->value_type = CB_NEW(a, const char *, n_value);
    p->storage_bytes = CB_NEW(a, uint64_t, n_storage);
    p->storage_flags = CB_NEW(a, uint8_t, n_storage);
    if (!p->value_op || !p->value_storage || !p->value_constraint || !p->value_bytes ||
        !p->value_type || !p->storage_bytes || !p->storage_flags) {
        return false;
    }
    for (uint32_t v = 0; v < n_value; v++) p->value_bytes[v] = UINT64_MAX;
    fill_ids(p->value_op, n_value);
    fill_ids(p->value_storage, n_value);
    fill_text(p->value_type, n_value);
    return true;
}

cb_status cb_problem_create(cb_alloc *alloc, cb_problem_sizes n, cb_problem **out, cb_error *err) {
    if (n.n_op > MOST_ITEMS || n.n_in > MOST_ITEMS || n.n_value > MOST_ITEMS ||
        n.n_storage > MOST_ITEMS) {
        return cb_fail(err, CB_INVALID,
                       "problem: %u ops, %u inputs, %u values, %u storages; the limit is %u each",
                       n.n_op, n.n_in, n.n_value, n.n_storage, MOST_ITEMS);
    }
    cb_arena arena;
    cb_arena_init(&arena, alloc);
    cb_problem *p = CB_NEW(&arena, cb_problem, 1);
    if (!p) {
        cb_arena_free(&arena);
        return cb_no_memory(err);
    }
    p->arena = arena;
    p->align = CB_ALIGN;
    if (!create_ops(p, n.n_op, n.n_in) || !create_values(p, n.n_value, n.n_storage)) {
        cb_problem_free(p);
        return cb_no_memory(err);
    }
    *out = p;
    return CB_OK;
}

void cb_problem_free(cb_problem *p) {
    if (!p) return;
    cb_arena arena = p->arena; /* the problem lies in the arena it owns */
    cb_arena_free(&arena);
}

/* ---- checks ---------------------------------------------------------------------------------- */

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
            return cb_fail(err, CB_INVALID, "problem: all storages together pass 2^60 bytes");
    }
    for (uint32_t i = 0; i < p->n_op; i++) {
        if (p->op_workspace[i] > MOST_BYTES - sum) {
            return cb_fail(
                err, CB_INVALID,
                "op %u (%s): with its scratch of %llu bytes all memory passes 2^60 bytes", i,
                p->op_name[i], (unsigned long long)p->op_workspace[i]);
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
                       "op %u (%s): a time of %lld ps; it must be -1 (unknown) or 0..2^50", op,
                       name, (long long)p->op_time_ps[op]);
    }
    if (p->op_region[op] != CB_NONE && p->op_region[op] >= p->n_region) {
        return cb_fail(err, CB_INVALID, "op %u (%s): region %u of %u", op, name, p->op_region[op],
                       p->n_region);
    }
    return CB_OK;
}

/* Order and phase: an op reads what exists, and what depends on a tangent stays in the backward. */
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
            "op %u (%s): depends on a tangent but stands before the backward, which starts at %u",
            op, p->op_name[op], p->backward_starts);
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

/* What is known of each storage while the ops are checked in order. */
typedef struct storage_facts {
    uint32_t *root; /* the op that allocates it, CB_NONE: none so far */
    uint32_t *read; /* the last op that reads it, CB_NONE: none so far */
} storage_facts;

/* One op allocates a storage; all other values of it are views (or the same memory, mutated). */
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
            return cb_fail(err, CB_INVALID, "value %u of %s: storage %u of %u", v, p->op_name[op],
                           s, p->n_storage);
        if (p->value_bytes[v] != UINT64_MAX && p->value_bytes[v] > MOST_BYTES)
            return cb_fail(err, CB_INVALID, "value %u of %s: %llu bytes; the limit is 2^60", v,
                           p->op_name[op], (unsigned long long)p->value_bytes[v]);
        if (p->value_constraint[v] >= CB_CONSTRAINT_COUNT)
            return cb_fail(err, CB_INVALID, "value %u of %s: unknown constraint", v,
                           p->op_name[op]);
        bool is_static = p->storage_flags[s] & CB_STORE_STATIC;
        if ((flags & CB_POP_PLACEHOLDER) && !is_static) {
            return cb_fail(err, CB_INVALID,
                           "value %u of placeholder %s: its storage %u must be static, it belongs "
                           "to the caller",
                           v, p->op_name[op], s);
        }
        bool alias = f->read[s] == op;
        if ((flags & CB_POP_VIEW) && !alias) {
            return cb_fail(err, CB_INVALID, "value %u of view %s: no input lies in its storage %u",
                           v, p->op_name[op], s);
        }
        if (alias && !(flags & (CB_POP_VIEW | CB_POP_MUTATES))) {
            return cb_fail(err, CB_INVALID,
                           "value %u of %s: lies in storage %u of an input, but the op is neither "
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
            return cb_fail(err, CB_INVALID, "forward output %u: value %u of %u", i, v, p->n_value);
        uint32_t op = p->value_op[v];
        if (op >= p->backward_starts && !(p->op_flags[op] & CB_POP_PLACEHOLDER)) {
            return cb_fail(err, CB_INVALID, "forward output %u: %s runs in the backward", i,
                           p->op_name[op]);
        }
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        if (p->backward_output[i] >= p->n_value) {
            return cb_fail(err, CB_INVALID, "backward output %u: value %u of %u", i,
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
    }
    return verify_ends(p, f->root, err);
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

/* ---- fingerprint ----------------------------------------------------------------------------- */

static uint64_t hash_u64(uint64_t word, uint64_t seed) {
    uint8_t byte[8]; /* little-endian on every machine, as files are exchanged between them */
    for (int i = 0; i < 8; i++) byte[i] = (uint8_t)(word >> (8 * i));
    return cb_hash_bytes(byte, sizeof byte, seed);
}

static uint64_t hash_ids(const uint32_t *ids, size_t n, uint64_t seed) {
    uint64_t hash = hash_u64(n, seed);
    for (size_t i = 0; i < n; i++) hash = hash_u64(ids[i], hash);
    return hash;
}

uint64_t cb_problem_fingerprint(const cb_problem *p) {
    uint64_t hash = hash_u64(p->backward_starts, hash_u64(p->align, 0));
    hash = hash_ids(p->op_flags, p->n_op, hash);
    hash = hash_ids(p->in_begin, (size_t)p->n_op + 1, hash);
    hash = hash_ids(p->in_value, p->in_begin[p->n_op], hash);
    hash = hash_ids(p->out_begin, (size_t)p->n_op + 1, hash);
    hash = hash_ids(p->value_storage, p->n_value, hash);
    hash = hash_ids(p->forward_output, p->n_forward_output, hash);
    hash = hash_ids(p->backward_output, p->n_backward_output, hash);
    for (uint32_t i = 0; i < p->n_op; i++) hash = hash_u64(p->op_workspace[i], hash);
    for (uint32_t s = 0; s < p->n_storage; s++)
        hash = hash_u64(p->storage_flags[s], hash_u64(p->storage_bytes[s], hash));
    return hash;
}
