/* Creation and fingerprint of a problem; its checks are in problem_verify.c. */
#include "problem.h"
#include "../../base/map.h"

#define MOST_ITEMS \
    ((uint32_t)1 << 26) /* ops, values, inputs, storages: keeps their sums in 32 bits */

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

static bool create_members(cb_problem *p, uint32_t n_member) {
    if (n_member == 0) return true;
    p->member_begin = CB_NEW(&p->arena, uint32_t, (size_t)p->n_op + 1);
    p->member = CB_NEW(&p->arena, cb_member, n_member);
    p->value_member = CB_NEW(&p->arena, uint8_t, p->n_value);
    if (!p->member_begin || !p->member || !p->value_member) return false;
    for (uint32_t m = 0; m < n_member; m++) p->member[m].time_ps = -1;
    return true;
}

static bool create_over(cb_problem *p, uint32_t n_over) {
    if (n_over == 0) return true;
    p->over_begin = CB_NEW(&p->arena, uint32_t, (size_t)p->n_op + 1);
    p->over = CB_NEW(&p->arena, uint32_t, n_over);
    return p->over_begin && p->over;
}

static bool create_inlinings(cb_problem *p, uint32_t n_inlining) {
    if (n_inlining == 0) return true;
    p->inline_begin = CB_NEW(&p->arena, uint32_t, (size_t)p->n_op + 1);
    p->inlining = CB_NEW(&p->arena, cb_inlining, n_inlining);
    if (!p->inline_begin || !p->inlining) return false;
    for (uint32_t i = 0; i < n_inlining; i++) p->inlining[i].time_ps = -1;
    return true;
}

