/* Positions are those of the base order. A recomputable value is dropped after its last read in the
 * forward unless it is kept. At the end of the forward, and at each position that misses a value, a
 * window fills the available room with values that later ops read, in order of reads. */
#include "windows.h"

#include "../../../base/vec.h"
#include "../tuning.h"

typedef struct kept { /* a storage that the current window keeps */
    uint32_t storage;
    uint32_t before;   /* the position until which it was alive */
    uint32_t from, to; /* the positions at which it is now alive as well */
} kept;

struct cb_windows {
    cb_trial *t;
    const cb_ledger *l; /* its tables of reads and outputs */
    const bool *may_rerun;
    uint64_t whole;
    uint32_t *mirror; /* [base_backward + 1] last read in the backward of anything made at or after
                         a position of the forward */
    uint32_t *last_forward, *last; /* [n_storage] last position, in the forward and overall,
                                        that reads or makes it; n_base: to the end */
    double *used;                  /* [n_base] bytes alive at each position */
    uint32_t *until;               /* [n_storage] alive until this position; 0: not alive */
    uint32_t *passed;              /* [n_storage] the last window that did not keep it */
    uint32_t *missed;              /* [n_storage] the last position that misses it */
    uint32_t *chain, *seen;        /* [n_unit] the last window and the last query that contain it */
    uint32_t window, question, round;
    int64_t left; /* remaining effort, in examined units */
    CB_VEC(kept) kept;
    cb_pairs pairs;
    CB_VEC(uint32_t) stack;
    CB_VEC(uint32_t) grown; /* units that the last query found missing */
};

/* True if the value must be recomputed before the op at `k` can read it. */
static bool is_lost(const cb_windows *w, uint32_t storage, uint32_t k) {
    const cb_facts *f = w->t->f;
    return f->root[storage] != CB_NONE && w->may_rerun[f->unit[storage]] &&
           f->position[f->unit[storage]] < f->base_backward && w->until[storage] < k;
}

static void find_reads(cb_windows *w) {
    const cb_ledger *l = w->l;
    const cb_facts *f = l->f;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        bool forward = k < f->base_backward;
        for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++) {
            w->last[l->made[j]] = k;
            if (forward) w->last_forward[l->made[j]] = k;
        }
        for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) {
            w->last[l->read[j]] = k;
            if (forward) w->last_forward[l->read[j]] = k;
        }
    }
}

/* Finds the last reads, and extends the lives of held values beyond them. */
static void find_last(cb_windows *w) {
    const cb_facts *f = w->t->f;
    const cb_problem *p = f->p;
    find_reads(w);
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (f->held[s] && w->last_forward[s] < f->base_backward)
            w->last_forward[s] = f->base_backward;
        if (f->held[s] && w->last[s] < f->base_backward) w->last[s] = f->base_backward;
        if (p->storage_flags[s] & CB_STORE_HOLD_END) w->last_forward[s] = w->last[s] = f->n_base;
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        w->last[p->value_storage[p->backward_output[i]]] = f->n_base;
}

static void find_mirror(cb_windows *w) {
    const cb_facts *f = w->t->f;
    const cb_ledger *l = w->l;
    uint32_t latest = 0;
    w->mirror[f->base_backward] = 0;
    for (uint32_t k = f->base_backward; k-- > 0;) {
        for (uint32_t j = l->made_begin[f->base[k]]; j < l->made_begin[f->base[k] + 1]; j++) {
            const uint32_t to = w->last[l->made[j]];
            if (to > latest && to < f->n_base) latest = to;
        }
        w->mirror[k] = latest;
    }
}

cb_status cb_windows_new(cb_trial *t, const cb_ledger *l, const bool *may_rerun, cb_windows **out,
                         cb_error *err) {
    const cb_facts *f = t->f;
    cb_arena *a = t->scratch;
    cb_windows *w;
    CB_TRY_NEW(w, a, 1, err);
    *w = (cb_windows){
        .t = t, .l = l, .may_rerun = may_rerun, .whole = t->size, .pairs = {.arena = a}};
    CB_TRY_NEW(w->last_forward, a, f->p->n_storage, err);
    CB_TRY_NEW(w->last, a, f->p->n_storage, err);
    CB_TRY_NEW(w->used, a, f->n_base, err);
    CB_TRY_NEW(w->passed, a, f->p->n_storage, err);
    CB_TRY_NEW(w->missed, a, f->p->n_storage, err);
    CB_TRY_NEW(w->until, a, f->p->n_storage, err);
    CB_TRY_NEW(w->chain, a, f->n_unit, err);
    CB_TRY_NEW(w->seen, a, f->n_unit, err);
    CB_TRY_NEW(w->mirror, a, (size_t)f->base_backward + 1, err);
    find_last(w);
    find_mirror(w);
    *out = w;
    return CB_OK;
}

