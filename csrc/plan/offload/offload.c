/* Three answers compete: the one without offload (search.c), the plans of joint searches, and those
 * of searches without reruns. The latter two use a ladder of targets like that of ladder.h. A rung
 * depends only on the problem and its target, and its plan counts only if it is no faster than a
 * bound; so the answer is chosen from a fixed set, and the promises of the ladder hold.
 *
 * Both searches share the code that chooses the winning plan (weigh.h), but not the code that
 * chooses which rungs to search (pick.h): here a rung has two searches, each with its own bound and
 * only started if it can still win. They start from a plan of the other search's rung and compete
 * with its answer, so shared code would have to ask at every step which search it serves.
 *
 * The bound. Take any plan of at most B bytes and time T, and keep on the device what it moves.
 * Then nothing stalls, and at a moment t it holds at most as many more bytes as were only on the
 * host at that moment. They cross the link before t and again after it, so they are at most link x
 * T / 2 bytes. So the plan's extra time is at least the ladder's bound at B + link x T / 2; and if
 * nothing runs again, that sum is at least what saving everything takes. */
#include "offload.h"

#include <math.h>
#include <stdio.h>

#include "../model/names.h"
#include "../search/candidates/weigh.h"
#include "../search/fill.h"
#include "../search/ladder.h"
#include "../search/refusal.h"
#include "../search/tuning.h"
#include "offload_search.h"

#define LADDER_STRIDE 2 /* every second rung of the ladder, because a joint search takes longer */
#define MOST_FAILED \
    2                   /* the search for the smallest plan ends after this many rungs in a row
                           without success, */
#define VAIN_EFFORT 4e4 /* or, without reruns, after this many divided by the number of ops */

typedef struct rung {
    cb_candidate joint, only; /* pairs in the arena; NULL: no plan counts */
    bool has_joint, has_only; /* searched */
    bool passed;              /* the plan found belongs to a later rung */
} rung;

typedef struct offload_chooser {
    const cb_facts *f;
    const cb_goal *goal;
    cb_ask_without without;
    cb_placings *placings;
    cb_arena *arena;
    cb_offload_sim offload_sim;
    cb_offload_search haul;
    cb_ladder ladder;
    cb_trial runs, moves; /* trials without and with copies to the host */
    cb_candidates *base, *candidates;
    uint32_t n_rung;
    uint64_t target[CB_RUNGS_MOST + 1];
    double least_ps[CB_RUNGS_MOST];
    rung at[CB_RUNGS_MOST];
    uint64_t floor;     /* the largest working set of an op */
    uint32_t floor_op;  /* CB_NONE: no ops */
    cb_schedule answer; /* the best schedule so far, if any */
    cb_best best;
    uint64_t smallest;        /* bytes of the smallest plan that was measured */
    uint64_t must_host_bytes; /* bytes of values that must be offloaded */
    bool weighs_all;          /* also measures plans that cannot be used */
} offload_chooser;

/* ---- bounds ---------------------------------------------------------------------------------- */

/* Returns a lower bound on the extra time x of plans of this size. Each tangent gives x >= constant
 * - slope bytes - link (reach + slope x). */
static double bound_of(const offload_chooser *z, uint64_t bytes) {
    double link = cb_link_bytes_per_s(z->f->p, z->f->device) * 1e-12, best = 0;
    for (size_t i = 0; i < z->ladder.n_tangent; i++) {
        const cb_tangent *line = &z->ladder.first.prices.tangent.at[i];
        double x = line->constant - line->slope * (double)bytes - link * line->reach;
        best = fmax(best, x / (1 + link * line->slope));
    }
    return best;
}

/* Returns a lower bound for plans of this size without reruns. */
static double only_bound_of(const offload_chooser *z, uint64_t bytes) {
    double link = cb_link_bytes_per_s(z->f->p, z->f->device) * 1e-12;
    return 2 * ((double)z->ladder.whole - (double)bytes) / link;
}

/* Returns a lower bound for the plans of a rung that count. */
static double least_of(const offload_chooser *z, uint32_t r) {
    double least = (double)z->f->once_ps + z->least_ps[r];
    bool only = z->goal->offload == CB_OFFLOAD_ONLY;
    return only ? fmax(least, only_bound_of(z, z->target[r])) : least;
}

