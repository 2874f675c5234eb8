/* Ruin and recreate: drops some reruns (at random, in a window of anchors, or in a window of
 * values), recomputes at hot anchors until the plan fits again, trims it, and keeps the result if
 * it is not slower, or only a little slower early in the search. */
#include <math.h>

#include "../tuning.h"
#include "moves.h"

typedef struct ruiner {
    cb_moves *m;
    double least_ps;
    int64_t now_ps; /* time of the previous plan; INT64_MAX: it exceeds the target */
    double now_peak;
    bool ok;              /* false: out of memory */
    cb_ledger_ids anchor; /* scratch */
} ruiner;

static void apply(ruiner *r, uint32_t anchor) {
    cb_moves *m = r->m;
    r->ok = r->ok && cb_moves_set(m, anchor, m->next.at, m->next.len) && cb_moves_settle(m);
}

/* ---- ruin ------------------------------------------------------------------------------------ */

static void ruin_some(ruiner *r) {
    uint32_t times = 2 + cb_moves_draw(r->m, 8), anchor, op;
    for (uint32_t i = 0; i < times && r->ok; i++) {
        if (!cb_moves_pick(r->m, &anchor, &op)) return;
        r->ok = cb_moves_without(r->m, anchor, op);
        apply(r, anchor);
    }
}

/* Drops each op in [low, high] (positions) of the chain at `anchor` with this probability. */
static void thin_chain(ruiner *r, uint32_t anchor, uint32_t low, uint32_t high, double share) {
    cb_moves *m = r->m;
    const cb_ledger_ids *chain = &m->l->chain[anchor];
    m->next.len = 0;
    r->ok = r->ok && CB_RESERVE(m->scratch, m->next, chain->len);
    for (size_t i = 0; i < chain->len && r->ok; i++) {
        uint32_t op = cb_chain_op(chain->at[i]), position = m->l->f->position[op];
        bool inside = position >= low && position <= high && !m->trial->forced[op];
        if (!inside || cb_moves_chance(m) >= share) m->next.at[m->next.len++] = chain->at[i];
    }
    if (r->ok && m->next.len < chain->len) r->ok = cb_moves_set(m, anchor, m->next.at, m->next.len);
}

static void ruin_window(ruiner *r, bool of_values) {
    cb_moves *m = r->m;
    const cb_ledger *l = m->l;
    uint32_t anchor, op;
    if (!cb_moves_pick(m, &anchor, &op)) return;
    uint32_t at = l->f->position[op];
    uint32_t most = of_values ? l->n / 60 : l->n / 40;
    uint32_t width = (of_values ? 0 : 1) + cb_moves_draw(m, most < 2 ? 2 : most);
    double share = of_values ? 0.3 + 0.7 * cb_moves_chance(m) : cb_moves_chance(m);
    r->anchor.len = 0;
    for (size_t i = 0; i < l->busy.len && r->ok; i++) {
        uint32_t k = l->busy.at[i];
        if (of_values || (k >= anchor && k < anchor + width))
            r->ok = CB_PUSH(m->scratch, r->anchor, k);
    }
    uint32_t low = of_values ? (at > width ? at - width : 0) : 0;
    uint32_t high = of_values ? at + width : CB_NONE;
    for (size_t i = 0; i < r->anchor.len && r->ok; i++)
        thin_chain(r, r->anchor.at[i], low, high, share);
    r->ok = r->ok && cb_moves_settle(m);
}

static void ruin(ruiner *r) {
    double kind = cb_moves_chance(r->m);
    if (kind < 0.4) ruin_some(r);
    else ruin_window(r, kind >= 0.75);
}

/* ---- recreate -------------------------------------------------------------------------------- */

static double need_of(const cb_ledger *l, double peak, double area) {
    return area / (double)l->n + CB_RUIN_EXCESS_WEIGHT * (peak - l->target);
}

