/* Finds the values alive at an anchor, and computes a lower bound on the peak after a change, at a
 * small part of the cost of the change. The bound rules out most changes. */
#include "ledger_parts.h"

#include <math.h>

/* Returns the peak over the anchors in [from, to). */
static double peak_between(const cb_ledger *l, uint32_t from, uint32_t to) {
    double most = 0;
    for (uint32_t k = from; k < to;) {
        uint32_t b = k >> CB_LEDGER_BLOCK, end = (b + 1) << CB_LEDGER_BLOCK;
        bool whole = (k & (CB_LEDGER_BLOCK_SIZE - 1)) == 0 && end <= to;
        if (whole && l->block_peak[b] > most) most = l->block_peak[b];
        if (whole) {
            k = end;
            continue;
        }
        for (; k < end && k < to; k++) most = fmax(most, cb_ledger_moment(l, k));
    }
    return most;
}

/* Finds bytes that may be freed before `anchor` when `op` no longer reads them there. Returns false
 * if more may follow because a base run becomes idle. */
static bool may_shorten(const cb_ledger *l, uint32_t op, uint32_t anchor, double *bytes) {
    for (uint32_t j = l->need_begin[op]; j < l->need_begin[op + 1]; j++) {
        uint32_t s = l->need[j], maker = l->f->unit[s];
        const cb_ledger_spans *spans = &l->span[s];
        size_t i = spans->len;
        while (i > 0 && spans->at[i - 1].made >= anchor) i--;
        if (i == 0 || spans->at[i - 1].last != anchor) continue;
        if (cb_ledger_count_taken(l, maker) > 0) return false;
        bool lone = i == 1 && l->use[s].at[0].anchor == anchor;
        if (lone && !l->idle[maker] && l->runs[maker].len > 1) return false;
        *bytes += l->life_bytes[s];
    }
    return true;
}

/* Finds the entries that the chain would lose in addition to `op`: those that only `op` needs.
 * Marks the others in `done`. */
static bool shorten_chain(cb_ledger *l, uint32_t anchor, uint32_t op, double *bytes) {
    const cb_ledger_ids *chain = &l->chain[anchor];
    uint32_t reader = l->f->base[anchor];
    l->visit++;
    for (size_t i = chain->len + 1; i-- > 0;) {
        bool early = i < chain->len && chain->at[i] & CB_EARLY;
        if (i < chain->len) reader = cb_chain_op(chain->at[i]);
        bool stays = i == chain->len || (reader != op && (early || l->done[reader] == l->visit));
        if (!stays && !may_shorten(l, reader, anchor, bytes)) return false;
        for (uint32_t j = l->need_begin[reader]; stays && j < l->need_begin[reader + 1]; j++)
            l->done[l->f->unit[l->need[j]]] = l->visit;
    }
    return true;
}

/* Returns where a longer life begins that replaces the run of a storage's op at `anchor`; `anchor`
 * means none, because nothing reads that run. */
static uint32_t rise_from(const cb_ledger *l, uint32_t storage, uint32_t anchor) {
    const cb_ledger_spans *spans = cb_ledger_spans_of(l, storage);
    const cb_ledger_uses *u = cb_ledger_uses_of(l, storage);
    size_t i = spans->len, at = cb_ledger_find_use(u, anchor);
    while (i > 0 && spans->at[i - 1].made > anchor) i--;
    if (i == 0 || spans->at[i - 1].made != anchor) return anchor;
    if (at == u->len || u->at[at].anchor > spans->at[i - 1].last) return anchor;
    return 1 + (i > 1 ? spans->at[i - 2].last : l->f->position[l->f->unit[storage]]);
}

/* True if a value is inlined, or would be without a second reader, so that more than one run
 * changes. */
static bool may_inline(const cb_ledger *l, uint32_t anchor) {
    const cb_ledger_ids *chain = &l->chain[anchor];
    bool inlines = false;
    for (size_t i = 0; l->taking.wished && i < chain->len; i++)
        inlines |= (chain->at[i] & CB_INLINE) != 0;
    return inlines;
}

double cb_ledger_peak_without(cb_ledger *l, uint32_t anchor, uint32_t op) {
    if (may_inline(l, anchor)) return 0;
    for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++) { /* the largest first */
        uint32_t s = l->made[j], from = rise_from(l, s, anchor);
        double freed = 0, bytes = (double)l->f->p->storage_bytes[s];
        if (from >= anchor || cb_ledger_count_taken(l, op) > 0) continue;
        if (!shorten_chain(l, anchor, op, &freed) || freed >= bytes) return 0;
        return peak_between(l, from, anchor) + bytes - freed;
    }
    return 0;
}

bool cb_ledger_alive(const cb_ledger *l, uint32_t storage, uint32_t anchor) {
    const cb_ledger_spans *spans = cb_ledger_spans_of(l, storage);
    size_t i = spans->len;
    while (i > 0 && spans->at[i - 1].made >= anchor) i--;
    return i > 0 && spans->at[i - 1].last >= anchor;
}

bool cb_ledger_crosses(const cb_ledger *l, uint32_t storage, uint32_t anchor, uint32_t *next) {
    const cb_ledger_spans *spans = cb_ledger_spans_of(l, storage);
    if (cb_spans_last(spans, anchor) <= anchor) return false;
    bool first = spans->len == 1 || spans->at[1].made > anchor;
    uint32_t until = l->held_until[storage];
    if (first && until > 0 && until >= anchor) return false;
    const cb_ledger_uses *u = cb_ledger_uses_of(l, storage);
    size_t i = l->asks ? cb_ledger_find_true_reader(l, storage, anchor + 1)
                       : cb_ledger_find_reader(l, u, anchor + 1);
    if (i == u->len) return false;
    *next = u->at[i].anchor;
    return *next < l->n;
}