static cb_status find_floor(offload_chooser *z, cb_error *err) {
    const cb_problem *p = z->f->p;
    cb_arena scratch;
    cb_arena_init(&scratch, z->arena->alloc);
    uint32_t *seen = CB_NEW(&scratch, uint32_t, p->n_storage);
    z->floor_op = CB_NONE;
    for (uint32_t k = 0; seen && k < z->f->n_base; k++) {
        uint32_t op = z->f->base[k], n_in = p->in_begin[op + 1] - p->in_begin[op],
                 n = n_in + p->out_begin[op + 1] - p->out_begin[op];
        uint64_t bytes = p->op_workspace[op];
        for (uint32_t j = 0; j < n; j++) {
            uint32_t v = j < n_in ? p->in_value[p->in_begin[op] + j] : p->out_begin[op] + j - n_in,
                     s = p->value_storage[v];
            if (z->f->root[s] == CB_NONE || seen[s] == k + 1) continue;
            seen[s] = k + 1;
            bytes += p->storage_bytes[s];
        }
        if (z->floor_op != CB_NONE && bytes <= z->floor) continue;
        z->floor = bytes;
        z->floor_op = op;
    }
    cb_arena_free(&scratch);
    return seen ? CB_OK : cb_no_memory(err);
}

/* ---- rungs ----------------------------------------------------------------------------------- */

static cb_status start(offload_chooser *z, cb_cut *cut, cb_sim *sim, cb_error *err) {
    cb_arena *a = z->arena;
    bool *forced = CB_NEW(a, bool, z->f->p->n_op);
    CB_TRY_NEW(z->base, a, 1, err);
    CB_TRY_NEW(z->candidates, a, 1, err);
    if (!forced) return cb_no_memory(err);
    z->base->alloc = z->candidates->alloc = a->alloc;
    z->runs = (cb_trial){.f = z->f,
                         .goal = z->goal,
                         .sim = sim,
                         .candidates = z->base,
                         .scratch = a,
                         .forced = forced};
    CB_TRY(cb_force_recompute(z->f, cut, forced, err));
    for (uint32_t op = 0; op < z->f->p->n_op; op++) z->runs.has_demands |= forced[op];
    CB_TRY(cb_try_pairs(&z->runs, NULL, 0, err));
    CB_TRY(cb_ladder_init(&z->ladder, &z->runs, cut, NULL, NULL, err));
    z->moves = z->runs;
    z->moves.offload_sim = &z->offload_sim;
    z->moves.candidates = z->candidates;
    CB_TRY(cb_offload_search_init(&z->haul, &z->moves, &z->ladder.first.prices, cut, err));
    CB_TRY(find_floor(z, err));
    z->n_rung = z->ladder.n_rung;
    memcpy(z->target, z->ladder.target, sizeof z->target);
    for (uint32_t r = 0; r < z->n_rung; r++) z->least_ps[r] = CB_SLACK * bound_of(z, z->target[r]);
    return CB_OK;
}

static cb_status keep(offload_chooser *z, const cb_candidate *c, cb_candidate *out, cb_error *err) {
    *out = *c;
    CB_TRY_NEW(out->pair, z->arena, c->n_pair, err);
    if (c->n_pair > 0) memcpy(out->pair, c->pair, c->n_pair * sizeof *c->pair);
    return CB_OK;
}

/* Returns the next target after rung `r`. The plan of the rung counts only if it is larger than
 * that target: smaller plans belong to later rungs. Otherwise a smaller budget, whose search starts
 * at a later rung, would miss a plan that a larger one has. */
static uint64_t next_target(const offload_chooser *z, uint32_t r) {
    return r + LADDER_STRIDE < z->n_rung ? z->target[r + LADDER_STRIDE] : 0;
}

/* Stores the fastest candidate that counts for rung `r` and takes at least `least`. */
static cb_status keep_winner(offload_chooser *z, uint32_t r, double least, cb_candidate *out,
                             cb_error *err) {
    uint32_t i = cb_candidates_fitting(z->candidates, z->target[r]);
    if (i == CB_NONE) return CB_OK;
    while (i > 0 && (double)z->candidates->at[i].time_ps < least) i--;
    if ((double)z->candidates->at[i].time_ps < least) return CB_OK;
    z->at[r].passed |= z->candidates->at[i].size <= next_target(z, r);
    if (z->candidates->at[i].size <= next_target(z, r)) return CB_OK;
    return keep(z, &z->candidates->at[i], out, err);
}

static cb_status search_for(offload_chooser *z, uint32_t r, bool reruns, const cb_candidate *seed,
                            cb_candidate *out, cb_error *err) {
    cb_candidates_free(z->candidates);
    z->moves.target = z->target[r];
    CB_TRY(cb_offload_search_run(&z->haul, reruns, seed, err));
    double least = (double)z->f->once_ps + z->least_ps[r];
    if (!reruns) least = fmax(least, only_bound_of(z, z->target[r]));
    return keep_winner(z, r, least, out, err);
}

