/* oom.h: walks every out-of-memory path of a piece of work.
 *
 *     static cb_status work(cb_alloc *alloc, void *user) { ... free all it took ... }
 *     check_oom(work, NULL);
 *
 * The n-th allocation fails for n = 1, 2, ... until the work gets through: before that it must
 * answer CB_NOMEM, and it never keeps a byte. Long work is tried in growing steps: each try costs
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

static inline void check_oom(cb_status (*work)(cb_alloc *alloc, void *user), void *user) {
    cb_alloc alloc;
    cb_status status = CB_NOMEM;
    cb_alloc_init(&alloc);
    for (uint64_t nth = 1; status == CB_NOMEM; nth = cb_oom_next(nth)) {
        cb_alloc_fail(&alloc, nth);
        status = work(&alloc, user);
        bool failed = cb_alloc_stats(&alloc).live_bytes != 0;
        CHECK(!failed);
        if (failed) return;
    }
    CHECK(status == CB_OK);
}

#endif
