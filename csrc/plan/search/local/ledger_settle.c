/* Settling computes the spans of the touched storages, adds the changes to the moments between, and
 * walks the chains at old and new ends again. Of storages with equal lives (ledger_tables.c), only
 * one is processed. */
#include "ledger_parts.h"

/* A search spends most of its time here. */
#define CB_LEDGER_INLINE static inline __attribute__((always_inline))

/* ---- spans ----------------------------------------------------------------------------------- */

/* True if the unit is inlined at the anchor; reads there refer to the inlined value. */
static inline bool is_inlined(const cb_ledger *l, uint32_t unit, uint32_t anchor) {
    return cb_ledger_count_taken(l, unit) > 0 && cb_ledger_takes_at(l, unit, anchor);
}

static bool list_spans(cb_ledger *l, uint32_t storage) {
    uint32_t op = l->f->unit[storage];
    const cb_ledger_ids *runs = &l->runs[op];
    const cb_ledger_uses *use = &l->use[storage];
    l->fresh.len = 0;
    if (!CB_RESERVE(&l->arena, l->fresh, runs->len)) return false;
    for (size_t i = l->idle[op], j = 0; i < runs->len; i++) {
        uint32_t made = runs->at[i], next = i + 1 < runs->len ? runs->at[i + 1] : CB_NONE;
        uint32_t last = made;
        for (; j < use->len && use->at[j].anchor < next; j++) {
            if (use->at[j].anchor > last && !is_inlined(l, op, use->at[j].anchor))
                last = use->at[j].anchor;
        }
        if (i == 0 && l->held_until[storage] > last) last = l->held_until[storage];
        l->fresh.at[l->fresh.len++] = (cb_ledger_span){made, last};
    }
    return true;
}

static bool note_spans(cb_ledger *l, uint32_t storage) {
    cb_ledger_notes *notes = &l->notes;
    const cb_ledger_spans *spans = &l->span[storage];
    if (!notes->on) return true;
    if (!CB_PUSH(&l->arena, notes->storage, storage) ||
        !CB_PUSH(&l->arena, notes->n_span, (uint32_t)spans->len) ||
        !CB_RESERVE(&l->arena, notes->span, spans->len))
        return false;
    for (size_t i = 0; i < spans->len; i++) notes->span.at[notes->span.len++] = spans->at[i];
    return true;
}

static bool replace_span(cb_ledger *l, cb_ledger_span a, cb_ledger_span b, double bytes) {
    bool longer = b.last > a.last;
    if (a.last == b.last) return true;
    cb_ledger_mark_end(l, a.made);
    cb_ledger_mark_end(l, a.last);
    cb_ledger_mark_end(l, b.last);
    return longer ? cb_ledger_add_load(l, a.last + 1, b.last, bytes)
                  : cb_ledger_add_load(l, b.last + 1, a.last, -bytes);
}

static bool change_span(cb_ledger *l, cb_ledger_span a, double bytes) {
    cb_ledger_mark_end(l, a.made);
    cb_ledger_mark_end(l, a.last);
    return cb_ledger_add_load(l, a.made + 1, a.last, bytes);
}

/* Handles a storage with a single life, the usual case; its life ends earlier or later than
 * before. */
static bool lives_once(const cb_ledger *l, uint32_t storage) {
    const cb_ledger_ids *runs = &l->runs[l->f->unit[storage]];
    const cb_ledger_spans *spans = &l->span[storage];
    return runs->len == 1 && spans->len == 1 && spans->at[0].made == runs->at[0] &&
           cb_ledger_count_taken(l, l->f->unit[storage]) == 0;
}

static bool respan_once(cb_ledger *l, uint32_t storage) {
    cb_ledger_span *span = l->span[storage].at, now = *span;
    const cb_ledger_uses *use = &l->use[storage];
    now.last = now.made;
    if (use->len > 0 && use->at[use->len - 1].anchor > now.last)
        now.last = use->at[use->len - 1].anchor;
    if (l->held_until[storage] > now.last) now.last = l->held_until[storage];
    if (now.last == span->last) return true;
    if (!note_spans(l, storage) || !replace_span(l, *span, now, l->life_bytes[storage]))
        return false;
    *span = now;
    return true;
}

