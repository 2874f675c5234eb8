/* A state is a stage and the set of storages in memory, one bit each. A stage is a position of the
 * base order; the first position of the backward has two stages, before and after any of it has
 * run. From a state the base op runs, or an op of the forward runs again, or the base op is skipped
 * if it may run later. Values stay in memory until there is no room. Then each minimal set of
 * values whose removal is allowed and makes enough room gives a new state. So no state holds less
 * than it could, and of two states of one stage, one is dropped if the other holds all its values
 * and is as fast. */
#include "sweep.h"

#include "spare.h"
#include "tuning.h"

enum { MOST_BITS = 64 };

typedef struct state {
    uint64_t set;
    int64_t time_ps;
    uint32_t from, stage;
    uint32_t op; /* op that ran last; CB_NONE: the base op was skipped */
    bool again;
} state;

typedef CB_VEC(uint32_t) states; /* indices into `at` */

typedef struct sweep {
    const cb_facts *f;
    const cb_ledger *l; /* provides its tables */
    cb_arena *arena;
    uint32_t arrived; /* cb_arrived of `f`, whose positions are not those of the ledger */
    uint32_t n_bit, n_stage;
    uint64_t bytes_of[MOST_BITS];   /* in descending order */
    uint32_t *bit_of;               /* [n_storage] */
    uint64_t *reads, *makes, *room; /* [n_op] sets, and bytes of its outputs and scratch */
    uint64_t held, stays, ends;     /* storages held until the backward, from the first run on, and
                                       at the end */
    uint64_t *useful, *fixed;       /* [n_stage + 1] storages that may still be read; storages that
                                       must not be lost */
    uint64_t most;                  /* bytes */
    uint32_t effort;                /* effort spent so far */
    CB_VEC(state) at;
    states *waiting; /* [n_stage + 1] heaps, the fastest first */
    states grown;    /* new states of the current stage */
} sweep;

/* True if the op may run again. Ops of the backward run in their place. */
static bool may_rerun(const sweep *z, uint32_t op) {
    return z->l->may_rerun[op] && z->f->position[op] < z->f->base_backward;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static uint32_t position_of(const sweep *z, uint32_t stage) {
    return stage - (stage > z->f->base_backward);
}

/* Gives the largest storages the lowest bits. Returns false if there are too many. */
static bool give_bits(sweep *z) {
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
    }
    return true;
}

static void set_ops(sweep *z) {
    const cb_facts *f = z->f;
    const cb_ledger *l = z->l;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++)
            if (cb_is_made(f, l->read[j])) z->reads[op] |= UINT64_C(1) << z->bit_of[l->read[j]];
        for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++)
            z->makes[op] |= UINT64_C(1) << z->bit_of[l->made[j]];
        z->room[op] = cb_ledger_bytes(l, op) + f->p->op_workspace[op];
    }
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        if (!cb_is_made(f, s)) continue;
        uint64_t bit = UINT64_C(1) << z->bit_of[s];
        if (f->held[s] && f->position[f->root[s]] < f->base_backward) z->held |= bit;
        if (cb_stays_to_end(f, s)) z->stays |= bit;
    }
    z->ends = z->stays | (f->base_backward == f->n_base ? z->held : 0);
    for (uint32_t i = 0; i < f->p->n_backward_output; i++) {
        uint32_t s = f->p->value_storage[f->p->backward_output[i]];
        if (cb_is_made(f, s)) z->ends |= UINT64_C(1) << z->bit_of[s];
    }
}

/* Works backwards from the end. Finds the values that base ops read from each stage on, and the
 * inputs of ops that could recompute them. Of these, also finds the values that only a first run
 * makes and that an op which certainly runs reads. */
