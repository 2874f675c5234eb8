#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sanitize.h"
#include "base/team.h"
#include "base/threads.h"
#include "oom.h"

typedef struct sum {
    cb_threads *pool;
    int64_t n;
    atomic_int_fast64_t total;
    atomic_int busy[64]; /* tasks running under each thread number */
    atomic_int clashes;
} sum;

static void add(void *user, int64_t task, int thread) {
    sum *s = user;
    if (atomic_fetch_add(&s->busy[thread], 1) != 0) atomic_fetch_add(&s->clashes, 1);
    atomic_fetch_add(&s->total, task + 1);
    atomic_fetch_sub(&s->busy[thread], 1);
}

static int64_t triangle(int64_t n) { return n * (n + 1) / 2; }

static int64_t sum_of(cb_threads *pool, int64_t n) {
    sum s = {.pool = pool};
    cb_parallel(pool, n, add, &s);
    return atomic_load(&s.clashes) ? -1 : (int64_t)atomic_load(&s.total);
}

TEST(every_task_runs_once) {
    static const int sizes[] = {1, 2, 3, 8};
    cb_alloc a;
    cb_alloc_init(&a);
    for (size_t i = 0; i < 4; i++) {
        cb_threads *pool;
        CHECK_OK(cb_threads_new(&a, sizes[i], &pool, &err));
        CHECK(cb_threads_count(pool) == sizes[i]);
        for (int64_t n = 0; n < 40; n++) CHECK(sum_of(pool, n) == triangle(n));
        for (int repeat = 0; repeat < 500; repeat++) CHECK(sum_of(pool, 5) == 15);
        CHECK(sum_of(pool, 20000) == triangle(20000));
        cb_threads_free(pool);
    }
    CHECK(sum_of(NULL, 10) == 55 && cb_threads_count(NULL) == 1 && cb_cpu_count() >= 1);
    CHECK(cb_alloc_stats(&a).live_bytes == 0);
}

/* The caller reads what tasks wrote with plain stores, and the next region's tasks read what the
 * caller wrote. ThreadSanitizer would report a race if the pool did not order them. */
static void double_it(void *user, int64_t task, int thread) {
    int64_t *cell = user;
    (void)thread;
    cell[task] *= 2;
}

TEST(plain_writes_are_ordered) {
    cb_alloc a;
    cb_threads *pool;
    int64_t cell[32];
    cb_alloc_init(&a);
    CHECK_OK(cb_threads_new(&a, 4, &pool, &err));
    for (int round = 0; round < 300; round++) {
        for (int64_t i = 0; i < 32; i++) cell[i] = i + round;
        cb_parallel(pool, 32, double_it, cell);
        for (int64_t i = 0; i < 32; i++) CHECK(cell[i] == 2 * (i + round));
    }
    cb_threads_free(pool);
}

static void nest(void *user, int64_t task, int thread) {
    sum *s = user;
    sum inner = {.pool = s->pool};
    (void)task;
    (void)thread;
    cb_parallel(s->pool, 10, add, &inner);
    /* The outer region's flags show whether an inner task took a number that another thread
     * holds. */
    cb_parallel(s->pool, 3, add, s);
    if (atomic_load(&inner.clashes) || atomic_load(&inner.total) != 55)
        atomic_fetch_add(&s->clashes, 1);
}

TEST(nested_regions_run_inline) {
    cb_alloc a;
    cb_threads *pool;
    cb_alloc_init(&a);
    CHECK_OK(cb_threads_new(&a, 4, &pool, &err));
    sum s = {.pool = pool};
    cb_parallel(pool, 200, nest, &s);
    CHECK(atomic_load(&s.clashes) == 0 && atomic_load(&s.total) == 200 * 6);
    cb_threads_free(pool);
}

typedef struct thirds {
    atomic_int n_inside;
    _Atomic(float) by_task[2];
} thirds;

/* Waits for the other task, at most a minute, so that two threads take one task each. */
static void divide(void *user, int64_t task, int thread) {
    thirds *t = user;
    volatile float one = 1.0F, three = 3.0F;
    (void)thread;
    atomic_fetch_add(&t->n_inside, 1);
    for (int i = 0; i < 600000 && atomic_load(&t->n_inside) < 2; i++) usleep(100);
    atomic_store(&t->by_task[task], one / three);
}

/* The rounding mode is a setting of each thread; here the workers start before it changes. */
TEST(workers_round_as_their_caller_does) {
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TONEAREST};
    cb_alloc a;
    cb_threads *pool;
    cb_alloc_init(&a);
    CHECK_OK(cb_threads_new(&a, 2, &pool, &err));
    float seen[4];
    for (size_t i = 0; i < 4; i++) {
        thirds t = {.n_inside = 0};
        CHECK(fesetround(modes[i]) == 0);
        cb_parallel(pool, 2, divide, &t);
        CHECK(fesetround(FE_TONEAREST) == 0);
        CHECK(atomic_load(&t.n_inside) == 2);
        seen[i] = atomic_load(&t.by_task[0]);
        CHECK(atomic_load(&t.by_task[1]) == seen[i]);
    }
    CHECK(seen[1] > seen[2] && seen[3] == seen[0]);
    cb_threads_free(pool);
}