/* Adds the difference of old and new spans to the moments between. */
static bool respan(cb_ledger *l, uint32_t storage) {
    if (lives_once(l, storage)) return respan_once(l, storage);
    if (!list_spans(l, storage)) return false;
    cb_ledger_spans *old = &l->span[storage];
    const cb_ledger_spans *now = &l->fresh;
    double bytes = l->life_bytes[storage];
    size_t same = 0;
    while (same < old->len && same < now->len && old->at[same].made == now->at[same].made &&
           old->at[same].last == now->at[same].last)
        same++;
    if (same == old->len && same == now->len) return true;
    for (size_t i = same, j = same; i < old->len || j < now->len;) {
        bool take_old = i < old->len && (j == now->len || old->at[i].made <= now->at[j].made);
        bool take_new = j < now->len && (i == old->len || now->at[j].made <= old->at[i].made);
        cb_ledger_span a = take_old ? old->at[i++] : now->at[j];
        cb_ledger_span b = take_new ? now->at[j++] : a;
        if (take_old && take_new ? !replace_span(l, a, b, bytes)
                                 : !change_span(l, a, take_old ? -bytes : bytes))
            return false;
    }
    if (!note_spans(l, storage)) return false;
    old->len = same;
    if (!CB_RESERVE(&l->arena, *old, now->len - same)) return false;
    for (; old->len < now->len; old->len++) old->at[old->len] = now->at[old->len];
    return true;
}

/* ---- inside an anchor ------------------------------------------------------------------------ */

static void count_reads(cb_ledger *l, uint32_t op) {
    for (uint32_t j = l->need_begin[op]; j < l->need_begin[op + 1]; j++) l->left[l->need[j]]++;
}

/* Frees the storages that a step of a chain read for the last time. */
CB_LEDGER_INLINE void end_reads(cb_ledger *l, uint32_t op, uint32_t anchor, double *now) {
    for (uint32_t j = l->need_begin[op]; j < l->need_begin[op + 1]; j++) {
        uint32_t s = l->need[j];
        if (--l->left[s] == 0 && cb_spans_last(&l->span[s], anchor) == anchor)
            *now -= l->life_bytes[s];
    }
}

/* Hides inlined values, which are read but take no memory. */
static void hide_taken(cb_ledger *l, uint32_t anchor, bool hides) {
    const cb_ledger_ids *chain = &l->chain[anchor];
    for (size_t i = 0; l->taking.wished && i < chain->len; i++) {
        if (!(chain->at[i] & CB_TAKEN)) continue;
        uint32_t value = cb_unit_value(l->f, cb_chain_op(chain->at[i]));
        uint32_t s = l->f->p->value_storage[value];
        l->left[s] = hides ? UINT32_MAX / 2 : 0;
    }
}

/* Ends a step of a chain: frees its unused outputs and the inputs that it read for the last
 * time. */
CB_LEDGER_INLINE void end_step(cb_ledger *l, uint32_t op, uint32_t anchor, double *now) {
    for (uint32_t j = l->life_begin[op]; j < l->life_begin[op + 1]; j++) {
        uint32_t s = l->life[j];
        if (l->left[s] == 0 && cb_spans_last(&l->span[s], anchor) == anchor)
            *now -= l->life_bytes[s];
    }
    end_reads(l, op, anchor, now);
}

/* Returns the bytes that a step saves because its output takes over the memory of an input that no
 * later step reads. `left` is the number of remaining reads, including the step's own; 0: the step
 * is the last of its anchor. */
static double bytes_over(const cb_ledger *l, uint32_t op, uint32_t anchor, uint32_t left) {
    if (!l->over_begin) return 0;
    for (uint32_t i = l->over_begin[op]; i < l->over_begin[op + 1]; i++) {
        const uint32_t s = l->over[i], starts = l->f->base_backward;
        if (left > 0 && l->left[s] != left) continue;
        const cb_ledger_span *life = cb_spans_latest(&l->span[s], anchor);
        if (!life || life->last != anchor) continue;
        if (l->f->p->keep_saved && anchor >= starts && life->made < starts) continue;
        return (double)cb_over_bytes(l->f->p, op);
    }
    return 0;
}

/* Runs one step of a chain: allocates its outputs. `takes`: a value is inlined, with `more`
 * scratch. */
CB_LEDGER_INLINE void run_step(cb_ledger *l, uint32_t op, uint32_t anchor, bool takes,
                               uint64_t more, double *now, double *most) {
    const cb_facts *f = l->f;
    *now += l->made_bytes[op];
    double during = *now + (double)(f->p->op_workspace[op] + f->again_bytes[op] + more);
    if (during > *most && !takes) during -= bytes_over(l, op, anchor, 1);
    if (during > *most) *most = during;
    end_step(l, op, anchor, now);
}

/* Returns the outputs that the base run of an op with an inside makes: those that are read. */
static uint32_t base_made(const cb_ledger *l, uint32_t op) {
    const cb_facts *f = l->f;
    uint32_t made = 0;
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if (!l->idle[u]) made |= cb_unit_made(f, u) & f->useful[op];
    return made;
}

