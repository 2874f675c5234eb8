#include "drops.h"

typedef struct dropping {
    const cb_drops *z;
    cb_pairs *out;
    cb_arena *scratch;
    CB_VEC(uint32_t) stack; /* units that run again at the anchor and whose inputs are pending */
} dropping;

static bool add(dropping *d, uint32_t anchor, uint32_t unit, uint32_t early) {
    return CB_PUSH(d->out->arena, d->out->list, cb_pair_make(anchor, unit | early)) &&
           CB_PUSH(d->scratch, d->stack, unit);
}

/* True if the rerun at `anchor` must recompute this input: in the backward, if the cut does not
 * save it; in the forward, after its last read, if that is cheaper than keeping it. */
static bool lacks(const cb_drops *z, uint32_t storage, uint32_t anchor) {
    const cb_facts *f = z->cut->f;
    uint32_t unit = f->unit[storage];
    if (f->root[storage] == CB_NONE || f->position[unit] >= f->base_backward) return false;
    if (!cb_may_rerun(f, unit) || f->held[storage]) return false;
    if (anchor >= f->base_backward) return z->cut->recompute[unit];
    if (z->cut->saved[storage] || anchor < z->gaps->early[storage]) return false;
    double keep =
        (double)f->p->storage_bytes[storage] * (z->sum[anchor] - z->sum[z->gaps->early[storage]]);
    return keep > (double)f->cost_ps[unit];
}

/* Adds the unit at `anchor` and what it needs there. */
static bool add_chain(dropping *d, uint32_t anchor, uint32_t unit, uint32_t early) {
    const cb_facts *f = d->z->cut->f;
    const cb_problem *p = f->p;
    size_t begin = d->out->list.len;
    if (!add(d, anchor, unit, early)) return false;
    while (d->stack.len > 0) {
        uint32_t reader = d->stack.at[--d->stack.len], op = cb_unit_op(f, reader);
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, reader));
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]], made = f->unit[s];
            if (!cb_slice_reads(slice, j - p->in_begin[op]) || !lacks(d->z, s, anchor)) continue;
            bool known = false;
            for (size_t i = begin; i < d->out->list.len && !known; i++)
                known = cb_pair_op(d->out->list.at[i]) == made;
            if (!known && !add(d, anchor, made, 0)) return false;
        }
    }
    return true;
}

static bool drop_all(dropping *d) {
    const cb_drops *z = d->z;
    const cb_gaps *g = z->gaps;
    const cb_facts *f = z->cut->f;
    for (size_t i = 0; i < g->list.len; i++) {
        const cb_gap *gap = &g->list.at[i];
        bool keeps = gap->bytes * (z->sum[gap->to] - z->sum[gap->from]) <= gap->cost_ps;
        if (keeps || gap->to >= f->n_base) continue;
        if (!add_chain(d, gap->to, f->unit[gap->storage], 0)) return false;
    }
    for (uint32_t i = 0; i < z->cut->n_save; i++) {
        uint32_t s = z->cut->save_storage[i], start = g->start[s];
        if (!z->cut->saved[s] || g->early[s] >= start) continue;
        double keep = (double)f->p->storage_bytes[s] * (z->sum[start] - z->sum[g->early[s]]);
        if (keep <= g->again_ps[s]) continue;
        if (!add_chain(d, start - 1, f->unit[s], CB_EARLY)) return false;
    }
    return true;
}

static void drop_doubles(cb_pairs *pairs) {
    size_t n = 0;
    for (size_t i = 0; i < pairs->list.len; i++)
        if (n == 0 || pairs->list.at[n - 1] != pairs->list.at[i])
            pairs->list.at[n++] = pairs->list.at[i];
    pairs->list.len = n;
}

cb_status cb_drop_gaps(const cb_drops *z, cb_pairs *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, z->cut->f->alloc);
    dropping d = {.z = z, .out = out, .scratch = &scratch};
    out->list.len = 0;
    bool ok = drop_all(&d);
    cb_arena_free(&scratch);
    return ok ? CB_OK : cb_no_memory(err);
}

cb_status cb_add_pairs(const cb_pairs *more, cb_pairs *out, cb_error *err) {
    size_t n = more->list.len;
    if (!CB_RESERVE(out->arena, out->list, n)) return cb_no_memory(err);
    if (n > 0) memcpy(out->list.at + out->list.len, more->list.at, n * sizeof *out->list.at);
    out->list.len += n;
    cb_sort_pairs(out->list.at, out->list.len);
    drop_doubles(out);
    return CB_OK;
}
