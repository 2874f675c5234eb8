/* How a region runs. One word of state says which region is open and how many workers are inside:
 *
 *     63 ............ 18 | 17   | 16   | 15 ....... 0
 *     number of region   | stop | open | workers inside
 *
 * The caller takes the pool (`busy`), writes the job, opens the region and works as thread 0. A
 * worker that sees an open region it has not been in enters by adding one to the word. Tasks are
 * claimed from one counter. When the tasks are used up, the caller closes the region, so that no
 * worker can enter any more, and waits until the workers inside have left. A worker that wakes too
 * late finds the region closed. So the caller never waits for a thread that has done no work, which
 * keeps short regions short on a busy machine.
 *
 * A waiting thread spins for a fifth of a millisecond and then sleeps, because waking up takes as
 * long as Python's work between two regions. With more threads than processors it sleeps at once.
 * Some operating-system kernels wake a worker on its caller's processor, where it waits for
 * milliseconds although another processor is idle. Once that has been seen, workers are kept off
 * the caller's processor. A caller that finds the pool taken (a region inside a region, or another
 * user thread) runs its tasks itself.
 *
 * Rounding and the flushing of subnormal numbers are settings of a thread, and programs change them
 * (PyTorch has set_flush_denormal). Workers use the settings of their region's caller; otherwise
 * results would depend on which thread ran which task.
 *
 * A region may instead run on the threads of another library (team.h). Their number is that
 * library's setting: threads beyond the pool's return at once, and fewer do all the work. Such a
 * region has no word of state, and is closed when the library says that all have returned.
 *
 * The registry of live pools and their team below is the only global of this file. fork() copies a
 * pool but not its threads, so the child's handler resets every pool in the registry to the state
 * before its first region. Workers start again when a region needs them. A task must not fork. */
#include "threads.h"

#include "team.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#define MOST_THREADS 1024 /* CB_THREADS_INSIDE could count 65,535 */
#define SPIN_ROUNDS 8000  /* about 25 ns each */

#define CB_THREADS_INSIDE UINT64_C(0xFFFF)
#define CB_THREADS_OPEN (UINT64_C(1) << 16)
#define CB_THREADS_STOP (UINT64_C(1) << 17)
#define CB_THREADS_REGION (UINT64_C(1) << 18) /* unit of the region number */

typedef struct worker {
    cb_threads *pool;
    int number; /* 1 .. n_threads - 1; the caller is 0 */
    pthread_t thread;
} worker;

struct cb_threads {
    cb_alloc *alloc;
    cb_threads *next, *previous; /* the registry */
    int n_threads;
    int spin_rounds;
    worker *workers; /* [n_threads - 1] */
    int n_started;   /* written under `lock` by the thread that holds `busy` */
    pthread_mutex_t lock;
    pthread_cond_t opened, left;
    int n_sleeping; /* under `lock`, like the next three */
    bool misplaced; /* a worker woke up on its caller's processor */
    int caller_at;  /* processor of the latest caller */
    int kept_off;   /* processor that workers do not run on; -1: none */
    atomic_bool busy;

    cb_task_fn fn; /* the job: written by the holder of `busy` while the region is closed */
    void *user;
    int64_t n_tasks;
    uint64_t float_mode; /* the caller's */

    _Alignas(CB_ALIGN) _Atomic(uint64_t) state;
    _Alignas(CB_ALIGN) _Atomic(int64_t) next_task;
};

static struct {
    pthread_mutex_t lock;
    pthread_once_t handlers;
    cb_threads *first;
    _Atomic(const cb_team *) team; /* NULL: pools have workers of their own */
    _Atomic(uint64_t) n_forks;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER, .handlers = PTHREAD_ONCE_INIT};

#if defined(__x86_64__) || defined(__i386__)
static void relax(void) { __builtin_ia32_pause(); }
#elif defined(__aarch64__)
static void relax(void) { __asm__ volatile("yield"); }
#else
static void relax(void) {}
#endif

/* Get and set this thread's floating-point mode: rounding, flushing and traps, without the sticky
 * exception flags. */
#if defined(__x86_64__)
#define CB_THREADS_SEEN UINT64_C(0x3F)
static uint64_t float_mode(void) { return __builtin_ia32_stmxcsr() & ~CB_THREADS_SEEN; }
static void set_float_mode(uint64_t mode) { __builtin_ia32_ldmxcsr((unsigned)mode); }
#elif defined(__aarch64__)
static uint64_t float_mode(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static void set_float_mode(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
static uint64_t float_mode(void) { return (uint64_t)fegetround(); }
static void set_float_mode(uint64_t mode) { (void)fesetround((int)mode); }
#endif

#if defined(__linux__)
int cb_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more processors than a cpu_set_t holds */
    return online > 0 ? (int)online : 1;
}

static int here(void) { return sched_getcpu(); }

/* Restricts workers to the caller's affinity mask without processor `cpu`. */
static void keep_off(cb_threads *p, int cpu) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) < p->n_threads) return;
    CPU_CLR((size_t)cpu, &set);
    for (int i = 0; i < p->n_started; i++)
        (void)pthread_setaffinity_np(p->workers[i].thread, sizeof set, &set);
    p->kept_off = cpu;
}
#else
static int here(void) { return -1; }

