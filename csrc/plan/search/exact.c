/* A shortest path. A state is a position in the base order and the set of those values in memory
 * about which there is a choice, a bit each; edges are single events:
 *
 *     drop a value             takes nothing
 *     run a forward op again   its time, if its inputs are there and there is room
 *     run the base op          its time, likewise; on to the next position
 *     leave the base op out    takes nothing, if it may run later; on to the next position
 *
 * The first position of the backward counts twice: as long as nothing of the backward has run, and
 * afterwards. These are the stages.
 *
 * All other values live from their op to their last reader whatever the plan. Dijkstra's algorithm
 * goes through the sets of one position after the other; labels are compared by time, then by peak,
 * so that of the fastest schedules the smallest wins. Views take part in nothing: they are put back
 * where somebody reads through them.
 *
 * What is held belongs to its op's first run: from then on it is there, until the first step of the
 * backward has run or to the end. A rerun makes a copy of it beside, which counts in its step and
 * may stay to be read: while a copy is the newest, the first is not read. So a bit says that the
 * first is there, one that a copy is, and one that the newest, a copy, has gone.
 *
 * So the first step of the backward can be worth choosing: a rerun of something small,
 * also of what is there already, or a view put back for nothing lets the rest go. Such a view is
 * tried only where something else has no room, since it looks odd. */
#include "exact.h"

#define MOST_BITS 18
#define MOST_STATES (1u << 20) /* positions times sets */
#define PROBES 64              /* of bisection */

/* Last events of a state. FIRST, SHOW and CROSS are the base op, a view and the reruns that are the
 * backward's first step: what it starts with may go after that. */
enum {
    NOTHING = 0,
    RUN_BASE,
    SKIP_BASE,
    FIRST,
    SHOW,
    DROP,
    RERUN = DROP + MOST_BITS,
    CROSS = RERUN + MOST_BITS
};

typedef struct label {
    int64_t time_ps;
    uint64_t peak;
    uint32_t set;
} label;

typedef struct event { /* an op that may run: what it takes, as sets of bits and as bytes */
    uint32_t op;
    uint32_t reads, makes; /* bits */
    uint32_t holds;        /* bits of what is held: a rerun makes a copy of it */
    uint64_t room;         /* bytes of what it makes, and scratch */
    int64_t time_ps;
} event;

typedef struct solver {
    const cb_facts *f;
    cb_arena *arena;
    bool *may_rerun;  /* [n_op] */
    uint32_t *bit_of; /* [n_storage] CB_NONE: no choice about it */
    uint32_t n_bit;
    uint64_t bytes_of[MOST_BITS];
    uint32_t held;    /* bits that the backward starts with, its first step included */
    uint32_t stays;   /* bits that are there to the end once they are made */
    uint32_t doubled; /* of either, those with a bit for a copy behind them, and one for its end */
    uint32_t ends;    /* bits that are there at the end */
    uint32_t gone;    /* bits that are not */
    uint32_t leading; /* bits of the views that the backward begins with */
    uint32_t viewed;  /* the same, and of the forward's views */
    uint32_t n_leading;
    event *base; /* [n_base] */
    event rerun[MOST_BITS];
    uint32_t n_rerun;
    uint64_t *fixed;     /* [n_stage] bytes of values without a choice that cross it */
    uint64_t *set_bytes; /* [1 << n_bit] */
    uint32_t n_stage;
    uint8_t *how;              /* [n_stage + 1][1 << n_bit] last event */
    uint32_t *from;            /* likewise, the set before it */
    label *now, *next, *later; /* [1 << n_bit] of a stage and the two behind it */
    label *heap;
    size_t n_heap, room_heap;
    uint64_t most;    /* the budget */
    uint64_t refused; /* the least that an event wanted beyond it */
    int64_t most_ps;  /* slower labels lead nowhere */
} solver;

/* ---- tables ---------------------------------------------------------------------------------- */

/* Is it there when the backward starts, as the caller gets it? */
static bool is_returned(const cb_facts *f, uint32_t storage) {
    const cb_problem *p = f->p;
    bool held = p->storage_flags[storage] & CB_STORE_HOLD_FORWARD;
    for (uint32_t i = 0; i < p->n_forward_output; i++)
        held |= p->value_storage[p->forward_output[i]] == storage;
    return held;
}

