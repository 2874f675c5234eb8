/* Kept blocks: which are reused, how many are kept, and what happens when memory runs out. */
#include "base/kept.h"
#include "base/threads.h"
#include "oom.h"

enum { LARGE = 1 << 17 };

static cb_alloc alloc;

static cb_kept *fresh(void) {
    cb_kept *k = NULL;
    cb_alloc_init(&alloc);
    CHECK(cb_kept_new(&alloc, &k, &err) == CB_OK);
    return k;
}

static void end(cb_kept *k) {
    cb_kept_free(k);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
}

TEST(a_block_is_reused) {
    cb_kept *k = fresh();
    char *x = cb_kept_take(k, LARGE);
    CHECK(x && (uintptr_t)x % CB_ALIGN == 0);
    memset(x, 3, LARGE);
    cb_kept_give(k, x);
    cb_kept_stats s = cb_kept_stats_of(k);
    CHECK(s.in_use == 0 && s.kept == LARGE && s.n_fresh == 1);
    CHECK(cb_kept_take(k, LARGE) == x);
    s = cb_kept_stats_of(k);
    CHECK(s.in_use == LARGE && s.kept == 0 && s.n_fresh == 1);
    memset(x, 4, LARGE);
    cb_kept_give(k, x);
    cb_kept_give(k, NULL);
    end(k);
}

TEST(another_size_is_another_block) {
    cb_kept *k = fresh();
    char *x = cb_kept_take(k, LARGE), *y = cb_kept_take(k, LARGE + 1);
    cb_kept_give(k, x);
    char *z = cb_kept_take(k, LARGE + 2);
    CHECK(x && y && z && z != x);
    /* above the most that was ever in use at once, so the kept block was freed */
    CHECK(cb_kept_stats_of(k).kept == 0 && cb_kept_stats_of(k).in_use == 2 * LARGE + 3);
    cb_kept_give(k, y);
    cb_kept_give(k, z);
    CHECK(cb_kept_stats_of(k).kept == 2 * LARGE + 3);
    CHECK(cb_kept_release(k) == 2 * LARGE + 3 && cb_kept_stats_of(k).kept == 0);
    end(k);
}

TEST(small_blocks_are_not_kept) {
    cb_kept *k = fresh();
    char *x = cb_kept_take(k, CB_KEPT_LEAST - 1), *y = cb_kept_take(k, 0);
    CHECK(x && y && cb_kept_stats_of(k).in_use == 0);
    cb_kept_give(k, x);
    cb_kept_give(k, y);
    CHECK(cb_kept_stats_of(k).kept == 0 && cb_kept_stats_of(k).n_fresh == 0);
    end(k);
}

/* When a program uses less memory than before, the excess is freed after a while. */
TEST(what_is_kept_follows_what_is_used) {
    cb_kept *k = fresh();
    char *many[8];
    for (int i = 0; i < 8; i++) many[i] = cb_kept_take(k, LARGE);
    for (int i = 0; i < 8; i++) cb_kept_give(k, many[i]);
    CHECK(cb_kept_stats_of(k).kept == 8 * LARGE);
    for (int i = 0; i < 1100; i++) cb_kept_give(k, cb_kept_take(k, LARGE));
    cb_kept_stats s = cb_kept_stats_of(k);
    CHECK(s.kept == LARGE && s.n_fresh == 8);
    for (int i = 0; i < 1100; i++) cb_kept_give(k, cb_kept_take(k, 64)); /* too small to be kept */
    CHECK(cb_kept_stats_of(k).kept == 0);
    end(k);
}

static uint64_t below(uint64_t *state, uint64_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % n;
}

