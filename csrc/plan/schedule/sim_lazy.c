/* The lazy backward: a rerun takes place right before the first base op that needs it. A value that
 * is cheaper to inline is inlined into each run that allows it, and runs separately for the first
 * run that does not. */
#include "sim_parts.h"

typedef struct reading {
    uint32_t id, host; /* an op or unit, and the op in whose run it reads */
} reading;

typedef struct lazy {
    const cb_facts *f;
    const bool *recompute;
    uint32_t *inlined; /* [n_unit] last anchor that inlines it; NULL: no inlinings */
    uint32_t *need;    /* [n_storage] */
    cb_arena *scratch;
    CB_VEC(reading) stack; /* ops and units whose inputs are needed */
    cb_pairs *out;
} lazy;

/* True if a view must run again: its value is recomputed, and an op reads through it. */
CB_SIM_INLINE bool is_view_again(const lazy *z, uint32_t op, uint32_t unit, bool plain) {
    return op != (plain ? unit : cb_unit_op(z->f, unit)) && z->recompute[unit] &&
           z->f->position[op] < z->f->base_backward;
}

/* True if it is inlined into the run that reads it. */
static bool goes_in(const lazy *z, uint32_t host, uint32_t value, uint32_t unit) {
    const cb_facts *f = z->f;
    if (!cb_unit_inlines(f, unit)) return false;
    uint32_t at = cb_find_inlining(f->p, host, value);
    return at != CB_NONE && f->inline_cost_ps[at] <= f->cost_ps[unit];
}

static inline bool push(lazy *z, uint32_t id, uint32_t host) {
    return CB_PUSH(z->scratch, z->stack, ((reading){id, host}));
}

/* Notes the inputs of the ops on the stack, and of their reruns, as needed at `anchor`. */
CB_SIM_INLINE bool spread_need(lazy *z, bool *again, uint32_t anchor, bool plain) {
    const cb_problem *p = z->f->p;
    while (z->stack.len > 0) {
        reading top = z->stack.at[--z->stack.len];
        uint32_t id = top.id, reader = plain ? id : cb_unit_op(z->f, id);
        cb_slice slice = {0};
        if (!plain) slice = cb_slice_of(p, reader, cb_unit_made(z->f, id));
        for (uint32_t j = p->in_begin[reader]; j < p->in_begin[reader + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]], op = z->f->unit[s];
            if (op == CB_NONE || z->f->position[op] >= z->f->base_backward) continue;
            if (!plain && !cb_slice_reads(slice, j - p->in_begin[reader])) continue;
            if (z->need[s] == CB_NONE) z->need[s] = anchor;
            uint32_t maker = p->value_op[p->in_value[j]];
            if (is_view_again(z, maker, op, plain) && !again[maker]) {
                again[maker] = true;
                if (!push(z, maker, maker)) return false;
            }
            if (!z->recompute[op] || again[op]) continue;
            bool in = !plain && goes_in(z, top.host, p->in_value[j], op);
            if (in && z->inlined[op] == anchor) continue;
            if (in) z->inlined[op] = anchor;
            else again[op] = true;
            if (!CB_PUSH(z->out->arena, z->out->list,
                         cb_pair_make(anchor, in ? op | CB_INLINE : op)) ||
                !push(z, op,
                      in      ? top.host
                      : plain ? op
                              : cb_unit_op(z->f, op)))
                return false;
        }
    }
    return true;
}

CB_SIM_INLINE bool find_pairs(lazy *z, bool *again, bool plain) {
    const cb_facts *f = z->f;
    for (uint32_t s = 0; s < f->p->n_storage; s++) z->need[s] = CB_NONE;
    z->out->list.len = 0;
    for (uint32_t k = f->base_backward; k < f->n_base; k++) {
        size_t begin = z->out->list.len;
        if (!push(z, f->base[k], f->base[k]) || !spread_need(z, again, k, plain)) return false;
        if (z->out->list.len > begin)
            cb_sort_pairs(z->out->list.at + begin, z->out->list.len - begin);
    }
    return true;
}

/* Forward values that are outputs of the backward are read at its end: their ops run again before
 * the last op, as early pairs, since that op may not need them. */
static bool find_pairs_of_end(lazy *z, bool *again) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    size_t begin = z->out->list.len;
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i], op = p->value_op[v];
        if (!cb_may_remake_at_end(f, v) || !z->recompute[op] || again[op]) continue;
        again[op] = true;
        if (!CB_PUSH(z->out->arena, z->out->list, cb_pair_make(f->n_base - 1, op | CB_EARLY)) ||
            !push(z, op, op) || !spread_need(z, again, f->n_base - 1, true))
            return false;
    }
    while (begin > 0 && cb_pair_anchor(z->out->list.at[begin - 1]) == f->n_base - 1) begin--;
    if (z->out->list.len > begin) cb_sort_pairs(z->out->list.at + begin, z->out->list.len - begin);
    return true;
}

cb_status cb_recompute_lazily(const cb_facts *f, const bool *recompute, uint32_t *need,
                              cb_pairs *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    bool *again = CB_NEW(&scratch, bool, f->n_unit);
    lazy z = {.f = f, .recompute = recompute, .scratch = &scratch, .out = out};
    if (f->inlines) z.inlined = CB_NEW(&scratch, uint32_t, f->n_unit);
    for (uint32_t u = 0; z.inlined && u < f->n_unit; u++) z.inlined[u] = CB_NONE;
    z.need = need ? need : CB_NEW(&scratch, uint32_t, f->p->n_storage);
    bool plain = !f->unit_begin && !f->inlines;
    bool ok = again && (z.inlined || !f->inlines) && z.need &&
              (plain ? find_pairs(&z, again, true) : find_pairs(&z, again, false));
    if (ok && plain && !need) ok = find_pairs_of_end(&z, again);
    cb_arena_free(&scratch);
    return ok ? CB_OK : cb_no_memory(err);
}
