#include "late.h"

struct cb_late {
    cb_search_tools tools; /* tools of the searcher `all` */
    cb_searcher *forward, *all;
};

void cb_late_keep_ends(cb_facts *f) {
    const cb_problem *p = f->p;
    for (uint32_t j = p->in_begin[cb_problem_tail(p)]; j < p->in_begin[p->n_op]; j++) {
        const uint32_t unit = f->unit[p->value_storage[p->in_value[j]]];
        if (unit != CB_NONE && f->position[unit] >= f->base_backward) f->once[unit] = true;
    }
}

cb_status cb_late_new(const cb_search_tools *tools, cb_searcher *forward, cb_arena *arena,
                      cb_late **out, cb_error *err) {
    cb_late *s = CB_NEW(arena, cb_late, 1);
    if (!s) return cb_no_memory(err);
    *s = (cb_late){.tools = *tools, .forward = forward};
    CB_TRY(cb_searcher_new(tools, arena, &s->all, err));
    cb_searcher_set_rival(s->all, forward);
    *out = s;
    return CB_OK;
}

void cb_late_free(cb_late *s) {
    if (s) cb_searcher_free(s->all);
}

void cb_late_expect(cb_late *s, const cb_goal *goal, uint32_t n) {
    cb_searcher_expect(s->forward, goal, n);
    cb_searcher_expect(s->all, goal, n);
}

/* True if no plan can be faster, or smaller, so that the other search is not worth its time. */
static bool is_best(const cb_late *s, const cb_goal *goal, const cb_found *found) {
    return !goal->smallest && found->cost_ps <= s->tools.f->once_ps;
}

/* True if the other search, when it follows the first, has no plans for the goal. */
static bool costs_little(const cb_late *s, const cb_goal *goal, const cb_found *found) {
    if (!cb_searcher_follows(s->all)) return false;
    const double least = 1 + cb_searcher_little_extra(s->forward);
    return !goal->smallest && (double)found->cost_ps <= (double)s->tools.f->once_ps * least;
}

static bool is_better(const cb_goal *goal, const cb_found *a, const cb_found *b) {
    if (goal->smallest && a->bytes != b->bytes) return a->bytes < b->bytes;
    if (a->cost_ps != b->cost_ps) return a->cost_ps < b->cost_ps;
    return a->bytes < b->bytes;
}

/* Converts the result to a schedule, because only its searcher can interpret the pairs. */
static cb_status write_schedule(const cb_late *s, cb_found *found, cb_error *err) {
    if (found->schedule.n_step > 0) return CB_OK;
    CB_TRY(cb_sim_run(s->tools.sim, found->pairs.list.at, found->pairs.list.len, err));
    return cb_sim_schedule(s->tools.sim, found->pairs.arena, &found->schedule, err);
}

/* Handles a goal that neither search meets. `why` is the refusal of the search without backward
 * reruns. */
static void take_smaller(cb_error *err, const cb_refusal *why) {
    if (!err || why->smallest_bytes == 0 || why->smallest_bytes >= err->refusal.smallest_bytes)
        return;
    err->refusal.smallest_bytes = why->smallest_bytes;
    memcpy(err->refusal.op, why->op, sizeof why->op);
    memcpy(err->refusal.location, why->location, sizeof why->location);
}

static cb_status ask_both(cb_late *s, const cb_goal *goal, cb_found *out, cb_error *err) {
    cb_goal own = *goal;
    cb_error why = {0};
    cb_found other = {.pairs = {.arena = out->pairs.arena}};
    own.skips_bound = true;
    const cb_status first = cb_searcher_ask(s->forward, &own, out, &why);
    if (first == CB_OK && is_best(s, goal, out)) {
        out->least_extra_ps = 0;
        return CB_OK;
    }
    if (first != CB_OK && first != CB_INFEASIBLE) {
        if (err) *err = why;
        return first;
    }
    out->least_extra_ps = -1;
    if (first == CB_OK && costs_little(s, goal, out)) return CB_OK;
    if (first == CB_OK && cb_poll_answer(goal->poll) == CB_POLL_FINISH) return CB_OK;
    if (first == CB_OK && !goal->smallest) own.known_ps = out->cost_ps;
    const cb_status second = cb_searcher_ask(s->all, &own, &other, err);
    if (second == CB_INFEASIBLE && first == CB_INFEASIBLE) {
        take_smaller(err, &why.refusal);
        if (other.smallest < out->smallest) out->smallest = other.smallest;
    }
    if (second == CB_INFEASIBLE && first == CB_OK) return CB_OK;
    const bool ended = second == CB_CANCELLED && cb_poll_answer(goal->poll) == CB_POLL_FINISH;
    if (ended && first == CB_OK) return CB_OK;
    CB_TRY(second);
    if (first == CB_OK && !is_better(goal, &other, out)) return CB_OK;
    CB_TRY(write_schedule(s, &other, err));
    *out = other;
    out->least_extra_ps = -1;
    return CB_OK;
}

cb_status cb_late_ask(cb_late *s, const cb_goal *goal, cb_found *out, cb_error *err) {
    CB_TRY(ask_both(s, goal, out, err));
    if (goal->skips_bound || out->least_extra_ps >= 0) return CB_OK;
    return cb_searcher_prove(s->all, goal, out, err);
}

cb_status cb_late_prove_moves(cb_late *s, const cb_goal *goal, cb_found *found, cb_error *err) {
    return cb_searcher_prove_moves(s->all, goal, found, err);
}