static bool has_end_flag(const cb_facts *f, uint32_t storage) {
    return f->p->storage_flags[storage] & CB_STORE_HOLD_END;
}

static bool is_kept_to_the_end(const cb_facts *f, uint32_t storage) {
    const cb_problem *p = f->p;
    bool kept = has_end_flag(f, storage);
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        kept |= p->value_storage[p->backward_output[i]] == storage;
    return kept;
}

static bool is_held(const cb_facts *f, uint32_t storage) {
    return has_end_flag(f, storage) || is_returned(f, storage);
}

/* Which ops of the forward may run again: the free ones, if somebody reads what they make, but for
 * those of which all that is read is kept to the end by its flag. The search never runs them again.
 */
static void mark_reruns(const cb_facts *f, bool *is_read, bool *may_rerun) {
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) is_read[s] = false;
    for (uint32_t op = 0; op < p->n_op; op++) may_rerun[op] = false;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        for (uint32_t j = p->in_begin[op]; !cb_is_view(f, op) && j < p->in_begin[op + 1]; j++)
            is_read[p->value_storage[p->in_value[j]]] = true;
    }
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        for (uint32_t v = p->out_begin[op]; cb_may_rerun(f, op) && v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            may_rerun[op] |= f->root[s] == op && is_read[s] && !has_end_flag(f, s);
        }
    }
}

/* Gives a bit to what such ops make and to what they read. Of what is held and read the next bit is
 * the copy, and the one after says that the copy has gone: who reads it needs another. Returns the
 * number of bits. More than there are: the problem does not suit. */
static uint32_t give_bits(const cb_facts *f, const bool *is_read, const bool *may_rerun,
                          uint32_t *bit_of) {
    const cb_problem *p = f->p;
    uint32_t n = 0;
    for (uint32_t s = 0; s < p->n_storage; s++) bit_of[s] = CB_NONE;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        if (!may_rerun[op]) continue;
        if (n > MOST_BITS) return n; /* enough is known */
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            if (f->root[s] == CB_NONE || bit_of[s] != CB_NONE || is_kept_to_the_end(f, s)) continue;
            bit_of[s] = n++;
        }
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            if (f->root[s] != op || bit_of[s] != CB_NONE) continue;
            bit_of[s] = n;
            n += is_held(f, s) && is_read[s] ? 3 : 1;
        }
    }
    return n;
}

/* Views that read or show more than one storage are not put back so easily. */
static bool has_plain_views(const cb_facts *f) {
    const cb_problem *p = f->p;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k], shown = p->value_storage[p->out_begin[op]];
        if (!cb_is_view(f, op)) continue;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            if (p->value_storage[v] != shown) return false;
        }
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            if (s != shown && f->root[s] != CB_NONE) return false;
        }
    }
    return true;
}

/* The views with a bit that the backward begins with, in the base order: how many. They are shown
 * if they are there, and otherwise wait for their readers, so that they have no stage. */
static uint32_t count_leading(const cb_facts *f, const uint32_t *bit_of) {
    const cb_problem *p = f->p;
    uint32_t k = f->base_backward;
    while (k < f->n_base && cb_is_view(f, f->base[k]) &&
           bit_of[p->value_storage[p->out_begin[f->base[k]]]] != CB_NONE)
        k++;
    return k - f->base_backward;
}

/* Has it nothing that the states say nothing about? */
static bool is_plain(const cb_facts *f) {
    const cb_problem *p = f->p;
    for (uint32_t r = 0; r < p->n_region; r++) {
        if (p->region_limit[r] != UINT64_MAX) return false;
    }
    for (uint32_t op = 0; op < p->n_op; op++) {
        if (f->wish[op] != CB_FREE && f->wish[op] != CB_MUST_SAVE) return false;
    }
    return true;
}

