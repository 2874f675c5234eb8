/* Threads take jobs from a counter.
 *
 * Only the caller may ask the user's poll function, which may be in Python: the others look at a
 * flag, and the caller, out of jobs, goes on asking until they are done. */
#include "crew.h"

#include <time.h>

#define MOST_HELPERS 15
#define LOOK_AGAIN_NS 2000000 /* while others work */

typedef struct helper {
    cb_climber climber;
    cb_trial trial;
    cb_goal goal;
    cb_sim sim;
    cb_cut cut;
    cb_arena arena;
} helper;

struct cb_crew {
    cb_arena arena;
    helper *helper[MOST_HELPERS];
    uint32_t n_helper;
    /* one run */
    cb_ladder *d;
    cb_crew_fn fn;
    void *user;
    uint32_t n_job;
    atomic_uint next_job, next_helper, at_work;
    atomic_bool stop;
    cb_status status[MOST_HELPERS + 1]; /* by climber */
    cb_error err[MOST_HELPERS + 1];
};

static int look_at_flag(void *user) {
    const cb_crew *crew = user;
    return atomic_load_explicit(&crew->stop, memory_order_relaxed);
}

static cb_status start_helper(helper *h, cb_crew *crew, const cb_ladder *d, cb_error *err) {
    const cb_trial *t = d->first.t;
    h->goal = *t->goal;
    h->goal.poll = look_at_flag;
    h->goal.poll_user = crew;
    h->goal.progress = NULL;
    h->trial = (cb_trial){.f = t->f,
                          .goal = &h->goal,
                          .sim = &h->sim,
                          .scratch = &h->arena,
                          .forced = t->forced,
                          .has_demands = t->has_demands};
    cb_pool_of_plans *none = CB_NEW(&h->arena, cb_pool_of_plans, 1);
    if (!none) return cb_no_memory(err);
    none->alloc = h->arena.alloc;
    h->trial.pool = none;
    CB_TRY(cb_cut_init(&h->cut, t->f, &h->arena, err));
    CB_TRY(cb_sim_init(&h->sim, t->f, h->arena.alloc, err));
    cb_status status = cb_try_pairs(&h->trial, NULL, 0, err);
    cb_pool_of_plans_free(none);
    CB_TRY(status);
    return cb_climber_init(&h->climber, d, &h->trial, &h->cut, err);
}

static void free_helper(helper *h) {
    cb_climber_free(&h->climber);
    cb_sim_free(&h->sim);
    cb_arena_free(&h->arena);
}

static cb_status add_helper(cb_crew *crew, const cb_ladder *d, cb_error *err) {
    helper *h = CB_NEW(&crew->arena, helper, 1);
    if (!h) return cb_no_memory(err);
    cb_arena_init(&h->arena, crew->arena.alloc);
    cb_arena_init(&h->sim.arena, crew->arena.alloc);
    cb_status status = start_helper(h, crew, d, err);
    if (status == CB_OK) crew->helper[crew->n_helper++] = h;
    else free_helper(h);
    return status;
}

static cb_status prepare(cb_ladder *d, uint32_t n_helper, cb_error *err) {
    if (!d->crew) {
        cb_arena arena;
        cb_arena_init(&arena, d->first.t->scratch->alloc);
        d->crew = CB_NEW(&arena, cb_crew, 1);
        if (!d->crew) return cb_no_memory(err);
        d->crew->arena = arena;
    }
    atomic_store(&d->crew->stop, false);
    while (d->crew->n_helper < n_helper) CB_TRY(add_helper(d->crew, d, err));
    for (uint32_t i = 0; i < d->crew->n_helper; i++) /* goals differ in how they are measured */
        d->crew->helper[i]->goal.measure = d->first.t->goal->measure;
    return CB_OK;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void do_jobs(cb_crew *crew, uint32_t who) {
    cb_climber *c = who == 0 ? &crew->d->first : &crew->helper[who - 1]->climber;
    cb_status status = CB_OK;
    while (status == CB_OK && !atomic_load(&crew->stop)) {
        uint32_t i = atomic_fetch_add(&crew->next_job, 1);
        if (i >= crew->n_job) return;
        status = crew->fn(c, i, crew->user, &crew->err[who]);
    }
    if (status == CB_OK) return; /* the caller may come twice: what it said first stands */
    crew->status[who] = status;
    atomic_store(&crew->stop, true);
}

static void wait_for_others(cb_crew *crew) {
    const struct timespec while_they_work = {.tv_nsec = LOOK_AGAIN_NS};
    while (atomic_load(&crew->at_work) > 0 && !atomic_load(&crew->stop)) {
        (void)nanosleep(&while_they_work, NULL);
        crew->status[0] = cb_trial_poll(crew->d->first.t, &crew->err[0]);
        if (crew->status[0] != CB_OK) atomic_store(&crew->stop, true);
    }
}

static void join(void *user, int64_t task, int thread) {
    cb_crew *crew = user;
    (void)task;
    if (thread == 0) {
        do_jobs(crew, 0);
        wait_for_others(crew);
        return;
    }
    uint32_t who = 1 + atomic_fetch_add(&crew->next_helper, 1);
    if (who > crew->n_helper) return;
    atomic_fetch_add(&crew->at_work, 1);
    do_jobs(crew, who);
    atomic_fetch_sub(&crew->at_work, 1);
}

/* A mistake goes before the end that the others came to by it. */
static cb_status result(const cb_crew *crew, cb_error *err) {
    cb_status status = CB_OK;
    for (uint32_t i = 0; i <= crew->n_helper; i++) {
        if (crew->status[i] == CB_OK || (status != CB_OK && status != CB_CANCELLED)) continue;
        if (status == CB_CANCELLED && crew->status[i] == CB_CANCELLED) continue;
        status = crew->status[i];
        *err = crew->err[i];
    }
    return status;
}

static cb_status run_alone(cb_ladder *d, uint32_t n_job, cb_crew_fn fn, void *user, cb_error *err) {
    for (uint32_t i = 0; i < n_job; i++) CB_TRY(fn(&d->first, i, user, err));
    return CB_OK;
}

cb_status cb_crew_run(cb_ladder *d, uint32_t n_job, cb_crew_fn fn, void *user, cb_error *err) {
    uint32_t n_thread = d->threads ? (uint32_t)cb_pool_size(d->threads) : 1;
    if (n_thread > n_job) n_thread = n_job;
    if (n_thread > MOST_HELPERS + 1) n_thread = MOST_HELPERS + 1;
    if (n_thread < 2) return run_alone(d, n_job, fn, user, err);
    CB_TRY(prepare(d, n_thread - 1, err));
    cb_crew *crew = d->crew;
    crew->d = d;
    crew->fn = fn;
    crew->user = user;
    crew->n_job = n_job;
    memset(crew->status, 0, sizeof crew->status);
    atomic_store(&crew->next_job, 0);
    atomic_store(&crew->next_helper, 0);
    atomic_store(&crew->at_work, 0);
    cb_parallel(d->threads, n_thread, join, crew);
    return result(crew, err);
}

void cb_crew_free(cb_crew *crew) {
    if (!crew) return;
    for (uint32_t i = 0; i < crew->n_helper; i++) free_helper(crew->helper[i]);
    cb_arena arena = crew->arena;
    cb_arena_free(&arena);
}

uint32_t cb_crew_count(const cb_crew *crew) { return crew ? crew->n_helper : 0; }

cb_pool_of_plans *cb_crew_plans(const cb_crew *crew, uint32_t i) {
    return crew->helper[i]->climber.work;
}
