/* The search for a budget. For peaks it is a ladder of targets (ladder.h), of which it searches the
 * rungs that may hold the answer (pick.h). For saved bytes, which are measured at one moment only,
 * it uses the candidates of fill.h. Problems with few ops get a front of plans; small enough
 * problems are solved exactly. A search that its caller ends returns the best plan seen so far. */
#include "search.h"

#include <math.h>

#include "exact/exact.h"
#include "fill.h"
#include "front.h"
#include "pick.h"
#include "refusal.h"
#include "spare.h"
#include "tuning.h"

struct cb_searcher {
    const cb_facts *f;
    cb_cut *cut;
    cb_arena *arena;
    cb_candidates candidates;
    cb_trial t;
    cb_facts spared; /* facts with spare ops; `t`, `spared_sim` and `spared_cut` then refer to it */
    cb_sim spared_sim;
    cb_cut spared_cut;
    cb_goal goal; /* the current goal */
    cb_ladder d;
    cb_memo memo;
    bool ready;         /* the part that all goals share is done */
    cb_searcher *rival; /* the searcher of a smaller class, or NULL */
    cb_threads *threads;
    const cb_goal *expected; /* pending goals, including this one; empty once they have been
                                searched */
    uint32_t n_expected;
};

/* ---- what all goals share -------------------------------------------------------------------- */

/* Marks in `wanted` the rungs that a goal will most likely need: the first that may hold its
 * answer, and one more, unless a plan of the base is as fast as theirs can be. */
static cb_status want_rungs(cb_searcher *s, const cb_goal *goal, bool *wanted, cb_error *err) {
    cb_ladder *d = &s->d;
    bool spared;
    uint64_t beside = cb_beside_bytes(s->f, goal);
    uint64_t bytes = goal->bytes > beside ? goal->bytes - beside : 0;
    uint32_t at = cb_candidates_fitting(d->base, bytes), first = cb_ladder_first(d, bytes);
    double once = (double)s->f->once_ps,
           known = at == CB_NONE ? INFINITY : (double)d->base->at[at].time_ps;
    if (goal->known_ps > 0) known = fmin(known, (double)goal->known_ps);
    const uint32_t ahead = cb_workers_at_once(d->workers) < CB_AHEAD ? 1 : CB_AHEAD;
    for (uint32_t r = first; r < d->n_rung && r < first + ahead; r++) {
        if (once + cb_ladder_least(d, r, false) >= known ||
            (r > first && (r >= d->n_near || d->rival)))
            break;
        CB_TRY(cb_ladder_spares(d, r, &spared, err));
        wanted[r] |= !spared;
    }
    return CB_OK;
}

static cb_status climb_ahead(cb_searcher *s, cb_error *err) {
    bool wanted[CB_RUNGS_MOST] = {false};
    const cb_goal *goal = s->n_expected > 0 ? s->expected : &s->goal;
    uint32_t n = s->n_expected > 0 ? s->n_expected : 1;
    s->n_expected = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (goal[i].measure != CB_MEASURE_SAVED && !goal[i].smallest)
            CB_TRY(want_rungs(s, &goal[i], wanted, err));
    }
    return cb_ladder_climb_many(&s->d, wanted, err);
}

/* Sets the units that must be recomputed, [n_unit] of `f`, in the trial. */
static cb_status set_forced(cb_searcher *s, const cb_facts *f, cb_cut *cut, cb_error *err) {
    bool *forced = CB_NEW(s->arena, bool, f->n_unit);
    if (!forced) return cb_no_memory(err);
    CB_TRY(cb_force_recompute(f, cut, forced, err));
    for (uint32_t u = 0; u < f->n_unit; u++) s->t.has_demands |= forced[u];
    s->t.forced = forced;
    return CB_OK;
}

/* From here on the search uses the problem with spare ops. */
static cb_status use_spares(cb_searcher *s, cb_error *err) {
    if (s->t.f != s->f) return CB_OK;
    CB_TRY(cb_add_spares(s->f, NULL, s->arena, &s->spared, err));
    CB_TRY(cb_cut_init(&s->spared_cut, &s->spared, s->arena, err));
    s->spared_cut.poll = s->cut->poll;
    CB_TRY(set_forced(s, &s->spared, &s->spared_cut, err));
    CB_TRY(cb_sim_init(&s->spared_sim, &s->spared, s->arena->alloc, err));
    s->cut = &s->spared_cut;
    s->t.f = &s->spared;
    s->t.sim = &s->spared_sim;
    return CB_OK;
}

