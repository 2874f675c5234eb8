#include "frontier_parts.h"

#define FILLS_LEAST 16 /* least number of targets of the fill */
#define FILLS_MOST 128
#define FILL_WORK (4 << 20) /* limit on targets times ops: about 0.1 s */

/* Sorts the nodes by the step at which they leave the sink side. */
static cb_status sort_nodes(maker *m, cb_error *err) {
    const cb_frontier *f = &m->t->frontier;
    CB_TRY_NEW(m->begin, m->scratch, f->n_step + 1, err);
    CB_TRY_NEW(m->node, m->scratch, f->n_node, err);
    for (uint32_t v = 0; v < f->n_node; v++)
        if (f->leaves[v] != 0 && f->leaves[v] != CB_NONE) m->begin[f->leaves[v]]++;
    for (uint32_t k = 0, sum = 0; k <= f->n_step; k++) {
        uint32_t n = k < f->n_step ? m->begin[k] : 0;
        m->begin[k] = sum;
        sum += n;
    }
    for (uint32_t v = 0; v < f->n_node; v++)
        if (f->leaves[v] != 0 && f->leaves[v] != CB_NONE) m->node[m->begin[f->leaves[v]]++] = v;
    for (uint32_t k = f->n_step; k > 0; k--) m->begin[k] = m->begin[k - 1];
    m->begin[0] = 0;
    return CB_OK;
}

static int64_t real_bytes(const maker *m, uint32_t node) {
    uint32_t s = m->cut->save_storage[node - cb_node_of_save(m->cut, 0)];
    return m->held[s] ? 0 : (int64_t)m->f->p->storage_bytes[s];
}

/* Computes the increase of saved bytes if all nodes of step k leave the sink side. Returns false if
 * a node that stays needs one of them. */
static bool weigh_step(const maker *m, uint32_t k, int64_t *bytes) {
    const cb_flow *flow = &m->cut->flow;
    const uint32_t *leaves = m->t->frontier.leaves;
    uint32_t first_save = cb_node_of_save(m->cut, 0);
    *bytes = 0;
    for (uint32_t i = m->begin[k]; i < m->begin[k + 1]; i++) {
        uint32_t v = m->node[i];
        bool is_run = v < first_save;
        uint32_t own = is_run ? v : cb_node_of_run(m->cut->save_run[v - first_save]);
        if (!is_run && !m->in[own]) *bytes -= real_bytes(m, v);
        for (uint32_t e = flow->first[v]; e < flow->first[v + 1]; e++) {
            uint32_t u = flow->arc[e].to;
            if (u < FIRST_RUN || !m->in[u] || leaves[u] == k) continue;
            if (!is_run && u != own) return false; /* the reader runs again */
            bool makes =
                is_run && u >= first_save && cb_node_of_run(m->cut->save_run[u - first_save]) == v;
            if (makes) *bytes += real_bytes(m, u);
        }
    }
    return true;
}

/* Starts at the last step within the target; takes each later step that still fits and skips the
 * others. */
static void fill_to(maker *m, uint32_t start, int64_t room) {
    const cb_frontier *f = &m->t->frontier;
    for (uint32_t v = 0; v < f->n_node; v++) m->in[v] = cb_frontier_has(f, v, start);
    for (uint32_t k = start + 1; k < f->n_step; k++) {
        int64_t bytes;
        if (!weigh_step(m, k, &bytes) || bytes > room) continue;
        for (uint32_t i = m->begin[k]; i < m->begin[k + 1]; i++) m->in[m->node[i]] = false;
        room -= bytes;
    }
}

typedef struct filler {
    changes c; /* changes of the current set */
    uint32_t *until;
    int64_t n; /* number of targets, evenly spaced between `low` and `high` bytes */
    int64_t low, high;
} filler;

