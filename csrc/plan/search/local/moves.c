/* The random choices and changes that local searches share. */
#include "moves.h"

#include "../../../base/chance.h"
#include "../tuning.h"

/* Lists the offers. This runs far more often than moves are made. */
static void list_offers(cb_moves *m) {
    const cb_ledger *l = m->l;
    for (uint32_t k = 0; k < l->n; k++) {
        uint32_t op = l->f->base[k], n = l->made_begin[op + 1] - l->made_begin[op];
        bool lone = n == 1 || !cb_is_tiny_search(m);
        bool may = m->may_rerun[op] || (cb_has_units(l->f, op) && cb_may_rerun(l->f, op));
        uint32_t s = n > 0 && may ? l->made[l->made_begin[op]] : CB_NONE;
        if (s != CB_NONE && lone && l->f->p->storage_bytes[s] == 0) s = CB_NONE;
        m->offer[k] = s;
    }
}

cb_status cb_moves_init(cb_moves *m, cb_trial *t, cb_ledger *l, cb_arena *scratch, uint64_t whole,
                        cb_error *err) {
    const cb_facts *f = t->f;
    *m = (cb_moves){.trial = t, .l = l, .scratch = scratch, .pace = 1};
    m->may_rerun = l->may_rerun;
    bool hastens = cb_is_small_search(m) && (cb_is_tiny_search(m) || !cb_is_bare_search(m));
    m->early_share = hastens ? CB_EARLY_SHARE : 0;
    CB_TRY_NEW(m->seen, scratch, f->n_unit, err);
    CB_TRY_NEW(m->offer, scratch, l->n, err);
    CB_TRY_NEW(m->missed, scratch, l->n, err);
    list_offers(m);
    m->once = (double)f->once_ps + 1;
    m->whole = (double)whole + 1;
    return CB_OK;
}

bool cb_is_small_search(const cb_moves *m) { return m->l->n < CB_SMALL_OPS; }
bool cb_is_tiny_search(const cb_moves *m) { return m->l->n < CB_TINY_OPS; }
bool cb_is_fine_search(const cb_moves *m) { return m->l->n < CB_FINE_OPS; }
bool cb_is_bare_search(const cb_moves *m) { return m->l->f->base_backward >= m->l->n; }

uint32_t cb_moves_draw(cb_moves *m, uint32_t n) {
    return (uint32_t)((cb_chance_bits(&m->chance) >> 32) * n >> 32);
}

double cb_moves_chance(cb_moves *m) { return cb_chance(&m->chance); }

/* ---- changes --------------------------------------------------------------------------------- */

bool cb_moves_settle(cb_moves *m) {
    m->settled++;
    return cb_ledger_settle(m->l);
}

bool cb_moves_set(cb_moves *m, uint32_t anchor, const uint32_t *op, size_t n) {
    bool noted = false;
    for (size_t i = 0; i < m->change.len && !noted; i++) noted = m->change.at[i].anchor == anchor;
    if (!noted) {
        const cb_ledger_ids *chain = &m->l->chain[anchor];
        uint32_t begin = (uint32_t)m->before.len;
        if (!CB_RESERVE(m->scratch, m->before, chain->len)) return false;
        if (chain->len > 0) memcpy(m->before.at + begin, chain->at, chain->len * sizeof *chain->at);
        m->before.len += chain->len;
        if (!CB_PUSH(m->scratch, m->change,
                     (cb_chain_change){anchor, begin, (uint32_t)m->before.len}))
            return false;
    }
    return cb_ledger_set(m->l, anchor, op, n);
}

bool cb_moves_take_back(cb_moves *m) {
    m->settled++;
    return cb_ledger_take_back(m->l);
}

void cb_moves_forget(cb_moves *m) { m->change.len = m->before.len = 0; }

bool cb_moves_undo(cb_moves *m) {
    for (size_t i = 0; i < m->change.len; i++) {
        cb_chain_change c = m->change.at[i];
        const uint32_t *before = c.end > c.begin ? m->before.at + c.begin : NULL;
        if (!cb_ledger_set(m->l, c.anchor, before, c.end - c.begin)) return false;
    }
    cb_moves_forget(m);
    return cb_moves_settle(m);
}

