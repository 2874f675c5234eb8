/* Per storage: the anchors that make it (those at which its op runs), the anchors that read it, and
 * the spans these two give. Per anchor: moment = load when entered + local, the rise inside its own
 * steps (whole blocks of moments share a lift, so that long
 * lives cost little). A move undoes the runs and reads of one chain and does those of the new one;
 * settling then works out the spans of the storages touched, adds what changed to the moments
 * between, and walks the chains at old and new ends again.
 *
 * Views are seen through: reading a view is reading its storage's latest run, as the simulator
 * refreshes views for free. A pair at a view's position moves on to the next reader. */
#include "ledger.h"

#include <math.h>

#include "../base/sort.h"

#define BLOCK (1u << CB_LEDGER_BLOCK)
#define BLOCK_NOTE (BLOCK + 3)
#define LANES 4 /* pairs of doubles in flight: a maximum waits for the one before it */

/* ---- tables of the problem ------------------------------------------------------------------- */

static bool is_view(const cb_facts *f, uint32_t op) { return f->p->op_flags[op] & CB_POP_VIEW; }

/* Storages that the base ops read, each once; `seen` [n_storage] is scratch. */
static void list_reads(cb_ledger *l, uint32_t *seen) {
    const cb_facts *f = l->f;
    const cb_problem *p = f->p;
    uint32_t n = 0;
    for (uint32_t s = 0; s < p->n_storage; s++) seen[s] = CB_NONE;
    for (uint32_t op = 0; op < p->n_op; op++) {
        l->read_begin[op] = n;
        if (f->position[op] == CB_NONE || is_view(f, op)) continue;
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            if (f->root[s] == CB_NONE || seen[s] == op) continue;
            seen[s] = op;
            l->read[n++] = s;
        }
    }
    l->read_begin[p->n_op] = n;
}

static bool goes_before(const cb_facts *f, uint32_t a, uint32_t b) {
    bool stays = cb_stays_to_end(f, a), other_stays = cb_stays_to_end(f, b);
    if (stays != other_stays) return other_stays;
    return f->p->storage_bytes[a] > f->p->storage_bytes[b];
}

static void list_held(cb_ledger *l) {
    const cb_facts *f = l->f;
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        if (f->root[s] == CB_NONE) continue;
        if (f->held[s]) l->held_until[s] = f->base_backward;
        if (cb_stays_to_end(f, s)) l->held_until[s] = l->n;
        l->holds[f->root[s]] |= l->held_until[s] > 0;
    }
    for (uint32_t op = 0; op < f->p->n_op; op++) l->holds[op] |= f->again_bytes[op] > 0;
}

static void list_made(cb_ledger *l, uint32_t *seen) {
    const cb_facts *f = l->f;
    const cb_problem *p = f->p;
    uint32_t n = 0;
    for (uint32_t s = 0; s < p->n_storage; s++) seen[s] = CB_NONE;
    for (uint32_t op = 0; op < p->n_op; op++) {
        l->made_begin[op] = n;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            if (f->root[s] != op || seen[s] == op) continue;
            seen[s] = op;
            uint32_t at = n++;
            for (; at > l->made_begin[op] && goes_before(f, s, l->made[at - 1]); at--)
                l->made[at] = l->made[at - 1];
            l->made[at] = s;
        }
    }
    l->made_begin[p->n_op] = n;
}

