/* threads.h: a small thread pool with one parallel region at a time; a region started inside
 * another runs inline. The pool survives fork: the child has a pool without workers and starts them
 * when it needs them. */
#ifndef CB_BASE_THREADS_H
#define CB_BASE_THREADS_H

#include "alloc.h"

typedef struct cb_threads cb_threads;

/* Runs task number `task`. `thread` is in [0, cb_threads_count); a thread runs one task at a time.
 */
typedef void (*cb_task_fn)(void *user, int64_t task, int thread);

/* The number of forks between this process and the one that made the first pool. An object that
 * stores it can tell that it was copied by a fork and that its threads do not exist here. */
uint64_t cb_fork_count(void);

int cb_cpu_count(void); /* processors in the affinity mask, at least 1 */
CB_MUST_CHECK cb_status cb_threads_new(cb_alloc *alloc, int n_threads, cb_threads **out,
                                       cb_error *err);
void cb_threads_free(cb_threads *pool);
int cb_threads_count(const cb_threads *pool);
/* Runs fn(user, task, thread) for task = 0..n_tasks-1 and returns when all are done. Any thread may
 * run any task, so a task's result must depend only on its number. All threads use the caller's
 * rounding mode and flushing of subnormal numbers. If `pool` is NULL, the tasks run inline. */
void cb_parallel(cb_threads *pool, int64_t n_tasks, cb_task_fn fn, void *user);

#endif
