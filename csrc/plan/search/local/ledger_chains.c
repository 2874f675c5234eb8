/* Per storage: the anchors that make it (those at which its op runs) and the anchors that read it.
 * A change undoes the runs and reads of what leaves a chain and does those of what joins it: what
 * stays is not touched.
 *
 * Views are seen through: reading a view is reading its storage's latest run, as the simulator
 * refreshes views for free. */
#include "../tuning.h"
#include "ledger_parts.h"

/* ---- runs and reads -------------------------------------------------------------------------- */

size_t cb_ledger_find_use(const cb_ledger_uses *u, uint32_t anchor) {
    size_t low = 0, high = u->len;
    if (high <= CB_LEDGER_FEW_USES) {
        while (high > 0 && u->at[high - 1].anchor >= anchor) high--;
        return high;
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (u->at[middle].anchor < anchor) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Not a view for the caller: nothing runs again for that. */
size_t cb_ledger_find_reader(const cb_ledger *l, const cb_ledger_uses *u, uint32_t anchor) {
    size_t i = cb_ledger_find_use(u, anchor);
    while (i < u->len && u->at[i].anchor < l->n && cb_is_view(l->f, l->f->base[u->at[i].anchor]))
        i++;
    return i;
}

bool cb_ledger_add_use(cb_ledger *l, uint32_t storage, uint32_t anchor) {
    cb_ledger_uses *u = &l->use[storage];
    size_t i = cb_ledger_find_use(u, anchor);
    if (i < u->len && u->at[i].anchor == anchor) {
        u->at[i].count++;
        return true;
    }
    if (!CB_RESERVE(&l->arena, *u, 1)) return false;
    for (size_t k = u->len++; k > i; k--) u->at[k] = u->at[k - 1];
    u->at[i] = (cb_ledger_use){anchor, 1};
    return true;
}

static void drop_use(cb_ledger *l, uint32_t storage, uint32_t anchor) {
    cb_ledger_uses *u = &l->use[storage];
    size_t i = cb_ledger_find_use(u, anchor);
    if (--u->at[i].count > 0) return;
    for (u->len--; i < u->len; i++) u->at[i] = u->at[i + 1];
}

void cb_ledger_touch_made(cb_ledger *l, uint32_t op) {
    for (uint32_t j = l->life_begin[op]; j < l->life_begin[op + 1]; j++)
        cb_ledger_touch(l, l->life[j]);
}

bool cb_ledger_add_uses(cb_ledger *l, uint32_t op, uint32_t anchor) {
    for (uint32_t j = l->need_begin[op]; j < l->need_begin[op + 1]; j++) {
        if (!cb_ledger_add_use(l, l->need[j], anchor)) return false;
        cb_ledger_touch(l, l->need[j]);
    }
    return true;
}

void cb_ledger_drop_uses(cb_ledger *l, uint32_t op, uint32_t anchor) {
    for (uint32_t j = l->need_begin[op]; j < l->need_begin[op + 1]; j++) {
        drop_use(l, l->need[j], anchor);
        cb_ledger_touch(l, l->need[j]);
    }
}

/* What outputs of an op with an inside cost depends on those made with them: cost_of_chain. */
static int64_t cost_alone(const cb_ledger *l, uint32_t unit) {
    return unit < l->f->p->n_op ? l->f->cost_ps[unit] : 0;
}

bool cb_ledger_put_run(cb_ledger *l, uint32_t op, uint32_t anchor) {
    cb_ledger_ids *r = &l->runs[op];
    if (!CB_RESERVE(&l->arena, *r, 1)) return false;
    size_t i = r->len++;
    for (; i > 0 && r->at[i - 1] > anchor; i--) r->at[i] = r->at[i - 1];
    r->at[i] = anchor;
    l->extra_ps += cost_alone(l, op);
    return cb_ledger_add_uses(l, op, anchor);
}

void cb_ledger_pull_run(cb_ledger *l, uint32_t op, uint32_t anchor) {
    cb_ledger_ids *r = &l->runs[op];
    size_t i = 0;
    while (r->at[i] != anchor) i++;
    for (r->len--; i < r->len; i++) r->at[i] = r->at[i + 1];
    l->extra_ps -= cost_alone(l, op);
    cb_ledger_drop_uses(l, op, anchor);
}

static bool note_run(cb_ledger *l, uint32_t op, uint32_t anchor, bool came) {
    return !l->notes.on || CB_PUSH(&l->arena, l->notes.run, (cb_ledger_run){op, anchor, came});
}

bool cb_ledger_add_run(cb_ledger *l, uint32_t op, uint32_t anchor) {
    cb_ledger_touch_made(l, op);
    return note_run(l, op, anchor, true) && cb_ledger_put_run(l, op, anchor);
}

static bool drop_run(cb_ledger *l, uint32_t op, uint32_t anchor) {
    if (!note_run(l, op, anchor, false)) return false;
    cb_ledger_touch_made(l, op);
    cb_ledger_pull_run(l, op, anchor);
    return true;
}

/* ---- chains ---------------------------------------------------------------------------------- */

static uint32_t chain_id(const cb_ledger *l, uint32_t op) {
    return l->early[op] == l->visit ? op | CB_EARLY : op;
}

/* Adds the wanted ops that `top` needs, inputs first, and `top` itself if it is `early`: depth
 * first, two entries a level, op and next read. */
static bool grow_chain(cb_ledger *l, uint32_t top, bool early) {
    cb_ledger_ids *path = &l->path;
    path->len = 0;
    if (early) l->done[top] = l->visit;
    if (!CB_PUSH(&l->arena, *path, top) || !CB_PUSH(&l->arena, *path, l->need_begin[top]))
        return false;
    while (path->len > 0) {
        uint32_t op = path->at[path->len - 2], j = path->at[path->len - 1]++;
        if (j < l->need_begin[op + 1]) {
            uint32_t maker = l->f->unit[l->need[j]];
            if (l->wanted[maker] != l->visit || l->done[maker] == l->visit) continue;
            l->done[maker] = l->visit;
            if (!CB_PUSH(&l->arena, *path, maker) ||
                !CB_PUSH(&l->arena, *path, l->need_begin[maker]))
                return false;
        } else {
            path->len -= 2;
            if ((op != top || early) && !CB_PUSH(&l->arena, l->grown, chain_id(l, op)))
                return false;
        }
    }
    return true;
}

/* ---- chains of ops with insides -------------------------------------------------------------- */

static bool is_wanted(const cb_ledger *l, uint32_t unit) {
    return l->wanted[unit] == l->visit && l->done[unit] != l->visit;
}

/* What of the wanted comes up for `top` [n] and for that. */
static bool spread_reach(cb_ledger *l, const uint32_t *top, uint32_t n) {
    cb_ledger_ids *path = &l->path;
    path->len = 0;
    l->reach++;
    for (uint32_t i = 0; i < n; i++) {
        l->reached[top[i]] = l->reach;
        if (!CB_PUSH(&l->arena, *path, top[i])) return false;
    }
    while (path->len > 0) {
        uint32_t id = path->at[--path->len];
        for (uint32_t j = l->need_begin[id]; j < l->need_begin[id + 1]; j++) {
            uint32_t maker = l->f->unit[l->need[j]];
            if (!is_wanted(l, maker) || l->reached[maker] == l->reach) continue;
            l->reached[maker] = l->reach;
            if (!CB_PUSH(&l->arena, *path, maker)) return false;
        }
    }
    return true;
}

static bool needs(const cb_ledger *l, uint32_t id, uint32_t storage) {
    for (uint32_t j = l->need_begin[id]; j < l->need_begin[id + 1]; j++)
        if (l->need[j] == storage) return true;
    return false;
}

/* Does a run of `op` that makes what has come up read the storage? */
static bool reads_now(const cb_ledger *l, uint32_t op, uint32_t storage, uint32_t base) {
    const cb_facts *f = l->f;
    if (!cb_has_units(f, op) || op == base) return true;
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if (l->reached[u] == l->reach && needs(l, u, storage)) return true;
    return false;
}

/* The op, or all of its outputs that have come up, is under way. */
static bool enter_op(cb_ledger *l, uint32_t op) {
    const cb_facts *f = l->f;
    l->done[op] = l->visit;
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if (l->reached[u] == l->reach) l->done[u] = l->visit;
    return CB_PUSH(&l->arena, l->path, op) && CB_PUSH(&l->arena, l->path, l->need_begin[op]);
}

static bool leave_op(cb_ledger *l, uint32_t op) {
    const cb_facts *f = l->f;
    uint32_t joined = 0;
    if (!cb_has_units(f, op)) return CB_PUSH(&l->arena, l->grown, chain_id(l, op));
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++) {
        if (l->reached[u] != l->reach) continue;
        if (!CB_PUSH(&l->arena, l->grown, chain_id(l, u) | joined)) return false;
        joined = CB_JOINED;
    }
    return true;
}

/* As grow_chain; `top` [n] are early units of one op, or the base op. */
static bool grow_joined(cb_ledger *l, const uint32_t *top, uint32_t n, uint32_t base) {
    const cb_facts *f = l->f;
    cb_ledger_ids *path = &l->path;
    if (!spread_reach(l, top, n) || !enter_op(l, cb_unit_op(f, top[0]))) return false;
    while (path->len > 0) {
        uint32_t op = path->at[path->len - 2], j = path->at[path->len - 1]++;
        if (j < l->need_begin[op + 1]) {
            uint32_t maker = f->unit[l->need[j]];
            if (!is_wanted(l, maker) || l->reached[maker] != l->reach) continue;
            if (!reads_now(l, op, l->need[j], base)) continue;
            if (!enter_op(l, cb_unit_op(f, maker))) return false;
        } else {
            path->len -= 2;
            if (op != base && !leave_op(l, op)) return false;
        }
    }
    return true;
}

/* The early ids of the same op as `least`, which are one run. */
static uint32_t list_tops(const cb_ledger *l, const uint32_t *id, size_t n, uint32_t least,
                          uint32_t top[CB_MOST_INNER_OUTPUTS]) {
    const cb_facts *f = l->f;
    uint32_t n_top = 0, op = cb_unit_op(f, least);
    top[n_top++] = least;
    for (uint32_t u = least + 1; least >= f->p->n_op && u < f->unit_begin[op + 1]; u++) {
        bool early = false;
        for (size_t i = 0; i < n && !early; i++)
            early = id[i] & CB_EARLY && cb_chain_op(id[i]) == u;
        if (early && l->done[u] != l->visit) top[n_top++] = u;
    }
    return n_top;
}

/* What the runs of a chain that make outputs one by one cost. */
static int64_t cost_of_chain(const cb_ledger *l, const cb_ledger_ids *chain) {
    const cb_facts *f = l->f;
    int64_t cost_ps = 0;
    for (size_t i = 0; i < chain->len;) {
        uint32_t unit = cb_chain_op(chain->at[i++]), made = 0;
        if (unit < f->p->n_op) continue;
        made = cb_unit_made(f, unit);
        for (; i < chain->len && chain->at[i] & CB_JOINED; i++)
            made |= cb_unit_made(f, cb_chain_op(chain->at[i]));
        cost_ps += cb_again_cost_ps(f, cb_unit_op(f, unit), made);
    }
    return cost_ps;
}

bool cb_ledger_note_busy(cb_ledger *l, uint32_t anchor, bool was) {
    bool is = l->chain[anchor].len > 0;
    if (is && !was) {
        l->busy_at[anchor] = (uint32_t)l->busy.len;
        return CB_PUSH(&l->arena, l->busy, anchor);
    }
    if (was && !is) {
        uint32_t last = l->busy.at[--l->busy.len];
        l->busy.at[l->busy_at[anchor]] = last;
        l->busy_at[last] = l->busy_at[anchor];
    }
    return true;
}

/* Early ops run first, in the order of their ids, and with them what they need; then what the base
 * op needs. */
static bool grow_all(cb_ledger *l, uint32_t anchor, const uint32_t *id, size_t n) {
    uint32_t next = 0;
    bool more = false;
    l->grown.len = 0;
    for (size_t i = 0; i < n; i++) {
        l->wanted[cb_chain_op(id[i])] = l->visit;
        if (!(id[i] & CB_EARLY)) continue;
        l->early[cb_chain_op(id[i])] = l->visit;
        more = true;
    }
    while (more) { /* few: the least from `next` on */
        uint32_t least = CB_NONE;
        for (size_t i = 0; i < n; i++) {
            uint32_t op = cb_chain_op(id[i]);
            if (id[i] & CB_EARLY && op >= next && op < least) least = op;
        }
        more = least != CB_NONE;
        next = least + 1;
        if (!more || l->done[least] == l->visit) continue;
        uint32_t top[CB_MOST_INNER_OUTPUTS];
        if (!l->f->unit_begin ? !grow_chain(l, least, true)
                              : !grow_joined(l, top, list_tops(l, id, n, least, top), CB_NONE))
            return false;
    }
    const uint32_t *base = &l->f->base[anchor];
    if (n == 0) return true;
    return l->f->unit_begin ? grow_joined(l, base, 1, *base) : grow_chain(l, *base, false);
}

/* Before the chain changes for the first time in a trial. */
static bool note_chain(cb_ledger *l, uint32_t anchor) {
    cb_ledger_notes *notes = &l->notes;
    const cb_ledger_ids *chain = &l->chain[anchor];
    if (!notes->on || notes->chain_in[anchor] == notes->trial) return true;
    notes->chain_in[anchor] = notes->trial;
    if (!CB_PUSH(&l->arena, notes->chained, anchor) ||
        !CB_PUSH(&l->arena, notes->n_chain, (uint32_t)chain->len) ||
        !CB_RESERVE(&l->arena, notes->chain, chain->len))
        return false;
    for (size_t i = 0; i < chain->len; i++) notes->chain.at[notes->chain.len++] = chain->at[i];
    return true;
}

/* What is held for the backward may go when its first step has run: a spare op is no step, but what
 * runs again before it is. */
void cb_ledger_hold_until_backward(cb_ledger *l, bool touches) {
    const cb_facts *f = l->f;
    if (!f->spared || f->base_backward == f->n_base) return;
    uint32_t until = f->base_backward + 1;
    for (size_t i = 0; i < l->chain[f->base_backward].len; i++) {
        bool runs = cb_chain_op(l->chain[f->base_backward].at[i]) < f->p->n_op;
        if (runs) until = f->base_backward; /* outputs of an inside may be for nobody */
    }
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        if (l->held_until[s] == 0 || l->held_until[s] == l->n) continue;
        if (touches && l->held_until[s] != until) cb_ledger_touch(l, l->twin[s]);
        l->held_until[s] = until;
    }
}

