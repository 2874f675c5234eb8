/* Two ways to improve known schedules. Plans are sets of pairs and any set is a plan, so each way
 * edits sets and evaluates them with the simulator.
 *
 * Prices move identical layers together, so the largest plan that fits a budget is often far too
 * small: crossover at one threshold, found by bisection, recomputes only some of these layers. */
#include "improve.h"

#include <math.h>

#include "../../base/sort.h"
#include "tuning.h"

/* Copies a candidate's pairs, because the candidate may be dropped while we work. */
typedef struct pair_list {
    cb_pair *at;
    size_t n;
} pair_list;

static bool copy_pairs(cb_arena *a, const cb_candidate *c, pair_list *out) {
    *out = (pair_list){CB_NEW(a, cb_pair, c->n_pair), c->n_pair};
    if (out->at && c->n_pair > 0) memcpy(out->at, c->pair, c->n_pair * sizeof *c->pair);
    return out->at;
}

/* ---- crossover ------------------------------------------------------------------------------- */

/* Combines two sorted lists: ops below `split` run again as in `low`, the others as in `high`. */
static size_t mix(const cb_facts *f, const pair_list *low, const pair_list *high, uint32_t split,
                  cb_pair *out) {
    size_t n = 0;
    for (size_t i = 0, j = 0; i < low->n || j < high->n;) {
        bool take_low = j == high->n || (i < low->n && low->at[i] <= high->at[j]);
        cb_pair pair = take_low ? low->at[i++] : high->at[j++];
        if ((cb_unit_op(f, cb_pair_op(pair)) < split) == take_low) out[n++] = pair;
    }
    return n;
}

typedef struct mixed { /* a tried mix */
    pair_list list;
    bool tried, fits;
    int64_t time_ps;
} mixed;

static cb_status try_mix(cb_trial *t, mixed *m, uint64_t target, cb_error *err) {
    CB_TRY(cb_try_pairs(t, m->list.at, m->list.n, err));
    m->tried = true;
    m->fits = t->lawful && t->size <= target;
    m->time_ps = t->time_ps;
    return CB_OK;
}

static bool same_pairs(const mixed *a, const mixed *b) {
    return a->tried && a->list.n == b->list.n &&
           memcmp(a->list.at, b->list.at, a->list.n * sizeof *a->list.at) == 0;
}

typedef struct crossover {
    const pair_list *fast, *small; /* a plan over the target, and one under it */
    bool fast_first;               /* ops before the split run again as in `fast` */
    uint64_t target;
    mixed *end; /* [3] mixes at both ends of the bisection, and the new one; each has room */
} crossover;

/* Takes as much of `fast` as fits. Time falls on the way from `small` to `fast`: if a mix exceeds
 * the target and is not faster than one that fits, mixes that fit are slower. If no decision
 * differs between two positions, their mixes are equal. */
static cb_status cross(cb_trial *t, const crossover *x, cb_error *err) {
    mixed *end = x->end;
    uint32_t low = 0, high = t->f->base_backward; /* positions; one end is all of `small`, the other
                                                     all of `fast` */
    end[0].tried = end[1].tried = false;
    for (int step = 0; step < CB_CROSS_STEPS && high - low > 1; step++) {
        uint32_t middle = low + (high - low) / 2, split = t->f->base[middle];
        mixed *now = &end[2];
        now->list.n = x->fast_first ? mix(t->f, x->fast, x->small, split, now->list.at)
                                    : mix(t->f, x->small, x->fast, split, now->list.at);
        if (same_pairs(&end[0], now)) now = &end[0];
        else if (same_pairs(&end[1], now)) now = &end[1];
        else CB_TRY(try_mix(t, now, x->target, err));
        uint32_t at = cb_candidates_fitting(t->candidates, x->target);
        if (!now->fits && at != CB_NONE && now->time_ps >= t->candidates->at[at].time_ps)
            return CB_OK;
        bool is_low = now->fits == x->fast_first;
        if (is_low) low = middle;
        else high = middle;
        if (now != &end[2]) continue;
        mixed old = end[!is_low];
        end[!is_low] = end[2];
        end[2] = old;
    }
    return CB_OK;
}

