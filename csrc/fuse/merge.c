/* From the first group on each takes the next ones as long as they share a value and run together
 * on the machinery of join.h. Then lives are placed anew, or near where they were. Where that
 * takes more than the plan says, the groups of what found no room are taken apart again. */
#include "merge.h"

#include "join.h"

#define ROUNDS 8 /* in which groups are taken apart; then none is merged */

typedef struct merging {
    cb_expanded *x;
    const cb_problem *p;
    cb_steps steps;
    cb_joining joining;
    cb_arena *scratch;
    cb_error *err;
    uint8_t *apart;                       /* [n_group] is not merged with the one before it */
    uint32_t *to;                         /* [n_group + 1] the merged group; of n_group how many */
    uint32_t *begin;                      /* [n_group + 1] of merged groups, in groups */
    cb_domain *domain;                    /* [n_group] of merged groups */
    uint8_t *part;                        /* [n_instr] */
    uint32_t *seen, round;                /* [n_place] last round in which a place was used */
    cb_life *life;                        /* [n_instance] as merged */
    cb_domain widest;                     /* of the groups in that at hand */
    uint32_t n_step, step[CB_GROUP_MOST]; /* of the group at hand */
} merging;

/* ---- groups ---------------------------------------------------------------------------------- */

/* Whether the step reads or makes what the group at hand does; notes it with `note`. */
static bool shares(merging *m, uint32_t step, bool note) {
    const cb_op *op = cb_step_op(&m->steps, step);
    bool any = false;
    for (uint32_t k = 0; k < op->n_in + op->n_out; k++) {
        const uint32_t place = k < op->n_in ? cb_place_in(&m->steps, step, k)
                                            : cb_place_out(&m->steps, step, k - op->n_in);
        any |= m->seen[place] == m->round;
        if (note) m->seen[place] = m->round;
    }
    return any;
}

static cb_group_end join_steps(merging *m, uint32_t *kept_out) {
    for (uint32_t i = 0; i < m->n_step; i++) {
        *kept_out = m->step[i];
        const cb_group_end end = cb_join(&m->joining, m->step[i]);
        if (end != CB_END_NONE) return end;
    }
    return CB_END_NONE;
}

static bool run_together(merging *m) {
    uint32_t step = 0;
    m->joining.start = (cb_domain){0};
    cb_joining_cut(&m->joining, 0);
    cb_group_end end = join_steps(m, &step);
    while (end == CB_END_DOMAIN && cb_joining_is_narrow(&m->joining, step)) {
        cb_joining_widen(&m->joining, step);
        end = join_steps(m, &step);
    }
    if (end != CB_END_DOMAIN) return end == CB_END_NONE;
    m->joining.start = m->widest; /* rows that none of these has, but the kernel of some */
    cb_joining_cut(&m->joining, 0);
    return join_steps(m, &step) == CB_END_NONE;
}

static cb_domain wider(cb_domain a, cb_domain b) {
    if (a.count != b.count) return a.count > b.count ? a : b;
    return a.columns > b.columns ? a : b;
}

/* Adds the steps of a group to that at hand; false: it is as it was. */
static bool take(merging *m, uint32_t group, bool first) {
    const cb_groups *g = &m->x->groups;
    const uint32_t n = g->begin[group + 1] - g->begin[group], before = m->n_step;
    const cb_domain widest = m->widest;
    bool near = first;
    if (before + n > CB_GROUP_MOST) return false;
    for (uint32_t i = 0; i < n; i++) {
        m->step[m->n_step++] = g->step[g->begin[group] + i];
        near |= shares(m, m->step[m->n_step - 1], false);
    }
    m->widest = first ? g->domain[group] : wider(widest, g->domain[group]);
    if (near && run_together(m)) {
        for (uint32_t i = before; i < m->n_step; i++) (void)shares(m, m->step[i], true);
        return true;
    }
    m->n_step = before;
    m->widest = widest;
    return false;
}

static void keep_parts(merging *m, uint32_t merged, uint32_t first, uint32_t end) {
    const cb_groups *g = &m->x->groups;
    const uint32_t begin = g->begin[first];
    m->domain[merged] = g->domain[first];
    memcpy(m->part + begin, g->part + begin, g->begin[end] - begin);
    if (end - first == 1 || !run_together(m)) return; /* they do: they did */
    m->domain[merged] = m->joining.domain;
    for (uint32_t i = 0; i < m->n_step; i++) m->part[begin + i] = (uint8_t)m->joining.part[i];
}

static uint32_t merge_groups(merging *m) {
    const cb_groups *g = &m->x->groups;
    uint32_t merged = 0;
    for (uint32_t first = 0, end; first < g->n_group; first = end, merged++) {
        m->n_step = 0;
        m->round++;
        m->begin[merged] = first;
        end = first + 1;
        if (take(m, first, true))
            while (end < g->n_group && end != g->backward_starts && !m->apart[end] &&
                   take(m, end, false))
                end++;
        keep_parts(m, merged, first, end);
        for (uint32_t i = first; i < end; i++) m->to[i] = merged;
    }
    m->begin[merged] = g->n_group;
    m->to[g->n_group] = merged;
    return merged;
}

/* ---- lives ----------------------------------------------------------------------------------- */

static bool is_merged(const merging *m, uint32_t merged) {
    return m->begin[merged + 1] - m->begin[merged] > 1;
}

static void find_lives(merging *m) {
    const cb_lives *lives = &m->x->plan.lives;
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_life *from = &m->x->groups.life[i];
        cb_life *to = &m->life[i];
        *to = *from;
        to->made = m->to[from->made];
        to->last = m->to[from->last];
        if (to->made == to->last && is_merged(m, to->made) && lives->instance[i].storage != CB_NONE)
            to->is_local = true;
    }
}

