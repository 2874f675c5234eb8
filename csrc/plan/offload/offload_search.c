/* Prices as in prices.c, with a second way to provide a value: it is kept over its gap at the
 * prices of the moments, or brought back at a price for its bytes on the link, whichever is
 * cheaper, and rerunning its op competes with the cheaper of the two. Prices of moments follow the
 * plans; prices of the link come from a fixed list, from a free link to one that is busy all the
 * time.
 *
 * Then come crossover (improve.c), and changes of single pairs of the fastest plan, evaluated one
 * by one. */
#include "offload_search.h"

#include <math.h>

#include "../../base/sort.h"
#include "../search/improve.h"
#include "../search/tuning.h"

#define ETA_START 2.0
#define ETA_DECAY 0.05
#define AIM_PART 0.98
#define AIM_STEPS 24
#define OFFLOAD_EFFORT 2.5e6 /* trials of moves, times ops */
#define MOST_TRIALS 2500
#define CROSSINGS_TRIED 10 /* positions tried by a crossover */

static const double link_price[CB_OFFLOAD_LINK_PRICES] = {0.015, 0.05, 0.12, 0.3,
                                                          0.6,   1.2}; /* shares of a copy's time */

cb_status cb_offload_search_init(cb_offload_search *h, cb_trial *t, const cb_prices *uses,
                                 cb_cut *cut, cb_error *err) {
    const cb_facts *f = t->f;
    cb_arena *a = t->scratch;
    *h = (cb_offload_search){
        .t = t, .uses = uses, .cut = cut, .pairs = {.arena = a}, .next = {.arena = a}};
    CB_TRY_NEW(h->price, a, f->n_base, err);
    CB_TRY_NEW(h->sum, a, (size_t)f->n_base + 1, err);
    CB_TRY_NEW(h->need, a, f->p->n_storage, err);
    CB_TRY_NEW(h->fetch, a, f->p->n_storage, err);
    CB_TRY_NEW(h->may_fetch, a, f->p->n_storage, err);
    for (int i = 0; i <= CB_OFFLOAD_LINK_PRICES; i++) h->best[i].pairs.arena = a;
    h->now.pairs.arena = a;
    h->link_ps = 1e12 / cb_link_bytes_per_s(f->p, f->device);
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        uint32_t root = f->root[s];
        bool asked = t->goal->offload != CB_OFFLOAD_ASKED ||
                     (root != CB_NONE &&
                      (f->wish[root] == CB_MUST_OFFLOAD || f->wish[root] == CB_PREFER_OFFLOAD));
        h->may_fetch[s] = asked && t->offload_sim->carrier[s] != CB_NONE &&
                          f->p->storage_bytes[s] > 0 && !t->forced[root] &&
                          f->wish[root] != CB_MUST_SAVE;
    }
    return CB_OK;
}

/* ---- prices ---------------------------------------------------------------------------------- */

static double keep_price(const cb_offload_search *h, uint32_t storage) {
    uint32_t from = h->uses->last_forward[storage] + 1, to = h->need[storage];
    if (to == CB_NONE) to = h->uses->earliest[storage];
    return to == CB_NONE || to <= from ? 0 : h->sum[to] - h->sum[from];
}

static void set_save_costs(cb_offload_search *h, double link) {
    const cb_facts *f = h->t->f;
    cb_cut *cut = h->cut;
    for (uint32_t i = 0; i < cut->n_save; i++) {
        uint32_t s = cut->save_storage[i], op = f->root[s];
        uint8_t wish = f->wish[op];
        double keep = keep_price(h, s), move = h->may_fetch[s] ? link : INFINITY;
        if (wish == CB_PREFER_RECOMPUTE)
            keep *= CB_AGAINST_PREFERENCE, move *= CB_AGAINST_PREFERENCE;
        if (wish == CB_PREFER_OFFLOAD) keep *= CB_AGAINST_PREFERENCE;
        if (wish == CB_PREFER_SAVE) move *= CB_AGAINST_PREFERENCE;
        h->fetch[s] = move < keep;
        double cost = fmin(keep, move) * (double)f->p->storage_bytes[s] * h->uses->scale;
        bool stays = (f->p->storage_flags[s] & CB_STORE_HOLD_END) ||
                     h->uses->earliest[s] == CB_NONE; /* only the end of the step may need it */
        cut->save_cost[i] = stays                             ? 0
                            : h->t->forced[op] && !f->held[s] ? CB_FLOW_INF
                                                              : (int64_t)fmin(cost, CB_CUT_UNITS);
    }
}