/* The score of a proposal is the bytes that it frees per second. */
static double weigh(ruiner *r, uint32_t anchor) {
    cb_moves *m = r->m;
    cb_ledger *l = m->l;
    cb_ledger_sums then;
    r->ok = r->ok && cb_ledger_probe(l, anchor, m->next.at, m->next.len, &then);
    if (!r->ok) return 0;
    m->settled += CB_RUIN_WEIGHED;
    double freed = need_of(l, l->peak, l->area) - need_of(l, then.peak, then.area);
    double slower = (double)(then.extra_ps - l->extra_ps);
    if (freed <= 0) return freed;
    return slower <= 0 ? 1e300 : freed / (slower + 1e-6 * m->once);
}

static bool is_best(const cb_moves *m) {
    size_t n = m->next.len;
    return n == m->best.len &&
           (n == 0 || memcmp(m->next.at, m->best.at, n * sizeof *m->next.at) == 0);
}

/* Returns false if no proposal frees anything and chance ends the attempt. */
static bool recreate_once(ruiner *r) {
    cb_moves *m = r->m;
    cb_ledger *l = m->l;
    double level = l->target;
    if (cb_moves_chance(m) < 0.6) level = l->peak - 1;
    else level += (l->peak - l->target) * cb_moves_chance(m);
    uint32_t hot = cb_moves_hot(m, level), best = CB_NONE;
    double most = -INFINITY;
    /* The best of many proposals is often the same one, which in small problems determines the
     * outcome. */
    uint32_t tries =
        cb_is_tiny_search(m) ? 1 + cb_moves_draw(m, CB_RUIN_PROPOSALS) : CB_RUIN_PROPOSALS;
    for (uint32_t i = 0; i < tries && r->ok; i++) {
        uint32_t anchor;
        bool found;
        r->ok = cb_moves_propose(m, hot, CB_RUIN_DEEP_SHARE, &found, &anchor);
        if (!r->ok || !found) continue;
        if (anchor == best && is_best(m)) { /* it is not better than its origin */
            m->settled += CB_RUIN_WEIGHED;
            continue;
        }
        double score = weigh(r, anchor);
        if (!r->ok || score <= most) continue;
        most = score;
        best = anchor;
        cb_ledger_ids swap = m->best;
        m->best = m->next;
        m->next = swap;
    }
    if (!r->ok || best == CB_NONE) return r->ok && cb_moves_chance(m) < 0.5;
    if (most <= 0 && cb_moves_chance(m) < 0.5) return true;
    r->ok = cb_moves_set(m, best, m->best.at, m->best.len) && cb_moves_settle(m);
    return r->ok;
}

static void recreate(ruiner *r) {
    const cb_ledger *l = r->m->l;
    double slower = r->m->heated ? CB_HEATED_GIVE_UP : CB_RUIN_GIVE_UP;
    double limit = r->now_ps == INT64_MAX ? INFINITY : (double)r->now_ps + slower * r->m->once;
    for (int i = 0; i < CB_RUIN_STEPS && r->ok && l->peak > l->target; i++) {
        if (!recreate_once(r) || (double)l->extra_ps > limit) return;
    }
}

/* ---- trim ------------------------------------------------------------------------------------ */

/* Removes `op` from the chain at `anchor` if the plan can do without it. */
static void trim_one(ruiner *r, uint32_t anchor, uint32_t op, bool *removed) {
    cb_moves *m = r->m;
    cb_ledger *l = m->l;
    int64_t time = l->extra_ps;
    double peak = l->peak, area = l->area;
    *removed = false;
    if (m->trial->forced[op]) return;
    if (cb_ledger_peak_without(l, anchor, op) > fmax(peak, l->target)) { /* most cases */
        m->settled += 2;
        return;
    }
    cb_ledger_try(l);
    r->ok = cb_moves_without(m, anchor, op);
    apply(r, anchor);
    if (!r->ok) return;
    bool fits = l->peak <= l->target || (l->peak <= peak && l->area <= area);
    *removed = fits && l->extra_ps < time;
    if (*removed) cb_ledger_keep(l);
    else r->ok = cb_moves_take_back(m);
}

