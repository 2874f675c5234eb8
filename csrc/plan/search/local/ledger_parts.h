/* ledger_parts.h: declarations shared by the files of the ledger. Only ledger_*.c include it; each
 * of them builds on those before it:
 *
 *     ledger_tables    tables that depend only on the problem
 *     ledger_chains    adds and removes runs and reads: cb_ledger_set
 *     ledger_moments   adds bytes to many moments at once; peak and area
 *     ledger_settle    spans, runs inside an anchor, base runs that become idle
 *     ledger_trial     restores overwritten state
 *     ledger_load      reads a plan into the ledger, and out of it
 *     ledger_queries   queries of a search before it proposes a change
 *
 * Between cb_ledger_set and cb_ledger_settle the storages and anchors that changed wait in
 * `touched` and `marked`. Functions that return bool return false if memory runs out. */
#ifndef CB_PLAN_LEDGER_PARTS_H
#define CB_PLAN_LEDGER_PARTS_H

#include "../../model/over.h"
#include "ledger.h"

#define CB_LEDGER_BLOCK_SIZE (1u << CB_LEDGER_BLOCK)

/* The lists have room for all storages and all anchors. */
static inline void cb_ledger_touch(cb_ledger *l, uint32_t storage) {
    if (l->touched_in[storage] == l->round) return;
    l->touched_in[storage] = l->round;
    l->touched.at[l->touched.len++] = storage;
}

static inline void cb_ledger_mark(cb_ledger *l, uint32_t anchor) {
    if (l->marked_in[anchor] == l->round) return;
    l->marked_in[anchor] = l->round;
    l->marked.at[l->marked.len++] = anchor;
}

/* At an anchor without reruns, ends of lives change nothing inside it, unless its op may take over
 * memory that ends there. */
static inline void cb_ledger_mark_end(cb_ledger *l, uint32_t anchor) {
    if (anchor >= l->n) return;
    if (l->chain[anchor].len > 0 || cb_count_over(l->f->p, l->f->base[anchor]) > 0)
        cb_ledger_mark(l, anchor);
}

/* Returns the number of anchors at which the unit is inlined. */
static inline size_t cb_ledger_count_taken(const cb_ledger *l, uint32_t unit) {
    return l->taken ? l->taken[unit].len : 0;
}

/* ---- ledger_chains --------------------------------------------------------------------------- */

/* Returns the index of the first use at `anchor` or later; `len` if there is none. */
size_t cb_ledger_find_use(const cb_ledger_uses *u, uint32_t anchor);
/* Does the same without reads that only show a view to the caller, for which nothing runs again. */
size_t cb_ledger_find_reader(const cb_ledger *l, const cb_ledger_uses *u, uint32_t anchor);
/* Does the same for reads of the storage, at anchors where the value is not inlined. */
size_t cb_ledger_find_true_reader(const cb_ledger *l, uint32_t storage, uint32_t anchor);
CB_MUST_CHECK bool cb_ledger_add_use(cb_ledger *l, uint32_t storage, uint32_t anchor);
/* Applies all reads of `op` at `anchor`. */
CB_MUST_CHECK bool cb_ledger_add_uses(cb_ledger *l, uint32_t op, uint32_t anchor);
void cb_ledger_drop_uses(cb_ledger *l, uint32_t op, uint32_t anchor);
void cb_ledger_touch_made(cb_ledger *l, uint32_t op);
/* Applies a run with its reads and its time. */
CB_MUST_CHECK bool cb_ledger_put_run(cb_ledger *l, uint32_t op, uint32_t anchor);
void cb_ledger_pull_run(cb_ledger *l, uint32_t op, uint32_t anchor);
/* True if the unit is inlined there. Reads of it at that anchor then do not read its memory. */
bool cb_ledger_takes_at(const cb_ledger *l, uint32_t unit, uint32_t anchor);
/* Applies an inlining, with its reads. */
CB_MUST_CHECK bool cb_ledger_put_taken(cb_ledger *l, uint32_t unit, uint32_t anchor);
void cb_ledger_pull_taken(cb_ledger *l, uint32_t unit, uint32_t anchor);
/* Returns the index of the inlining of an inlined entry of a chain. */
uint32_t cb_ledger_inlining(const cb_ledger *l, uint32_t anchor, const cb_ledger_ids *chain,
                            size_t at);
/* Like cb_ledger_put_run, but logs the run in a trial. */
CB_MUST_CHECK bool cb_ledger_add_run(cb_ledger *l, uint32_t op, uint32_t anchor);
/* Must be called after the chain of `anchor` has changed. `was`: it had entries before. */
CB_MUST_CHECK bool cb_ledger_note_busy(cb_ledger *l, uint32_t anchor, bool was);
/* Must be called after the chain of the backward's first step has changed. `touches` is false
 * during a load. */
void cb_ledger_hold_until_backward(cb_ledger *l, bool touches);

/* ---- ledger_moments -------------------------------------------------------------------------- */

/* Adds to the moments from `from` to `to`, inclusive. */
CB_MUST_CHECK bool cb_ledger_add_load(cb_ledger *l, uint32_t from, uint32_t to, double bytes);
/* Adds to the moments in [from, end), within one block. */
CB_MUST_CHECK bool cb_ledger_add_in_block(cb_ledger *l, uint32_t block, uint32_t from, uint32_t end,
                                          double bytes);
/* Computes `peak` and `area` from all moments. */
void cb_ledger_sum_up(cb_ledger *l);

#endif