cb_status cb_ledger_init(cb_ledger *l, const cb_facts *f, const bool *may_rerun, cb_alloc *alloc,
                         cb_error *err) {
    const cb_problem *p = f->p;
    *l = (cb_ledger){.f = f, .n = f->n_base, .may_rerun = may_rerun};
    cb_arena *a = &l->arena;
    cb_arena_init(a, alloc);
    l->read_begin = CB_NEW(a, uint32_t, (size_t)p->n_op + 1);
    l->read = CB_NEW(a, uint32_t, p->in_begin[p->n_op]);
    l->made_begin = CB_NEW(a, uint32_t, (size_t)p->n_op + 1);
    l->made = CB_NEW(a, uint32_t, p->n_storage);
    l->held_until = CB_NEW(a, uint32_t, p->n_storage);
    l->holds = CB_NEW(a, bool, p->n_op);
    l->chain = CB_NEW(a, cb_ledger_ids, l->n);
    l->runs = CB_NEW(a, cb_ledger_ids, p->n_op);
    l->idle = CB_NEW(a, bool, p->n_op);
    l->use = CB_NEW(a, cb_ledger_uses, p->n_storage);
    l->span = CB_NEW(a, cb_ledger_spans, p->n_storage);
    l->busy_at = CB_NEW(a, uint32_t, l->n);
    l->n_block = (l->n >> CB_LEDGER_BLOCK) + 1;
    l->moment = CB_NEW(a, double, (size_t)l->n_block << CB_LEDGER_BLOCK);
    l->lift = CB_NEW(a, double, (size_t)l->n_block + 1);
    l->block_peak = CB_NEW(a, double, l->n_block);
    l->block_area = CB_NEW(a, double, l->n_block);
    l->stale = CB_NEW(a, bool, l->n_block);
    l->notes.noted_in = CB_NEW(a, uint32_t, l->n_block);
    l->local = CB_NEW(a, double, l->n);
    l->touched_in = CB_NEW(a, uint32_t, p->n_storage);
    l->marked_in = CB_NEW(a, uint32_t, l->n);
    l->wanted = CB_NEW(a, uint32_t, p->n_op);
    l->early = CB_NEW(a, uint32_t, p->n_op);
    l->done = CB_NEW(a, uint32_t, p->n_op);
    l->stood = CB_NEW(a, uint32_t, p->n_op);
    l->left = CB_NEW(a, uint32_t, p->n_storage);
    if (l->read_begin && l->read && l->made_begin && l->made && l->held_until && l->holds &&
        l->chain && l->runs && l->idle && l->use && l->span && l->busy_at && l->moment &&
        l->local && l->touched_in && l->marked_in && l->wanted && l->early && l->done && l->stood &&
        l->left && l->lift && l->block_peak && l->block_area && l->stale && l->notes.noted_in) {
        list_reads(l, l->left);
        list_made(l, l->left);
        list_held(l);
        memset(l->left, 0, p->n_storage * sizeof *l->left);
        l->round = l->visit = 1;
        return CB_OK;
    }
    cb_ledger_free(l);
    return cb_no_memory(err);
}

void cb_ledger_free(cb_ledger *l) { cb_arena_free(&l->arena); }

/* ---- runs and reads -------------------------------------------------------------------------- */

static bool touch(cb_ledger *l, uint32_t storage) {
    if (l->touched_in[storage] == l->round) return true;
    l->touched_in[storage] = l->round;
    return CB_PUSH(&l->arena, l->touched, storage);
}

static bool mark(cb_ledger *l, uint32_t anchor) {
    if (anchor >= l->n || l->marked_in[anchor] == l->round) return true;
    l->marked_in[anchor] = l->round;
    return CB_PUSH(&l->arena, l->marked, anchor);
}

static size_t find_use(const cb_ledger_uses *u, uint32_t anchor) {
    size_t low = 0, high = u->len;
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
    } else {
        if (!CB_RESERVE(&l->arena, *u, 1)) return false;
        memmove(u->at + i + 1, u->at + i, (u->len++ - i) * sizeof *u->at);
        u->at[i] = (cb_ledger_use){anchor, 1};
    }
    return touch(l, storage);
}

static bool drop_use(cb_ledger *l, uint32_t storage, uint32_t anchor) {
    cb_ledger_uses *u = &l->use[storage];
    size_t i = find_use(u, anchor);
    if (--u->at[i].count == 0) memmove(u->at + i, u->at + i + 1, (--u->len - i) * sizeof *u->at);
    return touch(l, storage);
}

static bool note_op(cb_ledger *l, uint32_t op, uint32_t anchor,
                    bool (*note)(cb_ledger *, uint32_t, uint32_t)) {
    for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++) {
        if (!touch(l, l->made[j])) return false;
    }
    for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) {
        if (!note(l, l->read[j], anchor)) return false;
    }
    return true;
}

static bool add_run(cb_ledger *l, uint32_t op, uint32_t anchor) {
    cb_ledger_ids *r = &l->runs[op];
    if (!CB_RESERVE(&l->arena, *r, 1)) return false;
    size_t i = r->len++;
    for (; i > 0 && r->at[i - 1] > anchor; i--) r->at[i] = r->at[i - 1];
    r->at[i] = anchor;
    l->extra_ps += l->f->cost_ps[op];
    return note_op(l, op, anchor, add_use);
}