/* Runs the `n` entries of a chain that form one run: outputs of an op with an inside. */
static void run_joined(cb_ledger *l, const uint32_t *id, size_t n, uint32_t anchor, uint64_t more,
                       double *now, double *most) {
    const cb_facts *f = l->f;
    uint32_t op = cb_unit_op(f, cb_chain_op(id[0])), made = 0;
    for (size_t i = 0; i < n; i++) {
        *now += l->made_bytes[cb_chain_op(id[i])];
        made |= cb_unit_made(f, cb_chain_op(id[i]));
    }
    double during = *now + (double)(cb_run_workspace(f->p, op, made) + more);
    if (during > *most) *most = during;
    for (size_t i = 0; i < n; i++) end_step(l, cb_chain_op(id[i]), anchor, now);
}

/* Returns the scratch of the entries inlined into the next run of a chain, from `*at` on, and moves
 * `*at` past them. */
static uint64_t pass_taken(cb_ledger *l, uint32_t anchor, size_t *at) {
    const cb_ledger_ids *chain = &l->chain[anchor];
    uint64_t bytes = 0;
    for (; *at < chain->len && chain->at[*at] & CB_TAKEN; ++*at)
        bytes += l->f->p->inlining[cb_ledger_inlining(l, anchor, chain, *at)].workspace;
    return bytes;
}

/* Runs the steps of a chain. Returns the scratch of values inlined into the base op. */
static uint64_t run_chain(cb_ledger *l, uint32_t anchor, double *now, double *most) {
    const cb_ledger_ids *chain = &l->chain[anchor];
    uint64_t more = 0;
    for (size_t i = 0, n = 1; i < chain->len; i += n, n = 1) {
        size_t first = i;
        more = pass_taken(l, anchor, &i);
        if (i == chain->len) return more;
        uint32_t id = cb_chain_op(chain->at[i]);
        while (i + n < chain->len && chain->at[i + n] & CB_JOINED) n++;
        if (id < l->f->p->n_op) run_step(l, id, anchor, i > first, more, now, most);
        else run_joined(l, chain->at + i, n, anchor, more, now, most);
        for (size_t t = first; t < i; t++) end_reads(l, cb_chain_op(chain->at[t]), anchor, now);
    }
    return 0;
}

/* Clears the read counts of the base op and its inlined values, whose reads are not counted
 * down. */
static void forget_reads(cb_ledger *l, uint32_t id) {
    for (uint32_t j = l->need_begin[id]; j < l->need_begin[id + 1]; j++) l->left[l->need[j]] = 0;
}

static void forget_taken_reads(cb_ledger *l, uint32_t anchor) {
    const cb_ledger_ids *chain = &l->chain[anchor];
    for (size_t i = chain->len; i-- > 0 && chain->at[i] & CB_TAKEN;)
        forget_reads(l, cb_chain_op(chain->at[i]));
    hide_taken(l, anchor, false);
}

/* Returns the rise of the base run of an op with an inside, as in rise_inside. */
static double rise_of_outputs(cb_ledger *l, uint32_t anchor) {
    const cb_facts *f = l->f;
    uint32_t op = f->base[anchor], made = base_made(l, op);
    double now = 0, most = 0;
    hide_taken(l, anchor, true);
    for (size_t i = 0; i < l->chain[anchor].len; i++)
        count_reads(l, cb_chain_op(l->chain[anchor].at[i]));
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if (made & cb_unit_made(f, u)) count_reads(l, u);
    uint64_t more = run_chain(l, anchor, &now, &most);
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++) {
        if (!(made & cb_unit_made(f, u))) continue;
        forget_reads(l, u);
        now += l->made_bytes[u];
    }
    forget_taken_reads(l, anchor);
    double during = made ? now + (double)(cb_run_workspace(f->p, op, made) + more) : 0;
    return during > most ? during : most;
}

/* Returns the rise if no op has an inside and no value is inlined. */
static double rise_plain(cb_ledger *l, uint32_t anchor) {
    const cb_ledger_ids *chain = &l->chain[anchor];
    uint32_t base = l->f->base[anchor];
    double now = 0, most = 0;
    bool idle = l->idle[base];
    if (chain->len > 0) {
        for (size_t i = 0; i < chain->len; i++) count_reads(l, cb_chain_op(chain->at[i]));
        if (!idle) count_reads(l, base);
        for (size_t i = 0; i < chain->len; i++)
            run_step(l, cb_chain_op(chain->at[i]), anchor, false, 0, &now, &most);
        if (!idle) forget_reads(l, base);
    }
    if (idle) return most;
    double during = now + l->made_bytes[base] + (double)l->f->p->op_workspace[base];
    if (during > most) during -= bytes_over(l, base, anchor, 0);
    return during > most ? during : most;
}

