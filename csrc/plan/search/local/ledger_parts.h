/* ledger_parts.h: what the files of the ledger share. Included by ledger_*.c alone; each is above
 * those before it:
 *
 *     ledger_tables    what depends on the problem alone
 *     ledger_chains    runs and reads come and go: cb_ledger_set
 *     ledger_moments   bytes added to many moments at once, and their peak and area
 *     ledger_settle    spans, what runs inside an anchor, base runs that fall idle
 *     ledger_trial     what was overwritten is put back
 *     ledger_load      a plan into the books, and out of them
 *     ledger_queries   what a search asks before it proposes a change
 *
 * Between cb_ledger_set and cb_ledger_settle the storages and anchors that changed wait in
 * `touched` and `marked`. Functions that give bool are false when memory runs out. */
#ifndef CB_PLAN_LEDGER_PARTS_H
#define CB_PLAN_LEDGER_PARTS_H

#include "../../model/over.h"
#include "ledger.h"

#define CB_LEDGER_BLOCK_SIZE (1u << CB_LEDGER_BLOCK)

/* There is room for all storages, and all anchors. */
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

/* Where nothing runs again, ends of lives change nothing inside the anchor, unless its op may take
 * over what ends there. */
static inline void cb_ledger_mark_end(cb_ledger *l, uint32_t anchor) {
    if (anchor >= l->n) return;
    if (l->chain[anchor].len > 0 || cb_count_over(l->f->p, l->f->base[anchor]) > 0)
        cb_ledger_mark(l, anchor);
}

/* At how many anchors the unit is taken in. */
static inline size_t cb_ledger_count_taken(const cb_ledger *l, uint32_t unit) {
    return l->taken ? l->taken[unit].len : 0;
}

/* ---- ledger_chains --------------------------------------------------------------------------- */

/* The first use at `anchor` or behind it; `len`: there is none. */
size_t cb_ledger_find_use(const cb_ledger_uses *u, uint32_t anchor);
/* The same of what reads for another reason than to show a view to the caller: nothing runs again
 * for that. */
size_t cb_ledger_find_reader(const cb_ledger *l, const cb_ledger_uses *u, uint32_t anchor);
/* Of those one that reads the storage itself, where what is read is not taken in. */
size_t cb_ledger_find_true_reader(const cb_ledger *l, uint32_t storage, uint32_t anchor);
CB_MUST_CHECK bool cb_ledger_add_use(cb_ledger *l, uint32_t storage, uint32_t anchor);
/* All reads of `op` at `anchor`. */
CB_MUST_CHECK bool cb_ledger_add_uses(cb_ledger *l, uint32_t op, uint32_t anchor);
void cb_ledger_drop_uses(cb_ledger *l, uint32_t op, uint32_t anchor);
void cb_ledger_touch_made(cb_ledger *l, uint32_t op);
/* A run with its reads and its time. */
CB_MUST_CHECK bool cb_ledger_put_run(cb_ledger *l, uint32_t op, uint32_t anchor);
void cb_ledger_pull_run(cb_ledger *l, uint32_t op, uint32_t anchor);
/* Is the unit taken in there? Reads of it at that anchor are then no reads of what it made. */
bool cb_ledger_takes_at(const cb_ledger *l, uint32_t unit, uint32_t anchor);
/* Taken in, with its reads. */
CB_MUST_CHECK bool cb_ledger_put_taken(cb_ledger *l, uint32_t unit, uint32_t anchor);
void cb_ledger_pull_taken(cb_ledger *l, uint32_t unit, uint32_t anchor);
/* Of an entry of a chain that is taken in: the inlining, by its place. */
uint32_t cb_ledger_inlining(const cb_ledger *l, uint32_t anchor, const cb_ledger_ids *chain,
                            size_t at);
/* The same, noted in a trial. */
CB_MUST_CHECK bool cb_ledger_add_run(cb_ledger *l, uint32_t op, uint32_t anchor);
/* After the chain of `anchor` has changed: did it run anything before? */
CB_MUST_CHECK bool cb_ledger_note_busy(cb_ledger *l, uint32_t anchor, bool was);
/* After the chain of the backward's first step has changed. `touches`: outside a load. */
void cb_ledger_hold_until_backward(cb_ledger *l, bool touches);

/* ---- ledger_moments -------------------------------------------------------------------------- */

/* To the moments from `from` to `to`, that one included. */
CB_MUST_CHECK bool cb_ledger_add_load(cb_ledger *l, uint32_t from, uint32_t to, double bytes);
/* To the moments in [from, end), of one block. */
CB_MUST_CHECK bool cb_ledger_add_in_block(cb_ledger *l, uint32_t block, uint32_t from, uint32_t end,
                                          double bytes);
/* `peak` and `area` from all moments. */
void cb_ledger_sum_up(cb_ledger *l);

#endif
