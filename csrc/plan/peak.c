/* Recompute at the peak until it fits: find the fullest step, take a value that lies across it
 * unread, let its next reader have it recomputed (with those of its ancestors that are gone by
 * then), and see. A move is kept when the bytes over the target, summed over all moments, become
 * fewer: that falls even while one of several equal peaks is left. This finds second recomputes and
 * drops inside the forward, which no cut does. */
#include "../base/sort.h"
#include "improve.h"
#include <math.h>

#define MOST_MOVES 200
#define TRIALS 3      /* values tried for one move */
#define CHAIN_MOST 64 /* ops one move adds */
#define SIZE_WEIGHT 3 /* bytes, as a share of the fastest plan's, against time, likewise */

typedef struct choice {
    double score; /* bytes a picosecond */
    uint32_t op, anchor, step;
} choice;

typedef struct digger {
    cb_trial *t;
    cb_arena *scratch;
    CB_VEC(cb_pair) pairs; /* the plan so far */
    CB_VEC(cb_pair) grown; /* the plan on trial */
    CB_VEC(uint32_t) next; /* [sim life] first step, as built, at or after the peak that reads it */
    uint32_t *alive;       /* [n_storage] stamp of the last choice at whose anchor it is alive */
    uint32_t stamp;
} digger;

static double excess_of(const cb_trial *t, uint64_t target) {
    double sum = 0;
    for (uint32_t k = 0; k < t->f->n_base; k++) {
        if (t->sim->moment[k] > target) sum += (double)(t->sim->moment[k] - target);
    }
    return sum;
}

/* The first step, as built, with the most bytes. */
static uint32_t find_peak(const cb_sim *sim) {
    uint64_t now = 0;
    for (uint32_t i = 0; i < sim->step.len; i++) {
        if (!sim->keep.at[i]) continue;
        now += sim->live.at[sim->new_index.at[i]];
        if (now + sim->f->p->op_workspace[sim->step.at[i].op] == sim->peak) return i;
    }
    return 0;
}

static bool find_next_reads(digger *d, uint32_t peak) {
    const cb_sim *sim = d->t->sim;
    d->next.len = 0;
    if (!CB_RESERVE(d->scratch, d->next, sim->life.len)) return false;
    for (size_t i = 0; i < sim->life.len; i++) d->next.at[i] = CB_NONE;
    for (uint32_t i = (uint32_t)sim->step.len; i-- > peak;) {
        if (!sim->keep.at[i]) continue;
        size_t end = i + 1 < sim->step.len ? sim->step.at[i + 1].reads : sim->read.len;
        for (size_t j = sim->step.at[i].reads; j < end; j++) {
            if (sim->read.at[j].life != CB_NONE) d->next.at[sim->read.at[j].life] = i;
        }
    }
    return true;
}

static bool may_rerun(const cb_facts *f, uint32_t op) {
    return op != CB_NONE && !f->once[op] && f->wish[op] != CB_MUST_SAVE &&
           f->position[op] < f->base_backward;
}

static void keep_best(choice *best, uint32_t *n, choice c) {
    uint32_t place = *n, last;
    while (place > 0 && best[place - 1].score < c.score) place--;
    if (place == TRIALS) return;
    last = *n < TRIALS ? (*n)++ : TRIALS - 1;
    for (; last > place; last--) best[last] = best[last - 1];
    best[place] = c;
}

/* The best values that lie across the peak unread, with the anchor of their next read. */
static uint32_t find_choices(const digger *d, uint32_t peak, choice *best) {
    const cb_sim *sim = d->t->sim;
    const cb_facts *f = d->t->f;
    uint32_t n = 0, peak_index = sim->new_index.at[peak];
    for (size_t i = 0; i < sim->life.len; i++) {
        const cb_sim_life *life = &sim->life.at[i];
        uint32_t op = f->root[life->storage], next = d->next.at[i];
        if (life->made >= peak_index || next == CB_NONE || next <= peak)
            continue; /* later, dropped or read at the peak */
        if (!may_rerun(f, op) || life->last >= sim->n_step ||
            f->p->storage_bytes[life->storage] == 0)
            continue;
        double score = (double)f->p->storage_bytes[life->storage] / ((double)f->time_ps[op] + 1);
        keep_best(best, &n,
                  (choice){score, op, sim->step.at[next].anchor, sim->new_index.at[next]});
    }
    return n;
}

static int compare_pairs(const void *a, const void *b) {
    cb_pair x = *(const cb_pair *)a, y = *(const cb_pair *)b;
    return x < y ? -1 : x > y;
}