static void set_stages(sweep *z) {
    const cb_facts *f = z->f;
    uint64_t once = 0, useful = z->ends, needed = z->ends;
    for (uint32_t k = 0; k < f->n_base; k++)
        if (!may_rerun(z, f->base[k])) once |= z->makes[f->base[k]];
    for (uint32_t stage = z->n_stage + 1; stage-- > 0;) {
        uint32_t k = position_of(z, stage), op = k < f->n_base ? f->base[k] : CB_NONE;
        if (op != CB_NONE) useful |= z->reads[op];
        if (op != CB_NONE && !may_rerun(z, op)) needed |= z->reads[op];
        if (stage <= f->base_backward) useful |= z->held;
        for (uint32_t i = f->base_backward; i-- > 0;)
            if (z->l->may_rerun[f->base[i]] && (z->makes[f->base[i]] & useful))
                useful |= z->reads[f->base[i]];
        z->useful[stage] = useful;
        z->fixed[stage] = z->stays | (needed & once) | (stage <= f->base_backward ? z->held : 0);
    }
}

static cb_status set_up(sweep *z, bool *suits, cb_error *err) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    z->n_stage = f->n_base + (f->base_backward < f->n_base);
    CB_TRY_NEW(z->bit_of, z->arena, p->n_storage, err);
    CB_TRY_NEW(z->reads, z->arena, p->n_op, err);
    CB_TRY_NEW(z->makes, z->arena, p->n_op, err);
    CB_TRY_NEW(z->room, z->arena, p->n_op, err);
    CB_TRY_NEW(z->useful, z->arena, (size_t)z->n_stage + 1, err);
    CB_TRY_NEW(z->fixed, z->arena, (size_t)z->n_stage + 1, err);
    CB_TRY_NEW(z->waiting, z->arena, (size_t)z->n_stage + 1, err);
    *suits = !f->unit_begin && give_bits(z); /* a state's ops make all of their outputs */
    if (!*suits) return CB_OK;
    set_ops(z);
    set_stages(z);
    return CB_OK;
}

/* ---- states ---------------------------------------------------------------------------------- */

static bool is_before(const sweep *z, uint32_t a, uint32_t b) {
    const state *x = &z->at.at[a], *y = &z->at.at[b];
    return x->time_ps != y->time_ps ? x->time_ps < y->time_ps : a < b;
}

static bool push(sweep *z, states *heap, uint32_t id) {
    if (!CB_PUSH(z->arena, *heap, id)) return false;
    size_t i = heap->len - 1;
    for (; i > 0 && is_before(z, id, heap->at[(i - 1) / 2]); i = (i - 1) / 2)
        heap->at[i] = heap->at[(i - 1) / 2];
    heap->at[i] = id;
    return true;
}

static uint32_t pop(const sweep *z, states *heap) {
    uint32_t top = heap->at[0], id = heap->at[--heap->len];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < heap->len; i = child) {
        if (child + 1 < heap->len && is_before(z, heap->at[child + 1], heap->at[child])) child++;
        if (!is_before(z, heap->at[child], id)) break;
        heap->at[i] = heap->at[child];
    }
    heap->at[i] = id;
    return top;
}

/* True if an extended state holds all of this set; extended states are at least as fast. */
static bool is_beaten(const sweep *z, uint64_t set) {
    for (size_t i = 0; i < z->grown.len; i++)
        if ((z->at.at[z->grown.at[i]].set & set) == set) return true;
    return false;
}

static bool enter(sweep *z, state s) {
    s.set &= z->useful[s.stage];
    if (s.stage == z->at.at[s.from].stage && is_beaten(z, s.set)) return true;
    return CB_PUSH(z->arena, z->at, s) && push(z, &z->waiting[s.stage], (uint32_t)(z->at.len - 1));
}

static uint64_t bytes_in(const sweep *z, uint64_t set) {
    uint64_t bytes = 0;
    for (uint32_t b = 0; set; b++, set >>= 1) bytes += set & 1 ? z->bytes_of[b] : 0;
    return bytes;
}

/* Enters `to` without each minimal part of `loose` that has `need` bytes. Bits are tried from the
 * largest on, so the last one taken is the smallest: without it the others are not enough. The
 * depth is the number of bits. */