cb_status cb_exact_suits(const cb_facts *f, bool *suits, cb_error *err) {
    const cb_problem *p = f->p;
    *suits = f->n_base > 0 && f->n_base <= MOST_STATES >> 1 && is_plain(f);
    if (!*suits) return CB_OK;
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    bool *may_rerun = CB_NEW(&scratch, bool, p->n_op),
         *is_read = CB_NEW(&scratch, bool, p->n_storage);
    uint32_t *bit_of = CB_NEW(&scratch, uint32_t, p->n_storage), n = MOST_BITS + 1;
    cb_status status = may_rerun && bit_of && is_read ? CB_OK : cb_no_memory(err);
    if (status == CB_OK) {
        mark_reruns(f, is_read, may_rerun);
        n = give_bits(f, is_read, may_rerun, bit_of);
        if (n <= MOST_BITS && !has_plain_views(f)) n = MOST_BITS + 1;
        if (n <= MOST_BITS && f->base_backward < f->n_base &&
            f->base_backward + count_leading(f, bit_of) == f->n_base)
            n = MOST_BITS + 1; /* nothing that the backward could start with for sure */
    }
    *suits = n <= MOST_BITS && f->n_base + 2 <= MOST_STATES >> n;
    cb_arena_free(&scratch);
    return status;
}

static event make_event(const solver *z, uint32_t op) {
    const cb_problem *p = z->f->p;
    event e = {.op = op, .room = p->op_workspace[op], .time_ps = z->f->time_ps[op]};
    if (cb_is_view(z->f, op)) {
        if (z->bit_of[p->value_storage[p->out_begin[op]]] != CB_NONE) e.room = 0; /* may wait */
        return e;
    }
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t bit = z->bit_of[p->value_storage[p->in_value[j]]];
        if (bit != CB_NONE) e.reads |= 1u << bit;
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        bool first = z->f->root[s] == op;
        for (uint32_t u = p->out_begin[op]; u < v; u++) first &= p->value_storage[u] != s;
        if (!first) continue;
        e.room += p->storage_bytes[s];
        if (z->bit_of[s] == CB_NONE) continue;
        if (is_held(z->f, s)) e.holds |= 1u << z->bit_of[s];
        else e.makes |= 1u << z->bit_of[s];
    }
    return e;
}

/* The base position of a stage. */
static uint32_t position_of(const solver *z, uint32_t stage) {
    uint32_t backward = z->f->base_backward;
    if (stage < backward) return stage;
    return stage + z->n_leading - (stage > backward);
}

/* Bytes of what has no bit, entering each stage. */
static bool sum_fixed(solver *z) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    uint32_t *last = CB_NEW(z->arena, uint32_t, p->n_storage);
    if (!last) return false;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        for (uint32_t j = p->in_begin[op]; !cb_is_view(f, op) && j < p->in_begin[op + 1]; j++)
            last[p->value_storage[p->in_value[j]]] = k;
    }
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (f->root[s] == CB_NONE || z->bit_of[s] != CB_NONE) continue;
        if (is_kept_to_the_end(f, s)) last[s] = f->n_base;
        for (uint32_t stage = 0; stage < z->n_stage; stage++) {
            uint32_t k = position_of(z, stage);
            bool alive = last[s] >= k || (f->held[s] && stage <= f->base_backward);
            if (k > f->position[f->root[s]] && alive) z->fixed[stage] += p->storage_bytes[s];
        }
    }
    return true;
}

static void mark_bits(solver *z, const bool *is_read) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        uint32_t b = z->bit_of[s];
        if (b == CB_NONE) continue;
        z->bytes_of[b] = p->storage_bytes[s];
        if (is_returned(f, s)) z->held |= 1u << b;
        if (has_end_flag(f, s)) z->stays |= 1u << b;
        if (is_kept_to_the_end(f, s)) z->ends |= 1u << b;
        if (!is_held(f, s) || !is_read[s] || !z->may_rerun[f->root[s]]) continue;
        z->doubled |= 1u << b;
        z->bytes_of[b + 1] = p->storage_bytes[s];
        if (is_kept_to_the_end(f, s) && !has_end_flag(f, s)) z->gone |= 4u << b;
    }
    if (f->base_backward == f->n_base) z->ends |= z->held;
    for (uint32_t k = 0; k < f->base_backward + z->n_leading; k++) {
        uint32_t op = f->base[k], b = z->bit_of[p->value_storage[p->out_begin[op]]];
        if (!cb_is_view(f, op) || f->once[op] || b == CB_NONE) continue;
        z->viewed |= 1u << b;
        if (k >= f->base_backward) z->leading |= 1u << b;
    }
}

