/* A walk with a growing penalty, for targets that one rerun per value does not reach. Its objective
 * is extra time + 2 x excess of the peak + penalty x excess of all moments, each as a share; the
 * penalty rises while the plan is over the target, so that no plateau holds it for long. */
#include <math.h>

#include "../tuning.h"
#include "moves.h"

typedef struct walker {
    cb_moves *m;
    double penalty, temperature, score;
    bool ok;
} walker;

static double score_of(const walker *w) {
    const cb_ledger *l = w->m->l;
    double over = l->peak > l->target ? l->peak - l->target : 0;
    return (double)l->extra_ps / w->m->once +
           (CB_WALK_PEAK_WEIGHT * over + w->penalty * l->area / (double)(l->n + 1)) / w->m->whole;
}

static void insert(walker *w) {
    cb_moves *m = w->m;
    const cb_ledger *l = m->l;
    double bytes = l->target * (1 - (1 - CB_WALK_HOT_SHARE) * cb_moves_chance(m));
    if (l->peak > l->target && cb_moves_chance(m) < 0.5)
        bytes = l->target + (l->peak - l->target) * cb_moves_chance(m);
    bool anywhere = cb_moves_chance(m) >= 0.85 || l->peak <= CB_WALK_HOT_SHARE * l->target;
    uint32_t hot = anywhere ? cb_moves_draw(m, l->n) : cb_moves_hot(m, fmin(bytes, l->peak - 1));
    uint32_t anchor;
    bool found;
    w->ok = cb_moves_propose(m, hot, CB_WALK_DEEP_SHARE, &found, &anchor) &&
            (!found || cb_ledger_set(m->l, anchor, m->next.at, m->next.len));
}

/* Removes `op` and the entries of the chain that read it, directly or not: `next` becomes the
 * rest. */
static bool without_readers(cb_moves *m, uint32_t anchor, uint32_t op) {
    const cb_ledger *l = m->l;
    const cb_ledger_ids *chain = &l->chain[anchor];
    m->next.len = 0;
    if (!CB_RESERVE(m->scratch, m->next, chain->len)) return false;
    m->seen[op] = ++m->stamp;
    for (size_t i = 0; i < chain->len; i++) {
        uint32_t reader = cb_chain_op(chain->at[i]);
        bool goes = reader == op;
        for (uint32_t j = l->read_begin[reader]; j < l->read_begin[reader + 1] && !goes; j++)
            goes = m->seen[l->f->unit[l->read[j]]] == m->stamp;
        if (goes && !m->trial->forced[reader]) m->seen[reader] = m->stamp;
        else m->next.at[m->next.len++] = chain->at[i];
    }
    return true;
}

static void drop(walker *w) {
    cb_moves *m = w->m;
    uint32_t anchor, op;
    if (!cb_moves_pick(m, &anchor, &op)) return;
    double kind = cb_moves_chance(m);
    if (kind < 0.2) w->ok = without_readers(m, anchor, op);
    else w->ok = cb_moves_without(m, anchor, op);
    if (kind < 0.08 && !m->trial->has_demands) m->next.len = 0;
    w->ok = w->ok && cb_ledger_set(m->l, anchor, m->next.at, m->next.len);
}

/* Moves a rerun to the reader before or after its anchor. */
static void shift(walker *w) {
    cb_moves *m = w->m;
    const cb_ledger *l = m->l;
    uint32_t anchor, op, to = CB_NONE;
    if (!cb_moves_pick(m, &anchor, &op) || l->made_begin[op] == l->made_begin[op + 1]) return;
    bool later = cb_moves_chance(m) < 0.5;
    const cb_ledger_uses *u = cb_ledger_uses_of(l, l->made[l->made_begin[op]]);
    for (size_t i = 0; i < u->len; i++) {
        uint32_t k = u->at[i].anchor;
        if (later && k > anchor && to == CB_NONE) to = k;
        if (!later && k < anchor) to = k;
    }
    if (to == CB_NONE || to >= l->n || to <= l->f->position[op]) return;
    w->ok = cb_moves_without(m, anchor, op) && cb_ledger_set(m->l, anchor, m->next.at, m->next.len);
    if (!w->ok) return;
    m->next.len = 0;
    for (size_t i = 0; i < l->chain[to].len && w->ok; i++)
        w->ok = CB_PUSH(m->scratch, m->next, l->chain[to].at[i]);
    w->ok = w->ok && CB_PUSH(m->scratch, m->next, op) &&
            cb_ledger_set(m->l, to, m->next.at, m->next.len);
}

static void move(walker *w) {
    cb_moves *m = w->m;
    double kind = cb_moves_chance(m);
    if (kind < 0.40 || m->l->busy.len == 0) {
        insert(w);
    } else if (kind < 0.72) {
        uint32_t times = 1 + (cb_moves_chance(m) < 0.3 ? cb_moves_draw(m, 3) : 0);
        for (uint32_t i = 0; i < times && w->ok; i++) drop(w);
    } else if (kind < 0.93) {
        drop(w);
        if (w->ok) insert(w);
    } else {
        shift(w);
    }
}

static void judge(walker *w) {
    double now = score_of(w);
    if (now <= w->score || cb_moves_chance(w->m) < exp((w->score - now) / w->temperature)) {
        w->score = now;
        cb_ledger_keep(w->m->l);
    } else {
        w->ok = cb_moves_take_back(w->m);
    }
}

static void review_penalty(walker *w) {
    bool over = w->m->l->peak > w->m->l->target;
    w->penalty = over ? fmin(CB_WALK_PENALTY_MOST, w->penalty * 1.25)
                      : fmax(CB_WALK_PENALTY_LEAST, w->penalty * 0.9);
    w->score = score_of(w);
}

/* Walks to the first plan under the target; from there, ruin and recreate is better. */
cb_status cb_walk_down(cb_moves *m, uint32_t moves, double patience, cb_error *err) {
    walker w = {.m = m, .penalty = CB_WALK_PENALTY, .ok = true};
    const double above = m->l->peak;
    double smallest = above;
    uint32_t most = (uint32_t)(patience * moves);
    w.score = score_of(&w);
    for (uint32_t i = 0; i < most && w.ok && m->l->peak > m->l->target; i++) {
        if (i % CB_WALK_REVIEW == CB_WALK_REVIEW - 1) {
            review_penalty(&w);
            if (m->l->peak < smallest) { /* offers plans with new smallest peaks on the way */
                smallest = m->l->peak;
                CB_TRY(cb_moves_offer(m, err));
            }
        }
        CB_TRY(cb_moves_poll(m, err));
        w.temperature = CB_WALK_WARM * pow(CB_WALK_COLD / CB_WALK_WARM, (double)i / (double)moves);
        cb_ledger_try(m->l);
        move(&w);
        if (w.ok && cb_ledger_has_tried(m->l)) {
            w.ok = cb_moves_settle(m);
            if (w.ok) judge(&w);
        } else {
            cb_ledger_keep(m->l); /* there is nothing to undo */
        }
        if (m->l->peak < above) most = moves;
    }
    return w.ok ? cb_moves_offer(m, err) : cb_no_memory(err);
}
