/* Keeps, for each storage, the anchors that make it (those at which its op runs) and the anchors
 * that read it. A change undoes the runs and reads of entries that leave a chain and applies those
 * of entries that join it; entries that stay are not touched.
 *
 * Reads look through views: reading a view counts as reading the latest run of its storage, because
 * the simulator refreshes views at no cost. */
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

/* Skips reads that only show a view to the caller, for which nothing runs again. */
size_t cb_ledger_find_reader(const cb_ledger *l, const cb_ledger_uses *u, uint32_t anchor) {
    size_t i = cb_ledger_find_use(u, anchor);
    while (i < u->len && u->at[i].anchor < l->n && cb_is_view(l->f, l->f->base[u->at[i].anchor]))
        i++;
    return i;
}

size_t cb_ledger_find_true_reader(const cb_ledger *l, uint32_t storage, uint32_t anchor) {
    const cb_ledger_uses *u = cb_ledger_uses_of(l, storage);
    size_t i = cb_ledger_find_reader(l, u, anchor);
    uint32_t unit = l->f->unit[storage];
    while (i < u->len && u->at[i].anchor < l->n && cb_ledger_count_taken(l, unit) > 0 &&
           cb_ledger_takes_at(l, unit, u->at[i].anchor))
        i = cb_ledger_find_reader(l, u, u->at[i].anchor + 1);
    return i;
}

bool cb_ledger_takes_at(const cb_ledger *l, uint32_t unit, uint32_t anchor) {
    const cb_ledger_ids *t = &l->taken[unit];
    size_t i = t->len;
    while (i > 0 && t->at[i - 1] > anchor) i--;
    return i > 0 && t->at[i - 1] == anchor;
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

/* Notes that a gradient is used where its parameter is read, until its update. */
static bool follow(cb_ledger *l, uint32_t id, uint32_t anchor, bool adds) {
    const cb_follows *x = &l->f->follows;
    const uint32_t op = cb_unit_op(l->f, id);
    for (uint32_t j = cb_follows_begin(x, op); j < cb_follows_end(x, op); j++) {
        const uint32_t s = x->gradient[j];
        if (l->f->unit[s] == CB_NONE) continue;
        if (!adds) drop_use(l, s, anchor);
        else if (!cb_ledger_add_use(l, s, anchor)) return false;
        cb_ledger_touch(l, s);
    }
    return true;
}

bool cb_ledger_add_uses(cb_ledger *l, uint32_t op, uint32_t anchor) {
    for (uint32_t j = l->need_begin[op]; j < l->need_begin[op + 1]; j++) {
        if (!cb_ledger_add_use(l, l->need[j], anchor)) return false;
        cb_ledger_touch(l, l->need[j]);
    }
    return !l->f->follows.begin || follow(l, op, anchor, true);
}

void cb_ledger_drop_uses(cb_ledger *l, uint32_t op, uint32_t anchor) {
    for (uint32_t j = l->need_begin[op]; j < l->need_begin[op + 1]; j++) {
        drop_use(l, l->need[j], anchor);
        cb_ledger_touch(l, l->need[j]);
    }
    if (l->f->follows.begin) (void)follow(l, op, anchor, false);
}

/* Returns the cost of a separate run. For an op with an inside, it depends on the other outputs of
 * the run (cost_of_chain). */
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

/* Applies an inlining at the anchor: adds its reads, but no run. cost_of_chain gives the cost. */
bool cb_ledger_put_taken(cb_ledger *l, uint32_t unit, uint32_t anchor) {
    cb_ledger_ids *t = &l->taken[unit];
    if (!CB_RESERVE(&l->arena, *t, 1)) return false;
    size_t i = t->len++;
    for (; i > 0 && t->at[i - 1] > anchor; i--) t->at[i] = t->at[i - 1];
    t->at[i] = anchor;
    return cb_ledger_add_uses(l, unit, anchor);
}

void cb_ledger_pull_taken(cb_ledger *l, uint32_t unit, uint32_t anchor) {
    cb_ledger_ids *t = &l->taken[unit];
    size_t i = 0;
    while (t->at[i] != anchor) i++;
    for (t->len--; i < t->len; i++) t->at[i] = t->at[i + 1];
    cb_ledger_drop_uses(l, unit, anchor);
}

static bool note_run(cb_ledger *l, uint32_t op, uint32_t anchor, bool came) {
    return !l->notes.on || CB_PUSH(&l->arena, l->notes.run, (cb_ledger_run){op, anchor, came});
}

bool cb_ledger_add_run(cb_ledger *l, uint32_t op, uint32_t anchor) {
    cb_ledger_touch_made(l, op);
    return note_run(l, op, anchor, true) && cb_ledger_put_run(l, op, anchor);
}

static bool add_entry(cb_ledger *l, uint32_t id, uint32_t anchor) {
    uint32_t op = cb_chain_op(id);
    if (!(id & CB_TAKEN)) return cb_ledger_add_run(l, op, anchor);
    cb_ledger_touch_made(l, op);
    return note_run(l, op | CB_TAKEN, anchor, true) && cb_ledger_put_taken(l, op, anchor);
}

static bool drop_run(cb_ledger *l, uint32_t id, uint32_t anchor) {
    uint32_t op = cb_chain_op(id);
    if (!note_run(l, op | (id & CB_TAKEN), anchor, false)) return false;
    cb_ledger_touch_made(l, op);
    if (id & CB_TAKEN) cb_ledger_pull_taken(l, op, anchor);
    else cb_ledger_pull_run(l, op, anchor);
    return true;
}

/* ---- chains ---------------------------------------------------------------------------------- */

static uint32_t chain_id(const cb_ledger *l, uint32_t op) {
    bool inlines = l->taking.wished && l->taking.wished[op] == l->taking.round;
    return op | (l->early[op] == l->visit ? CB_EARLY : 0) | (inlines ? CB_INLINE : 0);
}

/* Adds the wanted ops that `top` needs, inputs first, and `top` itself if it is `early`: depth
 * first, with two stack entries per level, op and next read. */
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

static bool push_reached(cb_ledger *l, uint32_t id, uint32_t question) {
    l->reached[id] = l->reach;
    if (l->records &&
        !CB_PUSH(&l->arena, l->taking.list, (cb_reached){cb_unit_op(l->f, id), id, question}))
        return false;
    return CB_PUSH(&l->arena, l->path, id);
}

/* Visits the wanted units that `top` [n] needs, directly or not; units visited already are
 * skipped. */
static bool spread_reach(cb_ledger *l, const uint32_t *top, uint32_t n, uint32_t question) {
    cb_ledger_ids *path = &l->path;
    path->len = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!push_reached(l, top[i], question)) return false;
    }
    while (path->len > 0) {
        uint32_t id = path->at[--path->len];
        for (uint32_t j = l->need_begin[id]; j < l->need_begin[id + 1]; j++) {
            uint32_t maker = l->f->unit[l->need[j]];
            if (!is_wanted(l, maker) || l->reached[maker] == l->reach) continue;
            if (!push_reached(l, maker, question)) return false;
        }
    }
    return true;
}