static void set_costs(cb_offload_search *h, double link) {
    const cb_facts *f = h->t->f;
    cb_cut *cut = h->cut;
    h->sum[0] = 0;
    for (uint32_t k = 0; k < f->n_base; k++) h->sum[k + 1] = h->sum[k] + h->price[k];
    for (uint32_t i = 0; i < cut->n_run; i++) {
        uint32_t op = cut->run_op[i];
        uint8_t wish = f->wish[op];
        double cost = h->uses->unused_forward[op] ? 0 : (double)f->time_ps[op] * h->uses->scale;
        if (wish == CB_PREFER_SAVE || wish == CB_PREFER_OFFLOAD) cost *= CB_AGAINST_PREFERENCE;
        bool never = f->once[op] || wish == CB_MUST_SAVE || wish == CB_MUST_OFFLOAD ||
                     (!h->reruns && !h->t->forced[op]);
        cut->run_cost[i] = never ? CB_FLOW_INF : (int64_t)fmin(cost, CB_CUT_UNITS);
    }
    set_save_costs(h, link);
}

static void sort_pairs(cb_pairs *pairs) {
    size_t n = 0;
    cb_sort_pairs(pairs->list.at, pairs->list.len);
    for (size_t i = 0; i < pairs->list.len; i++) {
        if (n == 0 || pairs->list.at[n - 1] != pairs->list.at[i])
            pairs->list.at[n++] = pairs->list.at[i];
    }
    pairs->list.len = n;
}

static bool copy_pairs(const cb_pair *pair, size_t n, cb_pairs *out) {
    out->list.len = 0;
    if (!CB_RESERVE(out->arena, out->list, n + 1)) return false;
    if (n > 0) memcpy(out->list.at, pair, n * sizeof *pair);
    out->list.len = n;
    return true;
}

static bool fits(const cb_offload_search *h) { return h->t->lawful && h->t->size <= h->t->target; }

/* Tries the pairs, and notes them in `best` if they fit and are faster. */
static cb_status try_for(cb_offload_search *h, const cb_pairs *pairs, cb_offload_plan *best,
                         cb_error *err) {
    CB_TRY(cb_try_pairs(h->t, pairs->list.at, pairs->list.len, err));
    if (!fits(h) || h->t->time_ps >= best->time_ps) return CB_OK;
    best->time_ps = h->t->time_ps;
    return copy_pairs(pairs->list.at, pairs->list.len, &best->pairs) ? CB_OK : cb_no_memory(err);
}

/* Makes the plan of the cut: reruns, as late as possible, and values that come back. */
static cb_status solve(cb_offload_search *h, double link, cb_offload_plan *best, cb_error *err) {
    const cb_facts *f = h->t->f;
    set_costs(h, link);
    CB_TRY(cb_cut_solve(h->cut, err));
    CB_TRY(cb_recompute_lazily(f, h->cut->recompute, h->need, &h->pairs, err));
    for (uint32_t i = 0; i < h->cut->n_save; i++) {
        uint32_t s = h->cut->save_storage[i];
        if (!h->cut->saved[s] || !h->fetch[s] || h->need[s] == CB_NONE) continue;
        cb_pair pair = cb_pair_fetch(h->need[s], h->t->offload_sim->carrier[s]);
        if (!CB_PUSH(h->pairs.arena, h->pairs.list, pair)) return cb_no_memory(err);
    }
    sort_pairs(&h->pairs);
    return try_for(h, &h->pairs, best, err);
}

static cb_status aim(cb_offload_search *h, double link, int steps, cb_offload_plan *best,
                     cb_error *err) {
    const cb_facts *f = h->t->f;
    const cb_prices *u = h->uses;
    double target = AIM_PART * (double)h->t->target + 1;
    for (uint32_t k = 0; k < f->n_base; k++)
        h->price[k] = u->first_moment[k] > h->t->target ? u->start : u->start * 1e-3;
    memcpy(h->need, u->earliest, f->p->n_storage * sizeof *h->need);
    for (int i = 0; i < steps; i++) {
        CB_TRY(solve(h, link * h->link_ps, best, err));
        double eta = ETA_START / (1 + ETA_DECAY * i);
        for (uint32_t k = 0; k < f->n_base; k++) {
            double over = ((double)h->t->offload_sim->moment[k] - target) / target;
            double price = h->price[k] * exp(eta * fmax(-1, fmin(1, over)));
            h->price[k] = fmax(u->lowest, fmin(u->highest, price));
        }
    }
    return CB_OK;
}

/* ---- crossover of plans that fit ------------------------------------------------------------- */