static bool drop_run(cb_ledger *l, uint32_t op, uint32_t anchor) {
    cb_ledger_ids *r = &l->runs[op];
    size_t i = 0;
    while (r->at[i] != anchor) i++;
    memmove(r->at + i, r->at + i + 1, (--r->len - i) * sizeof *r->at);
    l->extra_ps -= l->f->cost_ps[op];
    return note_op(l, op, anchor, drop_use);
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
    if (!CB_PUSH(&l->arena, *path, top) || !CB_PUSH(&l->arena, *path, l->read_begin[top]))
        return false;
    while (path->len > 0) {
        uint32_t op = path->at[path->len - 2], j = path->at[path->len - 1]++;
        if (j < l->read_begin[op + 1]) {
            uint32_t maker = l->f->root[l->read[j]];
            if (l->wanted[maker] != l->visit || l->done[maker] == l->visit) continue;
            l->done[maker] = l->visit;
            if (!CB_PUSH(&l->arena, *path, maker) ||
                !CB_PUSH(&l->arena, *path, l->read_begin[maker]))
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

/* What stays in the chain is not touched: only the difference costs. */
bool cb_ledger_set(cb_ledger *l, uint32_t anchor, const uint32_t *op, size_t n) {
    cb_ledger_ids *chain = &l->chain[anchor];
    bool was = chain->len > 0;
    l->visit++;
    if (!grow_all(l, anchor, op, n)) return false;
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
    return mark(l, anchor) && note_busy(l, anchor, was);
}

/* ---- settling -------------------------------------------------------------------------------- */

/* Before a block changes for the first time in a probe. */
static bool note_block(cb_ledger *l, uint32_t block) {
    cb_ledger_notes *notes = &l->notes;
    if (!notes->on || notes->noted_in[block] == l->round) return true;
    notes->noted_in[block] = l->round;
    if (!CB_PUSH(&l->arena, notes->block, block) ||
        !CB_RESERVE(&l->arena, notes->of_block, BLOCK_NOTE))
        return false;
    double *note = notes->of_block.at + notes->of_block.len;
    notes->of_block.len += BLOCK_NOTE;
    memcpy(note, l->moment + ((size_t)block << CB_LEDGER_BLOCK), BLOCK * sizeof *note);
    note[BLOCK] = l->lift[block];
    note[BLOCK + 1] = l->block_peak[block];
    note[BLOCK + 2] = l->block_area[block];
    return true;
}

static bool add_in_block(cb_ledger *l, uint32_t from, uint32_t to, double bytes) {
    if (!note_block(l, from >> CB_LEDGER_BLOCK)) return false;
    for (uint32_t k = from; k <= to; k++) l->moment[k] += bytes;
    l->stale[from >> CB_LEDGER_BLOCK] = true;
    return true;
}

/* Whole blocks are lifted; only the two at the ends are gone through. */
static bool add_load(cb_ledger *l, uint32_t from, uint32_t to, double bytes) {
    if (to >= l->n) to = l->n - 1; /* held to the end */
    if (from > to) return true;
    uint32_t first = from >> CB_LEDGER_BLOCK, last = to >> CB_LEDGER_BLOCK;
    if (first == last) return add_in_block(l, from, to, bytes);
    if (!add_in_block(l, from, ((first + 1) << CB_LEDGER_BLOCK) - 1, bytes)) return false;
    for (uint32_t b = first + 1; b < last; b++) {
        if (!note_block(l, b)) return false;
        l->lift[b] += bytes;
        l->block_peak[b] += bytes;
        l->stale[b] |= l->block_peak[b] > l->target || l->block_area[b] > 0;
    }
    return add_in_block(l, last << CB_LEDGER_BLOCK, to, bytes);
}

static bool mark_ends(cb_ledger *l, cb_ledger_span span) {
    return mark(l, span.made) && mark(l, span.last);
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
    if (spans->len > 0)
        memcpy(notes->span.at + notes->span.len, spans->at, spans->len * sizeof *spans->at);
    notes->span.len += spans->len;
    return true;
}

/* The moments between change by the difference of old and new spans. */
static bool respan(cb_ledger *l, uint32_t storage) {
    if (!list_spans(l, storage)) return false;
    cb_ledger_spans *old = &l->span[storage];
    const cb_ledger_spans *now = &l->fresh;
    double bytes = (double)l->f->p->storage_bytes[storage];
    for (size_t i = 0, j = 0; i < old->len || j < now->len;) {
        bool take_old = i < old->len && (j == now->len || old->at[i].made <= now->at[j].made);
        bool take_new = j < now->len && (i == old->len || now->at[j].made <= old->at[i].made);
        cb_ledger_span a = take_old ? old->at[i++] : now->at[j];
        cb_ledger_span b = take_new ? now->at[j++] : a;
        if (take_old && take_new) {
            if (a.last == b.last) continue;
            bool longer = b.last > a.last;
            uint32_t from = longer ? a.last : b.last, to = longer ? b.last : a.last;
            if (!add_load(l, from + 1, to, longer ? bytes : -bytes) || !mark(l, a.made) ||
                !mark(l, a.last) || !mark(l, b.last))
                return false;
        } else if (!add_load(l, a.made + 1, a.last, take_old ? -bytes : bytes) ||
                   !mark_ends(l, a)) {
            return false;
        }
    }
    if (!note_spans(l, storage)) return false;
    old->len = 0;
    if (!CB_RESERVE(&l->arena, *old, now->len)) return false;
    memcpy(old->at, now->at, now->len * sizeof *now->at);
    old->len = now->len;
    return true;
}

static uint32_t last_of(const cb_ledger *l, uint32_t storage, uint32_t anchor) {
    const cb_ledger_spans *spans = &l->span[storage];
    size_t i = spans->len;
    while (i > 0 && spans->at[i - 1].made > anchor) i--;
    return i > 0 ? spans->at[i - 1].last : CB_NONE;
}

static void count_reads(cb_ledger *l, uint32_t op) {
    for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) l->left[l->read[j]]++;
}

/* One step: what it makes comes, what it reads last goes. */
static void run_step(cb_ledger *l, uint32_t op, uint32_t anchor, double *now, double *most) {
    const cb_problem *p = l->f->p;
    uint64_t scratch = p->op_workspace[op];
    if (l->f->position[op] != anchor) scratch += l->f->again_bytes[op];
    for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++)
        *now += (double)p->storage_bytes[l->made[j]];
    double during = *now + (double)scratch;
    if (during > *most) *most = during;
    for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++) {
        uint32_t s = l->made[j];
        if (l->left[s] == 0 && last_of(l, s, anchor) == anchor) *now -= (double)p->storage_bytes[s];
    }
    for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) {
        uint32_t s = l->read[j];
        if (--l->left[s] == 0 && last_of(l, s, anchor) == anchor)
            *now -= (double)p->storage_bytes[s];
    }
}