static cb_status place(merging *m, uint32_t n_group, uint64_t *live_bytes, uint64_t *arena_bytes) {
    const cb_plan *plan = &m->x->plan;
    cb_lives lives = {.n_instance = plan->lives.n_instance};
    lives.instance = CB_NEW(m->scratch, cb_instance, lives.n_instance);
    uint64_t *change = CB_NEW(m->scratch, uint64_t, n_group + (size_t)2), live = 0;
    if (!lives.instance || !change) return cb_no_memory(m->err);
    for (uint32_t i = 0; i < lives.n_instance; i++) {
        const cb_life *life = &m->life[i];
        const uint64_t bytes = life->is_local ? 0 : plan->lives.instance[i].bytes;
        lives.instance[i] = (cb_instance){.made = life->made, .last = life->last, .bytes = bytes};
        change[life->made] += bytes;
        change[life->last + 1] -= bytes;
    }
    *live_bytes = 0;
    for (uint32_t g = 0; g < n_group; g++) {
        live += change[g];
        if (live > *live_bytes) *live_bytes = live;
    }
    CB_TRY(cb_place(m->p, &lives, m->scratch, (cb_poll){0}, arena_bytes, m->err));
    if (*arena_bytes > plan->arena_bytes) {
        for (uint32_t i = 0; i < lives.n_instance; i++)
            lives.instance[i].offset = m->x->groups.life[i].offset;
        CB_TRY(cb_place_near(m->p, &lives, m->scratch, (cb_poll){0}, arena_bytes, m->err));
    }
    for (uint32_t i = 0; i < lives.n_instance; i++) m->life[i].offset = lives.instance[i].offset;
    return CB_OK;
}

static bool take_apart(merging *m, uint32_t merged) {
    if (merged == m->to[m->x->groups.n_group] || !is_merged(m, merged)) return false;
    for (uint32_t i = m->begin[merged]; i < m->begin[merged + 1]; i++) m->apart[i] = 1;
    return true;
}

/* Of what found no room, or all that is alive where too much is. */
static bool take_some_apart(merging *m, uint64_t live_bytes) {
    const cb_plan *plan = &m->x->plan;
    bool any = false;
    for (uint32_t i = 0; i < plan->lives.n_instance; i++) {
        const cb_life *life = &m->life[i];
        const bool out = life->offset + plan->lives.instance[i].bytes > plan->arena_bytes;
        if (life->is_local || !(out || live_bytes > plan->live_bytes)) continue;
        any |= take_apart(m, life->made);
        any |= take_apart(m, life->last);
    }
    return any;
}

/* ---- all ------------------------------------------------------------------------------------- */

static void adopt(merging *m, uint32_t n_group) {
    cb_groups *g = &m->x->groups;
    uint32_t starts = n_group;
    for (uint32_t merged = 0; merged < n_group; merged++) {
        const uint32_t first = m->begin[merged];
        if (first >= g->backward_starts && starts == n_group) starts = merged;
        g->domain[merged] = m->domain[merged];
        g->begin[merged] = g->begin[first];
        g->end[merged] = g->end[first];
        g->end_step[merged] = g->end_step[first];
        g->end_wait[merged] = g->end_wait[first];
    }
    g->begin[n_group] = g->n_instr;
    g->backward_starts = starts;
    g->n_group = n_group;
    memcpy(g->part, m->part, g->n_instr);
    memcpy(g->life, m->life, m->x->plan.lives.n_instance * sizeof *g->life);
    m->x->is_merged = true;
}

static cb_status merge_all(merging *m) {
    const size_t n = m->x->groups.n_group;
    m->apart = CB_NEW(m->scratch, uint8_t, n);
    m->to = CB_NEW(m->scratch, uint32_t, n + 1);
    m->begin = CB_NEW(m->scratch, uint32_t, n + 1);
    m->domain = CB_NEW(m->scratch, cb_domain, n);
    m->part = CB_NEW(m->scratch, uint8_t, m->x->groups.n_instr);
    m->seen = CB_NEW(m->scratch, uint32_t, m->steps.n_place);
    m->life = CB_NEW(m->scratch, cb_life, m->x->plan.lives.n_instance);
    if (!m->apart || !m->to || !m->begin || !m->domain || !m->part || !m->seen || !m->life)
        return cb_no_memory(m->err);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t live_bytes = 0, arena_bytes = 0;
        const uint32_t n_group = merge_groups(m);
        if (n_group == n) return CB_OK;
        find_lives(m);
        CB_TRY(place(m, n_group, &live_bytes, &arena_bytes));
        if (live_bytes <= m->x->plan.live_bytes && arena_bytes <= m->x->plan.arena_bytes) {
            adopt(m, n_group);
            return CB_OK;
        }
        if (!take_some_apart(m, live_bytes)) return CB_OK;
    }
    return CB_OK;
}

cb_status cb_merge(const cb_graph *joint, const cb_problem *single, cb_fuses_fn fuses,
                   cb_arena *arena, cb_expanded *x, cb_error *err) {
    cb_arena scratch;
    if (!fuses) return CB_OK;
    cb_arena_init(&scratch, arena->alloc);
    merging m = {.x = x, .p = single, .scratch = &scratch, .err = err};
    cb_status status = cb_steps_init(&m.steps, joint, single, &x->plan, &scratch, err);
    if (status == CB_OK) status = cb_joining_init(&m.joining, &m.steps, fuses, &scratch, err);
    if (status == CB_OK) status = merge_all(&m);
    cb_arena_free(&scratch);
    return status;
}