/* ---- choices --------------------------------------------------------------------------------- */

bool cb_moves_pick(cb_moves *m, uint32_t *anchor, uint32_t *op) {
    const cb_ledger *l = m->l;
    if (l->busy.len == 0) return false;
    for (int i = 0; i < 4; i++) {
        *anchor = l->busy.at[cb_moves_draw(m, (uint32_t)l->busy.len)];
        double length = (double)l->chain[*anchor].len;
        if (cb_moves_chance(m) < length / (length + 3)) break;
    }
    const cb_ledger_ids *chain = &l->chain[*anchor];
    *op = cb_chain_op(chain->at[cb_moves_draw(m, (uint32_t)chain->len)]);
    return !m->trial->forced[*op];
}

bool cb_moves_without(cb_moves *m, uint32_t anchor, uint32_t op) {
    const cb_ledger_ids *chain = &m->l->chain[anchor];
    m->next.len = 0;
    if (!CB_RESERVE(m->scratch, m->next, chain->len)) return false;
    for (size_t i = 0; i < chain->len; i++) {
        if (cb_chain_op(chain->at[i]) != op) m->next.at[m->next.len++] = chain->at[i];
    }
    return true;
}

/* Picks a hot anchor. Skips blocks without one. */
uint32_t cb_moves_hot(cb_moves *m, double bytes) {
    const cb_ledger *l = m->l;
    uint32_t start = cb_moves_draw(m, l->n), first = start >> CB_LEDGER_BLOCK, k = start;
    for (uint32_t i = 0; i <= l->n_block; i++) { /* visits the first block twice */
        uint32_t block = first + i < l->n_block ? first + i : first + i - l->n_block;
        uint32_t end = (block + 1) << CB_LEDGER_BLOCK;
        if (i > 0) k = block << CB_LEDGER_BLOCK;
        if (l->block_peak[block] <= bytes) continue;
        for (; k < end && k < l->n; k++)
            if (cb_ledger_moment(l, k) > bytes) return k;
    }
    return start;
}

/* Chooses the storage of the op to free; in a tiny search, any of them. */
static uint32_t draw_made(cb_moves *m, uint32_t op) {
    uint32_t n = m->l->made_begin[op + 1] - m->l->made_begin[op];
    return n > 1 ? cb_moves_draw(m, n) : 0;
}

/* True if an op of the base order at most at `hot` makes memory that may be freed at `hot`, or
 * several, of which any may be drawn. */
static bool has_offer(cb_moves *m, uint32_t hot) {
    const cb_ledger *l = m->l;
    uint32_t next;
    for (uint32_t k = 0; k <= hot; k++) {
        const uint32_t s = m->offer[k], op = l->f->base[k];
        if (s == CB_NONE || m->missed[k] == m->choice) continue;
        if (l->made_begin[op + 1] - l->made_begin[op] > 1) return true;
        if (cb_spans_last(cb_ledger_spans_of(l, s), hot) > hot &&
            cb_ledger_crosses(l, s, hot, &next))
            return true;
        m->missed[k] = m->choice;
    }
    return false;
}

/* Returns the storage that the op at `k` offers in this draw, which crosses `hot` up to `next`;
 * CB_NONE: none. */
static uint32_t draw_offer(cb_moves *m, uint32_t k, uint32_t hot, bool tiny, uint32_t *next) {
    const cb_ledger *l = m->l;
    const cb_facts *f = l->f;
    const uint32_t op = f->base[k];
    const bool any = tiny || cb_has_units(f, op);
    uint32_t s = m->offer[k];
    if (any) s = l->made[l->made_begin[op] + draw_made(m, op)];
    if (any && f->p->storage_bytes[s] == 0) return CB_NONE;
    if (f->unit_begin && !m->may_rerun[f->unit[s]]) return CB_NONE;
    if (cb_spans_last(cb_ledger_spans_of(l, s), hot) > hot && cb_ledger_crosses(l, s, hot, next))
        return s;
    if (!any || l->made_begin[op + 1] - l->made_begin[op] == 1) m->missed[k] = m->choice;
    return CB_NONE;
}

