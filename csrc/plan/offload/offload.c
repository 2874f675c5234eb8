/* Three answers compete: the one without offload (search.c), and on a ladder of targets as its own
 * (ladder.h) the plans of joint searches and of searches where nothing runs again. A rung depends
 * on the problem and its target alone, and counts only if it is no faster than a bound says; so
 * whatever fits is chosen from a fixed set, and the promises of the ladder hold.
 *
 * The bound. Take any plan of at most B bytes and time T, and keep on the device what it moves.
 * Then nothing stalls, and at a moment t it holds at most as many bytes more as were then on the
 * host alone. Those went over the link before t and come back after it: at most link x T / 2 bytes.
 * So its extra time is at least the ladder's bound at B + link x T / 2; and where nothing runs
 * again that sum is at least what saving everything takes. */
#include "offload.h"

#include <math.h>
#include <stdio.h>

#include "../model/names.h"
#include "../schedule/plan.h"
#include "../search/fill.h"
#include "../search/ladder.h"
#include "../search/refusal.h"
#include "../search/tuning.h"
#include "offload_search.h"

#define STRIDE 2        /* every second rung of the ladder: a joint search takes longer */
#define MOST_FAILED 2   /* rungs in a row that end the search for the smallest, */
#define VAIN_EFFORT 4e4 /* or so many, times ops, where nothing runs again */

typedef struct rung {
    cb_candidate joint, only; /* pairs in the arena; NULL: none that counts */
    bool has_joint, has_only; /* searched */
    bool passed;              /* a plan was found that is a later rung's */
} rung;

typedef struct chooser {
    const cb_facts *f;
    const cb_goal *goal;
    cb_searcher *searcher;
    cb_arena *arena;
    cb_offload_sim offload_sim;
    cb_offload_search haul;
    cb_ladder ladder;
    cb_trial runs, moves; /* without and with copies to the host */
    cb_candidates *base, *candidates;
    uint32_t n_rung;
    uint64_t target[CB_RUNGS_MOST + 1];
    double least_ps[CB_RUNGS_MOST];
    rung at[CB_RUNGS_MOST];
    uint64_t floor;    /* what some op's inputs, outputs and scratch take */
    uint32_t floor_op; /* CB_NONE: no ops */
    /* the best so far */
    cb_schedule best;
    int64_t best_ps; /* INT64_MAX: none */
    uint64_t best_bytes;
    uint64_t smallest;        /* bytes of any plan measured */
    uint64_t must_host_bytes; /* of what must leave */
    bool weighs_all;          /* measure plans that cannot be taken, too */
} chooser;

/* ---- bounds ---------------------------------------------------------------------------------- */

/* Extra time x of plans of so many bytes: by each tangent
 * x >= constant - slope bytes - link (reach + slope x). */
static double bound_of(const chooser *z, uint64_t bytes) {
    double link = cb_link_bytes_per_s(z->f->p, z->f->device) * 1e-12, best = 0;
    for (size_t i = 0; i < z->ladder.n_tangent; i++) {
        const cb_tangent *line = &z->ladder.first.prices.tangent.at[i];
        double x = line->constant - line->slope * (double)bytes - link * line->reach;
        best = fmax(best, x / (1 + link * line->slope));
    }
    return best;
}

/* No plan of so many bytes that runs nothing again takes less. */
static double only_bound_of(const chooser *z, uint64_t bytes) {
    double link = cb_link_bytes_per_s(z->f->p, z->f->device) * 1e-12;
    return 2 * ((double)z->ladder.whole - (double)bytes) / link;
}

/* No plan of a rung that counts takes less. */
static double least_of(const chooser *z, uint32_t r) {
    double least = (double)z->f->once_ps + z->least_ps[r];
    bool only = z->goal->offload == CB_OFFLOAD_ONLY;
    return only ? fmax(least, only_bound_of(z, z->target[r])) : least;
}