static void keep_off(cb_threads *p, int cpu) { p->kept_off = cpu; }

int cb_cpu_count(void) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
#endif

/* ---- fork ------------------------------------------------------------------------------------ */

static void before_fork(void) {
    pthread_mutex_lock(&registry.lock);
    for (cb_threads *p = registry.first; p; p = p->next) pthread_mutex_lock(&p->lock);
}

static void after_fork_in_parent(void) {
    for (cb_threads *p = registry.first; p; p = p->next) pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&registry.lock);
}

static void make_idle(cb_threads *p) {
    p->n_started = 0;
    p->n_sleeping = 0;
    p->kept_off = -1;
    atomic_init(&p->busy, false);
    atomic_init(&p->state, 0);
    atomic_init(&p->next_task, 0);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->opened, NULL);
    pthread_cond_init(&p->left, NULL);
}

static void after_fork_in_child(void) {
    atomic_fetch_add(&registry.n_forks, 1);
    atomic_store(&registry.team, NULL); /* its threads do not exist here */
    for (cb_threads *p = registry.first; p; p = p->next) make_idle(p);
    pthread_mutex_init(&registry.lock, NULL);
}

void cb_threads_use(const cb_team *team) { atomic_store(&registry.team, team); }

uint64_t cb_fork_count(void) { return atomic_load(&registry.n_forks); }