cb_status cb_problem_create(cb_alloc *alloc, cb_problem_sizes n, cb_problem **out, cb_error *err) {
    if (n.n_op > MOST_ITEMS || n.n_in > MOST_ITEMS || n.n_value > MOST_ITEMS ||
        n.n_storage > MOST_ITEMS || n.n_member > MOST_ITEMS || n.n_inlining > MOST_ITEMS ||
        n.n_over > MOST_ITEMS) {
        return cb_fail(err, CB_INVALID,
                       "problem: %u ops, %u inputs, %u values, %u storages, %u members, %u "
                       "inlinings, %u inputs whose memory may be taken over; the limit is %u each",
                       n.n_op, n.n_in, n.n_value, n.n_storage, n.n_member, n.n_inlining, n.n_over,
                       MOST_ITEMS);
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
    if (!create_ops(p, n.n_op, n.n_in) || !create_values(p, n.n_value, n.n_storage) ||
        !create_members(p, n.n_member) || !create_inlinings(p, n.n_inlining) ||
        !create_over(p, n.n_over)) {
        cb_problem_free(p);
        return cb_no_memory(err);
    }
    *out = p;
    return CB_OK;
}

void cb_problem_free(cb_problem *p) {
    if (!p) return;
    cb_arena arena = p->arena; /* the problem is allocated in its own arena */
    cb_arena_free(&arena);
}

uint32_t cb_problem_tail(const cb_problem *p) {
    uint32_t tail = p->n_op;
    while (tail > p->backward_starts && (p->op_flags[tail - 1] & CB_POP_EFFECT)) tail--;
    return tail;
}

/* ---- fingerprint ----------------------------------------------------------------------------- */

static uint64_t hash_u64(uint64_t word, uint64_t seed) {
    uint8_t byte[8]; /* little-endian on every machine, because files are exchanged */
    for (int i = 0; i < 8; i++) byte[i] = (uint8_t)(word >> (8 * i));
    return cb_hash_bytes(byte, sizeof byte, seed);
}

static uint64_t hash_ids(const uint32_t *ids, size_t n, uint64_t seed) {
    uint64_t hash = hash_u64(n, seed);
    for (size_t i = 0; i < n; i++) hash = hash_u64(ids[i], hash);
    return hash;
}

/* Parts that earlier versions of the format did not have (members, inlinings, memory taken over,
 * additional reruns) are hashed only if a problem has them, so that other problems keep their
 * fingerprints. */
static uint64_t hash_over(const cb_problem *p, uint64_t hash) {
    if (!p->over_begin || p->over_begin[p->n_op] == 0) return hash;
    hash = hash_ids(p->over_begin, (size_t)p->n_op + 1, hash);
    hash = hash_ids(p->over, p->over_begin[p->n_op], hash);
    return p->keep_saved ? hash_u64(p->keep_saved, hash) : hash;
}

static uint64_t hash_updates(const cb_problem *p, uint64_t hash) {
    return p->updates ? hash_ids(p->updates, p->n_storage, hash) : hash;
}

static uint64_t hash_again(const cb_problem *p, uint64_t hash) {
    if (p->collective_again) hash = hash_u64(p->collective_again, hash);
    return p->reruns == CB_RERUNS_FORWARD ? hash : hash_u64(UINT64_C(2) + p->reruns, hash);
}

static uint64_t hash_members(const cb_problem *p, uint64_t hash) {
    hash = hash_ids(p->member_begin, (size_t)p->n_op + 1, hash);
    for (uint32_t i = 0; i < p->member_begin[p->n_op]; i++) {
        const cb_member *m = &p->member[i];
        hash = hash_u64(m->reads, hash_u64(m->uses, hash_u64(m->size, hash)));
        hash = hash_u64(m->flags, hash_u64(m->workspace, hash));
    }
    for (uint32_t v = 0; v < p->n_value; v++) hash = hash_u64(p->value_member[v], hash);
    return hash;
}

static uint64_t hash_inlinings(const cb_problem *p, uint64_t hash) {
    hash = hash_u64(p->inline_begin[p->n_op], hash);
    for (uint32_t i = 0; i < p->inline_begin[p->n_op]; i++) {
        const cb_inlining *x = &p->inlining[i];
        hash = hash_u64(x->op, hash_u64(x->value, hash_u64(x->workspace, hash)));
    }
    return hash;
}

/* Hashes the edges of the problem: the values that ops read and make, and their storages. */
static uint64_t hash_edges(const cb_problem *p, uint64_t hash) {
    hash = hash_ids(p->op_flags, p->n_op, hash);
    hash = hash_ids(p->in_begin, (size_t)p->n_op + 1, hash);
    hash = hash_ids(p->in_value, p->in_begin[p->n_op], hash);
    hash = hash_ids(p->out_begin, (size_t)p->n_op + 1, hash);
    hash = hash_ids(p->value_storage, p->n_value, hash);
    hash = hash_ids(p->forward_output, p->n_forward_output, hash);
    return hash_ids(p->backward_output, p->n_backward_output, hash);
}

uint64_t cb_problem_fingerprint(const cb_problem *p) {
    uint64_t hash = hash_edges(p, hash_u64(p->backward_starts, hash_u64(p->align, 0)));
    for (uint32_t i = 0; i < p->n_op; i++) hash = hash_u64(p->op_workspace[i], hash);
    for (uint32_t s = 0; s < p->n_storage; s++)
        hash = hash_u64(p->storage_flags[s], hash_u64(p->storage_bytes[s], hash));
    if (p->member_begin) hash = hash_members(p, hash);
    if (p->inline_begin) hash = hash_inlinings(p, hash);
    return hash_again(p, hash_updates(p, hash_over(p, hash)));
}

static uint64_t hash_structure_inside(const cb_problem *p, uint64_t hash) {
    for (uint32_t i = 0; p->member_begin && i < p->member_begin[p->n_op]; i++) {
        const cb_member *m = &p->member[i];
        hash = hash_u64(m->reads, hash_u64(m->uses, hash_u64(m->flags, hash)));
    }
    if (p->member_begin) hash = hash_ids(p->member_begin, (size_t)p->n_op + 1, hash);
    for (uint32_t v = 0; p->member_begin && v < p->n_value; v++)
        hash = hash_u64(p->value_member[v], hash);
    for (uint32_t i = 0; p->inline_begin && i < p->inline_begin[p->n_op]; i++)
        hash = hash_u64(p->inlining[i].op, hash_u64(p->inlining[i].value, hash));
    return hash;
}

static uint64_t hash_structure_regions(const cb_problem *p, uint64_t hash) {
    hash = hash_ids(p->op_region, p->n_op, hash);
    hash = hash_ids(p->region_parent, p->n_region, hash);
    for (uint32_t r = 0; r < p->n_region; r++) hash = hash_u64(p->region_limit[r], hash);
    return hash;
}

uint64_t cb_problem_structure(const cb_problem *p) {
    uint64_t hash = hash_edges(p, hash_u64(p->backward_starts, hash_u64(p->align, p->n_storage)));
    for (uint32_t i = 0; i < p->n_op; i++)
        hash = cb_hash_bytes(p->op_kind[i], strlen(p->op_kind[i]), hash_u64(p->op_class[i], hash));
    for (uint32_t v = 0; v < p->n_value; v++) hash = hash_u64(p->value_constraint[v], hash);
    for (uint32_t s = 0; s < p->n_storage; s++) hash = hash_u64(p->storage_flags[s], hash);
    if (p->reruns != CB_RERUNS_FORWARD) hash = hash_u64(p->reruns, hash);
    hash = hash_updates(p, hash_over(p, hash));
    return hash_structure_inside(p, hash_structure_regions(p, hash));
}
