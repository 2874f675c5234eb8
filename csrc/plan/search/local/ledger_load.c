/* Loads a plan into the ledger and reads it out again: the base order, held values, then chain by
 * chain. A pair at a view's position moves to the next reader. */
#include "ledger_parts.h"

/* Adds a read through a view: the reader gets the version that the view's op saw. */
static bool add_shown(cb_ledger *l, uint32_t value) {
    const cb_facts *f = l->f;
    uint32_t op = f->p->value_op[value], s = f->p->value_storage[value];
    bool shown = cb_is_view(f, op) && f->root[s] != CB_NONE && f->position[op] != CB_NONE;
    if (!shown) return true;
    cb_ledger_touch(l, l->twin[s]);
    return cb_ledger_add_use(l, l->twin[s], f->position[op]);
}

static bool add_ends(cb_ledger *l) {
    const cb_facts *f = l->f;
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (l->held_until[s] > 0) cb_ledger_touch(l, l->twin[s]);
    }
    for (uint32_t i = 0; i < p->n_forward_output; i++) {
        if (!add_shown(l, p->forward_output[i])) return false;
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i], s = p->value_storage[v];
        if (f->root[s] == CB_NONE) continue;
        cb_ledger_touch(l, l->twin[s]);
        if (cb_stays_to_end(f, s) ? !add_shown(l, v) : !cb_ledger_add_use(l, l->twin[s], l->n))
            return false;
    }
    return true;
}

static bool add_outputs(cb_ledger *l, uint32_t op, uint32_t anchor) {
    const cb_facts *f = l->f;
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++) {
        bool useful = f->useful[op] & cb_unit_made(f, u);
        if (useful && !cb_ledger_add_run(l, u, anchor)) return false;
    }
    return true;
}

static bool load_base(cb_ledger *l) {
    const cb_facts *f = l->f;
    for (uint32_t k = 0; k < l->n; k++) {
        uint32_t op = f->base[k];
        if (cb_is_view(f, op)) continue;
        if (!cb_has_units(f, op) ? !cb_ledger_add_run(l, op, k) : !add_outputs(l, op, k))
            return false;
    }
    l->extra_ps = l->f->inlining_ps;
    return add_ends(l);
}

/* Returns where the pairs of `anchor` take effect: for a view, at the next reader of its
 * storage. */
static uint32_t real_anchor(const cb_ledger *l, uint32_t anchor) {
    const cb_facts *f = l->f;
    uint32_t op = f->base[anchor];
    if (!cb_is_view(f, op)) return anchor;
    const cb_problem *p = f->p;
    uint32_t s = p->value_storage[p->out_begin[op]];
    const cb_ledger_uses *u = cb_ledger_uses_of(l, s);
    size_t i = cb_ledger_find_reader(l, u, anchor);
    return i < u->len && u->at[i].anchor < l->n ? u->at[i].anchor : CB_NONE;
}

static bool load_pairs(cb_ledger *l, const cb_pair *pair, size_t n_pair) {
    CB_VEC(cb_pair) moved = {0};
    cb_ledger_ids ops = {0};
    if (!CB_RESERVE(&l->arena, moved, n_pair)) return false;
    for (size_t i = 0; i < n_pair; i++) {
        uint32_t anchor = real_anchor(l, cb_pair_anchor(pair[i])), op = cb_pair_op(pair[i]);
        if (anchor == CB_NONE || !l->may_rerun[op] || l->f->position[op] >= anchor) continue;
        moved.at[moved.len++] = cb_pair_make(anchor, cb_pair_id(pair[i]));
    }
    cb_sort_pairs(moved.at, moved.len);
    for (size_t i = 0; i < moved.len;) {
        uint32_t anchor = cb_pair_anchor(moved.at[i]);
        ops.len = 0;
        for (; i < moved.len && cb_pair_anchor(moved.at[i]) == anchor; i++) {
            if (!CB_PUSH(&l->arena, ops, cb_pair_id(moved.at[i]))) return false;
        }
        if (!cb_ledger_set(l, anchor, ops.at, ops.len)) return false;
    }
    return true;
}

cb_status cb_ledger_load(cb_ledger *l, const cb_pair *pair, size_t n_pair, double target,
                         cb_error *err) {
    const cb_problem *p = l->f->p;
    for (uint32_t k = 0; k < l->n; k++) l->chain[k].len = 0;
    for (uint32_t op = 0; op < l->f->n_unit; op++) {
        l->runs[op].len = 0;
        if (l->taken) l->taken[op].len = 0;
        l->idle[op] = false;
    }
    for (uint32_t s = 0; s < p->n_storage; s++) l->use[s].len = l->span[s].len = 0;
    memset(l->moment, 0, ((size_t)l->n_block << CB_LEDGER_BLOCK) * sizeof *l->moment);
    memset(l->local, 0, l->n * sizeof *l->local);
    memset(l->lift, 0, l->n_block * sizeof *l->lift);
    memset(l->rise, 0, ((size_t)l->n_block + 1) * sizeof *l->rise);
    for (uint32_t b = 0; b < l->n_block; b++) l->stale[b] = true;
    l->notes.on = false;
    l->busy.len = l->touched.len = l->marked.len = 0;
    l->round++;
    l->target = target;
    cb_ledger_hold_until_backward(l, false);
    if (!load_base(l)) return cb_no_memory(err);
    for (uint32_t k = 0; k < l->n; k++) cb_ledger_mark(l, k);
    return load_pairs(l, pair, n_pair) && cb_ledger_settle(l) ? CB_OK : cb_no_memory(err);
}

bool cb_ledger_pairs(const cb_ledger *l, cb_pairs *out) {
    size_t begin = out->list.len;
    for (uint32_t k = 0; k < l->n; k++) {
        for (size_t i = 0; i < l->chain[k].len; i++) {
            uint32_t id = l->chain[k].at[i] & ~(CB_JOINED | CB_TAKEN);
            if (!CB_PUSH(out->arena, out->list, cb_pair_make(k, id))) return false;
        }
    }
    if (out->list.len > begin) cb_sort_pairs(out->list.at + begin, out->list.len - begin);
    return true;
}
