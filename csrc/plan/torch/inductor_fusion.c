/* Traffic is counted by storage, and a read of a view is a read of its storage. Only ops of one
 * phase fuse. A reduction ends a chain, because its readers need all of it. */
#include "inductor_fusion.h"

#include "../../base/sort.h"
#include "../model/inside.h"

typedef struct fusion {
    cb_problem *p;
    uint32_t *root;   /* [n_storage] op that allocates it; CB_NONE: the caller's */
    uint32_t *reader; /* [n_storage] its only reader; CB_NONE: none */
    bool *leaves;     /* [n_storage] true if it is held, returned, or read by several ops; later, if
                     other groups read it */
} fusion;

static bool is_work(const cb_problem *p, uint32_t op) {
    return !(p->op_flags[op] & (CB_POP_PLACEHOLDER | CB_POP_VIEW));
}

/* Marks storages that are read by more than one op, held or returned. */
static void find_readers(fusion *z) {
    const cb_problem *p = z->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        z->root[s] = z->reader[s] = CB_NONE;
        z->leaves[s] = p->storage_flags[s] != 0;
    }
    for (uint32_t v = p->n_value; v-- > 0;) {
        uint32_t s = p->value_storage[v];
        if (!(p->storage_flags[s] & CB_STORE_STATIC)) z->root[s] = p->value_op[v];
    }
    for (uint32_t op = 0; op < p->n_op; op++) {
        for (uint32_t j = p->in_begin[op]; is_work(p, op) && j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            if (z->reader[s] != CB_NONE && z->reader[s] != op) z->leaves[s] = true;
            z->reader[s] = op;
        }
    }
    for (uint32_t i = 0; i < p->n_forward_output; i++)
        z->leaves[p->value_storage[p->forward_output[i]]] = true;
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        z->leaves[p->value_storage[p->backward_output[i]]] = true;
}

static bool same_phase(const cb_problem *p, uint32_t a, uint32_t b) {
    return (a < p->backward_starts) == (b < p->backward_starts);
}

/* Returns the op that `op` fuses with, or CB_NONE. */
static uint32_t partner_of(const fusion *z, uint32_t op) {
    const cb_problem *p = z->p;
    uint32_t partner = CB_NONE;
    if (!(p->op_flags[op] & CB_POP_FUSIBLE) || (p->op_flags[op] & CB_POP_REDUCTION)) return CB_NONE;
    if (cb_has_inside(p, op)) return CB_NONE; /* the op is already a kernel */
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        if (z->root[s] != op || z->leaves[s] || z->reader[s] == CB_NONE) return CB_NONE;
        if (partner != CB_NONE && z->reader[s] != partner) return CB_NONE;
        partner = z->reader[s];
    }
    if (partner == CB_NONE || p->op_group[partner] != CB_NONE) return CB_NONE;
    bool fuses = (p->op_flags[partner] & CB_POP_FUSIBLE) && same_phase(p, op, partner) &&
                 !cb_has_inside(p, partner);
    return fuses ? partner : CB_NONE;
}