/* Adds the storage's bytes to these positions, or subtracts them. */
static void hold(cb_windows *w, uint32_t storage, uint32_t from, uint32_t to, int sign) {
    const cb_facts *f = w->t->f;
    const double bytes = sign * (double)f->p->storage_bytes[storage];
    for (uint32_t k = from; k <= to && k < f->n_base; k++) w->used[k] += bytes;
}

static bool has_room(cb_windows *w, uint32_t storage, uint32_t from, uint32_t to, uint64_t target) {
    const cb_facts *f = w->t->f;
    w->left--;
    const double most = (double)target - (double)f->p->storage_bytes[storage];
    for (uint32_t k = from; k <= to && k < f->n_base; k++)
        if (w->used[k] > most) return false;
    return true;
}

/* Computes the lives of values without any rerun. */
static void begin(cb_windows *w) {
    const cb_facts *f = w->t->f;
    for (uint32_t k = 0; k < f->n_base; k++) w->used[k] = (double)f->p->op_workspace[f->base[k]];
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        w->until[s] = 0;
        if (f->root[s] == CB_NONE || f->position[f->unit[s]] == CB_NONE) continue;
        const bool lost = is_lost(w, s, 1);
        const uint32_t last = lost ? w->last_forward[s] : w->last[s];
        w->until[s] = last;
        hold(w, s, f->position[f->unit[s]], last, 1);
    }
}

/* Computes the cost of recomputing the storage at `k`, with or without the units that the window
 * makes anyway. `grown` receives the units that must run. */
static bool ask_cost(cb_windows *w, uint32_t storage, uint32_t k, bool with_window, double *cost) {
    const cb_facts *f = w->t->f;
    const cb_ledger *l = w->l;
    const uint32_t stamp = ++w->question;
    *cost = 0;
    w->grown.len = w->stack.len = 0;
    if (!CB_PUSH(w->t->scratch, w->stack, f->unit[storage])) return false;
    w->seen[f->unit[storage]] = stamp;
    while (w->stack.len > 0) {
        const uint32_t unit = w->stack.at[--w->stack.len];
        if (with_window && w->chain[unit] == w->window) continue;
        *cost += (double)f->cost_ps[unit];
        w->left--;
        if (!CB_PUSH(w->t->scratch, w->grown, unit)) return false;
        for (uint32_t j = l->read_begin[unit]; j < l->read_begin[unit + 1]; j++) {
            const uint32_t s = l->read[j], next = f->unit[s];
            if (!is_lost(w, s, k) || w->seen[next] == stamp) continue;
            w->seen[next] = stamp;
            if (!CB_PUSH(w->t->scratch, w->stack, next)) return false;
        }
    }
    return true;
}

/* Runs the units of the last query at `k`. Saved values that they read stay until then. */
static bool add_grown(cb_windows *w, uint32_t k) {
    const cb_facts *f = w->t->f;
    const cb_ledger *l = w->l;
    for (size_t i = 0; i < w->grown.len; i++) {
        const uint32_t unit = w->grown.at[i];
        w->chain[unit] = w->window;
        if (!CB_PUSH(w->pairs.arena, w->pairs.list, cb_pair_make(k, unit))) return false;
        for (uint32_t j = l->read_begin[unit]; j < l->read_begin[unit + 1]; j++) {
            const uint32_t s = l->read[j];
            if (f->root[s] == CB_NONE || w->until[s] >= k || is_lost(w, s, k)) continue;
            hold(w, s, w->until[s] + 1, k, 1);
            w->until[s] = k;
        }
    }
    return true;
}

static void mark_early(cb_windows *w, size_t begin_pair, uint32_t unit) {
    for (size_t i = begin_pair; i < w->pairs.list.len; i++)
        if (cb_pair_op(w->pairs.list.at[i]) == unit) w->pairs.list.at[i] |= CB_EARLY;
}

