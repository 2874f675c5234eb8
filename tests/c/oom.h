/* oom.h: walks every out-of-memory path of a piece of work.
 *
 *     static cb_status work(cb_alloc *alloc, void *user) { ... free all it took ... }
 *     check_oom(work, NULL);
 *
 * The n-th allocation fails for n = 1, 2, ... until there are fewer than n. If one failed, the work
 * must return CB_NOMEM: any other status, including CB_OK, means that the failure was ignored. The
 * work must not leak a byte.
 *
 * Each try repeats everything before its failure. A sweep therefore tries every n up to `each`,
 * then steps of n / each: work of up to 1,500 allocations (100 under AddressSanitizer) is swept in
 * full, and with CB_OOM_ALL any work is. A sweep that skips some prints how many it tried. */
#ifndef CB_TESTS_OOM_H
#define CB_TESTS_OOM_H

#include "base/alloc.h"
#include "base/sanitize.h"
#include "check.h"

#define CB_OOM_EACH (CB_ASAN ? 100u : 1500u)
#define CB_OOM_ALL (CB_ASAN || CB_TSAN ? 100u : UINT64_MAX)

static inline uint64_t cb_oom_next(uint64_t nth, uint64_t each) { return nth + 1 + nth / each; }

static inline void check_oom_after(cb_status (*work)(cb_alloc *alloc, void *user), void *user,
                                   uint64_t each) {
    cb_alloc alloc;
    cb_status status = CB_OK;
    bool reached = true, clean = true;
    uint64_t tried = 0, last = 0;
    cb_alloc_init(&alloc);
    for (uint64_t nth = 1; reached && clean; nth = cb_oom_next(nth, each)) {
        cb_alloc_fail(&alloc, nth);
        status = work(&alloc, user);
        reached = cb_alloc_left(&alloc) == 0;
        clean = cb_alloc_stats(&alloc).live_bytes == 0 && (!reached || status == CB_NOMEM);
        if (!clean) {
            printf("allocation %llu: status %d, %llu bytes kept\n", (unsigned long long)nth,
                   (int)status, (unsigned long long)cb_alloc_stats(&alloc).live_bytes);
        }
        CHECK(clean);
        tried += reached;
        last = reached ? nth : last;
    }
    if (clean) CHECK(status == CB_OK);
    if (tried < last)
        printf("     %llu of some %llu allocations failed once\n", (unsigned long long)tried,
               (unsigned long long)last);
}

static inline void check_oom(cb_status (*work)(cb_alloc *alloc, void *user), void *user) {
    check_oom_after(work, user, CB_OOM_EACH);
}

#endif