/* Chooses the op to recompute, and where, in a tournament between a few random proposals. Most
 * draws hit ops that offer nothing: these are noted, and if all are, the draws end. */
static uint32_t choose_op(cb_moves *m, uint32_t hot, uint32_t *anchor) {
    const cb_facts *f = m->l->f;
    uint32_t best = CB_NONE, found = 0;
    double most = -1;
    bool blind = cb_moves_chance(m) < CB_BLIND_SHARE, tiny = cb_is_tiny_search(m);
    bool may_end = hot < CB_TOURNAMENT_DRAWS; /* a scan takes less time than the draws */
    m->choice++;
    for (uint32_t i = 0; i < CB_TOURNAMENT_DRAWS && found < CB_TOURNAMENT; i++) {
        uint32_t k = cb_moves_draw(m, hot + 1), next;
        if (m->offer[k] == CB_NONE || m->missed[k] == m->choice) continue;
        const uint32_t s = draw_offer(m, k, hot, tiny, &next);
        if (s == CB_NONE && found == 0 && may_end && i >= CB_TOURNAMENT) {
            may_end = false;
            if (has_offer(m, hot)) continue;
            /* skips the random numbers of the draws that are left out */
            cb_chance_skip(&m->chance, CB_TOURNAMENT_DRAWS - 1 - i);
            break;
        }
        if (s == CB_NONE) continue;
        const uint32_t op = f->unit_begin ? f->unit[s] : f->base[k];
        found++;
        double worth = blind ? 1 : (double)f->p->storage_bytes[s] / ((double)f->cost_ps[op] + 1);
        double score = worth * cb_moves_chance(m);
        if (score <= most) continue;
        most = score;
        best = op;
        *anchor = next;
    }
    return best;
}

/* Sometimes chooses a place before the next reader but after `hot`, or at the reader before its
 * other reruns. In a forward of many ops this brings no gain. */
static bool hasten(cb_moves *m, uint32_t hot, uint32_t *anchor) {
    const cb_facts *f = m->l->f;
    if (cb_moves_chance(m) >= (m->heated ? CB_HEATED_EARLY : m->early_share)) return false;
    if (*anchor < f->base_backward && !cb_is_tiny_search(m)) return false;
    uint32_t begin = cb_is_tiny_search(m) || hot >= f->base_backward ? hot : f->base_backward - 1;
    uint32_t at = begin + 1 + cb_moves_draw(m, *anchor - begin);
    if (at >= f->base_backward && at < m->l->arrived) at = m->l->arrived;
    while (at < *anchor && f->p->op_flags[f->base[at]] & CB_POP_VIEW) at++;
    *anchor = at;
    return true;
}

/* Chooses an op to run again before the first op of the backward, so that this op does not overlap
 * memory held until the backward has begun. CB_NONE: no place, or no op. */
static uint32_t choose_opening(cb_moves *m, uint32_t hot) {
    const cb_facts *f = m->l->f;
    uint32_t begin = f->base_backward;
    bool there =
        f->spared && m->l->arrived == begin && (hot == begin || hot == begin + 1) && begin > 0;
    if (!there || m->l->chain[begin].len > 0 || cb_moves_chance(m) >= CB_OPENING_SHARE)
        return CB_NONE;
    uint32_t op = f->base[cb_moves_draw(m, begin)];
    return m->may_rerun[op] ? op : CB_NONE;
}

/* Decides at random whether to inline an entry of a chain. */
static inline uint32_t draw_inlining(cb_moves *m, uint32_t id, double share) {
    if (!m->l->f->inlines) return id;
    bool may = cb_unit_inlines(m->l->f, cb_chain_op(id)) && !(id & CB_EARLY);
    return may && cb_moves_chance(m) < share ? id ^ CB_INLINE : id;
}

/* True if the proposal delays a whole chain of ops of the backward. Delaying a single op frees
 * nothing, because its inputs, which are the results of the others, stay in memory instead. */
