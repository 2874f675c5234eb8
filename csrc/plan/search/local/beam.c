/* A state is a stage, which is a position of the base order, and the set of storages in memory, one
 * bit each. From a state the base op runs, or is left out if it may run late. Or an earlier op
 * runs: one that the base op needs again, or a late one. Ops that run before one base op do so in
 * the order of their ids, so they are early pairs. Values stay in memory until there is no room.
 * Then each minimal set of values that makes enough room gives a new state.
 *
 * States compete with those of the same stage whose base op needs as many ops. Otherwise states
 * that have dropped what the base op needs would crowd out those that have not: their time so far
 * is at most as long, and the cost of making the dropped values again is not yet known. */
#include "beam.h"

#include "../tuning.h"

enum { MOST_BITS = 128, MOST_DUE = 40 };

typedef struct set {
    uint64_t half[2];
} set;

typedef struct beam_op {
    uint32_t id;
    bool again, late; /* true if the op may run again or late; true if it may be left out in its
                         place */
    int64_t time_ps;
    uint64_t scratch; /* bytes */
    set reads, makes;
} beam_op;

typedef struct state {
    set in;                    /* storages in memory */
    int64_t time_ps, least_ps; /* time so far; time at the end without a limit of memory */
    uint32_t from, stage;
    uint32_t due;  /* ops that must run again before the base op can run */
    uint32_t last; /* 1 + the op that ran again last in this stage; 0: none */
} state;

typedef CB_VEC(uint32_t) states; /* heap of indices into `at`, the most promising first */

typedef struct beam {
    const cb_facts *f;
    const cb_ledger *l; /* provides its tables */
    cb_arena *arena;
    uint32_t n_bit, *bit_of; /* [n_storage] */
    uint64_t bytes_of[MOST_BITS], target;
    beam_op *op;           /* [n_base] */
    bool *due, *own_due;   /* [n_base] scratch */
    set held, stays, ends; /* storages held until the backward begins, from the first run on, and at
                              the end */
    set small;             /* storages that are too small to be worth a rerun */
    int64_t below_ps;
    uint32_t effort, used, most; /* effort allowed in total, used so far, and allowed until the end
                                    of this stage */
    CB_VEC(state) at;
    uint32_t *table, mask;    /* finds a state by its contents */
    states now[MOST_DUE + 1]; /* states of this stage, by `due` */
    states next;              /* states of the next stage */
    uint32_t level;           /* the largest `due` that is still examined */
} beam;

/* ---- sets ------------------------------------------------------------------------------------ */

static inline set both(set a, set b) {
    return (set){{a.half[0] & b.half[0], a.half[1] & b.half[1]}};
}
static inline set either(set a, set b) {
    return (set){{a.half[0] | b.half[0], a.half[1] | b.half[1]}};
}
static inline set without(set a, set b) {
    return (set){{a.half[0] & ~b.half[0], a.half[1] & ~b.half[1]}};
}
static inline bool is_empty(set a) { return !(a.half[0] | a.half[1]); }
static inline bool is_within(set a, set b) { return is_empty(without(a, b)); }
static inline bool are_equal(set a, set b) {
    return a.half[0] == b.half[0] && a.half[1] == b.half[1];
}
static inline set only(uint32_t bit) {
    set one = {{0, 0}};
    one.half[bit / 64] = UINT64_C(1) << bit % 64;
    return one;
}

static uint64_t bytes_in(const beam *z, set a) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t *of = z->bytes_of + UINT32_C(64) * i;
        for (uint64_t bits = a.half[i]; bits; bits >>= 1, of++) bytes += bits & 1 ? *of : 0;
    }
    return bytes;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* True if states represent the problem. */
static bool suits(const cb_moves *m) {
    const cb_facts *f = m->l->f;
    if (f->unit_begin || f->inlines || f->bent || f->has_again || f->spared || f->p->updates)
        return false;
    return !m->trial->has_demands && !m->trial->offload_sim && f->base_backward < f->n_base;
}