static void *use(void *user) {
    sum *s = user;
    for (int repeat = 0; repeat < 200; repeat++) {
        if (sum_of(s->pool, s->n) != triangle(s->n)) atomic_fetch_add(&s->clashes, 1);
    }
    return NULL;
}

TEST(two_users_of_one_pool) {
    cb_alloc a;
    cb_threads *pool;
    cb_alloc_init(&a);
    CHECK_OK(cb_threads_new(&a, 3, &pool, &err));
    sum s = {.pool = pool, .n = 50};
    pthread_t users[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&users[i], NULL, use, &s) == 0);
    for (int i = 0; i < 4; i++) pthread_join(users[i], NULL);
    CHECK(atomic_load(&s.clashes) == 0);
    cb_threads_free(pool);
}

/* ThreadSanitizer does not support threads after a multithreaded fork. */
#if !CB_TSAN
TEST(a_forked_child_starts_over) {
    cb_alloc a;
    cb_threads *pool, *other;
    cb_alloc_init(&a);
    CHECK_OK(cb_threads_new(&a, 3, &pool, &err));
    CHECK_OK(cb_threads_new(&a, 2, &other, &err));
    CHECK(sum_of(pool, 100) == triangle(100));
    for (int repeat = 0; repeat < 5; repeat++) {
        pid_t child = fork();
        if (child == 0) {
            bool good = sum_of(pool, 100) == triangle(100) && sum_of(other, 100) == triangle(100);
            cb_threads_free(pool);
            cb_threads_free(other);
            _exit(good && cb_alloc_stats(&a).live_bytes == 0 ? 0 : 1);
        }
        int status = -1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        CHECK(sum_of(pool, 100) == triangle(100));
    }
    cb_threads_free(pool);
    cb_threads_free(other);
}

