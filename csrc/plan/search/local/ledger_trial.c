/* Most changes are rejected. A trial saves runs, chains, spans and moments before it overwrites
 * them, and undoing it copies them back: nothing is recomputed, and the old state is restored bit
 * by bit. */
#include "ledger_parts.h"

/* Peaks, areas and lifts of all blocks are stored one after another. */
static size_t sums_of(const cb_ledger *l) { return 3 * (size_t)l->n_block; }

void cb_ledger_try(cb_ledger *l) {
    cb_ledger_notes *notes = &l->notes;
    notes->run.len = notes->idle.len = 0;
    notes->chained.len = notes->n_chain.len = notes->chain.len = 0;
    notes->block.len = notes->moment.len = 0;
    notes->anchor.len = notes->local.len = 0;
    notes->storage.len = notes->n_span.len = notes->span.len = 0;
    notes->before = (cb_ledger_sums){l->peak, l->area, l->extra_ps};
    memcpy(notes->sums, l->block_peak, sums_of(l) * sizeof *notes->sums);
    notes->trial++;
    notes->on = true;
}

void cb_ledger_keep(cb_ledger *l) { l->notes.on = false; }

/* Restores runs backwards, because runs, idle ops and spans may have changed more than once. The
 * results of settling are restored as a whole. */
static bool put_back_runs(cb_ledger *l) {
    const cb_ledger_notes *notes = &l->notes;
    for (size_t i = notes->idle.len; i-- > 0;) {
        uint32_t op = notes->idle.at[i], anchor = l->f->position[op];
        l->idle[op] = !l->idle[op];
        if (l->idle[op]) cb_ledger_drop_uses(l, op, anchor);
        else if (!cb_ledger_add_uses(l, op, anchor)) return false;
    }
    for (size_t i = notes->run.len; i-- > 0;) {
        cb_ledger_run run = notes->run.at[i];
        uint32_t op = cb_chain_op(run.op);
        bool taken = run.op & CB_TAKEN;
        if (run.came && taken) cb_ledger_pull_taken(l, op, run.anchor);
        else if (run.came) cb_ledger_pull_run(l, op, run.anchor);
        else if (!(taken ? cb_ledger_put_taken(l, op, run.anchor)
                         : cb_ledger_put_run(l, op, run.anchor)))
            return false;
    }
    return true;
}

/* Restores chains. The arrays have held as many entries before, so there is room. */
static bool put_back_chains(cb_ledger *l) {
    const cb_ledger_notes *notes = &l->notes;
    const uint32_t *id = notes->chain.at;
    for (size_t i = 0; i < notes->chained.len; i++) {
        uint32_t anchor = notes->chained.at[i];
        cb_ledger_ids *chain = &l->chain[anchor];
        bool was = chain->len > 0;
        chain->len = 0;
        if (!CB_RESERVE(&l->arena, *chain, notes->n_chain.at[i])) return false;
        while (chain->len < notes->n_chain.at[i]) chain->at[chain->len++] = *id++;
        if (!cb_ledger_note_busy(l, anchor, was)) return false;
    }
    return true;
}

static void put_back_moments(cb_ledger *l) {
    const cb_ledger_notes *notes = &l->notes;
    memcpy(l->block_peak, notes->sums, sums_of(l) * sizeof *notes->sums);
    memset(l->stale, 0, l->n_block * sizeof *l->stale);
    for (size_t i = 0; i < notes->block.len; i++)
        memcpy(l->moment + ((size_t)notes->block.at[i] << CB_LEDGER_BLOCK),
               notes->moment.at + (i << CB_LEDGER_BLOCK), CB_LEDGER_BLOCK_SIZE * sizeof *l->moment);
    for (size_t i = notes->anchor.len; i-- > 0;) l->local[notes->anchor.at[i]] = notes->local.at[i];
}

static void put_back_spans(cb_ledger *l) {
    const cb_ledger_notes *notes = &l->notes;
    size_t at = notes->span.len;
    for (size_t i = notes->storage.len; i-- > 0;) {
        cb_ledger_spans *spans = &l->span[notes->storage.at[i]];
        spans->len = notes->n_span.at[i];
        at -= spans->len;
        for (size_t k = 0; k < spans->len; k++) spans->at[k] = notes->span.at[at + k];
    }
}

bool cb_ledger_take_back(cb_ledger *l) {
    l->notes.on = false;
    if (!put_back_runs(l) || !put_back_chains(l)) return false;
    cb_ledger_hold_until_backward(l, false);
    put_back_moments(l);
    put_back_spans(l);
    l->peak = l->notes.before.peak;
    l->area = l->notes.before.area;
    l->extra_ps = l->notes.before.extra_ps;
    l->touched.len = l->marked.len = 0;
    l->round++;
    return true;
}

bool cb_ledger_probe(cb_ledger *l, uint32_t anchor, const uint32_t *op, size_t n,
                     cb_ledger_sums *out) {
    cb_ledger_try(l);
    if (!cb_ledger_set(l, anchor, op, n) || !cb_ledger_settle(l)) return false;
    *out = (cb_ledger_sums){l->peak, l->area, l->extra_ps};
    return cb_ledger_take_back(l);
}
