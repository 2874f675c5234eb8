/* Does value numbering in one pass: it looks a node up by its key and by the numbers of its inputs,
 * which are final by then. Rows with equal hashes are compared; the later row takes the next free
 * slot. */
#include "duplicates.h"

#include "../../base/map.h"

static cb_status check(const cb_calls *c, cb_error *err) {
    if (c->in_start[0] != 0 || c->in_start[c->n] != c->n_in)
        return cb_fail(err, CB_INVALID, "inputs of %u nodes end at %u, not at %u", c->n,
                       c->in_start[c->n], c->n_in);
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->in_start[i] > c->in_start[i + 1])
            return cb_fail(err, CB_INVALID, "node %u: inputs end before they begin", i);
        for (uint32_t k = c->in_start[i]; k < c->in_start[i + 1] && k < c->n_in; k++) {
            if (c->in[k] >= i)
                return cb_fail(err, CB_INVALID, "node %u: input %u is not an earlier node", i,
                               c->in[k]);
        }
    }
    return CB_OK;
}

static bool equal(const cb_calls *c, const uint32_t *same, uint32_t a, uint32_t b) {
    const uint32_t first_a = c->in_start[a], first_b = c->in_start[b];
    const uint32_t n = c->in_start[a + 1] - first_a;
    if (c->key[a] != c->key[b] || n != c->in_start[b + 1] - first_b) return false;
    for (uint32_t k = 0; k < n; k++)
        if (same[c->in[first_a + k]] != same[c->in[first_b + k]]) return false;
    return true;
}

static uint64_t hash_of(const cb_calls *c, const uint32_t *same, uint32_t i) {
    uint64_t hash = c->key[i];
    for (uint32_t k = c->in_start[i]; k < c->in_start[i + 1]; k++)
        hash = cb_hash_bytes(&same[c->in[k]], sizeof *same, hash);
    return hash;
}

static bool number(const cb_calls *c, uint32_t *same, uint32_t i, cb_map *seen) {
    same[i] = i;
    if (c->key[i] == CB_NONE) return true;
    uint64_t hash = hash_of(c, same, i);
    for (uint32_t found; cb_map_get(seen, hash, &found); hash++) {
        if (!equal(c, same, found, i)) continue;
        same[i] = found;
        return true;
    }
    return cb_map_put(seen, hash, i);
}

cb_status cb_find_duplicates(cb_alloc *alloc, const cb_calls *calls, uint32_t *same,
                             cb_error *err) {
    CB_TRY(check(calls, err));
    cb_arena arena;
    cb_map seen;
    cb_arena_init(&arena, alloc);
    cb_map_init(&seen, &arena);
    cb_status status = CB_OK;
    for (uint32_t i = 0; status == CB_OK && i < calls->n; i++)
        if (!number(calls, same, i, &seen)) status = cb_no_memory(err);
    cb_arena_free(&arena);
    return status;
}