static cb_status set_up(solver *z, const cb_facts *f, cb_arena *arena, cb_error *err) {
    const cb_problem *p = f->p;
    *z = (solver){.f = f, .arena = arena, .most_ps = INT64_MAX};
    z->may_rerun = CB_NEW(arena, bool, p->n_op);
    bool *is_read = CB_NEW(arena, bool, p->n_storage);
    z->bit_of = CB_NEW(arena, uint32_t, p->n_storage);
    z->base = CB_NEW(arena, event, f->n_base);
    if (!z->may_rerun || !is_read || !z->bit_of || !z->base) return cb_no_memory(err);
    mark_reruns(f, is_read, z->may_rerun);
    z->n_bit = give_bits(f, is_read, z->may_rerun, z->bit_of);
    z->n_leading = count_leading(f, z->bit_of);
    z->n_stage = f->n_base - z->n_leading + (f->base_backward < f->n_base);
    z->fixed = CB_NEW(arena, uint64_t, z->n_stage);
    if (!z->fixed) return cb_no_memory(err);
    size_t n_set = (size_t)1 << z->n_bit;
    z->set_bytes = CB_NEW(arena, uint64_t, n_set);
    z->how = CB_NEW(arena, uint8_t, (z->n_stage + (size_t)1) << z->n_bit);
    z->from = CB_NEW(arena, uint32_t, (z->n_stage + (size_t)1) << z->n_bit);
    z->now = CB_NEW(arena, label, n_set);
    z->next = CB_NEW(arena, label, n_set);
    z->later = CB_NEW(arena, label, n_set);
    z->room_heap = n_set * (2 * (size_t)z->n_bit + 2) + 1;
    z->heap = CB_NEW(arena, label, z->room_heap);
    if (!z->set_bytes || !z->how || !z->from || !z->now || !z->next || !z->later || !z->heap ||
        !sum_fixed(z))
        return cb_no_memory(err);
    mark_bits(z, is_read);
    for (uint32_t set = 1; set < n_set; set++) {
        uint32_t low = 0;
        while (!(set >> low & 1)) low++;
        z->set_bytes[set] = z->set_bytes[set & (set - 1)] + z->bytes_of[low];
    }
    for (uint32_t k = 0; k < f->n_base; k++) {
        z->base[k] = make_event(z, f->base[k]);
        if (!z->may_rerun[f->base[k]]) continue;
        z->rerun[z->n_rerun] = z->base[k];
        z->rerun[z->n_rerun++].room += f->again_bytes[f->base[k]];
    }
    return CB_OK;
}

/* ---- the path -------------------------------------------------------------------------------- */

static bool is_before(const label *a, const label *b) {
    if (a->time_ps != b->time_ps) return a->time_ps < b->time_ps;
    if (a->peak != b->peak) return a->peak < b->peak;
    return a->set < b->set;
}

static void push(solver *z, label l) {
    size_t i = z->n_heap++;
    for (; i > 0 && is_before(&l, &z->heap[(i - 1) / 2]); i = (i - 1) / 2)
        z->heap[i] = z->heap[(i - 1) / 2];
    z->heap[i] = l;
}

static label pop(solver *z) {
    label top = z->heap[0], l = z->heap[--z->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < z->n_heap; i = child) {
        if (child + 1 < z->n_heap && is_before(&z->heap[child + 1], &z->heap[child])) child++;
        if (!is_before(&z->heap[child], &l)) break;
        z->heap[i] = z->heap[child];
    }
    z->heap[i] = l;
    return top;
}

typedef enum { RUNS, NO_ROOM, NO_WAY } outcome;

/* The state after an event of `stage`. What is held and there already gets a copy. */
static outcome after(solver *z, const label *from, const event *e, uint32_t stage, label *out) {
    uint32_t again = from->set & e->holds & z->doubled, makes = e->makes | again << 1;
    uint64_t bytes = z->fixed[stage] + z->set_bytes[from->set] + e->room;
    uint32_t gone = (e->reads & z->doubled) << 2; /* the newest is read: the copy */
    if ((from->set & (e->reads | gone)) != e->reads || (from->set & makes)) return NO_WAY;
    if (from->time_ps + e->time_ps > z->most_ps) return NO_WAY;
    if (bytes > z->most) {
        if (bytes < z->refused) z->refused = bytes;
        return NO_ROOM;
    }
    *out = (label){from->time_ps + e->time_ps, bytes > from->peak ? bytes : from->peak,
                   (from->set | makes | e->holds) & ~(again << 2)};
    return RUNS;
}