/* Visits the chains that changed, and a few random reruns. */
static void trim(ruiner *r) {
    cb_moves *m = r->m;
    bool removed;
    r->anchor.len = 0;
    for (size_t i = 0; i < m->change.len && r->ok; i++)
        r->ok = CB_PUSH(m->scratch, r->anchor, m->change.at[i].anchor);
    for (size_t i = 0; i < r->anchor.len && r->ok; i++) {
        uint32_t anchor = r->anchor.at[i];
        const cb_ledger_ids *chain = &m->l->chain[anchor];
        for (size_t j = 0; j < chain->len && j < CB_RUIN_LONGEST && r->ok; j += !removed)
            trim_one(r, anchor, cb_chain_op(chain->at[j]), &removed);
    }
    for (int i = 0; i < CB_RUIN_TRIMMED && r->ok; i++) {
        uint32_t anchor, op;
        if (!cb_moves_pick(m, &anchor, &op)) return;
        trim_one(r, anchor, op, &removed);
    }
}

static bool is_accepted(ruiner *r, double temperature) {
    const cb_ledger *l = r->m->l;
    if (r->now_ps == INT64_MAX) { /* the plan is still on the way down to the target */
        bool level = l->peak <= r->now_peak * CB_RUIN_LEVEL && cb_moves_chance(r->m) < 0.5;
        return l->peak <= l->target || l->peak < r->now_peak || level;
    }
    if (l->peak > l->target || (double)l->extra_ps < r->least_ps) return false;
    if (l->extra_ps <= r->now_ps) return true;
    double slower = (double)(l->extra_ps - r->now_ps) / r->m->once;
    return temperature > 0 && cb_moves_chance(r->m) < exp(-slower / temperature);
}

static void note_plan(ruiner *r) {
    const cb_ledger *l = r->m->l;
    r->now_ps = l->peak <= l->target ? l->extra_ps : INT64_MAX;
    r->now_peak = l->peak;
}

/* Runs one round; afterwards the ledger has the new plan or the old one. */
static void try_once(ruiner *r, double temperature) {
    cb_moves *m = r->m;
    const cb_ledger *l = m->l;
    bool over = r->now_ps == INT64_MAX;
    m->settled++; /* makes a round without moves count too */
    if (!over || cb_moves_chance(m) < 0.5) ruin(r);
    if (r->ok) recreate(r);
    if (r->ok && (over || l->peak <= l->target)) trim(r);
    if (!r->ok) return;
    if (!is_accepted(r, temperature)) {
        r->ok = cb_moves_undo(m);
        return;
    }
    cb_moves_forget(m);
    note_plan(r);
}

/* True if a plan that fits is fast enough, or if the current plan, which does not fit, already
 * takes too long. */
static bool is_over(const ruiner *r, const cb_ruin_limits *limits, int64_t best_ps) {
    const bool fits = best_ps < INT64_MAX;
    if (fits) return (double)best_ps <= fmax(limits->least_ps, limits->enough_ps);
    return (double)r->m->l->extra_ps > limits->most_ps;
}

cb_status cb_ruin_and_recreate(cb_moves *m, const cb_ruin_limits *limits, cb_error *err) {
    cb_ledger *l = m->l;
    ruiner r = {.m = m, .least_ps = limits->least_ps, .ok = true};
    cb_pairs best = {.arena = m->scratch};
    const uint32_t begin = m->settled, settlings = limits->settlings;
    uint32_t progress = begin, longest = (uint32_t)(limits->patience * settlings);
    cb_moves_forget(m);
    note_plan(&r);
    int64_t best_ps = r.now_ps;
    double best_peak = r.now_peak;
    r.ok = cb_ledger_pairs(l, &best);
    while (r.ok && m->settled - begin < settlings && m->settled - progress <= longest &&
           !is_over(&r, limits, best_ps)) {
        double age = (double)(m->settled - begin) / (double)settlings;
        CB_TRY(cb_moves_poll(m, err));
        try_once(&r, (m->heated ? CB_HEATED_WARM : CB_RUIN_WARM) * (1 - age));
        bool better = r.now_ps < best_ps || (best_ps == INT64_MAX && r.now_peak < best_peak);
        if (!r.ok || !better) continue;
        best_ps = r.now_ps;
        best_peak = r.now_peak;
        progress = m->settled;
        best.list.len = 0;
        r.ok = cb_ledger_pairs(l, &best);
    }
    if (!r.ok) return cb_no_memory(err);
    CB_TRY(cb_ledger_load(l, best.list.at, best.list.len, l->target, err));
    return cb_moves_offer(m, err);
}