/* Combines two plans: ops below `split` use the decisions of `low`, the others those of `high`. */
static bool mix(const cb_pairs *low, const cb_pairs *high, uint32_t split, cb_pairs *out) {
    out->list.len = 0;
    if (!CB_RESERVE(out->arena, out->list, low->list.len + high->list.len + 1)) return false;
    for (size_t i = 0, j = 0; i < low->list.len || j < high->list.len;) {
        bool take_low =
            j == high->list.len || (i < low->list.len && low->list.at[i] <= high->list.at[j]);
        cb_pair pair = take_low ? low->list.at[i++] : high->list.at[j++];
        if ((cb_pair_op(pair) < split) == take_low) out->list.at[out->list.len++] = pair;
    }
    return true;
}

static cb_status cross(cb_offload_search *h, const cb_offload_plan *a, const cb_offload_plan *b,
                       cb_offload_plan *best, cb_error *err) {
    const cb_facts *f = h->t->f;
    for (uint32_t i = 1; i < CROSSINGS_TRIED && f->base_backward > 0; i++) {
        uint32_t split = f->base[(uint64_t)f->base_backward * i / CROSSINGS_TRIED];
        if (!mix(&a->pairs, &b->pairs, split, &h->next)) return cb_no_memory(err);
        CB_TRY(try_for(h, &h->next, best, err));
    }
    return CB_OK;
}

static cb_status cross_all(cb_offload_search *h, cb_error *err) {
    for (int i = 0; i <= CB_OFFLOAD_LINK_PRICES; i++) {
        for (int j = 0; j <= CB_OFFLOAD_LINK_PRICES; j++) {
            if (i == j || h->best[i].time_ps == INT64_MAX || h->best[j].time_ps == INT64_MAX)
                continue;
            CB_TRY(cross(h, &h->best[i], &h->best[j], &h->now, err));
        }
    }
    return CB_OK;
}

/* ---- moves ----------------------------------------------------------------------------------- */

typedef struct move {
    double worth; /* the largest first */
    cb_pair pair;
} move;

static int compare_moves(const void *a, const void *b) {
    const move *x = a, *y = b;
    if (x->worth < y->worth || x->worth > y->worth) return x->worth > y->worth ? -1 : 1;
    return x->pair < y->pair ? -1 : x->pair > y->pair;
}

/* Reduces `now` to the pairs that have an effect, and tries it again. */
static cb_status reload(cb_offload_search *h, cb_error *err) {
    const cb_offload_sim *m = h->t->offload_sim;
    const cb_facts *f = h->t->f;
    CB_TRY(cb_try_pairs(h->t, h->now.pairs.list.at, h->now.pairs.list.len, err));
    h->next.list.len = 0;
    if (!CB_RESERVE(h->next.arena, h->next.list, m->run.len + m->fetch.len + 1))
        return cb_no_memory(err);
    for (size_t r = 0; r < m->run.len; r++) {
        const cb_sim_step *step = &m->step.at[m->run.at[r]];
        bool view = f->p->op_flags[step->op] & CB_POP_VIEW;
        if (!view && f->position[step->op] != step->anchor)
            h->next.list.at[h->next.list.len++] = cb_pair_make(step->anchor, step->op);
    }
    for (size_t i = 0; i < m->fetch.len; i++) {
        const cb_sim_step *step = &m->step.at[m->fetch.at[i].step];
        h->next.list.at[h->next.list.len++] = cb_pair_fetch(step->anchor, step->op);
    }
    sort_pairs(&h->next);
    CB_TRY(cb_try_pairs(h->t, h->next.list.at, h->next.list.len, err));
    if (!fits(h) || h->t->time_ps > h->now.time_ps) return CB_OK;
    h->now.time_ps = h->t->time_ps;
    return copy_pairs(h->next.list.at, h->next.list.len, &h->now.pairs) ? CB_OK : cb_no_memory(err);
}

/* Sets `next` to `now` without `gone` (0: removes nothing) and with `added`. */
static bool change(cb_offload_search *h, cb_pair gone, const cb_pair *added, size_t n) {
    cb_pairs *out = &h->next;
    out->list.len = 0;
    if (!CB_RESERVE(out->arena, out->list, h->now.pairs.list.len + n + 1)) return false;
    for (size_t i = 0; i < h->now.pairs.list.len; i++) {
        if (h->now.pairs.list.at[i] != gone)
            out->list.at[out->list.len++] = h->now.pairs.list.at[i];
    }
    for (size_t i = 0; i < n; i++) { /* insert `added` in its place */
        size_t j = out->list.len++;
        for (; j > 0 && out->list.at[j - 1] > added[i]; j--) out->list.at[j] = out->list.at[j - 1];
        out->list.at[j] = added[i];
    }
    return true;
}