static bool needs(const cb_ledger *l, uint32_t id, uint32_t storage) {
    for (uint32_t j = l->need_begin[id]; j < l->need_begin[id + 1]; j++)
        if (l->need[j] == storage) return true;
    return false;
}

/* True if a run of `op` that makes its visited outputs reads the storage. */
static bool reads_now(const cb_ledger *l, uint32_t op, uint32_t storage, uint32_t base) {
    const cb_facts *f = l->f;
    if (!cb_has_units(f, op) || op == base) return true; /* inlined units have their own reads */
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if (l->reached[u] == l->reach && !cb_is_taken(&l->taking, u) && needs(l, u, storage))
            return true;
    return false;
}

/* Return the range of units of an op, which is empty if it has no inside. */
static uint32_t first_unit(const cb_facts *f, uint32_t op) {
    return cb_has_units(f, op) ? f->unit_begin[op] : 0;
}

static uint32_t end_unit(const cb_facts *f, uint32_t op) {
    return cb_has_units(f, op) ? f->unit_begin[op + 1] : 0;
}

/* Marks the op, or all its visited outputs, as being built. */
static bool enter_op(cb_ledger *l, uint32_t op) {
    const cb_facts *f = l->f;
    l->done[op] = l->visit;
    for (uint32_t u = first_unit(f, op); u < end_unit(f, op); u++)
        if (l->reached[u] == l->reach && !cb_is_taken(&l->taking, u)) l->done[u] = l->visit;
    return CB_PUSH(&l->arena, l->path, op) && CB_PUSH(&l->arena, l->path, l->need_begin[op]);
}

/* Adds the values inlined into a run, which come before it in the chain, in order of ids. */
static bool put_taken_entries(cb_ledger *l, uint32_t op, uint32_t made) {
    const cb_problem *p = l->f->p;
    uint64_t taken = cb_taken_now(&l->taking, op, made);
    for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++) {
        if (!(taken >> i & 1)) continue;
        uint32_t value = p->inlining[p->inline_begin[op] + i].value;
        uint32_t unit = l->f->unit[p->value_storage[value]];
        if (!CB_PUSH(&l->arena, l->grown, chain_id(l, unit) | CB_TAKEN)) return false;
    }
    return true;
}