/* Returns the rise inside the steps of an anchor. Memory freed after the last step does not
 * count. */
static double rise_inside(cb_ledger *l, uint32_t anchor) {
    const cb_ledger_ids *chain = &l->chain[anchor];
    uint32_t base = l->f->base[anchor];
    double now = 0, most = 0;
    uint64_t more = 0;
    bool idle = l->idle[base];
    if (cb_has_units(l->f, base)) return rise_of_outputs(l, anchor);
    if (chain->len > 0) {
        hide_taken(l, anchor, true);
        for (size_t i = 0; i < chain->len; i++) count_reads(l, cb_chain_op(chain->at[i]));
        if (!idle) count_reads(l, base);
        more = run_chain(l, anchor, &now, &most);
        if (!idle) forget_reads(l, base);
        forget_taken_reads(l, anchor);
    }
    if (idle) return most;
    double during = now + l->made_bytes[base] + (double)(l->f->p->op_workspace[base] + more);
    bool takes = chain->len > 0 && chain->at[chain->len - 1] & CB_TAKEN;
    if (during > most && !takes) during -= bytes_over(l, base, anchor, 0);
    return during > most ? during : most;
}

static bool walk_anchor(cb_ledger *l, uint32_t anchor) {
    cb_ledger_notes *notes = &l->notes;
    double most = l->asks ? rise_inside(l, anchor) : rise_plain(l, anchor);
    if (most == l->local[anchor]) return true;
    if (notes->on && (!CB_PUSH(&l->arena, notes->anchor, anchor) ||
                      !CB_PUSH(&l->arena, notes->local, l->local[anchor])))
        return false;
    uint32_t block = anchor >> CB_LEDGER_BLOCK;
    if (!cb_ledger_add_in_block(l, block, anchor, anchor + 1, most - l->local[anchor]))
        return false;
    l->local[anchor] = most;
    return true;
}

/* ---- base runs ------------------------------------------------------------------------------- */

static int64_t base_ps(const cb_ledger *l, uint32_t op) {
    uint32_t made = base_made(l, op);
    return made ? cb_run_time_ps(l->f->p, op, made, l->f->device) : 0;
}

static bool is_idle(const cb_ledger *l, uint32_t op) {
    const cb_ledger_ids *runs = &l->runs[op];
    if (runs->len + cb_ledger_count_taken(l, op) < 2 || l->holds[op]) return false;
    uint32_t next = runs->len > 1 ? runs->at[1] : CB_NONE;
    for (uint32_t j = l->life_begin[op]; j < l->life_begin[op + 1]; j++) {
        const cb_ledger_uses *u = &l->use[l->life[j]];
        size_t i = 0;
        while (i < u->len && is_inlined(l, op, u->at[i].anchor)) i++;
        if (i < u->len && u->at[i].anchor < next) return false;
    }
    return true;
}

/* Removes or restores an op's base run with its reads; the base runs of its inputs may follow. */
static bool review_idle(cb_ledger *l, uint32_t op, bool *changed) {
    bool idle = is_idle(l, op);
    if (idle == l->idle[op]) return true;
    *changed = true;
    uint32_t anchor = l->f->position[op];
    if (l->notes.on && !CB_PUSH(&l->arena, l->notes.idle, op)) return false;
    if (op < l->f->p->n_op) {
        l->idle[op] = idle;
        l->extra_ps += idle ? -l->f->cost_ps[op] : l->f->cost_ps[op];
    } else {
        l->extra_ps -= base_ps(l, cb_unit_op(l->f, op));
        l->idle[op] = idle;
        l->extra_ps += base_ps(l, cb_unit_op(l->f, op));
    }
    cb_ledger_touch_made(l, op);
    cb_ledger_mark(l, anchor);
    if (!idle) return cb_ledger_add_uses(l, op, anchor);
    cb_ledger_drop_uses(l, op, anchor);
    return true;
}

bool cb_ledger_settle(cb_ledger *l) {
    for (bool changed = true; changed;) { /* readers come before inputs, so there are few rounds */
        changed = false;
        for (size_t i = l->touched.len; i-- > 0;) {
            if (!review_idle(l, l->f->unit[l->touched.at[i]], &changed)) return false;
        }
    }
    for (size_t i = 0; i < l->touched.len; i++) {
        if (!respan(l, l->touched.at[i])) return false;
    }
    for (size_t i = 0; i < l->marked.len; i++) {
        if (!walk_anchor(l, l->marked.at[i])) return false;
    }
    l->touched.len = l->marked.len = 0;
    l->round++;
    cb_ledger_sum_up(l);
    return true;
}