/* Blocks that are taken and returned at random never overlap, and the bound always holds. */
TEST(random_use) {
    cb_kept *k = fresh();
    struct {
        unsigned char *at, mark;
        size_t bytes;
    } held[32] = {0};
    uint64_t chance = 1, most = 0;
    for (int round = 0; round < 4000; round++) {
        size_t i = below(&chance, 32);
        if (held[i].at) {
            CHECK(held[i].at[0] == held[i].mark && held[i].at[held[i].bytes - 1] == held[i].mark);
            cb_kept_give(k, held[i].at);
            held[i].at = NULL;
        } else {
            held[i].bytes = CB_KEPT_LEAST - 64 + 64 * below(&chance, 6);
            held[i].mark = (unsigned char)round;
            held[i].at = cb_kept_take(k, held[i].bytes);
            CHECK(held[i].at);
            held[i].at[0] = held[i].at[held[i].bytes - 1] = held[i].mark;
        }
        cb_kept_stats s = cb_kept_stats_of(k);
        if (most < s.in_use) most = s.in_use;
        CHECK(s.in_use + s.kept <= most);
        if (round % 997 == 0) cb_kept_release(k);
    }
    for (int i = 0; i < 32; i++) cb_kept_give(k, held[i].at);
    end(k);
}

/* A limit set by the caller bounds the bytes in use and kept together. */
TEST(a_limit) {
    cb_kept *k = fresh();
    char *x[3];
    for (int i = 0; i < 3; i++) x[i] = cb_kept_take(k, LARGE);
    cb_kept_limit(k, 2 * LARGE); /* below the bytes in use, which stay allocated */
    CHECK(cb_kept_stats_of(k).in_use == 3 * LARGE && !cb_kept_take(k, LARGE));
    cb_kept_give(k, x[0]);
    cb_kept_give(k, x[1]);
    CHECK(cb_kept_stats_of(k).kept == LARGE); /* x[0] was freed */
    x[0] = cb_kept_take(k, LARGE / 2);        /* the kept block is freed to make room */
    CHECK(x[0] && cb_kept_stats_of(k).kept == 0);
    CHECK(!cb_kept_take(k, LARGE) && !cb_kept_take(k, SIZE_MAX));
    CHECK(cb_kept_stats_of(k).in_use == LARGE + LARGE / 2);
    x[1] = cb_kept_take(k, 64); /* small blocks do not count */
    CHECK(x[1]);
    cb_kept_limit(k, UINT64_MAX);
    char *y = cb_kept_take(k, 4 * LARGE);
    CHECK(y);
    cb_kept_give(k, y);
    for (int i = 0; i < 3; i++) cb_kept_give(k, x[i]);
    end(k);
}

TEST(out_of_memory) {
    cb_kept *k = fresh();
    cb_kept_give(k, cb_kept_take(k, LARGE));
    cb_alloc_fail(&alloc, 1); /* kept blocks are freed, and the second attempt succeeds */
    char *x = cb_kept_take(k, 2 * LARGE);
    CHECK(x && cb_kept_stats_of(k).kept == 0);
    cb_alloc_fail(&alloc, 1);
    CHECK(!cb_kept_take(k, LARGE) && cb_kept_stats_of(k).in_use == 2 * LARGE);
    cb_kept_give(k, x);
    CHECK(!cb_kept_take(k, SIZE_MAX) && cb_kept_stats_of(k).kept == 0);
    end(k);
    cb_alloc_fail(&alloc, 1);
    CHECK(cb_kept_new(&alloc, &k, &err) == CB_NOMEM);
}

static void use(void *user, int64_t task, int thread) {
    cb_kept *k = user;
    (void)thread;
    for (int i = 0; i < 200; i++) {
        unsigned char *at = cb_kept_take(k, LARGE + 64 * (size_t)(task % 3));
        if (!at) continue;
        at[0] = (unsigned char)task;
        at[LARGE - 1] = (unsigned char)task;
        cb_kept_give(k, at);
    }
}

TEST(several_threads) {
    cb_kept *k = fresh();
    cb_threads *threads = NULL;
    CHECK(cb_threads_new(&alloc, 4, &threads, &err) == CB_OK);
    cb_parallel(threads, 16, use, k);
    cb_threads_free(threads);
    CHECK(cb_kept_stats_of(k).in_use == 0);
    end(k);
}

int main(void) {
    RUN(a_block_is_reused);
    RUN(another_size_is_another_block);
    RUN(small_blocks_are_not_kept);
    RUN(what_is_kept_follows_what_is_used);
    RUN(random_use);
    RUN(a_limit);
    RUN(out_of_memory);
    RUN(several_threads);
    return check_report();
}