static bool walk_anchor(cb_ledger *l, uint32_t anchor) {
    const cb_ledger_ids *chain = &l->chain[anchor];
    uint32_t base = l->f->base[anchor];
    double now = 0, most = 0;
    bool idle = l->idle[base];
    for (size_t i = 0; i < chain->len; i++) count_reads(l, cb_chain_op(chain->at[i]));
    if (!idle) count_reads(l, base);
    for (size_t i = 0; i < chain->len; i++)
        run_step(l, cb_chain_op(chain->at[i]), anchor, &now, &most);
    if (!idle) run_step(l, base, anchor, &now, &most);
    if (most == l->local[anchor]) return true;
    if (l->notes.on && (!CB_PUSH(&l->arena, l->notes.anchor, anchor) ||
                        !CB_PUSH(&l->arena, l->notes.local, l->local[anchor])))
        return false;
    if (!add_in_block(l, anchor, anchor, most - l->local[anchor])) return false;
    l->local[anchor] = most;
    return true;
}

typedef double two __attribute__((vector_size(16)));
typedef int64_t two_masks __attribute__((vector_size(16)));

static two larger(two a, two b) {
    two_masks first = a > b;
    return (two)(((two_masks)a & first) | ((two_masks)b & ~first));
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

static void sum_up(cb_ledger *l) {
    l->peak = l->area = 0;
    for (uint32_t b = 0; b < l->n_block; b++) {
        if (l->stale[b]) sum_up_block(l, b);
        if (l->block_peak[b] > l->peak) l->peak = l->block_peak[b];
        l->area += l->block_area[b];
    }
}

static bool is_idle(const cb_ledger *l, uint32_t op) {
    const cb_ledger_ids *runs = &l->runs[op];
    if (runs->len < 2 || l->holds[op]) return false;
    for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++) {
        const cb_ledger_uses *u = &l->use[l->made[j]];
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
    l->idle[op] = idle;
    if (l->notes.on && !CB_PUSH(&l->arena, l->notes.idle, op)) return false;
    l->extra_ps += idle ? -l->f->cost_ps[op] : l->f->cost_ps[op];
    return note_op(l, op, anchor, idle ? drop_use : add_use) && mark(l, anchor);
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

/* ---- probing --------------------------------------------------------------------------------- */

static void restore(cb_ledger *l) {
    cb_ledger_notes *notes = &l->notes;
    for (size_t i = 0; i < notes->block.len; i++) {
        uint32_t b = notes->block.at[i];
        const double *note = notes->of_block.at + i * BLOCK_NOTE;
        memcpy(l->moment + ((size_t)b << CB_LEDGER_BLOCK), note, BLOCK * sizeof *note);
        l->lift[b] = note[BLOCK];
        l->block_peak[b] = note[BLOCK + 1];
        l->block_area[b] = note[BLOCK + 2];
        l->stale[b] = false;
    }
    for (size_t i = notes->anchor.len; i-- > 0;) l->local[notes->anchor.at[i]] = notes->local.at[i];
    const cb_ledger_span *span = notes->span.at;
    for (size_t i = 0; i < notes->storage.len; i++) {
        cb_ledger_spans *spans = &l->span[notes->storage.at[i]]; /* has had room for so many */
        spans->len = notes->n_span.at[i];
        if (spans->len > 0) memcpy(spans->at, span, spans->len * sizeof *span);
        if (spans->len > 0) span += spans->len;
    }
}

/* Runs and reads go back one by one; what settling works out from them is put back whole. */
static bool take_back(cb_ledger *l, uint32_t anchor) {
    cb_ledger_notes *notes = &l->notes;
    for (size_t i = notes->idle.len; i-- > 0;) {
        uint32_t op = notes->idle.at[i];
        l->idle[op] = !l->idle[op];
        if (!note_op(l, op, l->f->position[op], l->idle[op] ? drop_use : add_use)) return false;
    }
    if (!cb_ledger_set(l, anchor, notes->chain.at, notes->chain.len)) return false;
    restore(l);
    l->touched.len = l->marked.len = 0;
    l->round++;
    return true;
}

bool cb_ledger_probe(cb_ledger *l, uint32_t anchor, const uint32_t *op, size_t n,
                     cb_ledger_sums *out) {
    cb_ledger_notes *notes = &l->notes;
    const cb_ledger_ids *chain = &l->chain[anchor];
    cb_ledger_sums before = {l->peak, l->area, l->extra_ps};
    notes->block.len = notes->anchor.len = notes->storage.len = notes->idle.len = 0;
    notes->of_block.len = notes->local.len = notes->n_span.len = notes->span.len = 0;
    notes->chain.len = 0;
    if (!CB_RESERVE(&l->arena, notes->chain, chain->len)) return false;
    if (chain->len > 0) memcpy(notes->chain.at, chain->at, chain->len * sizeof *chain->at);
    notes->chain.len = chain->len;
    notes->on = true;
    bool ok = cb_ledger_set(l, anchor, op, n) && cb_ledger_settle(l);
    notes->on = false;
    *out = (cb_ledger_sums){l->peak, l->area, l->extra_ps};
    if (!ok || !take_back(l, anchor)) return false;
    l->peak = before.peak;
    l->area = before.area;
    l->extra_ps = before.extra_ps;
    return true;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Who gets a view gets it of what its op saw. */
static bool add_shown(cb_ledger *l, uint32_t value) {
    const cb_facts *f = l->f;
    uint32_t op = f->p->value_op[value], s = f->p->value_storage[value];
    bool shown = is_view(f, op) && f->root[s] != CB_NONE && f->position[op] != CB_NONE;
    return !shown || add_use(l, s, f->position[op]);
}

static bool add_ends(cb_ledger *l) {
    const cb_facts *f = l->f;
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (l->held_until[s] > 0 && !touch(l, s)) return false;
    }
    for (uint32_t i = 0; i < p->n_forward_output; i++) {
        if (!add_shown(l, p->forward_output[i])) return false;
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i], s = p->value_storage[v];
        if (f->root[s] == CB_NONE) continue;
        if (cb_stays_to_end(f, s) ? !add_shown(l, v) : !add_use(l, s, l->n)) return false;
    }
    return true;
}

static bool load_base(cb_ledger *l) {
    const cb_facts *f = l->f;
    for (uint32_t k = 0; k < l->n; k++) {
        if (is_view(f, f->base[k])) continue;
        if (!add_run(l, f->base[k], k)) return false;
    }
    l->extra_ps = 0;
    return add_ends(l);
}

/* Not a view for the caller: nothing runs again for that. */
static size_t find_reader(const cb_ledger *l, const cb_ledger_uses *u, uint32_t anchor) {
    size_t i = find_use(u, anchor);
    while (i < u->len && u->at[i].anchor < l->n && is_view(l->f, l->f->base[u->at[i].anchor])) i++;
    return i;
}

/* Where the pairs of `anchor` take effect: at the next reader of what a view shows. */
static uint32_t real_anchor(const cb_ledger *l, uint32_t anchor) {
    const cb_facts *f = l->f;
    uint32_t op = f->base[anchor];
    if (!is_view(f, op)) return anchor;
    const cb_problem *p = f->p;
    uint32_t s = p->value_storage[p->out_begin[op]];
    const cb_ledger_uses *u = &l->use[s];
    size_t i = find_reader(l, u, anchor);
    return i < u->len && u->at[i].anchor < l->n ? u->at[i].anchor : CB_NONE;
}

static int compare_pairs(const void *a, const void *b) {
    cb_pair x = *(const cb_pair *)a, y = *(const cb_pair *)b;
    return x < y ? -1 : x > y;
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
    if (moved.len > 0) cb_sort(moved.at, moved.len, sizeof *moved.at, compare_pairs);
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
    memset(l->lift, 0, ((size_t)l->n_block + 1) * sizeof *l->lift);
    for (uint32_t b = 0; b < l->n_block; b++) l->stale[b] = true;
    l->busy.len = l->touched.len = l->marked.len = 0;
    l->round++;
    l->target = target;
    if (!load_base(l)) return cb_no_memory(err);
    for (uint32_t k = 0; k < l->n; k++) {
        if (!mark(l, k)) return cb_no_memory(err);
    }
    return load_pairs(l, pair, n_pair) && cb_ledger_settle(l) ? CB_OK : cb_no_memory(err);
}

bool cb_ledger_pairs(const cb_ledger *l, cb_pairs *out) {
    size_t begin = out->list.len;
    for (uint32_t k = 0; k < l->n; k++) {
        for (size_t i = 0; i < l->chain[k].len; i++) {
            if (!CB_PUSH(out->arena, out->list, cb_pair_make(k, l->chain[k].at[i]))) return false;
        }
    }
    if (out->list.len > begin)
        cb_sort(out->list.at + begin, out->list.len - begin, sizeof(cb_pair), compare_pairs);
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
    for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) {
        uint32_t s = l->read[j], maker = l->f->root[s];
        const cb_ledger_spans *spans = &l->span[s];
        size_t i = spans->len;
        while (i > 0 && spans->at[i - 1].made >= anchor) i--;
        if (i == 0 || spans->at[i - 1].last != anchor) continue;
        bool lone = i == 1 && l->use[s].at[0].anchor == anchor;
        if (lone && !l->idle[maker] && l->runs[maker].len > 1) return false;
        *bytes += (double)l->f->p->storage_bytes[s];
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
        for (uint32_t j = l->read_begin[reader]; stays && j < l->read_begin[reader + 1]; j++)
            l->done[l->f->root[l->read[j]]] = l->visit;
    }
    return true;
}

/* Where the rise begins that makes up for the run of a storage's op at `anchor`; `anchor`: there is
 * none, as nobody reads that run. */
static uint32_t rise_from(const cb_ledger *l, uint32_t storage, uint32_t anchor) {
    const cb_ledger_spans *spans = &l->span[storage];
    const cb_ledger_uses *u = &l->use[storage];
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
    const cb_ledger_spans *spans = &l->span[storage];
    size_t i = spans->len;
    while (i > 0 && spans->at[i - 1].made >= anchor) i--;
    return i > 0 && spans->at[i - 1].last >= anchor;
}

bool cb_ledger_crosses(const cb_ledger *l, uint32_t storage, uint32_t anchor, uint32_t *next) {
    uint32_t last = last_of(l, storage, anchor);
    if (last == CB_NONE || last <= anchor) return false;
    const cb_ledger_spans *spans = &l->span[storage];
    bool first = spans->len == 1 || spans->at[1].made > anchor;
    uint32_t until = l->held_until[storage];
    if (first && until > 0 && until >= anchor) return false;
    const cb_ledger_uses *u = &l->use[storage];
    size_t i = find_reader(l, u, anchor + 1);
    if (i == u->len) return false;
    *next = u->at[i].anchor;
    return *next < l->n;
}
