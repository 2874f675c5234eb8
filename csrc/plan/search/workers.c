/* Threads take jobs from a counter.
 *
 * Only the calling thread may call the user's poll function, which may be in Python. The others
 * check a flag, and the calling thread, when out of jobs, keeps polling until they are done. */
#include "workers.h"
#include "tuning.h"

#include <time.h>

/* ---- one worker ------------------------------------------------------------------------------ */

cb_status cb_worker_init(cb_worker *c, cb_trial *t, cb_cut *cut, const bool *may_rerun,
                         uint64_t whole, cb_error *err) {
    cb_arena *a = t->scratch;
    *c = (cb_worker){.t = t, .may_rerun = may_rerun, .whole = whole};
    CB_TRY_NEW(c->work, a, 1, err);
    c->work->alloc = a->alloc;
    CB_TRY(cb_prices_init(&c->prices, t, cut, err));
    CB_TRY(cb_ledger_init(&c->ledger, t->f, may_rerun, a->alloc, err));
    return cb_moves_init(&c->moves, t, &c->ledger, a, whole, err);
}

cb_status cb_worker_init_like(cb_worker *c, const cb_worker *like, size_t n_tangent, cb_trial *t,
                              cb_cut *cut, cb_error *err) {
    CB_TRY(cb_worker_init(c, t, cut, like->may_rerun, like->whole, err));
    c->moves.pace = like->moves.pace;
    c->moves.delays_chains = like->moves.delays_chains;
    c->prices.ignores_guess = like->prices.ignores_guess;
    for (size_t i = 0; i < n_tangent; i++) {
        if (!CB_PUSH(t->scratch, c->prices.tangent, like->prices.tangent.at[i]) ||
            !CB_PUSH(t->scratch, c->prices.guess, like->prices.guess.at[i]))
            return cb_no_memory(err);
    }
    return CB_OK;
}

void cb_worker_free(cb_worker *c) {
    cb_ledger_free(&c->ledger);
    if (c->work) cb_candidates_free(c->work);
}

cb_status cb_worker_keep(cb_worker *c, const cb_candidate *found, cb_candidate *out,
                         cb_error *err) {
    *out = *found;
    CB_TRY_NEW(out->pair, c->t->scratch, found->n_pair, err);
    if (found->n_pair > 0) memcpy(out->pair, found->pair, found->n_pair * sizeof *found->pair);
    return CB_OK;
}

cb_status cb_worker_keep_fastest(cb_worker *c, uint64_t target, cb_candidate *out, cb_error *err) {
    uint32_t at = cb_candidates_fitting(c->work, target);
    *out = (cb_candidate){0};
    return at == CB_NONE ? CB_OK : cb_worker_keep(c, &c->work->at[at], out, err);
}

/* ---- several of them ------------------------------------------------------------------------- */

typedef struct helper {
    cb_worker worker;
    cb_trial trial;
    cb_goal goal;
    cb_sim sim;
    cb_cut cut;
    cb_arena arena;
} helper;

struct cb_workers {
    cb_arena arena;
    cb_worker *first;
    size_t n_tangent;
    cb_threads *threads;
    helper *helper[CB_HELPERS_MOST];
    uint32_t n_helper;
    /* one run */
    cb_worker_fn fn;
    void *user;
    uint32_t n_job;
    atomic_uint next_job, next_helper, at_work;
    atomic_bool stop;
    cb_status status[CB_HELPERS_MOST + 1]; /* [n] status of each worker */
    cb_error err[CB_HELPERS_MOST + 1];
};

static int look_at_flag(void *user) {
    const cb_workers *workers = user;
    return atomic_load_explicit(&workers->stop, memory_order_relaxed);
}

static cb_status start_helper(helper *h, cb_workers *workers, cb_error *err) {
    const cb_trial *t = workers->first->t;
    h->goal = *t->goal;
    h->goal.poll = (cb_poll){look_at_flag, workers};
    h->goal.progress = NULL;
    h->trial = (cb_trial){.f = t->f,
                          .goal = &h->goal,
                          .sim = &h->sim,
                          .scratch = &h->arena,
                          .forced = t->forced,
                          .has_demands = t->has_demands};
    cb_candidates *none = CB_NEW(&h->arena, cb_candidates, 1);
    if (!none) return cb_no_memory(err);
    none->alloc = h->arena.alloc;
    h->trial.candidates = none;
    CB_TRY(cb_cut_init(&h->cut, t->f, &h->arena, err));
    CB_TRY(cb_sim_init(&h->sim, t->f, h->arena.alloc, err));
    cb_status status = cb_try_pairs(&h->trial, NULL, 0, err);
    cb_candidates_free(none);
    CB_TRY(status);
    return cb_worker_init_like(&h->worker, workers->first, workers->n_tangent, &h->trial, &h->cut,
                               err);
}

static void free_helper(helper *h) {
    cb_worker_free(&h->worker);
    cb_sim_free(&h->sim);
    cb_arena_free(&h->arena);
}

static cb_status add_helper(cb_workers *workers, cb_error *err) {
    helper *h = CB_NEW(&workers->arena, helper, 1);
    if (!h) return cb_no_memory(err);
    cb_arena_init(&h->arena, workers->arena.alloc);
    cb_arena_init(&h->sim.arena, workers->arena.alloc);
    cb_status status = start_helper(h, workers, err);
    if (status == CB_OK) workers->helper[workers->n_helper++] = h;
    else free_helper(h);
    return status;
}

