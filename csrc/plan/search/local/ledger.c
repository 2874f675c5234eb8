/* Per storage: the anchors that make it (those at which its op runs), the anchors that read it, and
 * the spans these two give. Per anchor: moment = load when entered + local, the rise inside its own
 * steps (whole blocks of moments share a lift, so that long lives cost little). A move undoes the
 * runs and reads of one chain and does those of the new one; settling then works out the spans of
 * the storages touched, adds what changed to the moments between, and walks the chains at old and
 * new ends again. Of storages that live alike (ledger_tables.c) one is gone through.
 *
 * Most moves are tried in vain. A trial notes runs, chains, spans and moments before it overwrites
 * them, and taking it back copies them: nothing is worked out twice. Bytes are integers below 2^53,
 * so sums are exact in any order, and what is put back is what was there to the bit.
 *
 * Views are seen through: reading a view is reading its storage's latest run, as the simulator
 * refreshes views for free. A pair at a view's position moves on to the next reader. */
#include "ledger.h"

#include <math.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define BLOCK (1u << CB_LEDGER_BLOCK)
#define FEW_USES 8 /* are gone through one by one */
#define LANES 4    /* pairs of doubles in flight: a maximum waits for the one before it */

/* ---- runs and reads -------------------------------------------------------------------------- */

/* There is room for all storages, and all anchors. */
static void touch(cb_ledger *l, uint32_t storage) {
    if (l->touched_in[storage] == l->round) return;
    l->touched_in[storage] = l->round;
    l->touched.at[l->touched.len++] = storage;
}

static void mark(cb_ledger *l, uint32_t anchor) {
    if (l->marked_in[anchor] == l->round) return;
    l->marked_in[anchor] = l->round;
    l->marked.at[l->marked.len++] = anchor;
}

/* Where nothing runs again, ends of lives change nothing inside the anchor. */
static void mark_end(cb_ledger *l, uint32_t anchor) {
    if (anchor < l->n && l->chain[anchor].len > 0) mark(l, anchor);
}