/* What stays in the chain is not touched: only the difference costs. */
bool cb_ledger_set(cb_ledger *l, uint32_t anchor, const uint32_t *op, size_t n) {
    cb_ledger_ids *chain = &l->chain[anchor];
    bool was = chain->len > 0;
    l->visit++;
    if (!note_chain(l, anchor) || !grow_all(l, anchor, op, n)) return false;
    for (size_t i = 0; i < chain->len; i++) {
        uint32_t old = cb_chain_op(chain->at[i]);
        l->stood[old] = l->visit;
        if (l->done[old] != l->visit && !drop_run(l, old, anchor)) return false;
    }
    for (size_t i = 0; i < l->grown.len; i++) {
        uint32_t new = cb_chain_op(l->grown.at[i]);
        if (l->stood[new] != l->visit && !cb_ledger_add_run(l, new, anchor)) return false;
    }
    if (l->f->unit_begin) l->extra_ps += cost_of_chain(l, &l->grown) - cost_of_chain(l, chain);
    cb_ledger_ids old = *chain;
    *chain = l->grown;
    l->grown = old;
    cb_ledger_mark(l, anchor);
    if (anchor == l->f->base_backward) cb_ledger_hold_until_backward(l, true);
    return cb_ledger_note_busy(l, anchor, was);
}