static cb_status prepare(cb_workers *workers, uint32_t n_helper, cb_error *err) {
    atomic_store(&workers->stop, false);
    while (workers->n_helper < n_helper) CB_TRY(add_helper(workers, err));
    for (uint32_t i = 0; i < workers->n_helper; i++) /* goals differ in their measure */
        workers->helper[i]->goal.measure = workers->first->t->goal->measure;
    return CB_OK;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void do_jobs(cb_workers *workers, uint32_t who) {
    cb_worker *c = who == 0 ? workers->first : &workers->helper[who - 1]->worker;
    cb_status status = CB_OK;
    while (status == CB_OK && !atomic_load(&workers->stop)) {
        uint32_t i = atomic_fetch_add(&workers->next_job, 1);
        if (i >= workers->n_job) return;
        status = workers->fn(c, i, workers->user, &workers->err[who]);
    }
    if (status == CB_OK) return; /* the caller may return twice; its first answer counts */
    workers->status[who] = status;
    atomic_store(&workers->stop, true);
}

static void wait_for_others(cb_workers *workers) {
    const struct timespec while_they_work = {.tv_nsec = CB_LOOK_AGAIN_NS};
    while (atomic_load(&workers->at_work) > 0 && !atomic_load(&workers->stop)) {
        (void)nanosleep(&while_they_work, NULL);
        workers->status[0] = cb_trial_poll(workers->first->t, &workers->err[0]);
        if (workers->status[0] != CB_OK) atomic_store(&workers->stop, true);
    }
}

static void join(void *user, int64_t task, int thread) {
    cb_workers *workers = user;
    (void)task;
    if (thread == 0) {
        do_jobs(workers, 0);
        wait_for_others(workers);
        return;
    }
    uint32_t who = 1 + atomic_fetch_add(&workers->next_helper, 1);
    if (who > workers->n_helper) return;
    atomic_fetch_add(&workers->at_work, 1);
    do_jobs(workers, who);
    atomic_fetch_sub(&workers->at_work, 1);
}

/* A real error takes precedence over the stops that it caused in other workers. */
static cb_status result(const cb_workers *workers, cb_error *err) {
    cb_status status = CB_OK;
    for (uint32_t i = 0; i <= workers->n_helper; i++) {
        if (workers->status[i] == CB_OK || (status != CB_OK && status != CB_CANCELLED)) continue;
        if (status == CB_CANCELLED && workers->status[i] == CB_CANCELLED) continue;
        status = workers->status[i];
        *err = workers->err[i];
    }
    return status;
}

static cb_status run_alone(const cb_workers *workers, uint32_t n_job, cb_worker_fn fn, void *user,
                           cb_error *err) {
    for (uint32_t i = 0; i < n_job; i++) CB_TRY(fn(workers->first, i, user, err));
    return CB_OK;
}

uint32_t cb_workers_at_once(const cb_workers *workers) {
    if (!workers->threads || workers->first->t->f->n_base > CB_ALONE_OPS) return 1;
    const uint32_t n = (uint32_t)cb_threads_count(workers->threads);
    return n > CB_HELPERS_MOST + 1 ? CB_HELPERS_MOST + 1 : n;
}

cb_status cb_workers_run(cb_workers *workers, uint32_t n_job, cb_worker_fn fn, void *user,
                         cb_error *err) {
    uint32_t n_thread = cb_workers_at_once(workers);
    if (n_thread > n_job) n_thread = n_job;
    if (n_thread < 2) return run_alone(workers, n_job, fn, user, err);
    CB_TRY(prepare(workers, n_thread - 1, err));
    workers->fn = fn;
    workers->user = user;
    workers->n_job = n_job;
    memset(workers->status, 0, sizeof workers->status);
    atomic_store(&workers->next_job, 0);
    atomic_store(&workers->next_helper, 0);
    atomic_store(&workers->at_work, 0);
    cb_parallel(workers->threads, n_thread, join, workers);
    return result(workers, err);
}

cb_status cb_workers_new(cb_worker *first, size_t n_tangent, cb_threads *threads, cb_workers **out,
                         cb_error *err) {
    cb_arena arena;
    cb_arena_init(&arena, first->t->scratch->alloc);
    cb_workers *workers = CB_NEW(&arena, cb_workers, 1);
    if (!workers) return cb_no_memory(err);
    workers->arena = arena;
    workers->first = first;
    workers->n_tangent = n_tangent;
    workers->threads = threads;
    *out = workers;
    return CB_OK;
}

void cb_workers_free(cb_workers *workers) {
    if (!workers) return;
    for (uint32_t i = 0; i < workers->n_helper; i++) free_helper(workers->helper[i]);
    cb_arena arena = workers->arena;
    cb_arena_free(&arena);
}

uint32_t cb_workers_count(const cb_workers *workers) { return workers ? workers->n_helper : 0; }

cb_candidates *cb_workers_candidates(const cb_workers *workers, uint32_t i) {
    return workers->helper[i]->worker.work;
}