/* True: the label is the best so far of its state. */
static bool enter(solver *z, label *layer, label l, uint32_t from, uint32_t stage, int how) {
    label *old = &layer[l.set];
    if (old->time_ps >= 0 && !is_before(&l, old)) return false;
    *old = l;
    size_t at = ((size_t)stage << z->n_bit) + l.set;
    z->how[at] = (uint8_t)how;
    z->from[at] = from;
    return true;
}

static void relax(solver *z, label l, uint32_t from, uint32_t stage, int how) {
    if (enter(z, z->now, l, from, stage, how)) push(z, l);
}

/* A copy that goes leaves a mark; with the first gone, a copy takes its place. */
static uint32_t without(const solver *z, uint32_t set, uint32_t b) {
    uint32_t bit = 1u << b;
    bool first = z->doubled & bit, copy = z->doubled << 1 & bit;
    if (first && (set & bit << 1)) return set & ~(bit << 1);
    if (first) return set & ~(bit | bit << 2);
    return (set & ~bit) | (copy ? bit << 1 : 0);
}

static void drop(solver *z, const label *l, uint32_t stage, uint32_t fixed) {
    fixed |= z->stays | z->doubled << 2;
    for (uint32_t b = 0; b < z->n_bit; b++) {
        if (!(l->set >> b & 1) || fixed >> b & 1) continue;
        label to = *l;
        to.set = without(z, l->set, b);
        relax(z, to, l->set, stage, DROP + (int)b);
    }
}

/* Bits of what a view can show: the newest is there. */
static uint32_t shows(const solver *z, uint32_t set) { return set & ~(set >> 2 & z->doubled); }

/* Before anything of the backward has run, with the base op that is its first. */
static void cross(solver *z, const label *l, uint32_t stage, const event *base) {
    label to;
    bool tight = false;
    if ((l->set & z->held) != z->held) return;
    drop(z, l, stage, z->held);
    if (shows(z, l->set) & z->leading) { /* no step is smaller */
        (void)enter(z, z->next, *l, l->set, stage + 1, SHOW);
        return;
    }
    for (uint32_t i = 0; i < z->n_rerun; i++) {
        outcome how = after(z, l, &z->rerun[i], stage, &to);
        if (how == RUNS) (void)enter(z, z->next, to, l->set, stage + 1, CROSS + (int)i);
        tight |= how == NO_ROOM;
    }
    outcome how = after(z, l, base, stage, &to);
    if (how == RUNS) (void)enter(z, z->later, to, l->set, stage + 2, FIRST);
    tight |= how == NO_ROOM;
    if (tight && (shows(z, l->set) & z->viewed))
        (void)enter(z, z->next, *l, l->set, stage + 1, SHOW);
}

static void spread(solver *z, const label *l, uint32_t stage) {
    uint32_t k = position_of(z, stage), backward = z->f->base_backward;
    const event *base = &z->base[k];
    label to;
    if (stage == backward) {
        cross(z, l, stage, base);
        return;
    }
    drop(z, l, stage, stage < backward ? z->held : 0);
    for (uint32_t i = 0; i < z->n_rerun; i++) {
        const event *again = &z->rerun[i];
        if (z->f->position[again->op] >= k) break;
        if (after(z, l, again, stage, &to) != RUNS) continue;
        relax(z, to, l->set, stage, RERUN + (int)i);
    }
    if (after(z, l, base, stage, &to) == RUNS)
        (void)enter(z, z->next, to, l->set, stage + 1, RUN_BASE);
    if (z->may_rerun[base->op] && z->f->again_bytes[base->op] == 0)
        (void)enter(z, z->next, *l, l->set, stage + 1, SKIP_BASE);
}

static void clear(label *at, size_t n) {
    for (size_t i = 0; i < n; i++) at[i].time_ps = -1;
}