/* Keeps the storage until `to`, from the window at `k` or from the end of its life. */
static bool keep(cb_windows *w, uint32_t storage, uint32_t k, uint32_t to) {
    const uint32_t before = w->until[storage], from = before >= k ? before + 1 : k;
    hold(w, storage, from, to, 1);
    w->until[storage] = to;
    return CB_PUSH(w->t->scratch, w->kept, ((kept){storage, before, from, to}));
}

/* Computes the time that keeping the storage saves when `next` reads it. */
static bool ask_gain(cb_windows *w, uint32_t s, uint32_t k, uint32_t next, double *gain) {
    double alone, with = 0;
    if (!ask_cost(w, s, next, false, &alone)) return false;
    if (w->window > 0 && w->until[s] < k && !ask_cost(w, s, k, true, &with)) return false;
    *gain = alone - with;
    return true;
}

/* Keeps a value that `next` misses, if there is room and recomputing it then takes long. */
static bool consider(cb_windows *w, uint32_t s, uint32_t k, uint32_t next, uint64_t target,
                     double rate) {
    const double least = rate * (double)w->t->f->p->storage_bytes[s];
    const bool alive = w->window == 0 || w->until[s] >= k;
    double gain, cost;
    if (!has_room(w, s, alive ? w->until[s] + 1 : k, next, target)) {
        w->passed[s] = w->round;
        return true;
    }
    if (!ask_gain(w, s, k, next, &gain)) return false;
    if (gain <= least) return true;
    if (!alive) {
        if (!ask_cost(w, s, k, true, &cost)) return false;
        for (size_t i = 0; i < w->grown.len; i++) w->chain[w->grown.at[i]] = w->window;
    }
    return keep(w, s, w->window == 0 ? 0 : k, next);
}

/* Visits the values that later ops miss, in the order of their reads. */
static bool fill(cb_windows *w, uint32_t k, uint64_t target, double rate) {
    const cb_facts *f = w->t->f;
    const cb_ledger *l = w->l;
    uint32_t misses = 0;
    for (uint32_t next = k; next < f->n_base && misses < CB_WINDOW_MISSES && w->left > 0; next++) {
        const uint32_t op = f->base[next];
        for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) {
            const uint32_t s = l->read[j];
            if (!is_lost(w, s, next) || w->passed[s] == w->round) continue;
            if (!consider(w, s, k, next, target, rate)) return false;
            misses += w->passed[s] == w->round;
        }
    }
    return true;
}

/* Drops values that are cheap to make from the others. */
static bool prune(cb_windows *w, double rate, bool *any) {
    const cb_facts *f = w->t->f;
    *any = false;
    for (size_t i = w->kept.len; i-- > 0;) {
        const kept c = w->kept.at[i];
        double cost;
        if (w->until[c.storage] != c.to) continue;
        w->until[c.storage] = c.before;
        if (!ask_cost(w, c.storage, c.to, false, &cost)) return false;
        if (cost > rate * (double)f->p->storage_bytes[c.storage]) {
            w->until[c.storage] = c.to;
            continue;
        }
        hold(w, c.storage, c.from, c.to, -1);
        w->passed[c.storage] = w->round;
        w->kept.at[i] = w->kept.at[--w->kept.len];
        *any = true;
    }
    return true;
}

static bool fill_and_prune(cb_windows *w, uint32_t k, uint64_t target, double rate) {
    bool any = true;
    w->kept.len = 0;
    w->round++;
    for (int i = 0; i < CB_WINDOW_ROUNDS && any; i++) {
        if (!fill(w, k, target, rate) || !prune(w, rate, &any)) return false;
    }
    return true;
}

/* Runs the units that recompute the storage at `k`; the plan already counts it as alive there. */
static bool make_again(cb_windows *w, uint32_t storage, uint32_t k) {
    const uint32_t until = w->until[storage];
    double cost;
    w->until[storage] = 0;
    if (!ask_cost(w, storage, k, true, &cost) || !add_grown(w, k)) return false;
    w->until[storage] = until;
    return true;
}

/* Adds the pairs of the window at `k`; values kept for later get early pairs. */
static bool close_window(cb_windows *w, uint32_t k) {
    const cb_facts *f = w->t->f;
    const cb_ledger *l = w->l;
    const size_t begin_pair = w->pairs.list.len;
    const uint32_t op = f->base[k];
    w->window++;
    for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) {
        if (w->missed[l->read[j]] == k && !make_again(w, l->read[j], k)) return false;
    }
    for (size_t i = 0; i < w->kept.len; i++) {
        const kept c = w->kept.at[i];
        if (c.before >= k || w->missed[c.storage] == k) continue;
        if (!make_again(w, c.storage, k)) return false;
        mark_early(w, begin_pair, f->unit[c.storage]);
    }
    return true;
}