/* Gives the largest storages the lowest bits. Returns false if there are too many. */
static bool give_bits(beam *z) {
    const cb_problem *p = z->f->p;
    uint32_t storage[MOST_BITS];
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (!cb_is_made(z->f, s)) continue;
        if (z->n_bit == MOST_BITS) return false;
        uint32_t b = z->n_bit++;
        for (; b > 0 && p->storage_bytes[storage[b - 1]] < p->storage_bytes[s]; b--)
            storage[b] = storage[b - 1];
        storage[b] = s;
    }
    for (uint32_t b = 0; b < z->n_bit; b++) {
        z->bit_of[storage[b]] = b;
        z->bytes_of[b] = p->storage_bytes[storage[b]];
        if (z->bytes_of[b] < z->target / CB_BEAM_SMALL) z->small = either(z->small, only(b));
    }
    return true;
}

static void set_storages(beam *z) {
    const cb_facts *f = z->f;
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        if (!cb_is_made(f, s)) continue;
        const set bit = only(z->bit_of[s]);
        if (f->held[s] && f->position[f->root[s]] < f->base_backward)
            z->held = either(z->held, bit);
        if (cb_stays_to_end(f, s)) z->stays = either(z->stays, bit);
    }
    z->ends = z->stays;
    for (uint32_t i = 0; i < f->p->n_backward_output; i++) {
        const uint32_t s = f->p->value_storage[f->p->backward_output[i]];
        if (cb_is_made(f, s)) z->ends = either(z->ends, only(z->bit_of[s]));
    }
}

/* Fills in the ops. Views are not ops here, since the simulator adds them where they are needed. */
static void set_ops(beam *z, const bool *may_rerun) {
    const cb_facts *f = z->f;
    const cb_ledger *l = z->l;
    for (uint32_t k = 0; k < f->n_base; k++) {
        const uint32_t id = f->base[k];
        beam_op *o = &z->op[k];
        *o = (beam_op){.id = id, .again = may_rerun[id], .time_ps = f->time_ps[id]};
        if (cb_is_view(f, id) && !f->once[id]) continue;
        o->scratch = f->p->op_workspace[id];
        for (uint32_t j = l->read_begin[id]; j < l->read_begin[id + 1]; j++)
            if (cb_is_made(f, l->read[j])) o->reads = either(o->reads, only(z->bit_of[l->read[j]]));
        for (uint32_t j = l->made_begin[id]; j < l->made_begin[id + 1]; j++)
            o->makes = either(o->makes, only(z->bit_of[l->made[j]]));
        /* the first run makes held outputs, so it cannot run late */
        o->late = o->again && !f->stays[id] && !is_empty(o->makes) &&
                  is_empty(both(o->makes, either(z->held, z->stays)));
    }
    set read = {{0, 0}};
    for (uint32_t k = f->base_backward; k-- > 0; read = either(read, z->op[k].reads))
        z->op[k].late &= is_empty(both(z->op[k].makes, read));
}

static cb_status set_up(beam *z, const bool *may_rerun, bool *fits, cb_error *err) {
    const uint32_t n_slot = z->mask + 1;
    CB_TRY_NEW(z->bit_of, z->arena, z->f->p->n_storage, err);
    *fits = give_bits(z);
    if (!*fits) return CB_OK;
    CB_TRY_NEW(z->op, z->arena, z->f->n_base, err);
    CB_TRY_NEW(z->due, z->arena, z->f->n_base, err);
    CB_TRY_NEW(z->own_due, z->arena, z->f->n_base, err);
    CB_TRY_NEW(z->table, z->arena, n_slot, err);
    for (uint32_t i = 0; i < n_slot; i++) z->table[i] = CB_NONE;
    set_storages(z);
    set_ops(z, may_rerun);
    return CB_OK;
}