/* The best label behind the last stage; its time is negative when there is none. */
static cb_status solve(solver *z, const cb_goal *goal, uint64_t most, label *best, cb_error *err) {
    size_t n_set = (size_t)1 << z->n_bit;
    z->most = most;
    z->refused = UINT64_MAX;
    clear(z->next, n_set);
    clear(z->later, n_set);
    z->next[0] = (label){0};
    for (uint32_t stage = 0; stage < z->n_stage; stage++) {
        if (goal->poll && goal->poll(goal->poll_user))
            return cb_fail(err, CB_CANCELLED, "plan: cancelled");
        label *swap = z->now;
        z->now = z->next;
        z->next = z->later;
        z->later = swap;
        clear(z->later, n_set);
        for (size_t i = 0; i < n_set; i++) {
            if (z->now[i].time_ps >= 0) push(z, z->now[i]);
        }
        while (z->n_heap > 0) {
            label l = pop(z);
            if (!is_before(&z->now[l.set], &l)) spread(z, &l, stage);
        }
    }
    *best = (label){.time_ps = -1};
    for (size_t i = 0; i < n_set; i++) {
        const label *l = &z->next[i];
        bool ends = (l->set & (z->ends | z->gone)) == z->ends;
        if (l->time_ps >= 0 && ends && (best->time_ps < 0 || is_before(l, best))) *best = *l;
    }
    return CB_OK;
}

/* ---- the schedule ---------------------------------------------------------------------------- */

typedef struct writer {
    solver *z;
    cb_arena *arena;
    CB_VEC(uint32_t) step;
    uint32_t *made;  /* [n_storage] step that made the newest instance */
    uint32_t *shown; /* [n_value] the same, of the instance that a value stands for */
} writer;

static bool show(writer *w, uint32_t value);

/* What the caller gets are views of the first run: they are put in before another. */
static bool show_first(writer *w, uint32_t n, const uint32_t *value, uint32_t op) {
    const cb_facts *f = w->z->f;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = f->p->value_storage[value[i]];
        bool waits = w->shown[value[i]] == 0 && w->made[s] != 0;
        if (waits && (op == CB_NONE || f->root[s] == op) && !show(w, value[i])) return false;
    }
    return true;
}

static bool emit(writer *w, uint32_t op) {
    const cb_facts *f = w->z->f;
    const cb_problem *p = f->p;
    if (!cb_is_view(f, op) && (!show_first(w, p->n_forward_output, p->forward_output, op) ||
                               !show_first(w, p->n_backward_output, p->backward_output, op)))
        return false;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        if (!show(w, p->in_value[j])) return false;
    }
    if (!CB_PUSH(w->arena, w->step, op)) return false;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        if (f->root[s] == op) w->made[s] = (uint32_t)w->step.len;
        w->shown[v] = w->made[s];
    }
    return true;
}

/* Brings a view up to its storage's newest instance. Views of views are few: they recurse. */
static bool show(writer *w, uint32_t value) {
    const cb_problem *p = w->z->f->p;
    uint32_t op = p->value_op[value];
    bool stale = w->shown[value] != w->made[p->value_storage[value]];
    return !stale || !cb_is_view(w->z->f, op) || emit(w, op);
}

/* A view of what has gone for now waits for its reader. */
static bool is_there(const solver *z, uint32_t op, uint32_t set) {
    const cb_problem *p = z->f->p;
    if (!cb_is_view(z->f, op)) return true;
    uint32_t bit = z->bit_of[p->value_storage[p->out_begin[op]]];
    return bit == CB_NONE || shows(z, set) >> bit & 1;
}

typedef struct past { /* an event of the schedule */
    uint32_t op;      /* CB_NONE: nothing to run */
    bool first;       /* of the backward */
} past;

/* The view of what is in `set` that the backward starts with: of those that it begins with in the
 * base order, or else of the forward's. */
static uint32_t view_of(const solver *z, uint32_t set) {
    const cb_facts *f = z->f;
    uint32_t found = CB_NONE;
    for (uint32_t k = f->base_backward + z->n_leading; k-- > 0;) {
        uint32_t op = f->base[k], b = z->bit_of[f->p->value_storage[f->p->out_begin[op]]];
        if (k < f->base_backward && (shows(z, set) & z->leading)) return found;
        if (cb_is_view(f, op) && !f->once[op] && b != CB_NONE && shows(z, set) >> b & 1) found = op;
    }
    return found;
}

