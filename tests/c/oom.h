/* oom.h: walks every out-of-memory path of a piece of work.
 *
 *     static cb_status work(cb_alloc *alloc, void *user) { ... free all it took ... }
 *     check_oom(work, NULL);
 *
 * The n-th allocation fails for n = 1, 2, ... until there are fewer than n. Where one has failed
 * the work must answer CB_NOMEM: any other answer, CB_OK included, was made without what the
 * allocation was for. It never keeps a byte. Long work is tried in growing steps: each try costs
 * all that comes before its failure. */
#ifndef CB_TESTS_OOM_H
#define CB_TESTS_OOM_H

#include "base/alloc.h"
#include "check.h"

#ifdef __SANITIZE_ADDRESS__
#define CB_OOM_EACH 100 /* so many are tried one by one */
#define CB_OOM_GROWTH 20
#else
#define CB_OOM_EACH 1500
#define CB_OOM_GROWTH 100
#endif
static inline uint64_t cb_oom_next(uint64_t nth) {
    return nth < CB_OOM_EACH ? nth + 1 : nth + 1 + nth / CB_OOM_GROWTH;
}

/* In steps that grow from `each` on, by that part of what comes before. */
static inline void check_oom_after(cb_status (*work)(cb_alloc *alloc, void *user), void *user,
                                   uint64_t each) {
    cb_alloc alloc;
    cb_status status = CB_OK;
    bool reached = true, clean = true;
    cb_alloc_init(&alloc);
    for (uint64_t nth = 1; reached && clean; nth += 1 + nth / each) {
        cb_alloc_fail(&alloc, nth);
        status = work(&alloc, user);
        reached = cb_alloc_left(&alloc) == 0;
        clean = cb_alloc_stats(&alloc).live_bytes == 0 && (!reached || status == CB_NOMEM);
        if (!clean) {
            printf("allocation %llu: status %d, %llu bytes kept\n", (unsigned long long)nth,
                   (int)status, (unsigned long long)cb_alloc_stats(&alloc).live_bytes);
        }
        CHECK(clean);
    }
    if (clean) CHECK(status == CB_OK);
}

static inline void check_oom(cb_status (*work)(cb_alloc *alloc, void *user), void *user) {
    check_oom_after(work, user, CB_OOM_EACH);
}

#endif