static bool make_room(sweep *z, state to, uint64_t loose, uint64_t need, uint32_t b) {
    if (z->effort++ >= CB_SWEEP_EFFORT) return true;
    for (; need > 0 && b < z->n_bit; b++) {
        uint64_t bit = UINT64_C(1) << b, bytes = z->bytes_of[b];
        if (!(loose & bit)) continue;
        if (bytes == 0 || bytes_in(z, loose) < need) return true;
        loose &= ~bit;
        state less = to;
        less.set &= ~bit;
        if (!make_room(z, less, loose, need > bytes ? need - bytes : 0, b + 1)) return false;
    }
    return need > 0 || enter(z, to);
}

/* Runs an op after the state `id`, which leads to `stage`. If it runs again, existing outputs are
 * freed first, except those that must not be: for these it makes a copy, which is useful where the
 * backward begins (as is a view, which makes nothing), because memory held until then can be
 * freed. */
static bool run(sweep *z, uint32_t id, uint32_t op, uint32_t stage, bool again) {
    const cb_facts *f = z->f;
    state to = z->at.at[id];
    uint64_t fixed = z->fixed[to.stage], makes = z->makes[op];
    bool opens = to.stage == f->base_backward;
    if ((to.set & z->reads[op]) != z->reads[op]) return true;
    if (again && !opens && ((to.set & makes & fixed) || !(makes & ~to.set & z->useful[to.stage])))
        return true;
    if (again) to.set &= ~makes | fixed;
    uint64_t room = z->room[op] + (again ? f->again_bytes[op] : 0) + bytes_in(z, to.set);
    uint64_t loose = to.set & ~z->reads[op] & ~fixed;
    to = (state){.set = to.set | makes,
                 .time_ps = to.time_ps + (again ? f->cost_ps[op] : f->time_ps[op]),
                 .from = id,
                 .stage = stage,
                 .op = op,
                 .again = again};
    return make_room(z, to, loose & ~makes, room > z->most ? room - z->most : 0, 0);
}

static bool grow(sweep *z, uint32_t id) {
    const cb_facts *f = z->f;
    uint32_t stage = z->at.at[id].stage, k = position_of(z, stage), op = f->base[k];
    bool opens = stage == f->base_backward;
    if (opens && (z->at.at[id].set & z->held) != z->held) return true;
    const bool may_run = k < f->base_backward || k >= z->arrived;
    for (uint32_t i = 0; may_run && i < k && i < f->base_backward; i++) {
        uint32_t again = f->base[i];
        bool may = may_rerun(z, again) || (opens && cb_is_view(f, again) && !f->once[again]);
        if (may && !run(z, id, again, stage + opens, true)) return false;
    }
    uint32_t next = stage + 1 + opens;
    if (!run(z, id, op, next, false)) return false;
    if (!may_rerun(z, op)) return true;
    state without = z->at.at[id];
    without.from = id;
    without.stage = next;
    without.op = CB_NONE;
    without.again = false;
    return enter(z, without);
}

/* Sets `end` to the fastest final state within z->most bytes, or CB_NONE. */
static cb_status sweep_once(sweep *z, const cb_trial *t, uint32_t *end, cb_error *err) {
    *end = CB_NONE;
    z->at.len = 0;
    for (uint32_t i = 0; i <= z->n_stage; i++) z->waiting[i].len = 0;
    if (!CB_PUSH(z->arena, z->at, (state){.from = CB_NONE}) || !push(z, &z->waiting[0], 0))
        return cb_no_memory(err);
    for (uint32_t stage = 0; stage < z->n_stage; stage++) {
        states *heap = &z->waiting[stage];
        z->grown.len = 0;
        CB_TRY(cb_trial_poll(t, err));
        while (heap->len > 0 && z->grown.len < CB_SWEEP_WIDTH && z->effort < CB_SWEEP_EFFORT) {
            uint32_t id = pop(z, heap);
            if (is_beaten(z, z->at.at[id].set)) continue;
            if (!CB_PUSH(z->arena, z->grown, id) || !grow(z, id)) return cb_no_memory(err);
        }
    }
    states *heap = &z->waiting[z->n_stage];
    while (heap->len > 0 && *end == CB_NONE) {
        uint32_t id = pop(z, heap);
        if ((z->at.at[id].set & z->ends) == z->ends) *end = id;
    }
    return CB_OK;
}