/* ---- what is still to come ------------------------------------------------------------------- */

/* Returns the storages that may still be read, or must stay. */
static set useful_in(const beam *z, uint32_t stage, set in) {
    set use = z->ends;
    for (uint32_t k = z->f->n_base; k-- > 0;) {
        const beam_op *o = &z->op[k];
        const set made = both(o->makes, without(use, both(z->stays, in)));
        if (k >= stage || (o->again && !is_empty(made))) use = either(use, o->reads);
    }
    return stage <= z->f->base_backward ? either(use, z->held) : use;
}

/* Returns the time of the ops that must still run if memory had no limit; -1 if a needed value
 * cannot be made. */
static int64_t time_left(const beam *z, uint32_t stage, set in) {
    set want = without(z->ends, in);
    int64_t sum = 0;
    for (uint32_t k = z->f->n_base; k-- > 0;) {
        const beam_op *o = &z->op[k];
        const bool wanted = !is_empty(both(o->makes, want));
        if (k < stage && wanted && !o->again) return -1;
        if (!wanted && (k < stage || o->late)) continue;
        sum += o->time_ps;
        want = either(want, without(o->reads, in));
    }
    return sum;
}

/* Fills `due` [stage] with the ops that must run again before the base op of the stage can run.
 * Returns their number. */
static uint32_t list_due(const beam *z, uint32_t stage, set in, bool *due) {
    set want = stage < z->f->n_base ? without(z->op[stage].reads, in) : (set){{0, 0}};
    uint32_t n = 0;
    for (uint32_t k = stage; k-- > 0;) {
        due[k] = !is_empty(both(z->op[k].makes, want));
        n += due[k];
        if (due[k]) want = either(want, without(z->op[k].reads, in));
    }
    return n;
}

/* ---- states ---------------------------------------------------------------------------------- */

static bool goes_before(const beam *z, uint32_t a, uint32_t b) {
    const state *x = &z->at.at[a], *y = &z->at.at[b];
    if (x->least_ps != y->least_ps) return x->least_ps < y->least_ps;
    if (x->due != y->due) return x->due < y->due;
    return x->time_ps != y->time_ps ? x->time_ps > y->time_ps : a < b;
}

static bool push(beam *z, states *heap, uint32_t id) {
    if (!CB_PUSH(z->arena, *heap, id)) return false;
    size_t i = heap->len - 1;
    for (; i > 0 && goes_before(z, id, heap->at[(i - 1) / 2]); i = (i - 1) / 2)
        heap->at[i] = heap->at[(i - 1) / 2];
    heap->at[i] = id;
    return true;
}

static uint32_t pop(const beam *z, states *heap) {
    const uint32_t top = heap->at[0], id = heap->at[--heap->len];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < heap->len; i = child) {
        if (child + 1 < heap->len && goes_before(z, heap->at[child + 1], heap->at[child])) child++;
        if (!goes_before(z, heap->at[child], id)) break;
        heap->at[i] = heap->at[child];
    }
    heap->at[i] = id;
    return top;
}

