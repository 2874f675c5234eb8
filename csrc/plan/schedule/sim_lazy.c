/* The lazy backward: what runs again does so right before the first base op that needs it. */
#include "sim.h"

typedef struct lazy {
    const cb_facts *f;
    const bool *recompute;
    uint32_t *need; /* [n_storage] */
    cb_arena *scratch;
    CB_VEC(uint32_t) stack; /* ops whose inputs are needed */
    cb_pairs *out;
} lazy;

/* A view of what runs again does so as well, where somebody reads through it. */
static bool is_view_again(const lazy *z, uint32_t op, uint32_t unit) {
    return op != cb_unit_op(z->f, unit) && z->recompute[unit] &&
           z->f->position[op] < z->f->base_backward;
}

/* Notes the inputs of the ops on the stack as needed at `anchor`, and of those that run again for
 * it. */
static bool spread_need(lazy *z, bool *again, uint32_t anchor) {
    const cb_problem *p = z->f->p;
    while (z->stack.len > 0) {
        uint32_t id = z->stack.at[--z->stack.len], reader = cb_unit_op(z->f, id);
        cb_slice slice = cb_slice_of(p, reader, cb_unit_made(z->f, id));
        for (uint32_t j = p->in_begin[reader]; j < p->in_begin[reader + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]], op = z->f->unit[s];
            if (op == CB_NONE || z->f->position[op] >= z->f->base_backward) continue;
            if (!cb_slice_reads(slice, j - p->in_begin[reader])) continue;
            if (z->need[s] == CB_NONE) z->need[s] = anchor;
            uint32_t maker = p->value_op[p->in_value[j]];
            if (is_view_again(z, maker, op) && !again[maker]) {
                again[maker] = true;
                if (!CB_PUSH(z->scratch, z->stack, maker)) return false;
            }
            if (!z->recompute[op] || again[op]) continue;
            again[op] = true;
            if (!CB_PUSH(z->out->arena, z->out->list, cb_pair_make(anchor, op)) ||
                !CB_PUSH(z->scratch, z->stack, op))
                return false;
        }
    }
    return true;
}

static bool find_pairs(lazy *z, bool *again) {
    const cb_facts *f = z->f;
    for (uint32_t s = 0; s < f->p->n_storage; s++) z->need[s] = CB_NONE;
    z->out->list.len = 0;
    for (uint32_t k = f->base_backward; k < f->n_base; k++) {
        size_t begin = z->out->list.len;
        if (!CB_PUSH(z->scratch, z->stack, f->base[k]) || !spread_need(z, again, k)) return false;
        if (z->out->list.len > begin)
            cb_sort_pairs(z->out->list.at + begin, z->out->list.len - begin);
    }
    return true;
}

cb_status cb_recompute_lazily(const cb_facts *f, const bool *recompute, uint32_t *need,
                              cb_pairs *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    bool *again = CB_NEW(&scratch, bool, f->n_unit);
    lazy z = {.f = f, .recompute = recompute, .scratch = &scratch, .out = out};
    z.need = need ? need : CB_NEW(&scratch, uint32_t, f->p->n_storage);
    bool ok = again && z.need && find_pairs(&z, again);
    cb_arena_free(&scratch);
    return ok ? CB_OK : cb_no_memory(err);
}