static size_t find_use(const cb_ledger_uses *u, uint32_t anchor) {
    size_t low = 0, high = u->len;
    if (high <= FEW_USES) {
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

static bool add_use(cb_ledger *l, uint32_t storage, uint32_t anchor) {
    cb_ledger_uses *u = &l->use[storage];
    size_t i = find_use(u, anchor);
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
    size_t i = find_use(u, anchor);
    if (--u->at[i].count > 0) return;
    for (u->len--; i < u->len; i++) u->at[i] = u->at[i + 1];
}

static void touch_made(cb_ledger *l, uint32_t op) {
    for (uint32_t j = l->life_begin[op]; j < l->life_begin[op + 1]; j++) touch(l, l->life[j]);
}

static bool add_uses(cb_ledger *l, uint32_t op, uint32_t anchor) {
    for (uint32_t j = l->need_begin[op]; j < l->need_begin[op + 1]; j++) {
        if (!add_use(l, l->need[j], anchor)) return false;
        touch(l, l->need[j]);
    }
    return true;
}

static void drop_uses(cb_ledger *l, uint32_t op, uint32_t anchor) {
    for (uint32_t j = l->need_begin[op]; j < l->need_begin[op + 1]; j++) {
        drop_use(l, l->need[j], anchor);
        touch(l, l->need[j]);
    }
}

static bool put_run(cb_ledger *l, uint32_t op, uint32_t anchor) {
    cb_ledger_ids *r = &l->runs[op];
    if (!CB_RESERVE(&l->arena, *r, 1)) return false;
    size_t i = r->len++;
    for (; i > 0 && r->at[i - 1] > anchor; i--) r->at[i] = r->at[i - 1];
    r->at[i] = anchor;
    l->extra_ps += l->f->cost_ps[op];
    return add_uses(l, op, anchor);
}

static void pull_run(cb_ledger *l, uint32_t op, uint32_t anchor) {
    cb_ledger_ids *r = &l->runs[op];
    size_t i = 0;
    while (r->at[i] != anchor) i++;
    for (r->len--; i < r->len; i++) r->at[i] = r->at[i + 1];
    l->extra_ps -= l->f->cost_ps[op];
    drop_uses(l, op, anchor);
}

static bool note_run(cb_ledger *l, uint32_t op, uint32_t anchor, bool came) {
    return !l->notes.on || CB_PUSH(&l->arena, l->notes.run, (cb_ledger_run){op, anchor, came});
}

static bool add_run(cb_ledger *l, uint32_t op, uint32_t anchor) {
    touch_made(l, op);
    return note_run(l, op, anchor, true) && put_run(l, op, anchor);
}

static bool drop_run(cb_ledger *l, uint32_t op, uint32_t anchor) {
    if (!note_run(l, op, anchor, false)) return false;
    touch_made(l, op);
    pull_run(l, op, anchor);
    return true;
}

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
            uint32_t maker = l->f->root[l->need[j]];
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

static bool note_busy(cb_ledger *l, uint32_t anchor, bool was) {
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
        if (more && l->done[least] != l->visit && !grow_chain(l, least, true)) return false;
    }
    return n == 0 || grow_chain(l, l->f->base[anchor], false);
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
static void hold_until_backward(cb_ledger *l, bool touches) {
    const cb_facts *f = l->f;
    if (!f->spared || f->base_backward == f->n_base) return;
    uint32_t until = f->base_backward + (l->chain[f->base_backward].len == 0 ? 1 : 0);
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        if (l->held_until[s] == 0 || l->held_until[s] == l->n) continue;
        if (touches && l->held_until[s] != until) touch(l, l->twin[s]);
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
        if (l->stood[new] != l->visit && !add_run(l, new, anchor)) return false;
    }
    cb_ledger_ids old = *chain;
    *chain = l->grown;
    l->grown = old;
    mark(l, anchor);
    if (anchor == l->f->base_backward) hold_until_backward(l, true);
    return note_busy(l, anchor, was);
}

/* ---- settling -------------------------------------------------------------------------------- */

/* Before the moments of a block change for the first time in a trial. */
static bool note_moments(cb_ledger *l, uint32_t block) {
    cb_ledger_notes *notes = &l->notes;
    if (!notes->on || notes->moment_in[block] == notes->trial) return true;
    notes->moment_in[block] = notes->trial;
    if (!CB_PUSH(&l->arena, notes->block, block) || !CB_RESERVE(&l->arena, notes->moment, BLOCK))
        return false;
    memcpy(notes->moment.at + notes->moment.len, l->moment + ((size_t)block << CB_LEDGER_BLOCK),
           BLOCK * sizeof *l->moment);
    notes->moment.len += BLOCK;
    return true;
}

/* To the moments in [from, end), of one block. */
static bool add_in_block(cb_ledger *l, uint32_t block, uint32_t from, uint32_t end, double bytes) {
    if (!note_moments(l, block)) return false;
    for (uint32_t k = from; k < end; k++) l->moment[k] += bytes;
    l->stale[block] = true;
    return true;
}

/* Whole blocks are lifted, all at once when they are summed up. Of the two at the ends the lesser
 * part is gone through: what is to change, or, with a lift, what is not. */
static bool add_load(cb_ledger *l, uint32_t from, uint32_t to, double bytes) {
    if (to >= l->n) to = l->n - 1; /* held to the end */
    if (from > to) return true;
    uint32_t first = from >> CB_LEDGER_BLOCK, last = to >> CB_LEDGER_BLOCK, end = to + 1;
    if (first == last) return add_in_block(l, first, from, end, bytes);
    uint32_t after = (first + 1) << CB_LEDGER_BLOCK, before = last << CB_LEDGER_BLOCK;
    uint32_t rises = first + 1, falls = last;
    if (after - from <= BLOCK / 2) {
        if (!add_in_block(l, first, from, after, bytes)) return false;
    } else {
        rises = first;
        if (!add_in_block(l, first, after - BLOCK, from, -bytes)) return false;
    }
    if (end - before <= BLOCK / 2) {
        if (!add_in_block(l, last, before, end, bytes)) return false;
    } else {
        falls = last + 1;
        if (!add_in_block(l, last, end, before + BLOCK, -bytes)) return false;
    }
    l->rise[rises] += bytes;
    l->rise[falls] -= bytes;
    return true;
}

static bool list_spans(cb_ledger *l, uint32_t storage) {
    uint32_t op = l->f->root[storage];
    const cb_ledger_ids *runs = &l->runs[op];
    const cb_ledger_uses *use = &l->use[storage];
    l->fresh.len = 0;
    if (!CB_RESERVE(&l->arena, l->fresh, runs->len)) return false;
    for (size_t i = l->idle[op], j = 0; i < runs->len; i++) {
        uint32_t made = runs->at[i], next = i + 1 < runs->len ? runs->at[i + 1] : CB_NONE;
        uint32_t last = made;
        for (; j < use->len && use->at[j].anchor < next; j++) {
            if (use->at[j].anchor > last) last = use->at[j].anchor;
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
    mark_end(l, a.made);
    mark_end(l, a.last);
    mark_end(l, b.last);
    return longer ? add_load(l, a.last + 1, b.last, bytes)
                  : add_load(l, b.last + 1, a.last, -bytes);
}

static bool change_span(cb_ledger *l, cb_ledger_span a, double bytes) {
    mark_end(l, a.made);
    mark_end(l, a.last);
    return add_load(l, a.made + 1, a.last, bytes);
}

/* Most storages are made once, and end earlier or later than before. */
static bool lives_once(const cb_ledger *l, uint32_t storage) {
    const cb_ledger_ids *runs = &l->runs[l->f->root[storage]];
    const cb_ledger_spans *spans = &l->span[storage];
    return runs->len == 1 && spans->len == 1 && spans->at[0].made == runs->at[0];
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

/* The moments between change by the difference of old and new spans. */
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

static void count_reads(cb_ledger *l, uint32_t op) {
    for (uint32_t j = l->need_begin[op]; j < l->need_begin[op + 1]; j++) l->left[l->need[j]]++;
}

/* One step of a chain: what it makes comes, what it reads last goes. */
static void run_step(cb_ledger *l, uint32_t op, uint32_t anchor, double *now, double *most) {
    const cb_facts *f = l->f;
    *now += l->made_bytes[op];
    double during = *now + (double)(f->p->op_workspace[op] + f->again_bytes[op]);
    if (during > *most) *most = during;
    for (uint32_t j = l->life_begin[op]; j < l->life_begin[op + 1]; j++) {
        uint32_t s = l->life[j];
        if (l->left[s] == 0 && cb_spans_last(&l->span[s], anchor) == anchor)
            *now -= l->life_bytes[s];
    }
    for (uint32_t j = l->need_begin[op]; j < l->need_begin[op + 1]; j++) {
        uint32_t s = l->need[j];
        if (--l->left[s] == 0 && cb_spans_last(&l->span[s], anchor) == anchor)
            *now -= l->life_bytes[s];
    }
}

/* The rise inside the steps of an anchor. What goes behind the last step does not count. */
static double rise_inside(cb_ledger *l, uint32_t anchor) {
    const cb_ledger_ids *chain = &l->chain[anchor];
    uint32_t base = l->f->base[anchor];
    double now = 0, most = 0;
    bool idle = l->idle[base];
    if (chain->len > 0) {
        for (size_t i = 0; i < chain->len; i++) count_reads(l, cb_chain_op(chain->at[i]));
        if (!idle) count_reads(l, base);
        for (size_t i = 0; i < chain->len; i++)
            run_step(l, cb_chain_op(chain->at[i]), anchor, &now, &most);
        for (uint32_t j = l->need_begin[base]; !idle && j < l->need_begin[base + 1]; j++)
            l->left[l->need[j]] = 0;
    }
    if (idle) return most;
    double during = now + l->made_bytes[base] + (double)l->f->p->op_workspace[base];
    return during > most ? during : most;
}

static bool walk_anchor(cb_ledger *l, uint32_t anchor) {
    cb_ledger_notes *notes = &l->notes;
    double most = rise_inside(l, anchor);
    if (most == l->local[anchor]) return true;
    if (notes->on && (!CB_PUSH(&l->arena, notes->anchor, anchor) ||
                      !CB_PUSH(&l->arena, notes->local, l->local[anchor])))
        return false;
    uint32_t block = anchor >> CB_LEDGER_BLOCK;
    if (!add_in_block(l, block, anchor, anchor + 1, most - l->local[anchor])) return false;
    l->local[anchor] = most;
    return true;
}

typedef double two __attribute__((vector_size(16)));
#ifndef __SSE2__
typedef int64_t two_masks __attribute__((vector_size(16)));
#endif

static two larger(two a, two b) {
#ifdef __SSE2__
    return _mm_max_pd(a, b); /* a > b ? a : b, which compilers do not make of what is below */
#else
    two_masks first = a > b;
    return (two)(((two_masks)a & first) | ((two_masks)b & ~first));
#endif
}

static two load_two(const double *at) {
    two both;
    memcpy(&both, at, sizeof both);
    return both;
}

/* Moments behind the last anchor are 0. */
static double peak_of(const double *moment) {
    two peak[LANES];
    for (uint32_t j = 0; j < LANES; j++) peak[j] = load_two(moment + 2 * j);
    for (uint32_t k = 2 * LANES; k < BLOCK; k += 2 * LANES) {
        for (uint32_t j = 0; j < LANES; j++)
            peak[j] = larger(load_two(moment + k + 2 * j), peak[j]);
    }
    two most = larger(larger(peak[0], peak[1]), larger(peak[2], peak[3]));
    return most[0] > most[1] ? most[0] : most[1];
}

static double area_above(const double *moment, double level) {
    two area[LANES] = {0}, zero = {0}, from = {level, level};
    for (uint32_t k = 0; k < BLOCK; k += 2 * LANES) {
        for (uint32_t j = 0; j < LANES; j++)
            area[j] += larger(load_two(moment + k + 2 * j) - from, zero);
    }
    two all = (area[0] + area[1]) + (area[2] + area[3]);
    return all[0] + all[1];
}

/* Most blocks are not over the target: their area needs no look. */
static void sum_up_block(cb_ledger *l, uint32_t block) {
    const double *moment = l->moment + ((size_t)block << CB_LEDGER_BLOCK);
    double lift = l->lift[block], peak = peak_of(moment) + lift;
    l->block_peak[block] = peak;
    l->block_area[block] = peak > l->target ? area_above(moment, l->target - lift) : 0;
    l->stale[block] = false;
}

static void lift_block(cb_ledger *l, uint32_t block, double bytes) {
    l->lift[block] += bytes;
    l->block_peak[block] += bytes;
    l->stale[block] |= l->block_peak[block] > l->target || l->block_area[block] > 0;
}

static void sum_up(cb_ledger *l) {
    double peak = 0, area = 0, rise = 0;
    for (uint32_t b = 0; b < l->n_block; b++) {
        rise += l->rise[b];
        l->rise[b] = 0;
        if (rise < 0 || rise > 0) lift_block(l, b, rise);
        if (l->stale[b]) sum_up_block(l, b);
        if (l->block_peak[b] > peak) peak = l->block_peak[b];
        area += l->block_area[b];
    }
    l->rise[l->n_block] = 0;
    l->peak = peak;
    l->area = area;
}

static bool is_idle(const cb_ledger *l, uint32_t op) {
    const cb_ledger_ids *runs = &l->runs[op];
    if (runs->len < 2 || l->holds[op]) return false;
    for (uint32_t j = l->life_begin[op]; j < l->life_begin[op + 1]; j++) {
        const cb_ledger_uses *u = &l->use[l->life[j]];
        if (u->len > 0 && u->at[0].anchor < runs->at[1]) return false;
    }
    return true;
}

/* An op's base run goes or comes back, and with it its reads; what it reads may follow. */
static bool review_idle(cb_ledger *l, uint32_t op, bool *changed) {
    bool idle = is_idle(l, op);
    if (idle == l->idle[op]) return true;
    *changed = true;
    uint32_t anchor = l->f->position[op];
    if (l->notes.on && !CB_PUSH(&l->arena, l->notes.idle, op)) return false;
    l->idle[op] = idle;
    l->extra_ps += idle ? -l->f->cost_ps[op] : l->f->cost_ps[op];
    touch_made(l, op);
    mark(l, anchor);
    if (!idle) return add_uses(l, op, anchor);
    drop_uses(l, op, anchor);
    return true;
}

bool cb_ledger_settle(cb_ledger *l) {
    for (bool changed = true; changed;) { /* readers before what they read: few rounds */
        changed = false;
        for (size_t i = l->touched.len; i-- > 0;) {
            if (!review_idle(l, l->f->root[l->touched.at[i]], &changed)) return false;
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
    sum_up(l);
    return true;
}

/* ---- trials ---------------------------------------------------------------------------------- */

/* Peaks, areas and lifts of all blocks lie behind each other. */
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

/* Backwards, as runs, idle ops and spans may have changed more than once. What settling works out
 * is put back whole. */
static bool put_back_runs(cb_ledger *l) {
    const cb_ledger_notes *notes = &l->notes;
    for (size_t i = notes->idle.len; i-- > 0;) {
        uint32_t op = notes->idle.at[i], anchor = l->f->position[op];
        l->idle[op] = !l->idle[op];
        if (l->idle[op]) drop_uses(l, op, anchor);
        else if (!add_uses(l, op, anchor)) return false;
    }
    for (size_t i = notes->run.len; i-- > 0;) {
        cb_ledger_run run = notes->run.at[i];
        if (run.came) pull_run(l, run.op, run.anchor);
        else if (!put_run(l, run.op, run.anchor)) return false;
    }
    return true;
}

/* All have had room for so many. */
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
        if (!note_busy(l, anchor, was)) return false;
    }
    return true;
}

static void put_back_moments(cb_ledger *l) {
    const cb_ledger_notes *notes = &l->notes;
    memcpy(l->block_peak, notes->sums, sums_of(l) * sizeof *notes->sums);
    memset(l->stale, 0, l->n_block * sizeof *l->stale);
    for (size_t i = 0; i < notes->block.len; i++)
        memcpy(l->moment + ((size_t)notes->block.at[i] << CB_LEDGER_BLOCK),
               notes->moment.at + (i << CB_LEDGER_BLOCK), BLOCK * sizeof *l->moment);
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
    hold_until_backward(l, false);
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

/* ---- loading --------------------------------------------------------------------------------- */

/* Who gets a view gets it of what its op saw. */
static bool add_shown(cb_ledger *l, uint32_t value) {
    const cb_facts *f = l->f;
    uint32_t op = f->p->value_op[value], s = f->p->value_storage[value];
    bool shown = cb_is_view(f, op) && f->root[s] != CB_NONE && f->position[op] != CB_NONE;
    if (!shown) return true;
    touch(l, l->twin[s]);
    return add_use(l, l->twin[s], f->position[op]);
}

static bool add_ends(cb_ledger *l) {
    const cb_facts *f = l->f;
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (l->held_until[s] > 0) touch(l, l->twin[s]);
    }
    for (uint32_t i = 0; i < p->n_forward_output; i++) {
        if (!add_shown(l, p->forward_output[i])) return false;
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i], s = p->value_storage[v];
        if (f->root[s] == CB_NONE) continue;
        touch(l, l->twin[s]);
        if (cb_stays_to_end(f, s) ? !add_shown(l, v) : !add_use(l, l->twin[s], l->n)) return false;
    }
    return true;
}

static bool load_base(cb_ledger *l) {
    const cb_facts *f = l->f;
    for (uint32_t k = 0; k < l->n; k++) {
        if (cb_is_view(f, f->base[k])) continue;
        if (!add_run(l, f->base[k], k)) return false;
    }
    l->extra_ps = 0;
    return add_ends(l);
}

/* Not a view for the caller: nothing runs again for that. */
static size_t find_reader(const cb_ledger *l, const cb_ledger_uses *u, uint32_t anchor) {
    size_t i = find_use(u, anchor);
    while (i < u->len && u->at[i].anchor < l->n && cb_is_view(l->f, l->f->base[u->at[i].anchor]))
        i++;
    return i;
}

/* Where the pairs of `anchor` take effect: at the next reader of what a view shows. */
static uint32_t real_anchor(const cb_ledger *l, uint32_t anchor) {
    const cb_facts *f = l->f;
    uint32_t op = f->base[anchor];
    if (!cb_is_view(f, op)) return anchor;
    const cb_problem *p = f->p;
    uint32_t s = p->value_storage[p->out_begin[op]];
    const cb_ledger_uses *u = cb_ledger_uses_of(l, s);
    size_t i = find_reader(l, u, anchor);
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
    for (uint32_t op = 0; op < p->n_op; op++) {
        l->runs[op].len = 0;
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
    hold_until_backward(l, false);
    if (!load_base(l)) return cb_no_memory(err);
    for (uint32_t k = 0; k < l->n; k++) mark(l, k);
    return load_pairs(l, pair, n_pair) && cb_ledger_settle(l) ? CB_OK : cb_no_memory(err);
}

bool cb_ledger_pairs(const cb_ledger *l, cb_pairs *out) {
    size_t begin = out->list.len;
    for (uint32_t k = 0; k < l->n; k++) {
        for (size_t i = 0; i < l->chain[k].len; i++) {
            if (!CB_PUSH(out->arena, out->list, cb_pair_make(k, l->chain[k].at[i]))) return false;
        }
    }
    if (out->list.len > begin) cb_sort_pairs(out->list.at + begin, out->list.len - begin);
    return true;
}

/* ---- questions ------------------------------------------------------------------------------- */

/* Of the anchors in [from, to). */
static double peak_between(const cb_ledger *l, uint32_t from, uint32_t to) {
    double most = 0;
    for (uint32_t k = from; k < to;) {
        uint32_t b = k >> CB_LEDGER_BLOCK, end = (b + 1) << CB_LEDGER_BLOCK;
        bool whole = (k & (BLOCK - 1)) == 0 && end <= to;
        if (whole && l->block_peak[b] > most) most = l->block_peak[b];
        if (whole) {
            k = end;
            continue;
        }
        for (; k < end && k < to; k++) most = fmax(most, cb_ledger_moment(l, k));
    }
    return most;
}

/* Bytes that may go from the moments before `anchor` when `op` no longer reads them there; false
 * when more may follow, as a base run falls idle. */
static bool may_shorten(const cb_ledger *l, uint32_t op, uint32_t anchor, double *bytes) {
    for (uint32_t j = l->need_begin[op]; j < l->need_begin[op + 1]; j++) {
        uint32_t s = l->need[j], maker = l->f->root[s];
        const cb_ledger_spans *spans = &l->span[s];
        size_t i = spans->len;
        while (i > 0 && spans->at[i - 1].made >= anchor) i--;
        if (i == 0 || spans->at[i - 1].last != anchor) continue;
        bool lone = i == 1 && l->use[s].at[0].anchor == anchor;
        if (lone && !l->idle[maker] && l->runs[maker].len > 1) return false;
        *bytes += l->life_bytes[s];
    }
    return true;
}

/* What the chain would lose beside `op`: those that only it needs. Marks the others in `done`. */
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
            l->done[l->f->root[l->need[j]]] = l->visit;
    }
    return true;
}

/* Where the rise begins that makes up for the run of a storage's op at `anchor`; `anchor`: there is
 * none, as nobody reads that run. */
static uint32_t rise_from(const cb_ledger *l, uint32_t storage, uint32_t anchor) {
    const cb_ledger_spans *spans = cb_ledger_spans_of(l, storage);
    const cb_ledger_uses *u = cb_ledger_uses_of(l, storage);
    size_t i = spans->len, at = find_use(u, anchor);
    while (i > 0 && spans->at[i - 1].made > anchor) i--;
    if (i == 0 || spans->at[i - 1].made != anchor) return anchor;
    if (at == u->len || u->at[at].anchor > spans->at[i - 1].last) return anchor;
    return 1 + (i > 1 ? spans->at[i - 2].last : l->f->position[l->f->root[storage]]);
}

double cb_ledger_peak_without(cb_ledger *l, uint32_t anchor, uint32_t op) {
    for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++) { /* the largest first */
        uint32_t s = l->made[j], from = rise_from(l, s, anchor);
        double freed = 0, bytes = (double)l->f->p->storage_bytes[s];
        if (from >= anchor) continue;
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
    size_t i = find_reader(l, u, anchor + 1);
    if (i == u->len) return false;
    *next = u->at[i].anchor;
    return *next < l->n;
}