/* If no plan can be reached by prices alone, the ladder's search provides a starting point. */
static cb_status search_joint(offload_chooser *z, uint32_t r, cb_error *err) {
    const cb_candidate *seed = NULL;
    if (z->at[r].has_joint) return CB_OK;
    if (r >= z->ladder.n_near && r < z->ladder.n_rung)
        CB_TRY(cb_ladder_climb(&z->ladder, r, &seed, err));
    uint32_t i = cb_candidates_fitting(z->base, z->target[r]);
    if (!seed && i != CB_NONE) seed = &z->base->at[i];
    z->at[r].has_joint = true;
    return search_for(z, r, true, seed, &z->at[r].joint, err);
}

static cb_status search_only(offload_chooser *z, uint32_t r, cb_error *err) {
    if (z->at[r].has_only) return CB_OK;
    z->at[r].has_only = true;
    return search_for(z, r, false, NULL, &z->at[r].only, err);
}

/* ---- choosing -------------------------------------------------------------------------------- */

static uint64_t beside(const offload_chooser *z) { return cb_beside_bytes(z->f, z->goal); }

static bool has_plan(const offload_chooser *z) { return z->best.time_ps < INT64_MAX; }

/* Keeps the schedule if it is the best so far for the goal. */
static cb_status consider(offload_chooser *z, const cb_schedule *s, bool *taken, cb_error *err) {
    cb_weight w;
    *taken = false;
    CB_TRY(cb_weigh_schedule(z->f, z->goal, z->placings, s, &w, err));
    if (w.bytes < z->smallest) z->smallest = w.bytes;
    *taken = z->goal->smallest ? cb_is_smaller(cb_most_time(z->f, z->goal), &w, z->best)
                               : cb_is_faster(z->goal, w.time_ps, w.bytes, z->best);
    if (!*taken) return CB_OK;
    z->answer = *s;
    z->best = (cb_best){w.time_ps, w.bytes};
    return CB_OK;
}

static cb_status consider_plan(offload_chooser *z, uint32_t r, const cb_candidate *c, bool *taken,
                               cb_error *err) {
    cb_schedule schedule;
    *taken = false;
    if (!c->pair) return CB_OK;
    bool loses = c->time_ps > z->best.time_ps || c->size + beside(z) > z->goal->bytes;
    if (loses && !z->goal->smallest && !z->weighs_all) return CB_OK;
    CB_TRY(cb_trial_poll(&z->moves, err));
    CB_TRY(cb_offload_sim_run(&z->offload_sim, c->pair, c->n_pair, z->target[r], err));
    CB_TRY(cb_offload_sim_schedule(&z->offload_sim, z->arena, &schedule, err));
    return consider(z, &schedule, taken, err);
}

/* Plans without reruns are searched for only if they can still win, others only if `joint`. */
static cb_status consider_rung(offload_chooser *z, uint32_t r, bool joint, bool *taken,
                               cb_error *err) {
    double most = z->goal->smallest ? cb_most_time(z->f, z->goal)
                  : has_plan(z)     ? (double)z->best.time_ps
                                    : INFINITY;
    bool only = false;
    *taken = false;
    if (joint && z->goal->offload != CB_OFFLOAD_ONLY) {
        CB_TRY(search_joint(z, r, err));
        CB_TRY(consider_plan(z, r, &z->at[r].joint, taken, err));
        if (!z->goal->smallest && has_plan(z)) most = (double)z->best.time_ps;
    }
    if (only_bound_of(z, z->target[r]) < most) {
        CB_TRY(search_only(z, r, err));
        CB_TRY(consider_plan(z, r, &z->at[r].only, &only, err));
    }
    *taken |= only;
    return CB_OK;
}

/* Returns the rung at which the search for a budget starts. */
static uint32_t first_rung(const offload_chooser *z) {
    uint64_t bytes = z->goal->bytes > beside(z) ? z->goal->bytes - beside(z) : 0;
    uint32_t first = cb_ladder_first(&z->ladder, bytes);
    return first - first % LADDER_STRIDE;
}

/* Searches from the first rung that may fit until no later one can be faster. */
static cb_status consider_rungs(offload_chooser *z, cb_error *err) {
    bool taken;
    for (uint32_t r = first_rung(z); r < z->n_rung; r += LADDER_STRIDE) {
        if (z->target[r] < z->floor) return CB_OK;
        if (has_plan(z) && least_of(z, r) >= (double)z->best.time_ps) return CB_OK;
        CB_TRY(consider_rung(z, r, true, &taken, err));
    }
    return CB_OK;
}