/* True if the ladder follows that of the rival, which saves effort if there are many ops. */
static bool follows(const cb_searcher *s, bool saved) {
    return s->rival && !saved && s->f->n_base >= CB_FOLLOW_OPS;
}

static cb_status get_ready(cb_searcher *s, bool saved, cb_error *err);

static cb_status get_ready_to_follow(cb_searcher *s, cb_error *err) {
    cb_trial *t = &s->t;
    if (!s->rival->ready) CB_TRY(get_ready(s->rival, false, err));
    CB_TRY(cb_try_pairs(t, NULL, 0, err));
    CB_TRY(cb_ladder_follow(&s->d, t, s->cut, s->threads, &s->rival->d, err));
    t->least_ps = (double)s->f->once_ps * (1 + cb_ladder_little_extra(&s->rival->d));
    s->ready = true;
    return CB_OK;
}

/* Does the part of the search that all goals share: the base of the ladder, and the presets. */
static cb_status get_ready(cb_searcher *s, bool saved, cb_error *err) {
    cb_trial *t = &s->t;
    cb_ladder *rival = s->rival ? &s->rival->d : NULL;
    bool modest;
    cb_ladder_free(&s->d); /* the ladder of a search that was ended early */
    t->proven = NULL;
    s->d = (cb_ladder){0};
    if (follows(s, saved)) return get_ready_to_follow(s, err);
    CB_TRY(cb_exact_suits(s->f, &modest, err));
    bool few = !saved && !modest && s->f->n_base < CB_FEW_OPS && !s->f->p->updates;
    if (few) CB_TRY(use_spares(s, err));
    CB_TRY(cb_try_pairs(t, NULL, 0, err));
    if (saved) CB_TRY(cb_try_for_saved(t, s->cut, err));
    else CB_TRY(cb_ladder_init(&s->d, t, s->cut, s->threads, rival, err));
    s->d.modest = modest;
    s->d.few = few ? s->f : NULL;
    CB_TRY(cb_try_presets(t, s->cut, err));
    s->ready = true;
    return CB_OK;
}

/* ---- one goal -------------------------------------------------------------------------------- */

/* Makes the base of a following ladder. The results of a search that was ended early are not a
 * base. */
static cb_status follow_base(cb_searcher *s, cb_error *err) {
    s->ready = false;
    CB_TRY(cb_ladder_follow_base(&s->d, err));
    s->ready = true;
    return CB_OK;
}

static cb_status search_all(cb_searcher *s, cb_chooser *k, cb_error *err) {
    bool saved = s->t.goal->measure == CB_MEASURE_SAVED;
    if (!s->ready) CB_TRY(get_ready(s, saved, err));
    if (!saved) CB_TRY(follow_base(s, err));
    if (!saved && !s->d.few) CB_TRY(climb_ahead(s, err));
    return cb_pick(k, saved ? NULL : &s->d, err);
}

/* Handles a search that the caller ended: returns the best plan seen so far. */
static cb_status settle(cb_chooser *k, const cb_ladder *d, cb_error *err) {
    cb_trial *t = k->t;
    cb_candidates *own[] = {t->candidates, d->base, d->drops, d->first.work, d->front};
    uint32_t n_own = sizeof own / sizeof *own;
    double most_ps = cb_most_time(t->f, t->goal);
    k->settles = true;
    for (uint32_t i = 0; i < n_own + cb_workers_count(d->workers); i++) {
        cb_candidates *kept = i < n_own ? own[i] : cb_workers_candidates(d->workers, i - n_own);
        if (!kept) continue;
        t->candidates = kept;
        if (t->goal->smallest) CB_TRY(cb_consider_small_candidates(k, most_ps, err));
        else CB_TRY(cb_consider_candidates(k, err));
    }
    for (uint32_t r = 0; r < d->n_rung; r++) {
        if (d->plan[r].size == 0) continue;
        bool fast = (double)d->plan[r].time_ps <= most_ps;
        if (!t->goal->smallest) CB_TRY(cb_consider(k, &d->plan[r], err));
        else if (fast) CB_TRY(cb_consider_small(k, &d->plan[r], err));
    }
    return cb_has_best(k) ? CB_OK : cb_fail_ended(t->goal, err);
}