static bool leave_op(cb_ledger *l, uint32_t op) {
    const cb_facts *f = l->f;
    uint32_t joined = 0, made = 0;
    if (!cb_has_units(f, op))
        return put_taken_entries(l, op, CB_ALL_OUTPUTS) &&
               CB_PUSH(&l->arena, l->grown, chain_id(l, op));
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if (l->reached[u] == l->reach && !cb_is_taken(&l->taking, u)) made |= cb_unit_made(f, u);
    if (!put_taken_entries(l, op, made)) return false;
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++) {
        if (!(made & cb_unit_made(f, u))) continue;
        if (!CB_PUSH(&l->arena, l->grown, chain_id(l, u) | joined)) return false;
        joined = CB_JOINED;
    }
    return true;
}

/* Marks an inlined unit as being built; its inputs are made for it. */
static bool enter_taken(cb_ledger *l, uint32_t unit) {
    l->done[unit] = l->visit;
    return CB_PUSH(&l->arena, l->path, unit) && CB_PUSH(&l->arena, l->path, l->need_begin[unit]);
}

/* Like grow_chain; `top` [n] are early units of one op, or the base op. */
static bool grow_joined(cb_ledger *l, const uint32_t *top, uint32_t n, uint32_t base) {
    const cb_facts *f = l->f;
    cb_ledger_ids *path = &l->path;
    l->reach++;
    if (!spread_reach(l, top, n, 0) || !enter_op(l, cb_unit_op(f, top[0]))) return false;
    while (path->len > 0) {
        uint32_t op = path->at[path->len - 2], j = path->at[path->len - 1]++;
        if (j < l->need_begin[op + 1]) {
            uint32_t maker = f->unit[l->need[j]];
            if (!is_wanted(l, maker) || l->reached[maker] != l->reach) continue;
            if (!reads_now(l, op, l->need[j], base)) continue;
            if (!(cb_is_taken(&l->taking, maker) ? enter_taken(l, maker)
                                                 : enter_op(l, cb_unit_op(f, maker))))
                return false;
        } else {
            path->len -= 2;
            bool runs = op != base && !cb_is_taken(&l->taking, op);
            if (runs && !leave_op(l, op)) return false;
        }
    }
    bool last = base != CB_NONE;
    return !last || put_taken_entries(l, base, cb_unit_made(f, base));
}

uint32_t cb_ledger_inlining(const cb_ledger *l, uint32_t anchor, const cb_ledger_ids *chain,
                            size_t at) {
    uint32_t value = cb_unit_value(l->f, cb_chain_op(chain->at[at]));
    while (at < chain->len && chain->at[at] & CB_TAKEN) at++;
    uint32_t host =
        at < chain->len ? cb_unit_op(l->f, cb_chain_op(chain->at[at])) : l->f->base[anchor];
    return cb_find_inlining(l->f->p, host, value);
}

/* Finds the early ids of the same op as `least`, which are one run, except those marked `stamp` in
 * `seen` [n_unit]. */
static uint32_t list_tops(const cb_ledger *l, const uint32_t *id, size_t n, uint32_t least,
                          const uint32_t *seen, uint32_t stamp,
                          uint32_t top[CB_MOST_INNER_OUTPUTS]) {
    const cb_facts *f = l->f;
    uint32_t n_top = 0, op = cb_unit_op(f, least);
    top[n_top++] = least;
    for (uint32_t u = least + 1; least >= f->p->n_op && u < f->unit_begin[op + 1]; u++) {
        bool early = false;
        for (size_t i = 0; i < n && !early; i++)
            early = id[i] & CB_EARLY && cb_chain_op(id[i]) == u;
        if (early && seen[u] != stamp) top[n_top++] = u;
    }
    return n_top;
}

/* Computes the cost of a chain's runs that make single outputs, and of the values inlined into
 * them. */