/* Descends the rungs to the floor, or until too many in a row find no smaller plan; rungs whose
 * plan belongs to a later rung do not count. Joint searches take longer, so they end after fewer
 * rungs. */
static cb_status consider_small_rungs(offload_chooser *z, cb_error *err) {
    double most = cb_most_time(z->f, z->goal);
    uint64_t from = has_plan(z) ? z->best.bytes : z->ladder.whole;
    bool tiny = cb_is_tiny_search(&z->ladder.first.moves), joint = true;
    double vain = fmax(MOST_FAILED, VAIN_EFFORT / (z->f->n_base + 1.0));
    int failed = 0;
    uint32_t first = cb_ladder_first(&z->ladder, from);
    for (uint32_t r = first - first % LADDER_STRIDE; r < z->n_rung && failed < vain;
         r += LADDER_STRIDE) {
        bool taken;
        if (z->target[r] < z->floor || least_of(z, r) > most) return CB_OK;
        joint &= tiny || failed < MOST_FAILED;
        CB_TRY(consider_rung(z, r, joint, &taken, err));
        if (taken) failed = 0;
        else if (!z->at[r].passed) failed++;
    }
    return CB_OK;
}

/* Handles a budget that no plan meets: finds the smallest plan at any cost, for the error. It
 * climbs from the last rung as long as a plan may be smaller than the one found. So the result does
 * not depend on the budget, and a budget of its size is met. */
static cb_status find_smallest(offload_chooser *z, cb_error *err) {
    uint64_t free_of = beside(z);
    bool taken;
    if (z->n_rung == 0) return CB_OK;
    z->weighs_all = true;
    uint32_t last = z->n_rung - 1;
    for (uint32_t r = last - last % LADDER_STRIDE;; r -= LADDER_STRIDE) {
        bool smaller = z->smallest == UINT64_MAX || next_target(z, r) + free_of < z->smallest;
        if (smaller && z->target[r] >= z->floor) CB_TRY(consider_rung(z, r, true, &taken, err));
        if (!smaller || r < LADDER_STRIDE) return CB_OK;
    }
}

/* Handles the case that no plan was found at any budget. Values that must be offloaded are on the
 * host when the backward starts in every plan. */
static cb_status fail_at_any_budget(const offload_chooser *z, cb_error *err) {
    cb_refusal refusal = {.reason = CB_REFUSED_CONSTRAINTS, .budget_bytes = UINT64_MAX};
    if (z->must_host_bytes > z->goal->pinned_bytes) {
        refusal.reason = CB_REFUSED_PINNED;
        refusal.pinned_bytes = z->goal->pinned_bytes;
        refusal.smallest_bytes = z->must_host_bytes;
    }
    return cb_refuse(err, &refusal);
}

static cb_status fail(const offload_chooser *z, bool early, cb_error *err) {
    const uint64_t limit = z->goal->pinned_bytes;
    cb_refusal refusal = {.reason = CB_REFUSED_BUDGET, .budget_bytes = z->goal->bytes};
    if (early) return cb_fail_ended(z->goal, err);
    if (z->smallest == UINT64_MAX) return fail_at_any_budget(z, err);
    if (z->goal->smallest) return cb_fail_time(z->goal, z->smallest, err);
    refusal.smallest_bytes = z->smallest;
    refusal.pinned_bytes = limit == UINT64_MAX ? 0 : limit;
    if (z->floor_op != CB_NONE) {
        refusal.floor_bytes = z->floor + beside(z);
        (void)snprintf(refusal.floor_op, sizeof refusal.floor_op, "%s",
                       z->f->p->op_name[z->floor_op]);
    }
    return cb_refuse(err, &refusal);
}

/* Makes the plan that follows only the constraints: nothing else runs again or moves, whatever the
 * size. If it satisfies them, there is a plan to report. */
static cb_status consider_demands(offload_chooser *z, cb_error *err) {
    cb_pairs pairs = {.arena = z->arena};
    cb_schedule schedule;
    bool taken;
    z->moves.target = UINT64_MAX;
    CB_TRY(cb_recompute_lazily(z->f, z->runs.forced, NULL, &pairs, err));
    CB_TRY(cb_try_pairs(&z->moves, pairs.list.at, pairs.list.len, err));
    z->must_host_bytes = z->offload_sim.host_bytes;
    if (!z->moves.lawful) return CB_OK;
    CB_TRY(cb_offload_sim_schedule(&z->offload_sim, z->arena, &schedule, err));
    return consider(z, &schedule, &taken, err);
}