/* The plan so far, the choice, and the ancestors it cannot read at that anchor any more. */
static bool grow(digger *d, const choice *c) {
    const cb_facts *f = d->t->f;
    const cb_sim *sim = d->t->sim;
    d->stamp++;
    for (size_t i = 0; i < sim->life.len; i++) {
        const cb_sim_life *life = &sim->life.at[i];
        if (life->made < c->step && life->last >= c->step && life->made != CB_NONE)
            d->alive[life->storage] = d->stamp;
    }
    d->grown.len = 0;
    if (!CB_RESERVE(d->scratch, d->grown, d->pairs.len + CHAIN_MOST)) return false;
    for (size_t i = 0; i < d->pairs.len; i++) d->grown.at[d->grown.len++] = d->pairs.at[i];
    d->grown.at[d->grown.len++] = cb_pair_make(c->anchor, c->op);
    for (size_t next = d->pairs.len; next < d->grown.len; next++) {
        uint32_t op = cb_pair_op(d->grown.at[next]);
        for (uint32_t j = f->p->in_begin[op]; j < f->p->in_begin[op + 1]; j++) {
            uint32_t s = f->p->value_storage[f->p->in_value[j]];
            if (d->alive[s] == d->stamp || !may_rerun(f, f->root[s]) ||
                d->grown.len >= d->pairs.len + CHAIN_MOST)
                continue;
            d->alive[s] = d->stamp; /* it will be */
            d->grown.at[d->grown.len++] = cb_pair_make(c->anchor, f->root[s]);
        }
    }
    cb_sort(d->grown.at, d->grown.len, sizeof(cb_pair), compare_pairs);
    size_t n = 0;
    for (size_t i = 0; i < d->grown.len; i++) {
        if (i == 0 || d->grown.at[i] != d->grown.at[i - 1]) d->grown.at[n++] = d->grown.at[i];
    }
    d->grown.len = n;
    return true;
}

/* Tries the choices in turn; `moved` when one made the excess fall. */
static cb_status move_once(digger *d, uint64_t target, double *excess, bool *moved, cb_error *err) {
    choice best[TRIALS];
    uint32_t peak = find_peak(d->t->sim);
    *moved = false;
    if (!find_next_reads(d, peak)) return cb_no_memory(err);
    uint32_t n = find_choices(d, peak, best);
    for (uint32_t i = 0; i < n && !*moved; i++) {
        if (!grow(d, &best[i])) return cb_no_memory(err);
        CB_TRY(cb_try_pairs(d->t, d->grown.at, d->grown.len, err));
        double now = excess_of(d->t, target);
        *moved = now < *excess;
        if (*moved) *excess = now;
        else
            CB_TRY(
                cb_try_pairs(d->t, d->pairs.at, d->pairs.len, err)); /* back to the plan so far */
    }
    if (!*moved) return CB_OK;
    d->pairs.len = 0;
    if (!CB_RESERVE(d->scratch, d->pairs, d->grown.len)) return cb_no_memory(err);
    for (size_t i = 0; i < d->grown.len; i++) d->pairs.at[d->pairs.len++] = d->grown.at[i];
    return CB_OK;
}

/* The most promising start: neither the smallest, which may be very slow, nor the fastest. */
static const cb_candidate *find_start(const cb_pool_of_plans *pool) {
    const cb_candidate *best = &pool->at[0];
    double least = INFINITY;
    for (uint32_t i = 0; i < pool->n; i++) {
        const cb_candidate *c = &pool->at[i], *fastest = &pool->at[pool->n - 1];
        double time = (double)c->time_ps / ((double)fastest->time_ps + 1);
        double score = time + SIZE_WEIGHT * (double)c->size / ((double)fastest->size + 1);
        if (score >= least) continue;
        least = score;
        best = c;
    }
    return best;
}

static cb_status dig(digger *d, uint64_t target, cb_error *err) {
    const cb_candidate *c = find_start(d->t->pool);
    if (!CB_RESERVE(d->scratch, d->pairs, c->n_pair)) return cb_no_memory(err);
    for (size_t i = 0; i < c->n_pair; i++) d->pairs.at[d->pairs.len++] = c->pair[i];
    CB_TRY(cb_try_pairs(d->t, d->pairs.at, d->pairs.len, err));
    double excess = excess_of(d->t, target);
    bool moved = true;
    for (int i = 0; i < MOST_MOVES && moved && d->t->size > target; i++)
        CB_TRY(move_once(d, target, &excess, &moved, err));
    return CB_OK;
}

cb_status cb_improve_at_peak(cb_trial *t, uint64_t target, cb_error *err) {
    if (t->pool->n == 0 || t->goal->measure == CB_MEASURE_SAVED) return CB_OK;
    cb_arena scratch;
    cb_arena_init(&scratch, t->scratch->alloc);
    digger d = {
        .t = t, .scratch = &scratch, .alive = CB_NEW(&scratch, uint32_t, t->f->p->n_storage)};
    cb_status status = d.alive ? dig(&d, target, err) : cb_no_memory(err);
    cb_arena_free(&scratch);
    return status;
}
