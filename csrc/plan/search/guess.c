#include "guess.h"

/* Finds the last position at which the backward needs each storage. */
static void find_last(const cb_facts *f, uint32_t *last) {
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++)
        last[s] = f->root[s] != CB_NONE && cb_stays_to_end(f, s) ? f->n_base : 0;
    for (uint32_t k = f->base_backward; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        if (p->op_flags[op] & CB_POP_VIEW) continue;
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, op));
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            bool reads = f->root[s] != CB_NONE && cb_slice_reads(slice, j - p->in_begin[op]);
            if (reads && k > last[s]) last[s] = k;
        }
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        last[p->value_storage[p->backward_output[i]]] = f->n_base;
}

static void add(double *change, uint32_t from, uint32_t to, double bytes) {
    change[from] += bytes;
    change[to] -= bytes;
}

/* Values of the backward are alive from their op to their last read. Values of the forward are
 * alive while the forward reads them, and from the first to the last read of the backward. Values
 * that the forward returns may be freed when the backward begins. */
static void add_storage(const cb_facts *f, const cb_guess_uses *uses, uint32_t s, uint32_t last,
                        double *change) {
    double bytes = (double)f->p->storage_bytes[s];
    uint32_t made = f->position[f->root[s]], end = uses->last_forward[s], from = uses->direct[s];
    if (made >= f->base_backward) {
        end = last > made ? last : made;
        add(change, made, end < f->n_base ? end + 1 : f->n_base, bytes);
        return;
    }
    if (!uses->unused_forward[f->unit[s]]) {
        if (cb_stays_to_end(f, s)) end = f->n_base;
        else if (f->held[s]) end = f->base_backward - 1;
        add(change, made, end < f->n_base ? end + 1 : f->n_base, bytes);
        if (last <= end) return;
        if (from <= end) from = end + 1;
    }
    if (from != CB_NONE) add(change, from, last < f->n_base ? last + 1 : f->n_base, bytes);
}

/* Returns the outputs made by the run of an op at its position in the order, or 0 if it does not
 * run there. */
static uint32_t made_in_place(const cb_facts *f, const cb_guess_uses *uses, uint32_t op) {
    uint32_t made = 0;
    if (f->position[op] >= f->base_backward) return cb_unit_made(f, op);
    if (!cb_has_units(f, op)) return uses->unused_forward[op] ? 0 : CB_ALL_OUTPUTS;
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if (!uses->unused_forward[u]) made |= cb_unit_made(f, u);
    return made & f->useful[op];
}

cb_status cb_guess_least(const cb_facts *f, const cb_guess_uses *uses, double *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    double *change = CB_NEW(&scratch, double, (size_t)f->n_base + 1), now = 0;
    uint32_t *last = CB_NEW(&scratch, uint32_t, f->p->n_storage);
    bool ok = change && last;
    if (ok) {
        find_last(f, last);
        for (uint32_t s = 0; s < f->p->n_storage; s++)
            if (f->root[s] != CB_NONE) add_storage(f, uses, s, last[s], change);
    }
    for (uint32_t k = 0; ok && k < f->n_base; k++) {
        uint32_t op = f->base[k], made = made_in_place(f, uses, op);
        now += change[k];
        out[k] = now + (made == 0 ? 0.0 : (double)cb_run_workspace(f->p, op, made));
    }
    cb_arena_free(&scratch);
    return ok ? CB_OK : cb_no_memory(err);
}