/* True if something must move or, if nothing else may, run again. */
static bool has_demands(const offload_chooser *z) {
    bool only = z->goal->offload == CB_OFFLOAD_ONLY, must = false;
    for (uint32_t op = 0; op < z->f->p->n_op; op++)
        must |= z->offload_sim.must[op] || (only && z->f->wish[op] == CB_MUST_RECOMPUTE);
    return must;
}

/* Considers the answer without offload, or saving everything if nothing may run again. */
static cb_status consider_runs(offload_chooser *z, cb_sim *sim, cb_error *err) {
    cb_found found = {.pairs = {.arena = z->arena}};
    cb_schedule schedule;
    bool taken;
    if (z->goal->offload != CB_OFFLOAD_ONLY) {
        cb_status status = z->without.ask(z->without.user, z->goal, &found, err);
        if (status == CB_INFEASIBLE) z->smallest = found.smallest;
        if (status == CB_INFEASIBLE) return CB_OK;
        if (status != CB_OK) return status;
    }
    if (found.schedule.n_step > 0) return consider(z, &found.schedule, &taken, err);
    CB_TRY(cb_sim_run(sim, found.pairs.list.at, found.pairs.list.len, err));
    CB_TRY(cb_sim_schedule(sim, z->arena, &schedule, err));
    return consider(z, &schedule, &taken, err);
}

static cb_status choose(offload_chooser *z, cb_cut *cut, cb_sim *sim, cb_error *err) {
    CB_TRY(cb_offload_sim_init(&z->offload_sim, z->f, false, z->arena->alloc, err));
    bool must = has_demands(z);
    if (!must) CB_TRY(consider_runs(z, sim, err));
    CB_TRY(start(z, cut, sim, err));
    if (must) CB_TRY(consider_demands(z, err));
    if (z->goal->smallest) return consider_small_rungs(z, err);
    CB_TRY(consider_rungs(z, err));
    return has_plan(z) ? CB_OK : find_smallest(z, err);
}

cb_status cb_search_offload(const cb_search_tools *tools, cb_ask_without without,
                            const cb_goal *goal, cb_arena *arena, cb_offloaded *out,
                            cb_error *err) {
    offload_chooser *z = CB_NEW(arena, offload_chooser, 1);
    if (!z) return cb_no_memory(err);
    *z = (offload_chooser){.f = tools->f,
                           .goal = goal,
                           .without = without,
                           .placings = tools->placings,
                           .arena = arena};
    z->best = CB_NO_BEST;
    z->smallest = UINT64_MAX;
    cb_status status = choose(z, tools->cut, tools->sim, err);
    bool early = status == CB_CANCELLED && cb_poll_answer(goal->poll) == CB_POLL_FINISH;
    if (status == CB_OK || early) {
        status = has_plan(z) ? CB_OK : fail(z, early, err);
        out->schedule = z->answer;
        out->bytes = z->best.bytes;
        out->time_ps = z->best.time_ps;
        uint64_t bytes = goal->smallest ? z->best.bytes : goal->bytes;
        out->least_extra_ps = early || status != CB_OK ? -1 : bound_of(z, bytes - beside(z));
    }
    if (z->candidates) cb_candidates_free(z->candidates);
    if (z->base) cb_candidates_free(z->base);
    cb_ladder_free(&z->ladder);
    cb_offload_sim_free(&z->offload_sim);
    return status;
}

cb_status cb_offload_preset(const cb_facts *f, uint64_t pinned_bytes, const cb_pairs *pairs,
                            cb_arena *arena, cb_schedule *out, cb_error *err) {
    cb_offload_sim sim;
    CB_TRY(cb_offload_sim_init(&sim, f, true, arena->alloc, err));
    cb_status status = cb_offload_sim_run(&sim, pairs->list.at, pairs->list.len, UINT64_MAX, err);
    if (status == CB_OK && pinned_bytes > 0 && sim.host_bytes > pinned_bytes) {
        const cb_refusal refusal = {.reason = CB_REFUSED_PINNED,
                                    .budget_bytes = UINT64_MAX,
                                    .pinned_bytes = pinned_bytes,
                                    .smallest_bytes = sim.host_bytes};
        status = cb_refuse(err, &refusal);
    }
    if (status == CB_OK) status = cb_offload_sim_schedule(&sim, arena, out, err);
    cb_offload_sim_free(&sim);
    return status;
}