/* Returns indices of the most promising plans over the target, best first: those that exceed it
 * little and are fast. */
static uint32_t choose_fast(const cb_trial *t, uint32_t first, uint64_t target, uint32_t most,
                            uint32_t chosen[CB_CROSS_FAST]) {
    double score[CB_CROSS_FAST];
    uint32_t n = 0;
    for (uint32_t i = first; i < t->candidates->n; i++) {
        const cb_candidate *c = &t->candidates->at[i];
        double own = (double)c->time_ps / ((double)t->f->once_ps + 1) +
                     CB_CROSS_SIZE_WEIGHT * (double)(c->size - target) /
                         (double)t->candidates->at[t->candidates->n - 1].size;
        uint32_t place = n;
        while (place > 0 && score[place - 1] > own) place--;
        if (place == most) continue;
        if (n < most) n++;
        for (uint32_t k = n - 1; k > place; k--) {
            score[k] = score[k - 1];
            chosen[k] = chosen[k - 1];
        }
        score[place] = own;
        chosen[place] = i;
    }
    return n;
}

cb_status cb_improve_by_mixing(cb_trial *t, uint64_t target, double pace, cb_error *err) {
    uint32_t most_small = (uint32_t)fmax(1, pace * CB_CROSS_SMALL);
    uint32_t most_fast = (uint32_t)fmax(2, pace * CB_CROSS_FAST);
    pair_list small[CB_CROSS_SMALL], fast[CB_CROSS_FAST];
    uint32_t n_small = 0, n_fast = 0, at = cb_candidates_fitting(t->candidates, target),
             chosen[CB_CROSS_FAST];
    cb_status status = CB_OK;
    if (at == CB_NONE) return CB_OK;
    cb_arena scratch;
    cb_arena_init(&scratch, t->scratch->alloc);
    size_t longest = 0;
    for (uint32_t i = at + 1; i-- > 0 && n_small < most_small; n_small++) {
        if (!copy_pairs(&scratch, &t->candidates->at[i], &small[n_small])) goto no_memory;
    }
    for (uint32_t n = choose_fast(t, at + 1, target, most_fast, chosen); n_fast < n; n_fast++) {
        if (!copy_pairs(&scratch, &t->candidates->at[chosen[n_fast]], &fast[n_fast]))
            goto no_memory;
        if (fast[n_fast].n > longest) longest = fast[n_fast].n;
    }
    for (uint32_t i = 0; i < n_small; i++) {
        mixed end[3] = {0};
        for (int k = 0; k < 3; k++) {
            end[k].list.at = CB_NEW(&scratch, cb_pair, small[i].n + longest);
            if (!end[k].list.at) goto no_memory;
        }
        for (uint32_t j = 0; j < n_fast; j++) {
            crossover x = {.fast = &fast[j],
                           .small = &small[i],
                           .fast_first = true,
                           .target = target,
                           .end = end};
            CB_TRY_DONE(cross(t, &x, err));
            x.fast_first = false;
            CB_TRY_DONE(cross(t, &x, err));
        }
    }
    goto done;
no_memory:
    status = cb_no_memory(err);
done:
    cb_arena_free(&scratch);
    return status;
}

/* ---- removal --------------------------------------------------------------------------------- */

typedef struct rerun {
    double worth; /* picoseconds per byte; the most expensive go first */
    cb_pair pair;
} rerun;

typedef struct block {
    uint32_t begin, end; /* indices into `order` */
} block;

static int compare_reruns(const void *a, const void *b) {
    const rerun *x = a, *y = b;
    if (x->worth < y->worth || x->worth > y->worth) return x->worth > y->worth ? -1 : 1;
    return x->pair < y->pair ? -1 : x->pair > y->pair;
}