static cb_status find_floor(chooser *z, cb_error *err) {
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

static cb_status start(chooser *z, cb_cut *cut, cb_sim *sim, cb_error *err) {
    cb_arena *a = z->arena;
    bool *forced = CB_NEW(a, bool, z->f->p->n_op);
    z->base = CB_NEW(a, cb_candidates, 1);
    z->candidates = CB_NEW(a, cb_candidates, 1);
    if (!forced || !z->base || !z->candidates) return cb_no_memory(err);
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
    CB_TRY(cb_ladder_init(&z->ladder, &z->runs, cut, NULL, err));
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

static cb_status keep(chooser *z, const cb_candidate *c, cb_candidate *out, cb_error *err) {
    *out = *c;
    out->pair = CB_NEW(z->arena, cb_pair, c->n_pair);
    if (!out->pair) return cb_no_memory(err);
    if (c->n_pair > 0) memcpy(out->pair, c->pair, c->n_pair * sizeof *c->pair);
    return CB_OK;
}

/* The plan of rung `r` is larger than that, or it does not count: smaller ones are those of later
 * rungs, or a smaller budget, which begins there, would miss what a larger one has. */
static uint64_t next_target(const chooser *z, uint32_t r) {
    return r + STRIDE < z->n_rung ? z->target[r + STRIDE] : 0;
}

/* The fastest candidate that counts for rung `r`, and takes no less than `least`. */
static cb_status keep_winner(chooser *z, uint32_t r, double least, cb_candidate *out,
                             cb_error *err) {
    uint32_t i = cb_candidates_fitting(z->candidates, z->target[r]);
    if (i == CB_NONE) return CB_OK;
    while (i > 0 && (double)z->candidates->at[i].time_ps < least) i--;
    if ((double)z->candidates->at[i].time_ps < least) return CB_OK;
    z->at[r].passed |= z->candidates->at[i].size <= next_target(z, r);
    if (z->candidates->at[i].size <= next_target(z, r)) return CB_OK;
    return keep(z, &z->candidates->at[i], out, err);
}

static cb_status search_for(chooser *z, uint32_t r, bool reruns, const cb_candidate *seed,
                            cb_candidate *out, cb_error *err) {
    cb_candidates_free(z->candidates);
    z->moves.target = z->target[r];
    CB_TRY(cb_offload_search_run(&z->haul, reruns, seed, err));
    double least = (double)z->f->once_ps + z->least_ps[r];
    if (!reruns) least = fmax(least, only_bound_of(z, z->target[r]));
    return keep_winner(z, r, least, out, err);
}

/* Where prices of the ladder reach no plan, the ladder's own search gives a start. */
static cb_status search_joint(chooser *z, uint32_t r, cb_error *err) {
    const cb_candidate *seed = NULL;
    if (z->at[r].has_joint) return CB_OK;
    if (r >= z->ladder.n_near && r < z->ladder.n_rung)
        CB_TRY(cb_ladder_climb(&z->ladder, r, &seed, err));
    uint32_t i = cb_candidates_fitting(z->base, z->target[r]);
    if (!seed && i != CB_NONE) seed = &z->base->at[i];
    z->at[r].has_joint = true;
    return search_for(z, r, true, seed, &z->at[r].joint, err);
}

static cb_status search_only(chooser *z, uint32_t r, cb_error *err) {
    if (z->at[r].has_only) return CB_OK;
    z->at[r].has_only = true;
    return search_for(z, r, false, NULL, &z->at[r].only, err);
}

/* ---- choosing -------------------------------------------------------------------------------- */

static uint64_t beside(const chooser *z) {
    return z->goal->measure == CB_MEASURE_TOTAL ? z->f->p->static_bytes : 0;
}

/* Takes the schedule if it fits and is faster, or as fast and smaller; where the smallest is
 * wanted, if it is smaller and not too slow. */
static cb_status consider(chooser *z, const cb_schedule *s, bool *taken, cb_error *err) {
    const cb_problem *p = z->f->p;
    cb_arena scratch;
    cb_lives lives;
    uint64_t arena_bytes = 0, bytes;
    cb_status status;
    *taken = false;
    cb_arena_init(&scratch, z->arena->alloc);
    CB_TRY_DONE(cb_schedule_walk(p, s, z->f->device, &scratch, &lives, err));
    if (z->goal->measure == CB_MEASURE_ARENA)
        CB_TRY_DONE(cb_place(p, &lives, &scratch, z->goal->poll, &arena_bytes, err));
    bytes = cb_measured(p, z->goal->measure, &lives, arena_bytes);
    if (z->goal->smallest) {
        double most = (double)z->f->once_ps * (1 + z->goal->share);
        *taken = (double)lives.time_ps <= most && bytes < z->best_bytes;
    } else if (bytes <= z->goal->bytes) {
        *taken =
            lives.time_ps < z->best_ps || (lives.time_ps == z->best_ps && bytes < z->best_bytes);
    }
    if (bytes < z->smallest) z->smallest = bytes;
    if (!*taken) goto done;
    z->best = *s;
    z->best_ps = lives.time_ps;
    z->best_bytes = bytes;
done:
    cb_arena_free(&scratch);
    return status;
}

static cb_status consider_plan(chooser *z, uint32_t r, const cb_candidate *c, bool *taken,
                               cb_error *err) {
    cb_schedule schedule;
    *taken = false;
    if (!c->pair) return CB_OK;
    bool loses = c->time_ps > z->best_ps || c->size + beside(z) > z->goal->bytes;
    if (loses && !z->goal->smallest && !z->weighs_all) return CB_OK;
    CB_TRY(cb_trial_poll(&z->moves, err));
    CB_TRY(cb_offload_sim_run(&z->offload_sim, c->pair, c->n_pair, z->target[r], err));
    CB_TRY(cb_offload_sim_schedule(&z->offload_sim, z->arena, &schedule, err));
    return consider(z, &schedule, taken, err);
}

/* Plans that run nothing again are searched for only if they can still win, others if `joint`. */
static cb_status consider_rung(chooser *z, uint32_t r, bool joint, bool *taken, cb_error *err) {
    double most = z->goal->smallest         ? (double)z->f->once_ps * (1 + z->goal->share)
                  : z->best_ps == INT64_MAX ? INFINITY
                                            : (double)z->best_ps;
    bool only = false;
    *taken = false;
    if (joint && z->goal->offload != CB_OFFLOAD_ONLY) {
        CB_TRY(search_joint(z, r, err));
        CB_TRY(consider_plan(z, r, &z->at[r].joint, taken, err));
        if (!z->goal->smallest && z->best_ps != INT64_MAX) most = (double)z->best_ps;
    }
    if (only_bound_of(z, z->target[r]) < most) {
        CB_TRY(search_only(z, r, err));
        CB_TRY(consider_plan(z, r, &z->at[r].only, &only, err));
    }
    *taken |= only;
    return CB_OK;
}

/* Of a budget. */
static uint32_t first_rung(const chooser *z) {
    uint64_t bytes = z->goal->bytes > beside(z) ? z->goal->bytes - beside(z) : 0;
    uint32_t first = cb_ladder_first(&z->ladder, bytes);
    return first - first % STRIDE;
}

/* From the first rung that may fit, until no later one can be faster. */
static cb_status consider_rungs(chooser *z, cb_error *err) {
    bool taken;
    for (uint32_t r = first_rung(z); r < z->n_rung; r += STRIDE) {
        if (z->target[r] < z->floor) return CB_OK;
        if (z->best_ps != INT64_MAX && least_of(z, r) >= (double)z->best_ps) return CB_OK;
        CB_TRY(consider_rung(z, r, true, &taken, err));
    }
    return CB_OK;
}

/* Down the rungs to the floor, or until too many in a row have nothing smaller, but for those whose
 * plan is so small that it is a later one's. Joint searches take longer, and end sooner. */
static cb_status consider_small_rungs(chooser *z, cb_error *err) {
    double most = (double)z->f->once_ps * (1 + z->goal->share);
    uint64_t from = z->best_ps == INT64_MAX ? z->ladder.whole : z->best_bytes;
    bool tiny = cb_is_tiny_search(&z->ladder.first.moves), joint = true;
    double vain = fmax(MOST_FAILED, VAIN_EFFORT / (z->f->n_base + 1.0));
    int failed = 0;
    uint32_t first = cb_ladder_first(&z->ladder, from);
    for (uint32_t r = first - first % STRIDE; r < z->n_rung && failed < vain; r += STRIDE) {
        bool taken;
        if (z->target[r] < z->floor || least_of(z, r) > most) return CB_OK;
        joint &= tiny || failed < MOST_FAILED;
        CB_TRY(consider_rung(z, r, joint, &taken, err));
        if (taken) failed = 0;
        else if (!z->at[r].passed) failed++;
    }
    return CB_OK;
}

/* Nothing fits: the smallest plan at any price, for the error. Up from the last rung, as far as a
 * plan may be smaller than what was found: so it does not depend on the budget, and whoever asks
 * for that much gets it. */
static cb_status find_smallest(chooser *z, cb_error *err) {
    uint64_t free_of = beside(z);
    bool taken;
    if (z->n_rung == 0) return CB_OK;
    z->weighs_all = true;
    uint32_t last = z->n_rung - 1;
    for (uint32_t r = last - last % STRIDE;; r -= STRIDE) {
        bool smaller = z->smallest == UINT64_MAX || next_target(z, r) + free_of < z->smallest;
        if (smaller && z->target[r] >= z->floor) CB_TRY(consider_rung(z, r, true, &taken, err));
        if (!smaller || r < STRIDE) return CB_OK;
    }
}

/* Nothing was found, at any budget. What must be offloaded is on the host when the backward starts,
 * whatever else a plan does. */
static cb_status fail_at_any_budget(const chooser *z, cb_error *err) {
    if (z->must_host_bytes > z->goal->pinned_bytes) {
        return cb_fail(err, CB_INFEASIBLE,
                       "no plan, whatever the budget: what is to be offloaded (MUST_OFFLOAD) needs "
                       "%llu bytes on the host at one time, the limit on pinned bytes is %llu; "
                       "raise that limit, or free some values of their MUST_OFFLOAD",
                       (unsigned long long)z->must_host_bytes,
                       (unsigned long long)z->goal->pinned_bytes);
    }
    return cb_fail(err, CB_INFEASIBLE,
                   "no plan found that keeps all constraints, whatever the budget: free some "
                   "values of their MUST_RECOMPUTE or MUST_OFFLOAD, or widen a region's limit");
}

static cb_status fail(const chooser *z, bool early, cb_error *err) {
    char op[CB_OP_TEXT];
    if (early)
        return cb_fail(err, CB_INFEASIBLE,
                       "the search was ended before it had a plan; give it more time");
    if (z->smallest == UINT64_MAX) return fail_at_any_budget(z, err);
    if (z->goal->smallest) return cb_fail_time(z->goal, z->smallest, err);
    return cb_fail(err, CB_INFEASIBLE,
                   "no plan fits %llu bytes (%s), offload and all: the smallest found needs %llu "
                   "bytes, and op %s alone takes %llu; raise the budget%s, or use a smaller batch",
                   (unsigned long long)z->goal->bytes, cb_measure_names[z->goal->measure],
                   (unsigned long long)z->smallest,
                   z->floor_op == CB_NONE ? "none" : cb_op_text(z->f->p, z->floor_op, op),
                   (unsigned long long)(z->floor + beside(z)),
                   z->goal->pinned_bytes == UINT64_MAX ? "" : " or the limit on pinned bytes");
}

/* What the wishes alone ask for: nothing else runs again or moves, whatever that takes. So wherever
 * this keeps them, there is a plan to name. */
static cb_status consider_demands(chooser *z, cb_error *err) {
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

/* Must something move or, where nothing else may, run again? */
static bool has_demands(const chooser *z) {
    bool only = z->goal->offload == CB_OFFLOAD_ONLY, must = false;
    for (uint32_t op = 0; op < z->f->p->n_op; op++)
        must |= z->offload_sim.must[op] || (only && z->f->wish[op] == CB_MUST_RECOMPUTE);
    return must;
}

/* The answer without offload; where nothing may run again, that of saving everything. */
static cb_status consider_runs(chooser *z, cb_sim *sim, cb_error *err) {
    cb_found found = {.pairs = {.arena = z->arena}};
    cb_schedule schedule;
    bool taken;
    if (z->goal->offload != CB_OFFLOAD_ONLY) {
        cb_status status = cb_searcher_ask(z->searcher, z->goal, &found, err);
        if (status == CB_INFEASIBLE) z->smallest = found.smallest;
        if (status == CB_INFEASIBLE) return CB_OK;
        if (status != CB_OK) return status;
    }
    if (found.schedule.n_step > 0) return consider(z, &found.schedule, &taken, err);
    CB_TRY(cb_sim_run(sim, found.pairs.list.at, found.pairs.list.len, err));
    CB_TRY(cb_sim_schedule(sim, z->arena, &schedule, err));
    return consider(z, &schedule, &taken, err);
}

static cb_status choose(chooser *z, cb_cut *cut, cb_sim *sim, cb_error *err) {
    CB_TRY(cb_offload_sim_init(&z->offload_sim, z->f, false, z->arena->alloc, err));
    bool must = has_demands(z);
    if (!must) CB_TRY(consider_runs(z, sim, err));
    CB_TRY(start(z, cut, sim, err));
    if (must) CB_TRY(consider_demands(z, err));
    if (z->goal->smallest) return consider_small_rungs(z, err);
    CB_TRY(consider_rungs(z, err));
    return z->best_ps == INT64_MAX ? find_smallest(z, err) : CB_OK;
}

cb_status cb_search_offload(const cb_search_tools *tools, cb_searcher *searcher,
                            const cb_goal *goal, cb_arena *arena, cb_offloaded *out,
                            cb_error *err) {
    chooser *z = CB_NEW(arena, chooser, 1);
    if (!z) return cb_no_memory(err);
    *z = (chooser){.f = tools->f, .goal = goal, .searcher = searcher, .arena = arena};
    z->best_ps = INT64_MAX;
    z->best_bytes = z->smallest = UINT64_MAX;
    cb_status status = choose(z, tools->cut, tools->sim, err);
    bool early = status == CB_CANCELLED && cb_poll_answer(goal->poll) == CB_POLL_FINISH;
    if (status == CB_OK || early) {
        status = z->best_ps == INT64_MAX ? fail(z, early, err) : CB_OK;
        out->schedule = z->best;
        uint64_t bytes = goal->smallest ? z->best_bytes : goal->bytes;
        out->least_extra_ps = early || status != CB_OK ? -1 : bound_of(z, bytes - beside(z));
    }
    if (z->candidates) cb_candidates_free(z->candidates);
    if (z->base) cb_candidates_free(z->base);
    cb_ladder_free(&z->ladder);
    cb_offload_sim_free(&z->offload_sim);
    return status;
}