static bool draw_joining(cb_moves *m, uint32_t op) {
    const bool may = m->delays_chains && m->l->f->position[op] >= m->l->f->base_backward;
    return may && cb_moves_chance(m) < CB_JOIN_SHARE;
}

/* True if only ops that the proposal runs at `anchor` read the storage, so its op may join them. */
static bool joins(const cb_moves *m, uint32_t storage, uint32_t anchor) {
    const cb_facts *f = m->l->f;
    const cb_ledger_uses *u = cb_ledger_uses_of(m->l, storage);
    if (f->position[f->unit[storage]] < f->base_backward) return false;
    for (size_t i = 0; i < u->len; i++) {
        const uint32_t at = u->at[i].anchor;
        if (at != anchor && (at >= m->l->n || m->seen[f->base[at]] != m->stamp)) return false;
    }
    return true;
}

bool cb_moves_propose(cb_moves *m, uint32_t hot, double deep_share, bool *found, uint32_t *anchor) {
    const cb_ledger *l = m->l;
    uint32_t op = choose_opening(m, hot);
    bool opens = op != CB_NONE, inlines = l->f->inlines != NULL;
    if (opens) *anchor = l->f->base_backward;
    else op = choose_op(m, hot, anchor);
    *found = op != CB_NONE;
    if (!*found) return true;
    bool early = opens || (m->early_share > 0 && hasten(m, hot, anchor));
    const cb_ledger_ids *chain = &l->chain[*anchor];
    double deep = cb_moves_chance(m) < deep_share ? 1 : cb_moves_chance(m);
    const bool joining = draw_joining(m, op);
    m->stamp++;
    m->next.len = 0;
    if (!CB_RESERVE(m->scratch, m->next, chain->len + CB_LONGEST_PROPOSAL)) return false;
    for (size_t i = 0; i < chain->len; i++) {
        uint32_t id = chain->at[i];
        if (inlines) id = draw_inlining(m, id, CB_UNINLINE_SHARE);
        m->seen[cb_chain_op(id)] = m->stamp;
        m->next.at[m->next.len++] = early && cb_chain_op(id) == op ? id | CB_EARLY : id;
    }
    if (m->seen[op] != m->stamp)
        m->next.at[m->next.len++] = early ? op | CB_EARLY : draw_inlining(m, op, CB_INLINE_SHARE);
    m->seen[op] = m->stamp;
    for (size_t i = chain->len; i < m->next.len; i++) {
        uint32_t reader = cb_chain_op(m->next.at[i]);
        for (uint32_t j = l->read_begin[reader]; j < l->read_begin[reader + 1]; j++) {
            uint32_t maker = l->f->unit[l->read[j]];
            if (m->next.len == chain->len + CB_LONGEST_PROPOSAL) return true;
            if (m->seen[maker] == m->stamp || !m->may_rerun[maker] ||
                (cb_ledger_alive(l, l->read[j], *anchor) &&
                 !(joining && joins(m, l->read[j], *anchor))) ||
                cb_moves_chance(m) >= deep)
                continue;
            m->seen[maker] = m->stamp;
            m->next.at[m->next.len++] = inlines ? draw_inlining(m, maker, CB_INLINE_SHARE) : maker;
        }
    }
    return true;
}

/* ---- judging --------------------------------------------------------------------------------- */

cb_status cb_moves_poll(cb_moves *m, cb_error *err) {
    if (m->settled - m->polled < CB_SETTLINGS_A_POLL) return CB_OK;
    m->polled = m->settled;
    return cb_trial_poll(m->trial, err);
}

cb_status cb_moves_offer(cb_moves *m, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, m->scratch->alloc);
    cb_pairs pairs = {.arena = &scratch};
    cb_status status = cb_ledger_pairs(m->l, &pairs) ? CB_OK : cb_no_memory(err);
    if (status == CB_OK) status = cb_try_pairs(m->trial, pairs.list.at, pairs.list.len, err);
    cb_arena_free(&scratch);
    return status;
}