/* Adds the set `m->in` as a point. */
static cb_status add_fill(maker *m, filler *l, uint32_t start, cb_error *err) {
    CB_TRY(cb_cut_poll(m->cut, err));
    bool *runs = CB_NEW(m->arena, bool, m->cut->n_run);
    if (!runs) return cb_no_memory(err);
    for (uint32_t i = 0; i < m->cut->n_run; i++) {
        runs[i] = m->in[cb_node_of_run(i)];
        l->until[i] = runs[i] ? 1 : 0;
    }
    cb_frontier_follow(m, l->until);
    cb_frontier_measure(m, &l->c);
    if (!l->c.lawful[0]) return CB_OK;
    return cb_frontier_add_point(m,
                                 (cb_tradeoff){.saved_bytes = (uint64_t)l->c.bytes[0],
                                               .time_ps = l->c.time[0],
                                               .kind = CB_TRADEOFF_FILL,
                                               .step = start,
                                               .runs = runs},
                                 err);
}

static cb_status add_greedy(maker *m, filler *l, cb_error *err) {
    const cb_frontier *f = &m->t->frontier;
    for (int64_t i = 1; i < l->n; i++) {
        int64_t target = l->low + (l->high - l->low) / l->n * i;
        uint32_t k;
        CB_TRY(cb_frontier_at(f, target, &k, err));
        if (k + 1 == f->n_step || f->step[k].bytes == target) continue;
        fill_to(m, k, target - f->step[k].bytes);
        CB_TRY(add_fill(m, l, k, err));
    }
    return CB_OK;
}

/* Sets `m->in` to the set after step k plus some of the runs that leave at step k: the first `n` in
 * program order, or all but these. */
static void mix(maker *m, uint32_t k, uint32_t n, bool others) {
    uint32_t end = m->begin[k + 1], first_save = cb_node_of_save(m->cut, 0);
    for (uint32_t v = FIRST_RUN; v < first_save; v++)
        m->in[v] = cb_frontier_has(&m->t->frontier, v, k);
    for (uint32_t i = m->begin[k], seen = 0; i < end && m->node[i] < first_save; i++, seen++)
        m->in[m->node[i]] = (seen < n) != others;
}

/* A large step is a chain of layers that leave together. A mixture lets the layers up to some layer
 * leave and the rest stay, or the other way round. */
static cb_status add_mixtures(maker *m, filler *l, cb_error *err) {
    const cb_frontier *f = &m->t->frontier;
    uint32_t first_save = cb_node_of_save(m->cut, 0);
    int64_t grain = (l->high - l->low) / l->n + 1;
    for (uint32_t k = 1; k < f->n_step; k++) {
        int64_t n = (f->step[k].bytes - f->step[k - 1].bytes) / grain;
        uint32_t n_run = 0;
        for (uint32_t i = m->begin[k]; i < m->begin[k + 1]; i++) n_run += m->node[i] < first_save;
        for (int64_t j = 1; j <= n && n_run > 1; j++) {
            uint32_t part = (uint32_t)(n_run * j / (n + 1));
            mix(m, k, part, false);
            CB_TRY(add_fill(m, l, k, err));
            mix(m, k, part, true);
            CB_TRY(add_fill(m, l, k, err));
        }
    }
    return CB_OK;
}

/* Targets are on a fixed grid, so that the points do not depend on any budget. With preferences the
 * network's bytes differ from those of memory; then there is no fill. */
cb_status cb_frontier_add_fills(maker *m, cb_error *err) {
    const cb_frontier *f = &m->t->frontier;
    int64_t n = FILL_WORK / (m->f->p->n_op + 1);
    if (!m->t->has_bound || f->n_step < 2) return CB_OK;
    filler l = {.n = n, .low = f->step[0].bytes, .high = f->step[f->n_step - 1].bytes};
    if (l.n < FILLS_LEAST) l.n = FILLS_LEAST;
    if (l.n > FILLS_MOST) l.n = FILLS_MOST;
    l.until = CB_NEW(m->scratch, uint32_t, m->cut->n_run);
    if (!l.until || !cb_changes_init(&l.c, m->scratch, 1)) return cb_no_memory(err);
    CB_TRY(sort_nodes(m, err));
    CB_TRY(add_greedy(m, &l, err));
    return add_mixtures(m, &l, err);
}