static void add_handlers(void) {
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void enroll(cb_threads *p) {
    pthread_once(&registry.handlers, add_handlers);
    pthread_mutex_lock(&registry.lock);
    p->next = registry.first;
    if (p->next) p->next->previous = p;
    registry.first = p;
    pthread_mutex_unlock(&registry.lock);
}

static void remove_from_registry(cb_threads *p) {
    pthread_mutex_lock(&registry.lock);
    if (p->next) p->next->previous = p->previous;
    if (p->previous) p->previous->next = p->next;
    else registry.first = p->next;
    pthread_mutex_unlock(&registry.lock);
}

/* ---- workers --------------------------------------------------------------------------------- */

static void run_tasks(cb_threads *p, int thread) {
    for (;;) {
        int64_t task = atomic_fetch_add_explicit(&p->next_task, 1, memory_order_relaxed);
        if (task >= p->n_tasks) return;
        p->fn(p->user, task, thread);
    }
}

/* True if a region other than `last` is open or the pool is stopping. */
static bool is_news(uint64_t state, uint64_t last) {
    return (state & CB_THREADS_STOP) ||
           ((state & CB_THREADS_OPEN) && state / CB_THREADS_REGION != last);
}

static uint64_t wait_for_news(cb_threads *p, uint64_t last) {
    for (int i = 0; i < p->spin_rounds; i++) {
        uint64_t state = atomic_load_explicit(&p->state, memory_order_acquire);
        if (is_news(state, last)) return state;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    uint64_t state = atomic_load(&p->state);
    while (!is_news(state, last)) {
        p->n_sleeping++;
        pthread_cond_wait(&p->opened, &p->lock);
        p->n_sleeping--;
        state = atomic_load(&p->state);
        if (here() == p->caller_at) p->misplaced = true;
    }
    pthread_mutex_unlock(&p->lock);
    return state;
}

static void leave(cb_threads *p) {
    uint64_t before = atomic_fetch_sub(&p->state, 1);
    if ((before & CB_THREADS_OPEN) || (before & CB_THREADS_INSIDE) != 1) return;
    pthread_mutex_lock(
        &p->lock); /* the last worker leaves a closed region; its caller may be asleep */
    pthread_cond_signal(&p->left);
    pthread_mutex_unlock(&p->lock);
}

static void *run_worker(void *argument) {
    worker *self = argument;
    cb_threads *p = self->pool;
    uint64_t last = 0; /* regions are numbered from 1 */
    for (;;) {
        uint64_t state = wait_for_news(p, last);
        if (state & CB_THREADS_STOP) return NULL;
        if (!atomic_compare_exchange_strong(&p->state, &state, state + 1)) continue;
        last = state / CB_THREADS_REGION;
        set_float_mode(p->float_mode);
        run_tasks(p, self->number);
        leave(p);
    }
}

/* Workers block all signals, which are for the program's own threads. If a worker cannot be
 * created, the region runs with fewer threads. */
static void start_workers(cb_threads *p) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&p->lock);
    while (p->n_started < p->n_threads - 1) {
        worker *w = &p->workers[p->n_started];
        *w = (worker){.pool = p, .number = p->n_started + 1};
        if (pthread_create(&w->thread, NULL, run_worker, w) != 0) break;
        p->n_started++;
    }
    p->kept_off = -1;
    pthread_mutex_unlock(&p->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- the caller ------------------------------------------------------------------------------ */

cb_status cb_threads_new(cb_alloc *alloc, int n_threads, cb_threads **out, cb_error *err) {
    if (n_threads < 1 || n_threads > MOST_THREADS)
        return cb_fail(err, CB_INVALID, "threads: %d is not in 1..%d", n_threads, MOST_THREADS);
    cb_threads *p = cb_malloc(alloc, sizeof *p);
    worker *workers = cb_malloc(alloc, (size_t)n_threads * sizeof *workers);
    if (!p || !workers) {
        cb_free(alloc, p);
        cb_free(alloc, workers);
        return cb_no_memory(err);
    }
    *p = (cb_threads){.alloc = alloc, .n_threads = n_threads, .workers = workers};
    p->spin_rounds = n_threads <= cb_cpu_count() ? SPIN_ROUNDS : 0;
    make_idle(p);
    enroll(p);
    *out = p;
    return CB_OK;
}

void cb_threads_free(cb_threads *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_or(&pool->state, CB_THREADS_STOP);
    pthread_cond_broadcast(&pool->opened);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    remove_from_registry(pool);
    pthread_cond_destroy(&pool->opened);
    pthread_cond_destroy(&pool->left);
    pthread_mutex_destroy(&pool->lock);
    cb_alloc *alloc = pool->alloc;
    cb_free(alloc, pool->workers);
    cb_free(alloc, pool);
}

int cb_threads_count(const cb_threads *pool) { return pool ? pool->n_threads : 1; }

static void open_region(cb_threads *p) {
    atomic_store_explicit(&p->next_task, 0, memory_order_relaxed);
    pthread_mutex_lock(&p->lock);
    p->caller_at = here();
    if (p->misplaced && p->n_sleeping && p->caller_at != p->kept_off) keep_off(p, p->caller_at);
    uint64_t region = atomic_load(&p->state) / CB_THREADS_REGION + 1;
    atomic_store(&p->state, region * CB_THREADS_REGION | CB_THREADS_OPEN);
    int64_t n_wake = p->n_tasks - 1 < p->n_sleeping ? p->n_tasks - 1 : p->n_sleeping;
    for (int64_t i = 0; i < n_wake; i++) pthread_cond_signal(&p->opened);
    pthread_mutex_unlock(&p->lock);
}

static void close_region(cb_threads *p) {
    uint64_t state = atomic_fetch_and(&p->state, ~CB_THREADS_OPEN);
    for (int i = 0; (state & CB_THREADS_INSIDE) && i < p->spin_rounds; i++) {
        relax();
        state = atomic_load_explicit(&p->state, memory_order_acquire);
    }
    if (!(state & CB_THREADS_INSIDE)) return;
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->state) & CB_THREADS_INSIDE) pthread_cond_wait(&p->left, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* Returns the thread number under which the caller may run tasks itself while the pool is taken. A
 * thread inside a task keeps its own number, so that no two threads share one. */
static int own_number(cb_threads *p) {
    const cb_team *team = atomic_load(&registry.team);
    int number = team ? team->number() : 0;
    if (number >= p->n_threads) number = 0;
    pthread_t self = pthread_self();
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->n_started; i++)
        if (pthread_equal(p->workers[i].thread, self)) number = p->workers[i].number;
    pthread_mutex_unlock(&p->lock);
    return number;
}

typedef struct team_job {
    cb_threads *pool;
    const cb_team *team;
} team_job;

static void run_in_team(void *argument) {
    const team_job *job = argument;
    cb_threads *p = job->pool;
    const int thread = job->team->number();
    if (thread >= p->n_threads) return;
    const uint64_t mode = float_mode();
    set_float_mode(p->float_mode);
    run_tasks(p, thread);
    set_float_mode(mode);
}

static void run_region(cb_threads *p) {
    const cb_team *team = atomic_load(&registry.team);
    if (team) {
        team_job job = {p, team};
        atomic_store_explicit(&p->next_task, 0, memory_order_relaxed);
        team->parallel(run_in_team, &job, 0, 0);
        return;
    }
    if (p->n_started < p->n_threads - 1) start_workers(p);
    open_region(p);
    run_tasks(p, 0);
    close_region(p);
}

void cb_parallel(cb_threads *pool, int64_t n_tasks, cb_task_fn fn, void *user) {
    bool alone = !pool || pool->n_threads == 1;
    if (alone || n_tasks <= 1 || atomic_exchange(&pool->busy, true)) {
        int thread = alone || !atomic_load(&pool->busy) ? 0 : own_number(pool);
        for (int64_t task = 0; task < n_tasks; task++) fn(user, task, thread);
        return;
    }
    pool->fn = fn;
    pool->user = user;
    pool->n_tasks = n_tasks;
    pool->float_mode = float_mode();
    run_region(pool);
    atomic_store(&pool->busy, false);
}