static uint32_t *find(const beam *z, const state *s) {
    uint64_t hash = s->in.half[0] * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= (s->in.half[1] + s->stage) * UINT64_C(0xC2B2AE3D27D4EB4F);
    hash = (hash ^ hash >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
    for (uint32_t i = (uint32_t)(hash >> 32) & z->mask;; i = (i + 1) & z->mask) {
        if (z->table[i] == CB_NONE) return &z->table[i];
        const state *x = &z->at.at[z->table[i]];
        if (x->stage == s->stage && are_equal(x->in, s->in)) return &z->table[i];
    }
}

/* Compares states with the same contents. True if `a` is faster, or if it is as fast and every op
 * that can still run again after `b` can also run again after `a`. */
static bool is_as_good(const state *a, const state *b) {
    return a->time_ps != b->time_ps ? a->time_ps < b->time_ps : a->last <= b->last;
}

/* Enters a state. A slower state with the same contents stays in its heap and is skipped there
 * (is_beaten). */
static bool enter(beam *z, state s) {
    if (z->used >= z->most) return true;
    z->used++;
    s.in = both(s.in, either(useful_in(z, s.stage, s.in), z->stays));
    const int64_t left = time_left(z, s.stage, s.in);
    if (left < 0 || s.time_ps + left >= z->below_ps) return true;
    s.least_ps = s.time_ps + left;
    s.due = list_due(z, s.stage, s.in, z->due);
    uint32_t *slot = find(z, &s);
    if (*slot != CB_NONE && is_as_good(&z->at.at[*slot], &s)) return true;
    const bool stays = s.from != CB_NONE && z->at.at[s.from].stage == s.stage;
    if (s.due > (stays ? z->level : MOST_DUE)) return true;
    *slot = (uint32_t)z->at.len;
    return CB_PUSH(z->arena, z->at, s) && push(z, stays ? &z->now[s.due] : &z->next, *slot);
}

static bool is_beaten(const beam *z, uint32_t id) { return *find(z, &z->at.at[id]) != id; }

typedef struct room { /* values that may be dropped, the largest first */
    uint32_t n, bit[MOST_BITS];
    uint64_t after[MOST_BITS + 1]; /* bytes of the values from here on */
} room;

/* Enters `to` without each minimal set of values that has `need` bytes. Values are tried from the
 * largest on, so the last one taken is the smallest: without it the others are not enough. The
 * depth is the number of bits. */
static bool make_room(beam *z, state to, const room *r, uint32_t i, uint64_t need) {
    if (need == 0) return enter(z, to);
    for (; z->used < z->most && r->after[i] >= need; i++) {
        const uint64_t bytes = z->bytes_of[r->bit[i]];
        state less = to;
        less.in = without(to.in, only(r->bit[i]));
        if (!make_room(z, less, r, i + 1, need > bytes ? need - bytes : 0)) return false;
    }
    return true;
}

/* Runs an op after the state `id`, which gives the state `to`. Outputs that exist are freed first,
 * except those that stay, which the op copies. */
static bool run(beam *z, uint32_t id, const beam_op *o, uint32_t stage, uint32_t last) {
    const state *from = &z->at.at[id];
    if (!is_within(o->reads, from->in)) return true;
    set fixed = either(either(o->reads, o->makes), either(z->stays, z->small));
    if (from->stage <= z->f->base_backward) fixed = either(fixed, z->held);
    const set loose = without(from->in, fixed);
    room r = {.n = 0};
    for (uint32_t b = 0; b < z->n_bit; b++)
        if (!is_empty(both(loose, only(b)))) r.bit[r.n++] = b;
    for (uint32_t i = r.n; i-- > 0;) r.after[i] = r.after[i + 1] + z->bytes_of[r.bit[i]];
    const uint64_t bytes = bytes_in(z, either(from->in, o->makes)) + o->scratch +
                           bytes_in(z, both(both(o->makes, from->in), z->stays));
    const state to = {.in = either(from->in, o->makes),
                      .time_ps = from->time_ps + o->time_ps,
                      .from = id,
                      .stage = stage,
                      .last = last};
    return make_room(z, to, &r, 0, bytes > z->target ? bytes - z->target : 0);
}

static bool grow(beam *z, uint32_t id) {
    const uint32_t stage = z->at.at[id].stage, last = z->at.at[id].last;
    const beam_op *base = &z->op[stage];
    if (!run(z, id, base, stage + 1, 0)) return false;
    if (base->late) {
        state s = z->at.at[id];
        s.from = id;
        s.stage = stage + 1;
        s.last = 0;
        if (!enter(z, s)) return false;
    }
    (void)list_due(z, stage, z->at.at[id].in, z->own_due);
    for (uint32_t k = 0; k < stage; k++) {
        const beam_op *o = &z->op[k];
        const bool comes = o->again && o->id >= last && (z->own_due[k] || o->late);
        if (comes && !is_within(o->makes, z->at.at[id].in) && !run(z, id, o, stage, o->id + 1))
            return false;
    }
    return true;
}

/* Extends the states of a stage. States whose base op needs most ops come first, so that all states
 * that reach it compete there. Returns false if memory runs out. */
static bool grow_stage(beam *z, uint32_t share) {
    const uint32_t all = z->used + share;
    for (uint32_t due = 0; due <= MOST_DUE; due++) z->now[due].len = 0;
    for (; z->next.len > 0; z->next.len--) {
        const uint32_t id = z->next.at[z->next.len - 1];
        if (!push(z, &z->now[z->at.at[id].due], id)) return false;
    }
    z->level = MOST_DUE;
    while (z->level > 0 && z->now[z->level].len == 0) z->level--;
    for (;; z->level--) {
        states *heap = &z->now[z->level];
        z->most = z->used + (all - z->used) / (z->level + 1);
        while (heap->len > 0 && z->used < z->most) {
            const uint32_t id = pop(z, heap);
            if (!is_beaten(z, id) && !grow(z, id)) return false;
        }
        if (z->level == 0) return true;
    }
}

/* Sets `end` to the fastest final state, or CB_NONE. Each stage gets an equal share of the
 * remaining effort. */
static cb_status sweep(beam *z, const cb_trial *t, uint32_t *end, cb_error *err) {
    const uint32_t n = z->f->n_base;
    *end = CB_NONE;
    z->most = z->effort;
    if (!enter(z, (state){.from = CB_NONE})) return cb_no_memory(err);
    for (uint32_t stage = 0; stage < n; stage++) {
        CB_TRY(cb_trial_poll(t, err));
        if (!grow_stage(z, (z->effort - z->used) / (n - stage))) return cb_no_memory(err);
    }
    while (z->next.len > 0 && *end == CB_NONE) {
        const uint32_t id = pop(z, &z->next);
        if (is_within(z->ends, z->at.at[id].in)) *end = id;
    }
    return CB_OK;
}

/* Offers the plan; the simulator measures it. */
static cb_status offer(const beam *z, cb_trial *t, uint32_t end, cb_error *err) {
    cb_pairs pairs = {.arena = z->arena};
    for (uint32_t id = end; id != CB_NONE; id = z->at.at[id].from) {
        const state *s = &z->at.at[id];
        if (s->last == 0) continue;
        if (!CB_PUSH(pairs.arena, pairs.list, cb_pair_make(s->stage, (s->last - 1) | CB_EARLY)))
            return cb_no_memory(err);
    }
    cb_sort_pairs(pairs.list.at, pairs.list.len);
    return cb_try_pairs(t, pairs.list.at, pairs.list.len, err);
}

cb_status cb_beam(cb_moves *m, uint64_t target, int64_t below_ps, uint32_t effort, cb_error *err) {
    cb_arena scratch;
    cb_status status;
    beam z = {.f = m->l->f,
              .l = m->l,
              .arena = &scratch,
              .target = target,
              .below_ps = below_ps,
              .effort = effort,
              .mask = 1};
    bool fits;
    uint32_t end;
    if (!suits(m)) return CB_OK;
    while (z.mask < effort) z.mask = 2 * z.mask + 1;
    z.mask = 2 * z.mask + 1;
    cb_arena_init(&scratch, z.f->alloc);
    CB_TRY_DONE(set_up(&z, m->may_rerun, &fits, err));
    if (!fits) goto done;
    CB_TRY_DONE(sweep(&z, m->trial, &end, err));
    if (end != CB_NONE) CB_TRY_DONE(offer(&z, m->trial, end, err));
done:
    cb_arena_free(&scratch);
    return status;
}
