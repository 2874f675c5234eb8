/* threads.h: a small pool. One parallel region at a time; a region started inside another runs
 * inline. Survives fork: the child gets a pool without workers and starts its own when it needs
 * them. */
#ifndef CB_BASE_THREADS_H
#define CB_BASE_THREADS_H

#include "alloc.h"

typedef struct cb_threads cb_threads;

/* Task i of n; `thread` is in [0, cb_threads_count) and one thread runs one task at a time. */
typedef void (*cb_task_fn)(void *user, int64_t task, int thread);

/* How many forks lie between this process and the one in which the first pool was made. What
 * remembers it can tell that it was left by a thread which the child does not have. */
uint64_t cb_fork_count(void);

int cb_cpu_count(void); /* processors in the affinity mask, at least 1 */
CB_MUST_CHECK cb_status cb_threads_new(cb_alloc *alloc, int n_threads, cb_threads **out,
                                       cb_error *err);
void cb_threads_free(cb_threads *pool);
int cb_threads_count(const cb_threads *pool);
/* Runs fn(user, 0..n_tasks-1) and returns when all are done. Which thread runs which task is not
 * fixed, so a task's result must depend on its number alone. All threads round and flush subnormal
 * numbers as the caller does. `pool` may be NULL: runs inline. */
void cb_parallel(cb_threads *pool, int64_t n_tasks, cb_task_fn fn, void *user);

#endif