static bool has_pair(const cb_pairs *pairs, cb_pair pair) {
    size_t low = 0, high = pairs->list.len;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pairs->list.at[middle] < pair) low = middle + 1;
        else high = middle;
    }
    return low < pairs->list.len && pairs->list.at[low] == pair;
}

/* Returns the fetches that replace a rerun of `op`. */
static size_t fetches_of(const cb_offload_search *h, cb_pair pair, cb_pair *out, size_t most) {
    const cb_problem *p = h->t->f->p;
    uint32_t op = cb_pair_op(pair);
    size_t n = 0;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1] && n < most; v++) {
        uint32_t s = p->value_storage[v];
        if (h->t->f->root[s] != op || !h->may_fetch[s]) continue;
        cb_pair fetch = cb_pair_fetch(cb_pair_anchor(pair), h->t->offload_sim->carrier[s]);
        bool known = n > 0 && out[n - 1] == fetch;
        if (!known && !has_pair(&h->now.pairs, fetch)) out[n++] = fetch;
    }
    return n;
}

/* Returns the op whose rerun replaces a fetch by `op`. An op that writes into memory may also have
 * outputs in memory of other ops. */
static uint32_t maker_of(const cb_offload_search *h, uint32_t op) {
    const cb_facts *f = h->t->f;
    for (uint32_t v = f->p->out_begin[op]; v < f->p->out_begin[op + 1]; v++) {
        uint32_t s = f->p->value_storage[v];
        if (h->t->offload_sim->carrier[s] == op) return f->root[s];
    }
    return CB_NONE;
}

static cb_status try_change(cb_offload_search *h, cb_pair pair, cb_error *err) {
    const cb_facts *f = h->t->f;
    uint32_t op = cb_pair_op(pair);
    cb_pair added[8];
    if (!has_pair(&h->now.pairs, pair)) return CB_OK;
    if (!cb_pair_fetches(pair)) {
        size_t n = fetches_of(h, pair, added, 8);
        if (n > 0) {
            if (!change(h, pair, added, n)) return cb_no_memory(err);
            CB_TRY(try_for(h, &h->next, &h->now, err));
            if (!has_pair(&h->now.pairs, pair)) return CB_OK;
        }
    } else if (h->reruns) {
        uint32_t root = maker_of(h, op);
        added[0] = cb_pair_make(cb_pair_anchor(pair), root);
        bool may = root != CB_NONE && !f->once[root] && !has_pair(&h->now.pairs, added[0]);
        if (may) {
            if (!change(h, pair, added, 1)) return cb_no_memory(err);
            CB_TRY(try_for(h, &h->next, &h->now, err));
            if (!has_pair(&h->now.pairs, pair)) return CB_OK;
        }
    }
    if (!change(h, pair, NULL, 0)) return cb_no_memory(err);
    return try_for(h, &h->next, &h->now, err);
}

static cb_status improve(cb_offload_search *h, uint32_t *left, cb_error *err) {
    const cb_facts *f = h->t->f;
    cb_arena scratch;
    cb_arena_init(&scratch, h->t->scratch->alloc);
    size_t n = h->now.pairs.list.len;
    cb_status status = CB_OK;
    move *list = CB_NEW(&scratch, move, n);
    if (!list) {
        status = cb_no_memory(err);
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        cb_pair pair = h->now.pairs.list.at[i];
        uint32_t op = cb_pair_op(pair);
        double worth = cb_pair_fetches(pair) ? (double)h->t->offload_sim->copy_ps[op] * 0.1
                                             : (double)f->time_ps[op];
        list[i] = (move){worth, pair};
    }
    if (n > 0) cb_sort(list, n, sizeof *list, compare_moves);
    for (size_t i = 0; i < n && *left > 0; i++) {
        uint32_t before = h->t->count;
        CB_TRY_DONE(try_change(h, list[i].pair, err));
        uint32_t used = h->t->count - before;
        *left -= used < *left ? used : *left;
    }
done:
    cb_arena_free(&scratch);
    return status;
}

/* Finds values that the backward reads from the forward. Each could be brought back for its first
 * reader. Runs after a trial of `now`. */
