/* Dijkstra's algorithm, stage by stage. */
#include "exact_parts.h"

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

/* Returns the state after an event of `stage`. A held value that exists already gets a copy. */
static outcome after(solver *z, const label *from, const event *e, uint32_t stage, label *out) {
    uint32_t again = from->set & e->holds & z->doubled, makes = e->makes | again << 1;
    uint64_t bytes = z->fixed[stage] + z->set_bytes[from->set] + e->room;
    uint32_t gone = (e->reads & z->doubled) << 2; /* the newest instance, the copy, is read */
    if ((from->set & (e->reads | gone)) != e->reads || (from->set & makes)) return NO_WAY;
    if (from->time_ps + e->time_ps > z->most_ps) return NO_WAY;
    if (bytes > z->most) {
        if (bytes < z->refused) z->refused = bytes;
        return NO_ROOM;
    }
    *out = (label){from->time_ps + e->time_ps, bytes > from->peak ? bytes : from->peak,
                   (from->set | makes | e->holds) & ~(again << 2 | e->pays | e->over)};
    return RUNS;
}

/* Returns true if the label is the best so far of its state. */
static bool enter(solver *z, label *layer, label l, uint32_t from, uint32_t stage, int how) {
    l.set &= z->useful[stage];
    label *old = &layer[l.set];
    if (old->time_ps >= 0 && !is_before(&l, old)) return false;
    *old = l;
    size_t at = ((size_t)stage << z->n_bit) + l.set;
    z->how[at] = (uint8_t)how;
    z->from[at] = from;
    return true;
}

static void relax(solver *z, label l, uint32_t from, uint32_t stage, int how) {
    l.set &= z->useful[stage];
    if (enter(z, z->now, l, from, stage, how)) push(z, l);
}

/* Returns the set without value `b`. A freed copy leaves a mark; if the first instance is gone, a
 * copy replaces it. */
static uint32_t without(const solver *z, uint32_t set, uint32_t b) {
    uint32_t bit = 1u << b;
    bool first = z->doubled & bit, copy = z->doubled << 1 & bit;
    if (first && (set & bit << 1)) return set & ~(bit << 1);
    if (first) return set & ~(bit | bit << 2);
    return (set & ~bit) | (copy ? bit << 1 : 0);
}

static void drop(solver *z, const label *l, uint32_t stage, uint32_t fixed) {
    fixed |= z->stays | z->doubled << 2 | z->owed;
    for (uint32_t b = 0; b < z->n_bit; b++) {
        /* the first instance is replaced by its copy */
        bool replaced = (z->doubled << 1 & l->set) >> (b + 1) & 1;
        if (!(l->set >> b & 1) || fixed >> b & 1) continue;
        if ((l->set & z->owes[b]) && !(z->doubled >> b & 1 && replaced)) continue;
        label to = *l;
        to.set = without(z, l->set, b);
        relax(z, to, l->set, stage, DROP + (int)b);
    }
}

/* Returns the bits of values that must still be read, after the outputs of an inside have been
 * made. */
static uint32_t owed_for(const solver *z, const event *e) {
    uint32_t owed = 0, made = e->makes | e->holds;
    for (uint32_t b = 0; z->owed && b < z->n_bit; b++) owed |= made >> b & 1 ? z->owes[b] : 0;
    return owed;
}

/* Runs ops of the forward again, or for the first time, before the base op at position `k`. The
 * outputs of a run that reads such a value must be read themselves. */
static void rerun(solver *z, const label *l, uint32_t stage, uint32_t k) {
    label to;
    for (uint32_t i = 0; i < z->n_rerun; i++) {
        const event *again = &z->rerun[i];
        if (z->f->position[again->op] >= k) break;
        if (after(z, l, again, stage, &to) != RUNS) continue;
        if (l->set & again->pays) to.set |= owed_for(z, again);
        relax(z, to, l->set, stage, RERUN + (int)i);
    }
}

/* Handles the start of the backward, at its first base op. If that arrives, nothing of the backward
 * runs before it. */
static void cross(solver *z, const label *l, uint32_t stage, uint32_t k) {
    label to;
    bool tight = false, arrives = z->arrived > k;
    drop(z, l, stage, z->held);
    rerun(z, l, stage, k);
    if ((l->set & z->held) != z->held) return;
    if (cb_exact_shows(z, l->set) & z->leading) { /* no other first step is smaller */
        (void)enter(z, z->next, *l, l->set, stage + 1, SHOW);
        return;
    }
    for (uint32_t i = 0; i < z->n_rerun && !arrives; i++) {
        outcome how = after(z, l, &z->rerun[i], stage, &to);
        to.set |= owed_for(z, &z->rerun[i]);
        if (how == RUNS) (void)enter(z, z->next, to, l->set, stage + 1, CROSS + (int)i);
        tight |= how == NO_ROOM;
    }
    for (uint32_t i = z->base_begin[k]; i < z->base_begin[k + 1]; i++) {
        uint32_t more = i - z->base_begin[k];
        if (z->base[i].made == 0) continue;
        outcome how = after(z, l, &z->base[i], stage, &to);
        if (how == RUNS)
            (void)enter(z, z->later, to, l->set, stage + 2, more ? MORE_FIRST + (int)more : FIRST);
        tight |= how == NO_ROOM;
    }
    bool shows = z->opener != CB_NONE || (cb_exact_shows(z, l->set) & z->viewed);
    if (tight && shows && !arrives) (void)enter(z, z->next, *l, l->set, stage + 1, SHOW);
}

static void spread(solver *z, const label *l, uint32_t stage) {
    uint32_t k = cb_exact_position(z, stage), backward = z->f->base_backward;
    label to;
    if (stage == z->n_stage) { /* after the last base op */
        drop(z, l, stage, backward == z->f->n_base ? z->held : 0);
        rerun(z, l, stage, k);
        return;
    }
    if (stage == backward) {
        cross(z, l, stage, k);
        return;
    }
    drop(z, l, stage, stage < backward ? z->held : 0);
    if (k < backward || k >= z->arrived) rerun(z, l, stage, k);
    for (uint32_t i = z->base_begin[k]; i < z->base_begin[k + 1]; i++) {
        uint32_t more = i - z->base_begin[k];
        if (z->base[i].made == 0 || after(z, l, &z->base[i], stage, &to) != RUNS) continue;
        (void)enter(z, z->next, to, l->set, stage + 1, more ? MORE_BASE + (int)more : RUN_BASE);
    }
    if (cb_exact_may_skip(z, k)) (void)enter(z, z->next, *l, l->set, stage + 1, SKIP_BASE);
}

static void clear(label *at, size_t n) {
    for (size_t i = 0; i < n; i++) at[i].time_ps = -1;
}

/* Finds the best label after the last stage; its time is negative if there is none. */
cb_status cb_exact_solve(solver *z, const cb_goal *goal, uint64_t most, label *best,
                         cb_error *err) {
    size_t n_set = (size_t)1 << z->n_bit;
    z->most = most;
    z->refused = UINT64_MAX;
    clear(z->next, n_set);
    clear(z->later, n_set);
    z->next[0] = (label){0};
    for (uint32_t stage = 0; stage <= z->n_stage; stage++) {
        if (cb_poll_answer(goal->poll) != CB_POLL_GO)
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
        const label *l = &z->now[i];
        bool ends = (l->set & (z->ends | z->gone)) == z->ends;
        if (l->time_ps >= 0 && ends && (best->time_ps < 0 || is_before(l, best))) *best = *l;
    }
    return CB_OK;
}