static double worth_of(const cb_facts *f, uint32_t op) {
    double bytes = 1;
    uint32_t from = cb_unit_op(f, op), made = cb_unit_made(f, op);
    for (uint32_t v = f->p->out_begin[from]; v < f->p->out_begin[from + 1]; v++) {
        if (cb_makes(made, v - f->p->out_begin[from]))
            bytes += (double)f->p->storage_bytes[f->p->value_storage[v]];
    }
    return (double)f->cost_ps[op] / bytes;
}

typedef struct remover {
    cb_trial *t;
    uint32_t n;
    rerun *order; /* [n] */
    bool *gone;   /* [n] */
    cb_pair *buffer;
    int64_t time_ps; /* time of the best plan so far */
} remover;

static cb_status try_without(remover *r, block b, uint64_t target, bool *fits, cb_error *err) {
    size_t n = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        if (!r->gone[i] && (i < b.begin || i >= b.end)) r->buffer[n++] = r->order[i].pair;
    }
    cb_sort_pairs(r->buffer, n);
    CB_TRY(cb_try_pairs(r->t, r->buffer, n, err));
    *fits = r->t->lawful && r->t->size <= target && r->t->time_ps < r->time_ps;
    if (!*fits) return CB_OK;
    r->time_ps = r->t->time_ps;
    for (uint32_t i = b.begin; i < b.end; i++) r->gone[i] = true;
    return CB_OK;
}

/* Removes blocks first, then halves of blocks that could not be removed. */
static cb_status remove_blocks(remover *r, uint64_t target, cb_arena *scratch, cb_error *err) {
    CB_VEC(block) queue = {0};
    uint32_t width = (r->n + CB_REMOVAL_BLOCKS - 1) / CB_REMOVAL_BLOCKS;
    for (uint32_t i = 0; i < r->n; i += width) {
        if (!CB_PUSH(scratch, queue, (block){i, i + width < r->n ? i + width : r->n}))
            return cb_no_memory(err);
    }
    for (size_t next = 0; next < queue.len && next < CB_REMOVAL_TRIALS; next++) {
        block b = queue.at[next];
        bool fits;
        CB_TRY(try_without(r, b, target, &fits, err));
        if (fits || b.end - b.begin < 2) continue;
        uint32_t middle = b.begin + (b.end - b.begin) / 2;
        if (!CB_PUSH(scratch, queue, (block){b.begin, middle}) ||
            !CB_PUSH(scratch, queue, (block){middle, b.end})) {
            return cb_no_memory(err);
        }
    }
    return CB_OK;
}

cb_status cb_improve_by_removal(cb_trial *t, uint64_t target, cb_error *err) {
    uint32_t at = cb_candidates_fitting(t->candidates, target);
    if (at == CB_NONE || t->candidates->at[at].n_pair == 0) return CB_OK;
    const cb_candidate *c = &t->candidates->at[at];
    cb_arena scratch;
    cb_arena_init(&scratch, t->scratch->alloc);
    remover r = {.t = t, .n = (uint32_t)c->n_pair, .time_ps = c->time_ps};
    r.order = CB_NEW(&scratch, rerun, r.n);
    r.gone = CB_NEW(&scratch, bool, r.n);
    r.buffer = CB_NEW(&scratch, cb_pair, r.n);
    cb_status status = r.order && r.gone && r.buffer ? CB_OK : cb_no_memory(err);
    if (status == CB_OK) {
        for (uint32_t i = 0; i < r.n; i++)
            r.order[i] = (rerun){worth_of(t->f, cb_pair_op(c->pair[i])), c->pair[i]};
        cb_sort(r.order, r.n, sizeof *r.order, compare_reruns);
        status = remove_blocks(&r, target, &scratch, err);
    }
    cb_arena_free(&scratch);
    return status;
}