static bool list_kept(const cb_offload_search *h, cb_arena *scratch, move *list, size_t *n) {
    const cb_offload_sim *m = h->t->offload_sim;
    const cb_problem *p = h->t->f->p;
    bool *seen = CB_NEW(scratch, bool, p->n_op);
    if (!seen) return false;
    *n = 0;
    for (uint32_t r = m->backward; r < m->run.len; r++) {
        uint32_t t = m->run.at[r];
        size_t end = t + 1 < m->step.len ? m->step.at[t + 1].reads : m->read.len;
        for (size_t j = m->step.at[t].reads; j < end; j++) {
            uint32_t life = m->read.at[j].life;
            if (life == CB_NONE || m->life.at[life].made >= m->backward) continue;
            uint32_t s = m->life.at[life].storage, op = m->carrier[s];
            if (!h->may_fetch[s] || seen[op]) continue;
            seen[op] = true;
            list[(*n)++] =
                (move){(double)p->storage_bytes[s], cb_pair_fetch(m->step.at[t].anchor, op)};
        }
    }
    if (*n > 0) cb_sort(list, *n, sizeof *list, compare_moves);
    return true;
}

/* Moves kept values to the host if that takes no more time, which makes room for others. */
static cb_status use_link(cb_offload_search *h, uint32_t *left, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, h->t->scratch->alloc);
    cb_status status = CB_OK;
    size_t n = 0;
    move *list = CB_NEW(&scratch, move, h->t->f->p->n_op);
    CB_TRY_DONE(cb_try_pairs(h->t, h->now.pairs.list.at, h->now.pairs.list.len, err));
    if (!list || !list_kept(h, &scratch, list, &n)) {
        status = cb_no_memory(err);
        goto done;
    }
    for (size_t i = 0; i < n && *left > 0; i++, --*left) {
        int64_t before = h->now.time_ps;
        if (!change(h, list[i].pair, &list[i].pair, 1)) {
            status = cb_no_memory(err);
            goto done;
        }
        h->now.time_ps =
            before == INT64_MAX ? before : before + 1; /* an equally fast plan is accepted */
        CB_TRY_DONE(try_for(h, &h->next, &h->now, err));
        if (h->now.time_ps > before) h->now.time_ps = before;
    }
done:
    cb_arena_free(&scratch);
    return status;
}

static cb_status polish(cb_offload_search *h, cb_error *err) {
    double n = h->t->f->n_base + 1.0;
    uint32_t left = (uint32_t)fmin(OFFLOAD_EFFORT / n, MOST_TRIALS);
    for (int64_t before = INT64_MAX; left > 0 && h->now.time_ps < before;) {
        before = h->now.time_ps;
        CB_TRY(reload(h, err));
        CB_TRY(improve(h, &left, err));
        uint32_t some = left / 3;
        left -= some;
        CB_TRY(use_link(h, &some, err));
        CB_TRY(improve(h, &left, err));
        left += some;
    }
    return CB_OK;
}

/* Sets `now` to the fastest candidate that fits, if that is faster. */
static cb_status take_best(cb_offload_search *h, cb_error *err) {
    const cb_candidates *all = h->t->candidates;
    uint32_t at = cb_candidates_fitting(all, h->t->target);
    if (at == CB_NONE || all->at[at].time_ps >= h->now.time_ps) return CB_OK;
    h->now.time_ps = all->at[at].time_ps;
    return copy_pairs(all->at[at].pair, all->at[at].n_pair, &h->now.pairs) ? CB_OK
                                                                           : cb_no_memory(err);
}

cb_status cb_offload_search_run(cb_offload_search *h, bool reruns, const cb_candidate *seed,
                                cb_error *err) {
    cb_trial *t = h->t;
    h->reruns = reruns;
    h->now.time_ps = INT64_MAX;
    for (int i = 0; i <= CB_OFFLOAD_LINK_PRICES; i++) h->best[i].time_ps = INT64_MAX;
    if (seed) {
        if (!copy_pairs(seed->pair, seed->n_pair, &h->next)) return cb_no_memory(err);
        CB_TRY(try_for(h, &h->next, &h->best[CB_OFFLOAD_LINK_PRICES], err));
    }
    for (int i = 0; i < CB_OFFLOAD_LINK_PRICES; i++)
        CB_TRY(aim(h, link_price[i], AIM_STEPS, &h->best[i], err));
    CB_TRY(cross_all(h, err));
    for (int i = 0; i < 2; i++) CB_TRY(cb_improve_by_mixing(t, t->target, 1, err));
    CB_TRY(cb_improve_by_removal(t, t->target, err));
    CB_TRY(take_best(h, err));
    if (h->now.time_ps == INT64_MAX) return CB_OK;
    return polish(h, err);
}