/* One event back from the state (stage, set). */
static past step_back(const solver *z, uint32_t *stage, uint32_t *set) {
    size_t at = ((size_t)*stage << z->n_bit) + *set;
    uint8_t how = z->how[at];
    *set = z->from[at];
    past e = {.op = CB_NONE, .first = how >= CROSS || how == FIRST || how == SHOW};
    if (how >= RERUN) {
        e.op = z->rerun[how - (how >= CROSS ? CROSS : RERUN)].op;
        if (how >= CROSS) --*stage;
    } else if (how == SHOW) {
        e.op = view_of(z, *set);
        --*stage;
    } else if (how < DROP) {
        *stage -= how == FIRST ? 2 : 1;
        const event *base = &z->base[position_of(z, *stage)];
        if (how != SKIP_BASE && is_there(z, base->op, *set)) e.op = base->op;
    }
    return e;
}

/* What is there at the end and not held is the newest. */
static bool show_newest(writer *w, uint32_t n, const uint32_t *value) {
    const cb_facts *f = w->z->f;
    for (uint32_t i = 0; i < n; i++) {
        bool first = has_end_flag(f, f->p->value_storage[value[i]]);
        if (!first && !show(w, value[i])) return false;
    }
    return show_first(w, n, value, CB_NONE);
}

static bool start_backward(writer *w, cb_schedule *out) {
    const cb_problem *p = w->z->f->p;
    bool ok = show_first(w, p->n_forward_output, p->forward_output, CB_NONE);
    out->backward_starts = (uint32_t)w->step.len;
    return ok;
}

/* Events from the last state back to the first, then forward again as steps. */
static bool write_steps(solver *z, uint32_t set, cb_arena *arena, cb_schedule *out) {
    const cb_facts *f = z->f;
    writer w = {.z = z, .arena = arena};
    CB_VEC(past) list = {0}; /* the last first */
    w.made = CB_NEW(z->arena, uint32_t, f->p->n_storage);
    w.shown = CB_NEW(z->arena, uint32_t, f->p->n_value);
    if (!w.made || !w.shown) return false;
    for (uint32_t stage = z->n_stage; stage > 0;) {
        if (!CB_PUSH(z->arena, list, step_back(z, &stage, &set))) return false;
    }
    out->backward_starts = CB_NONE;
    for (size_t i = list.len; i-- > 0;) {
        if (list.at[i].first && !start_backward(&w, out)) return false;
        if (list.at[i].op != CB_NONE && !emit(&w, list.at[i].op)) return false;
    }
    if (out->backward_starts == CB_NONE && !start_backward(&w, out)) return false;
    if (!show_newest(&w, f->p->n_backward_output, f->p->backward_output)) return false;
    out->step = w.step.at;
    out->n_step = (uint32_t)w.step.len;
    return true;
}

cb_status cb_exact_fastest(const cb_facts *f, const cb_goal *goal, uint64_t bytes, cb_arena *arena,
                           cb_schedule *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    solver z;
    label best;
    cb_status status;
    *out = (cb_schedule){0};
    CB_TRY_DONE(set_up(&z, f, &scratch, err));
    CB_TRY_DONE(solve(&z, goal, bytes, &best, err));
    if (best.time_ps >= 0 && !write_steps(&z, best.set, arena, out)) status = cb_no_memory(err);
done:
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_exact_smallest(const cb_facts *f, const cb_goal *goal, int64_t most_ps,
                            cb_arena *arena, cb_schedule *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    solver z;
    label best, found = {.time_ps = -1};
    uint64_t low = 0, high = UINT64_MAX >> 1; /* no plan at `low`; one of `high` bytes */
    cb_status status;
    *out = (cb_schedule){0};
    CB_TRY_DONE(set_up(&z, f, &scratch, err));
    z.most_ps = most_ps;
    for (int i = 0; i < PROBES && low + 1 < high; i++) {
        uint64_t middle = i == 0 ? high : low + (high - low) / 2;
        CB_TRY_DONE(solve(&z, goal, middle, &best, err));
        bool fits = best.time_ps >= 0;
        if (fits) found = best;
        if (fits) high = best.peak;
        else low = z.refused - 1; /* with less than that nothing more can run */
        if (i == 0 && !fits) goto done;
    }
    if (found.time_ps < 0) goto done;
    CB_TRY_DONE(solve(&z, goal, high, &best, err)); /* the events of the last probe are others' */
    if (!write_steps(&z, best.set, arena, out)) status = cb_no_memory(err);
done:
    cb_arena_free(&scratch);
    return status;
}