static int64_t cost_of_chain(const cb_ledger *l, uint32_t anchor, const cb_ledger_ids *chain) {
    const cb_facts *f = l->f;
    int64_t cost_ps = 0;
    for (size_t i = 0; i < chain->len;) {
        uint32_t unit = cb_chain_op(chain->at[i++]), made = 0;
        if (chain->at[i - 1] & CB_TAKEN) {
            uint32_t at = cb_ledger_inlining(l, anchor, chain, i - 1);
            cost_ps += f->inline_cost_ps[at];
            continue;
        }
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

/* Returns the smallest early op from `next` on, or CB_NONE. There are few of them. */
static uint32_t next_early(const uint32_t *id, size_t n, uint32_t next) {
    uint32_t least = CB_NONE;
    for (size_t i = 0; i < n; i++) {
        uint32_t op = cb_chain_op(id[i]);
        if (id[i] & CB_EARLY && op >= next && op < least) least = op;
    }
    return least;
}

/* Determines the inlined values: visits every unit that will run once (taking.h). */
static bool choose_taken(cb_ledger *l, uint32_t anchor, const uint32_t *id, size_t n) {
    uint32_t question = 0, top[CB_MOST_INNER_OUTPUTS];
    cb_taking *t = &l->taking;
    if (!t->wished) return true;
    cb_taking_begin(t);
    for (int inlines = 1; inlines >= 0; inlines--) {
        for (size_t i = 0; i < n; i++) {
            bool wish = id[i] & CB_INLINE && !(id[i] & CB_EARLY);
            if (wish == inlines) cb_taking_wish(t, cb_chain_op(id[i]), wish);
        }
        if (t->n_wish == 0) return true;
    }
    l->reach++;
    l->records = true;
    bool ok = true;
    for (uint32_t op = next_early(id, n, 0); ok && op != CB_NONE; op = next_early(id, n, op + 1)) {
        if (l->reached[op] == l->reach) continue;
        uint32_t n_top = list_tops(l, id, n, op, l->reached, l->reach, top);
        ok = spread_reach(l, top, n_top, question++);
    }
    ok = ok && spread_reach(l, &l->f->base[anchor], 1, question);
    l->records = false;
    if (ok) cb_taking_choose(t);
    return ok;
}

/* Builds a chain. Early ops run first, in the order of their ids, each after the ops that it needs;
 * then the ops that the base op needs. */
static bool grow_all(cb_ledger *l, uint32_t anchor, const uint32_t *id, size_t n) {
    bool more = false;
    l->grown.len = 0;
    for (size_t i = 0; i < n; i++) {
        l->wanted[cb_chain_op(id[i])] = l->visit;
        if (!(id[i] & CB_EARLY)) continue;
        l->early[cb_chain_op(id[i])] = l->visit;
        more = true;
    }
    if (!choose_taken(l, anchor, id, n)) return false;
    for (uint32_t op = more ? next_early(id, n, 0) : CB_NONE; op != CB_NONE;
         op = next_early(id, n, op + 1)) {
        if (l->done[op] == l->visit) continue;
        uint32_t top[CB_MOST_INNER_OUTPUTS];
        uint32_t n_top = l->asks ? list_tops(l, id, n, op, l->done, l->visit, top) : 0;
        if (!l->asks ? !grow_chain(l, op, true) : !grow_joined(l, top, n_top, CB_NONE))
            return false;
    }
    const uint32_t *base = &l->f->base[anchor];
    if (n == 0) return true;
    return l->asks ? grow_joined(l, base, 1, *base) : grow_chain(l, *base, false);
}

/* Logs the chain before it changes for the first time in a trial. */
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

/* Updates memory held for the backward, which may be freed after its first step. A spare op is not
 * a step, but a rerun before it is. */
void cb_ledger_hold_until_backward(cb_ledger *l, bool touches) {
    const cb_facts *f = l->f;
    if (!f->spared || f->base_backward == f->n_base) return;
    uint32_t until = f->base_backward + 1;
    for (size_t i = 0; i < l->chain[f->base_backward].len; i++) {
        uint32_t id = l->chain[f->base_backward].at[i];
        bool runs = !(id & CB_TAKEN) && cb_chain_op(id) < f->p->n_op;
        if (runs) until = f->base_backward; /* some outputs of an inside may have no reader */
    }
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        if (l->held_until[s] == 0 || l->held_until[s] == l->n) continue;
        if (touches && l->held_until[s] != until) cb_ledger_touch(l, l->twin[s]);
        l->held_until[s] = until;
    }
}

/* Entries that stay in the chain are not touched: only the difference costs time. */
bool cb_ledger_set(cb_ledger *l, uint32_t anchor, const uint32_t *op, size_t n) {
    cb_ledger_ids *chain = &l->chain[anchor];
    bool was = chain->len > 0;
    if (anchor >= l->f->base_backward && anchor < l->arrived) n = 0;
    l->visit++;
    if (!note_chain(l, anchor) || !grow_all(l, anchor, op, n)) return false;
    for (size_t i = 0; i < chain->len; i++) {
        uint32_t old = cb_chain_op(chain->at[i]);
        bool was_taken = chain->at[i] & CB_TAKEN;
        bool stays = l->done[old] == l->visit && was_taken == cb_is_taken(&l->taking, old);
        if (stays) l->stood[old] = l->visit;
        else if (!drop_run(l, chain->at[i], anchor)) return false;
    }
    for (size_t i = 0; i < l->grown.len; i++) {
        uint32_t new = cb_chain_op(l->grown.at[i]);
        if (l->stood[new] != l->visit && !add_entry(l, l->grown.at[i], anchor)) return false;
    }
    if (l->asks)
        l->extra_ps += cost_of_chain(l, anchor, &l->grown) - cost_of_chain(l, anchor, chain);
    cb_ledger_ids old = *chain;
    *chain = l->grown;
    l->grown = old;
    cb_ledger_mark(l, anchor);
    if (anchor == l->f->base_backward) cb_ledger_hold_until_backward(l, true);
    return cb_ledger_note_busy(l, anchor, was);
}