/* Forks while another thread is inside a region. */
TEST(fork_beside_a_busy_pool) {
    cb_alloc a;
    cb_threads *pool;
    cb_alloc_init(&a);
    CHECK_OK(cb_threads_new(&a, 2, &pool, &err));
    sum s = {.pool = pool, .n = 3000};
    pthread_t user;
    CHECK(pthread_create(&user, NULL, use, &s) == 0);
    for (int repeat = 0; repeat < 20; repeat++) {
        pid_t child = fork();
        if (child == 0) _exit(sum_of(pool, 64) == triangle(64) ? 0 : 1);
        int status = -1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    pthread_join(user, NULL);
    CHECK(atomic_load(&s.clashes) == 0);
    cb_threads_free(pool);
}
#endif

#if defined(__linux__)
static void note_processor(void *user, int64_t task, int thread) {
    atomic_int *at = user; /* [2], by thread */
    (void)task;
    atomic_store(&at[thread], sched_getcpu());
    usleep(20);
}

/* A worker that starts on its caller's processor moves away, even if its affinity allows only that
 * one. */
TEST(workers_are_kept_off_their_caller_s_processor) {
    enum { TRIES = 2000 };
    cpu_set_t whole, one;
    cb_alloc a;
    cb_threads *pool;
    CHECK(sched_getaffinity(0, sizeof whole, &whole) == 0);
    if (CPU_COUNT(&whole) < 2) return;
    const int cpu = sched_getcpu();
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    cb_alloc_init(&a);
    CHECK_OK(cb_threads_new(&a, 2, &pool, &err));
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    atomic_int at[2] = {-1, -1};
    cb_parallel(pool, 2, note_processor, at); /* the worker inherits the one processor */
    CHECK(sched_setaffinity(0, sizeof whole, &whole) == 0);
    int tries = 0;
    atomic_store(&at[1], cpu);
    while (atomic_load(&at[1]) == cpu && tries++ < TRIES) {
        usleep(1000); /* it falls asleep */
        cb_parallel(pool, 100, note_processor, at);
    }
    CHECK(tries < TRIES);
    cb_threads_free(pool);
}
#endif

/* ---- the threads of another library ---- */

#define TEAM 3

static _Thread_local int in_team;
static atomic_int n_team_regions;

typedef struct member {
    void (*fn)(void *);
    void *data;
    int number;
} member;

static void *be_member(void *argument) {
    member *m = argument;
    in_team = m->number;
    m->fn(m->data);
    return NULL;
}

/* A caller that is already a member gets a separate team, as in OpenMP. */
static void run_team(void (*fn)(void *), void *data, unsigned n_threads, unsigned flags) {
    pthread_t threads[TEAM];
    member members[TEAM];
    const int before = in_team;
    if (n_threads || flags) return;
    atomic_fetch_add(&n_team_regions, 1);
    for (int i = 1; i < TEAM; i++) {
        members[i] = (member){fn, data, i};
        if (pthread_create(&threads[i], NULL, be_member, &members[i]) != 0) return;
    }
    in_team = 0;
    fn(data);
    in_team = before;
    for (int i = 1; i < TEAM; i++) pthread_join(threads[i], NULL);
}

static int number_in_team(void) { return in_team; }

static const cb_team team = {run_team, number_in_team};

TEST(regions_run_on_another_library_s_threads) {
    static const int sizes[] = {2, 3, 8}; /* fewer than the team has, as many, and more */
    cb_alloc a;
    cb_threads *pool;
    cb_alloc_init(&a);
    const int before = atomic_load(&n_team_regions);
    cb_threads_use(&team);
    for (size_t i = 0; i < 3; i++) {
        CHECK_OK(cb_threads_new(&a, sizes[i], &pool, &err));
        for (int64_t n = 0; n < 20; n++) CHECK(sum_of(pool, n) == triangle(n));
        sum s = {.pool = pool};
        cb_parallel(pool, 50, nest, &s);
        CHECK(atomic_load(&s.clashes) == 0 && atomic_load(&s.total) == 50 * 6);
        cb_threads_free(pool);
    }
    const int n_regions = atomic_load(&n_team_regions);
    CHECK(n_regions - before == 3 * (18 + 1)); /* regions inside a region run inline */
    cb_threads_use(NULL);
    CHECK_OK(cb_threads_new(&a, 3, &pool, &err));
    CHECK(sum_of(pool, 100) == triangle(100) && atomic_load(&n_team_regions) == n_regions);
    cb_threads_free(pool);
    CHECK(cb_alloc_stats(&a).live_bytes == 0);
}

TEST(another_library_s_threads_round_as_the_caller_does) {
    cb_alloc a;
    cb_threads *pool;
    cb_alloc_init(&a);
    CHECK_OK(cb_threads_new(&a, 2, &pool, &err));
    cb_threads_use(&team);
    float seen[2];
    for (int up = 0; up < 2; up++) {
        thirds t = {.n_inside = 0};
        CHECK(fesetround(up ? FE_UPWARD : FE_DOWNWARD) == 0);
        cb_parallel(pool, 2, divide, &t);
        CHECK(fesetround(FE_TONEAREST) == 0);
        seen[up] = atomic_load(&t.by_task[0]);
        CHECK(atomic_load(&t.n_inside) == 2 && atomic_load(&t.by_task[1]) == seen[up]);
    }
    CHECK(seen[1] > seen[0]);
    cb_threads_use(NULL);
    cb_threads_free(pool);
}

#if !CB_TSAN
TEST(a_forked_child_has_threads_of_its_own) {
    cb_alloc a;
    cb_threads *pool;
    cb_alloc_init(&a);
    CHECK_OK(cb_threads_new(&a, 3, &pool, &err));
    cb_threads_use(&team);
    CHECK(sum_of(pool, 100) == triangle(100));
    const int n_regions = atomic_load(&n_team_regions);
    pid_t child = fork();
    if (child == 0) {
        const bool good = sum_of(pool, 100) == triangle(100);
        _exit(good && atomic_load(&n_team_regions) == n_regions ? 0 : 1);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(sum_of(pool, 100) == triangle(100) && atomic_load(&n_team_regions) == n_regions + 1);
    cb_threads_use(NULL);
    cb_threads_free(pool);
}
#endif

TEST(bad_sizes) {
    cb_alloc a;
    cb_threads *pool = NULL;
    cb_alloc_init(&a);
    CHECK_FAIL(cb_threads_new(&a, 0, &pool, &err), CB_INVALID, "0 is not in 1..");
    CHECK_FAIL(cb_threads_new(&a, 100000, &pool, &err), CB_INVALID, "100000");
    CHECK(!pool);
    cb_threads_free(NULL);
}

static cb_status make_and_use(cb_alloc *alloc, void *user) {
    cb_threads *pool;
    (void)user;
    CB_TRY(cb_threads_new(alloc, 2, &pool, NULL));
    cb_status status = sum_of(pool, 10) == 55 ? CB_OK : CB_INTERNAL;
    cb_threads_free(pool);
    return status;
}
TEST(out_of_memory) { check_oom(make_and_use, NULL); }

int main(void) {
    RUN(every_task_runs_once);
    RUN(plain_writes_are_ordered);
    RUN(nested_regions_run_inline);
    RUN(workers_round_as_their_caller_does);
    RUN(two_users_of_one_pool);
#if !CB_TSAN
    RUN(a_forked_child_starts_over);
    RUN(fork_beside_a_busy_pool);
    RUN(a_forked_child_has_threads_of_its_own);
#endif
    RUN(regions_run_on_another_library_s_threads);
    RUN(another_library_s_threads_round_as_the_caller_does);
#if defined(__linux__)
    RUN(workers_are_kept_off_their_caller_s_processor);
#endif
    RUN(bad_sizes);
    RUN(out_of_memory);
    return check_report();
}