/* Handles a budget that no plan meets: finds the smallest plan at any cost, for the error. */
static cb_status note_smallest(const cb_searcher *s, cb_chooser *least, cb_error *err) {
    cb_arena scratch;
    cb_schedule best = {0};
    cb_lives lives;
    cb_arena_init(&scratch, s->f->alloc);
    cb_status status = cb_exact_smallest(s->f, &s->goal, INT64_MAX, &scratch, &best, err);
    if (status == CB_OK && best.n_step > 0) {
        CB_TRY_DONE(cb_schedule_walk(s->f->p, &best, s->f->device, &scratch, &lives, err));
        least->smallest = lives.peak_bytes + cb_beside_bytes(s->f, &s->goal);
        least->smallest_op = best.step[lives.peak_step];
    }
done:
    cb_arena_free(&scratch);
    return status;
}

/* Solves small problems exactly, unless offsets count. Returns false if a search is needed. `least`
 * receives the smallest schedule if none fits. */
static cb_status solve_exactly(const cb_searcher *s, cb_found *out, bool *solved, cb_chooser *least,
                               cb_error *err) {
    const cb_facts *f = s->f;
    const cb_goal *goal = &s->goal;
    bool on_peaks = goal->measure == CB_MEASURE_LIVE || goal->measure == CB_MEASURE_TOTAL;
    bool suits = false;
    *solved = false;
    if (on_peaks) CB_TRY(cb_exact_suits(f, &suits, err));
    if (!suits) return CB_OK;
    uint64_t beside = cb_beside_bytes(s->f, goal);
    cb_arena *arena = out->pairs.arena;
    cb_schedule best = {0};
    cb_lives lives;
    if (goal->smallest) {
        int64_t most_ps = (int64_t)cb_most_time(f, goal);
        CB_TRY(cb_exact_smallest(f, goal, most_ps, arena, &best, err));
    } else if (goal->bytes >= beside) {
        CB_TRY(cb_exact_fastest(f, goal, goal->bytes - beside, arena, &best, err));
    }
    if (best.n_step == 0) return goal->smallest ? CB_OK : note_smallest(s, least, err);
    CB_TRY(cb_schedule_walk(f->p, &best, f->device, arena, &lives, err));
    *solved = goal->smallest || lives.peak_bytes + beside <= goal->bytes;
    out->schedule = best;
    out->cost_ps = lives.time_ps;
    out->bytes = lives.peak_bytes + beside;
    out->least_extra_ps = (double)(lives.time_ps - f->once_ps);
    return CB_OK;
}

/* If the caller ends the search here, the plan remains, without a bound. */
cb_status cb_searcher_prove(cb_searcher *s, const cb_goal *goal, cb_found *found, cb_error *err) {
    uint64_t most = goal->smallest ? found->bytes : goal->bytes;
    uint64_t bytes = most - cb_beside_bytes(s->f, goal);
    double known = (double)(found->cost_ps - s->f->once_ps), proved;
    s->goal = *goal;
    cb_status status = CB_OK;
    /* The exact solver has answered up to now, or the other search ended early. */
    if (!s->ready) status = get_ready(s, false, err);
    if (status == CB_OK) status = cb_ladder_prove(&s->d, bytes, known, &proved, err);
    if (status == CB_CANCELLED && cb_poll_answer(goal->poll) == CB_POLL_FINISH) return CB_OK;
    if (status != CB_OK) return status;
    found->least_extra_ps = proved;
    return CB_OK;
}

/* Suppose that the values a plan moves stay on the device. The plan then holds at most as many more
 * bytes as were only on the host. These leave and return within its time T, so they are at most
 * link x T / 2. So a plan of at most B bytes takes at least the time of the bound at B + link x T /
 * 2. */
cb_status cb_searcher_prove_moves(cb_searcher *s, const cb_goal *goal, cb_found *found,
                                  cb_error *err) {
    const double link = cb_link_bytes_per_s(s->f->p, s->f->device) * 1e-12,
                 beside = (double)cb_beside_bytes(s->f, goal),
                 bytes = (double)(goal->smallest ? found->bytes : goal->bytes) - beside;
    const double most = bytes + link * (double)found->cost_ps / 2;
    cb_goal wider = *goal;
    wider.smallest = false;
    wider.bytes =
        most + beside < (double)UINT64_MAX / 2 ? (uint64_t)(most + beside) + 1 : UINT64_MAX / 2;
    CB_TRY(cb_searcher_prove(s, &wider, found, err));
    if (found->least_extra_ps < 0) return CB_OK;
    found->least_extra_ps =
        fmax(found->least_extra_ps, cb_prices_bound_moves(&s->d.first.prices, bytes, link));
    return CB_OK;
}