/* Opens a window if the op at `k` misses values: notes them and the units that make them. */
static bool open_window(cb_windows *w, uint32_t k, bool *opened) {
    const cb_ledger *l = w->l;
    const uint32_t op = w->t->f->base[k];
    *opened = false;
    for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) {
        const uint32_t s = l->read[j];
        double cost;
        if (!is_lost(w, s, k)) continue;
        if (!*opened) w->window++;
        *opened = true;
        if (!ask_cost(w, s, k, true, &cost)) return false;
        for (size_t i = 0; i < w->grown.len; i++) w->chain[w->grown.at[i]] = w->window;
        w->missed[s] = k;
    }
    for (uint32_t j = l->read_begin[op]; *opened && j < l->read_begin[op + 1]; j++) {
        if (w->missed[l->read[j]] != k) continue;
        hold(w, l->read[j], k, k, 1);
        w->until[l->read[j]] = k;
    }
    return true;
}

static bool page(cb_windows *w, uint64_t target, double rate) {
    const cb_facts *f = w->t->f;
    for (uint32_t k = f->base_backward; k < f->n_base && w->left > 0; k++) {
        bool opened;
        if (!open_window(w, k, &opened)) return false;
        if (!opened) continue;
        if (!fill_and_prune(w, k, target, rate) || !close_window(w, k)) return false;
    }
    return true;
}

/* Keeps the values that cross a position of the forward and take long to make for their size, until
 * the backward no longer needs anything made after the position. */
static bool keep_checkpoint(cb_windows *w, uint32_t at, uint64_t target) {
    const cb_facts *f = w->t->f;
    const cb_ledger *l = w->l;
    const double usual = (double)f->once_ps / (double)target;
    for (uint32_t k = 0; k < at; k++) {
        for (uint32_t j = l->made_begin[f->base[k]]; j < l->made_begin[f->base[k] + 1]; j++) {
            const uint32_t s = l->made[j], to = w->mirror[at];
            double cost;
            if (w->last_forward[s] < at || !is_lost(w, s, to)) continue;
            if (!ask_cost(w, s, f->n_base, false, &cost)) return false;
            if (cost < usual * (double)f->p->storage_bytes[s] * CB_WINDOW_CROSSING_RATE) continue;
            if (has_room(w, s, w->until[s] + 1, to, target) && !keep(w, s, 0, to)) return false;
        }
    }
    return true;
}

cb_status cb_windows_try(cb_windows *w, uint64_t target, uint32_t n_position, double share,
                         bool *done, cb_error *err) {
    const cb_facts *f = w->t->f;
    const double rate = share * (double)f->once_ps / (double)w->whole;
    w->left = CB_WINDOW_EFFORT;
    w->pairs.list.len = 0;
    w->window = 0;
    memset(w->chain, 0, f->n_unit * sizeof *w->chain);
    memset(w->missed, 0, f->p->n_storage * sizeof *w->missed);
    begin(w);
    w->kept.len = 0;
    for (uint32_t i = n_position; i > 0; i--) {
        const uint64_t at = (uint64_t)f->base_backward * i / (n_position + 1);
        if (!keep_checkpoint(w, (uint32_t)at, target)) return cb_no_memory(err);
    }
    if (!fill_and_prune(w, f->base_backward, target, rate) || !page(w, target, rate))
        return cb_no_memory(err);
    *done = w->left > 0;
    if (!*done) return CB_OK;
    cb_sort_pairs(w->pairs.list.at, w->pairs.list.len);
    return cb_try_pairs(w->t, w->pairs.list.at, w->pairs.list.len, err);
}

cb_status cb_windows_try_all(cb_windows *w, uint64_t target, bool *done, cb_error *err) {
    const uint32_t kept_at[] = CB_WINDOW_POSITIONS;
    const size_t n = sizeof kept_at / sizeof *kept_at;
    for (size_t i = 0; i < n && *done; i++)
        CB_TRY(cb_windows_try(w, target, kept_at[i], 0, done, err));
    return *done ? cb_windows_try(w, target, 0, CB_WINDOW_RATE, done, err) : CB_OK;
}
