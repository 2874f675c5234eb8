/* oom.h: walks every out-of-memory path of a piece of work.
 *
 *     static cb_status work(cb_alloc *alloc, void *user) { ... free all it took ... }
 *     check_oom(work, NULL);
 *
 * The n-th allocation fails for n = 1, 2, ... until the work gets through: before that it must
 * answer CB_NOMEM, and it never keeps a byte. */
#ifndef CB_TESTS_OOM_H
#define CB_TESTS_OOM_H

#include "base/alloc.h"
#include "check.h"

static inline void check_oom(cb_status (*work)(cb_alloc *alloc, void *user), void *user) {
    cb_alloc alloc;
    cb_status status = CB_NOMEM;
    cb_alloc_init(&alloc);
    for (uint64_t nth = 1; status == CB_NOMEM; nth++) {
        cb_alloc_fail(&alloc, nth);
        status = work(&alloc, user);
        bool failed = cb_alloc_stats(&alloc).live_bytes != 0;
        CHECK(!failed);
        if (failed) return;
    }
    CHECK(status == CB_OK);
}

#endif