/* ---- the plan -------------------------------------------------------------------------------- */

typedef struct writing {
    CB_VEC(state) run;        /* reruns, in order */
    uint32_t *spares, *first; /* [n_base] spare ops before each base op, and the position of the
                                 first one */
    cb_pairs pairs;
    cb_facts f;
    cb_sim sim;
} writing;

/* Early pairs of one anchor run in the order of their ops. If they need another order, the next
 * spare op becomes the anchor. */
static bool write_pairs(const sweep *z, writing *w, uint32_t end, bool places) {
    uint32_t before = CB_NONE, last = 0, spare = 0;
    for (uint32_t id = end; !places && id != CB_NONE; id = z->at.at[id].from)
        if (z->at.at[id].again && !CB_PUSH(z->arena, w->run, z->at.at[id])) return false;
    for (uint32_t k = 0; !places && k < z->f->n_base; k++) w->spares[k] = 1;
    for (size_t i = w->run.len; i-- > 0;) {
        const state *s = &w->run.at[i];
        uint32_t k = position_of(z, z->at.at[s->from].stage);
        if (k != before) spare = 0;
        else if (s->op <= last) spare++;
        before = k;
        last = s->op;
        if (spare >= w->spares[k]) w->spares[k] = spare + 1;
        if (places && !CB_PUSH(w->pairs.arena, w->pairs.list,
                               cb_pair_make(w->first[k] + spare, s->op | CB_EARLY)))
            return false;
    }
    return true;
}

/* Evaluates the schedule with the simulator, on a problem with enough spare ops. */
static cb_status judge(sweep *z, const cb_trial *t, uint32_t end, cb_arena *arena, cb_swept *out,
                       cb_error *err) {
    writing w = {.pairs = {.arena = z->arena}};
    cb_candidates own = {.alloc = z->arena->alloc};
    uint32_t n = z->f->n_base, at = 0;
    w.spares = CB_NEW(z->arena, uint32_t, n);
    w.first = CB_NEW(z->arena, uint32_t, n);
    if (!w.spares || !w.first || !write_pairs(z, &w, end, false)) return cb_no_memory(err);
    for (uint32_t k = 0; k < n; at += w.spares[k++] + 1) w.first[k] = at;
    if (!write_pairs(z, &w, end, true)) return cb_no_memory(err);
    CB_TRY(cb_add_spares(z->f, w.spares, z->arena, &w.f, err));
    CB_TRY(cb_sim_init(&w.sim, &w.f, z->arena->alloc, err));
    cb_trial own_trial = *t;
    own_trial.f = &w.f;
    own_trial.sim = &w.sim;
    own_trial.candidates = &own;
    cb_sort_pairs(w.pairs.list.at, w.pairs.list.len);
    cb_status status = cb_try_pairs(&own_trial, w.pairs.list.at, w.pairs.list.len, err);
    if (status == CB_OK && own_trial.lawful && own_trial.size <= z->most) {
        out->size = own_trial.size;
        out->time_ps = own_trial.time_ps;
        status = cb_sim_schedule(&w.sim, arena, &out->schedule, err);
    }
    cb_candidates_free(&own);
    cb_sim_free(&w.sim);
    return status;
}

cb_status cb_sweep(const cb_facts *f, const cb_ledger *l, const cb_trial *t, uint64_t below,
                   uint64_t floor, cb_arena *arena, cb_swept *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    sweep z = {.f = f, .l = l, .arena = &scratch, .arrived = cb_arrived(f)};
    bool suits = false;
    cb_status status;
    *out = (cb_swept){.size = below};
    CB_TRY_DONE(set_up(&z, &suits, err));
    while (suits && out->size > floor) {
        uint32_t end;
        z.most = below = out->size - 1;
        CB_TRY_DONE(sweep_once(&z, t, &end, err));
        if (end != CB_NONE) CB_TRY_DONE(judge(&z, t, end, arena, out, err));
        if (out->size > below) break;
    }
done:
    cb_arena_free(&scratch);
    return status;
}