/* Writes the answer: pairs, or a schedule if no set of pairs of the original problem describes the
 * plan. */
static cb_status answer(const cb_chooser *k, cb_found *out, cb_error *err) {
    out->pairs.list.at = k->best.pair;
    out->pairs.list.len = out->pairs.list.cap = k->best.n_pair;
    out->least_extra_ps = -1;
    out->cost_ps = k->best.time_ps;
    out->bytes = k->best_bytes;
    if (k->swept) return cb_schedule_copy(&k->swept->schedule, k->arena, &out->schedule, err);
    if (k->t->f == k->f) return CB_OK;
    CB_TRY(cb_sim_run(k->t->sim, k->best.pair, k->best.n_pair, err));
    return cb_sim_schedule(k->t->sim, k->arena, &out->schedule, err);
}

cb_status cb_searcher_ask(cb_searcher *s, const cb_goal *goal, cb_found *out, cb_error *err) {
    bool solved;
    s->goal = *goal;
    cb_chooser least = {.smallest = UINT64_MAX};
    cb_status exact = solve_exactly(s, out, &solved, &least, err);
    if (exact == CB_OK && solved) return CB_OK;
    out->schedule = (cb_schedule){0};
    if (exact != CB_OK && exact != CB_CANCELLED)
        return exact; /* if cancelled, the search below ends as well */
    cb_trial *t = &s->t;
    cb_chooser k = {.t = t,
                    .memo = &s->memo,
                    .f = s->f,
                    .arena = out->pairs.arena,
                    .smallest = UINT64_MAX,
                    .smallest_op = CB_NONE,
                    .solved = least.smallest,
                    .solved_op = least.smallest_op};
    cb_status status = search_all(s, &k, err);
    bool early = status == CB_CANCELLED && cb_poll_answer(goal->poll) == CB_POLL_FINISH;
    if (early) status = settle(&k, &s->d, err);
    t->candidates = &s->candidates;
    out->smallest = k.smallest;
    if (status != CB_OK) return status;
    if (!cb_has_best(&k)) {
        out->cost_ps = INT64_MAX;
        return CB_OK;
    }
    CB_TRY(answer(&k, out, err));
    if (early || goal->measure == CB_MEASURE_SAVED || goal->skips_bound) return CB_OK;
    return cb_searcher_prove(s, goal, out, err);
}

void cb_searcher_set_rival(cb_searcher *s, cb_searcher *rival) { s->rival = rival; }

bool cb_searcher_follows(const cb_searcher *s) { return follows(s, false); }

/* ---- the searcher ---------------------------------------------------------------------------- */

void cb_searcher_expect(cb_searcher *s, const cb_goal *goal, uint32_t n) {
    s->expected = goal;
    s->n_expected = n;
}

cb_status cb_searcher_new(const cb_search_tools *tools, cb_arena *arena, cb_searcher **out,
                          cb_error *err) {
    const cb_facts *f = tools->f;
    cb_searcher *s = CB_NEW(arena, cb_searcher, 1);
    if (!s) return cb_no_memory(err);
    *s = (cb_searcher){.f = f, .cut = tools->cut, .arena = arena, .threads = tools->threads};
    s->candidates.alloc = arena->alloc;
    s->memo.arena = arena;
    s->memo.placings = tools->placings;
    s->t = (cb_trial){.f = f,
                      .goal = &s->goal,
                      .sim = tools->sim,
                      .candidates = &s->candidates,
                      .scratch = arena};
    CB_TRY(set_forced(s, f, tools->cut, err));
    *out = s;
    return CB_OK;
}

double cb_searcher_little_extra(const cb_searcher *s) {
    return s->ready ? cb_ladder_little_extra(&s->d) : 0;
}

void cb_searcher_free(cb_searcher *s) {
    if (!s) return;
    cb_ladder_free(&s->d);
    if (s->t.f != s->f) cb_sim_free(&s->spared_sim);
    cb_candidates_free(&s->candidates);
}