static int compare_keys(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Names groups by their last op. `key` [n_op] has the given group and the op, sorted. */
static void name_groups(fusion *z, uint64_t *key) {
    cb_problem *p = z->p;
    uint32_t n = 0;
    for (uint32_t op = p->n_op; op-- > 0;) {
        p->fused_group[op] = op;
        if (!is_work(p, op)) continue;
        if (p->op_group[op] != CB_NONE) {
            key[n++] = (uint64_t)p->op_group[op] << 32 | op;
            continue;
        }
        uint32_t partner = partner_of(z, op);
        if (partner != CB_NONE) p->fused_group[op] = p->fused_group[partner];
    }
    if (n > 0) cb_sort(key, n, sizeof *key, compare_keys);
    for (uint32_t i = n; i-- > 0;) {
        uint32_t op = (uint32_t)key[i];
        bool last = i + 1 == n || key[i + 1] >> 32 != key[i] >> 32;
        p->fused_group[op] = last ? op : p->fused_group[(uint32_t)key[i + 1]];
    }
}

/* Recomputes `leaves`: from here on a storage leaves its group if an op of another group reads
 * it. */
static void find_borders(fusion *z) {
    const cb_problem *p = z->p;
    for (uint32_t s = 0; s < p->n_storage; s++) z->leaves[s] = p->storage_flags[s] != 0;
    for (uint32_t op = 0; op < p->n_op; op++) {
        for (uint32_t j = p->in_begin[op]; is_work(p, op) && j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            bool inside = z->root[s] != CB_NONE && p->fused_group[z->root[s]] == p->fused_group[op];
            if (!inside || !same_phase(p, z->root[s], op)) z->leaves[s] = true;
        }
    }
    for (uint32_t i = 0; i < p->n_forward_output; i++)
        z->leaves[p->value_storage[p->forward_output[i]]] = true;
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        z->leaves[p->value_storage[p->backward_output[i]]] = true;
}

static uint64_t bytes_of(const cb_problem *p, uint32_t value) {
    uint64_t whole = p->storage_bytes[p->value_storage[value]], own = cb_value_bytes(p, value);
    return own < whole ? own : whole;
}

/* Returns the traffic that an op saves by being in its group. `seen` [n_storage]: 1 + the last op
 * that counted it; `read` [n_storage]: 1 + the last group that read it. */
static uint64_t spared(const fusion *z, uint32_t op, uint32_t *seen, uint32_t *read) {
    const cb_problem *p = z->p;
    uint64_t bytes = 0;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t s = p->value_storage[p->in_value[j]];
        if (seen[s] == op + 1) continue;
        seen[s] = op + 1;
        bool inside = z->root[s] != CB_NONE && !z->leaves[s];
        bool again = read[s] == p->fused_group[op] + 1;
        read[s] = p->fused_group[op] + 1;
        if (inside || again) bytes += bytes_of(p, p->in_value[j]);
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        bool read_inside = z->reader[s] != CB_NONE && !z->leaves[s];
        if (z->root[s] == op && seen[s] != op + 1 && read_inside) bytes += bytes_of(p, v);
    }
    return bytes;
}

/* Visits the ops group by group, because `read` stores only one group per storage. */
static void count_bytes(const fusion *z, uint64_t *key, uint32_t *seen, uint32_t *read) {
    cb_problem *p = z->p;
    for (uint32_t op = 0; op < p->n_op; op++) key[op] = (uint64_t)p->fused_group[op] << 32 | op;
    if (p->n_op > 0) cb_sort(key, p->n_op, sizeof *key, compare_keys);
    for (uint32_t i = 0; i < p->n_op; i++) {
        uint32_t op = (uint32_t)key[i];
        p->fused_bytes[op] = p->op_bytes[op];
        p->fused_launch[op] = p->fused_group[op] == op;
        if (!is_work(p, op)) continue;
        uint64_t less = spared(z, op, seen, read);
        bool alone = p->fused_launch[op] && (i == 0 || key[i - 1] >> 32 != key[i] >> 32);
        if (!alone) p->fused_bytes[op] -= less < p->op_bytes[op] ? less : p->op_bytes[op];
    }
}

cb_status cb_find_fusion(cb_problem *p, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, p->arena.alloc);
    fusion z = {.p = p};
    z.root = CB_NEW(&scratch, uint32_t, p->n_storage);
    z.reader = CB_NEW(&scratch, uint32_t, p->n_storage);
    z.leaves = CB_NEW(&scratch, bool, p->n_storage);
    uint32_t *seen = CB_NEW(&scratch, uint32_t, p->n_storage),
             *read = CB_NEW(&scratch, uint32_t, p->n_storage);
    uint64_t *key = CB_NEW(&scratch, uint64_t, p->n_op);
    uint32_t *group = CB_NEW(&p->arena, uint32_t, p->n_op);
    uint64_t *bytes = CB_NEW(&p->arena, uint64_t, p->n_op);
    bool *launch = CB_NEW(&p->arena, bool, p->n_op);
    bool ok = z.root && z.reader && z.leaves && seen && read && key && group && bytes && launch;
    if (ok) {
        p->fused_group = group;
        p->fused_bytes = bytes;
        p->fused_launch = launch;
        find_readers(&z);
        name_groups(&z, key);
        find_borders(&z);
        count_bytes(&z, key, seen, read);
    }
    cb_arena_free(&scratch);
    return ok ? CB_OK : cb_no_memory(err);
}
