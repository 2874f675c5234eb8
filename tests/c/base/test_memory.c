/* The allocator and what is built on it: arenas, vectors, text, bitsets. */
#include "base/arena.h"
#include "base/bitset.h"
#include "base/vec.h"
#include "oom.h"

TEST(alloc_counts) {
    cb_alloc a;
    cb_alloc_init(&a);
    char *x = cb_malloc(&a, 100), *y = cb_malloc(&a, 0);
    CHECK(x && y && (uintptr_t)x % CB_ALIGN == 0 && (uintptr_t)y % CB_ALIGN == 0);
    memset(x, 7, 100);
    cb_free(&a, x);
    cb_free(&a, NULL);
    char *z = cb_malloc(&a, 60);
    cb_memory_stats stats = cb_alloc_stats(&a);
    CHECK(stats.n_alloc == 3 && stats.live_bytes == 60 && stats.peak_bytes == 100);
    cb_free(&a, y);
    cb_free(&a, z);
    CHECK(cb_alloc_stats(&a).live_bytes == 0);
}

TEST(alloc_fails_once) {
    cb_alloc a;
    cb_alloc_init(&a);
    cb_alloc_fail(&a, 2);
    char *x = cb_malloc(&a, 1), *y = cb_malloc(&a, 1), *z = cb_malloc(&a, 1);
    CHECK(x && !y && z);
    CHECK(cb_alloc_stats(&a).n_alloc == 2);
    cb_free(&a, x);
    cb_free(&a, z);
    cb_alloc_fail(&a, 1);
    cb_alloc_fail(&a, 0);
    x = cb_malloc(&a, 1);
    CHECK(x);
    cb_free(&a, x);
}

TEST(alloc_refuses_absurd_sizes) {
    cb_alloc a;
    cb_alloc_init(&a);
    CHECK(!cb_malloc(&a, SIZE_MAX));
    CHECK(!cb_malloc(&a, SIZE_MAX - CB_ALIGN));
    CHECK(!cb_malloc(&a, (size_t)1 << 62));
    CHECK(cb_alloc_stats(&a).n_alloc == 0);
}

TEST(checked_arithmetic) {
    size_t s = 5;
    int64_t i = 5;
    CHECK(!cb_mul_size(SIZE_MAX / 2, 3, &s) && s == 5);
    CHECK(cb_mul_size(SIZE_MAX / 3, 3, &s) && s == SIZE_MAX / 3 * 3);
    CHECK(!cb_add_size(SIZE_MAX, 1, &s) && cb_add_size(SIZE_MAX - 1, 1, &s) && s == SIZE_MAX);
    CHECK(!cb_mul_i64(INT64_C(1) << 62, 2, &i) && i == 5);
    CHECK(cb_mul_i64(INT64_C(1) << 61, 2, &i) && i == INT64_C(1) << 62);
    CHECK(cb_align_up(0) == 0 && cb_align_up(1) == 64 && cb_align_up(64) == 64 &&
          cb_align_up(65) == 128);
}

TEST(arena_gives_zeroed_aligned_items) {
    cb_alloc a;
    cb_arena arena;
    cb_alloc_init(&a);
    cb_arena_init(&arena, &a);
    size_t total = 0;
    for (size_t n = 0; n < 3000; n += 7) { /* 0.6 MB: several chunks */
        unsigned char *item = cb_arena_get(&arena, n, 1);
        CHECK(item && (uintptr_t)item % 16 == 0);
        for (size_t i = 0; i < n; i++) CHECK(item[i] == 0);
        if (n) memset(item, 0xFF, n);
        total += n;
    }
    cb_memory_stats stats = cb_alloc_stats(&a);
    CHECK(stats.n_alloc < 12 && stats.live_bytes < 3 * total);
    cb_arena_free(&arena);
    cb_arena_free(&arena);
    CHECK(cb_alloc_stats(&a).live_bytes == 0);
}

TEST(arena_big_items_leave_the_head_in_use) {
    cb_alloc a;
    cb_arena arena;
    cb_alloc_init(&a);
    cb_arena_init(&arena, &a);
    char *first = CB_NEW(&arena, char, 16);
    double *big = CB_NEW(&arena, double, 1 << 20);
    char *second = CB_NEW(&arena, char, 16);
    CHECK(first && big && second && second > first && second - first < 64);
    big[(1 << 20) - 1] = 1;
    CHECK(cb_alloc_stats(&a).n_alloc == 2);
    CHECK(!cb_arena_get(&arena, SIZE_MAX / 2, 3));
    CHECK(!cb_arena_get(&arena, SIZE_MAX, 1));
    CHECK(!cb_arena_get(&arena, SIZE_MAX - 100, 1));
    cb_arena_free(&arena);
}

TEST(vectors_and_text_grow) {
    cb_alloc a;
    cb_arena arena;
    cb_alloc_init(&a);
    cb_arena_init(&arena, &a);
    CB_VEC(uint32_t) ids = {0};
    for (uint32_t i = 0; i < 10000; i++) CHECK(CB_PUSH(&arena, ids, i * 3));
    for (uint32_t i = 0; i < ids.len; i++) CHECK(ids.at[i] == i * 3);
    CHECK(ids.len == 10000 && ids.cap >= ids.len);
    CHECK(!CB_RESERVE(&arena, ids, SIZE_MAX));
    CHECK(!CB_RESERVE(&arena, ids, SIZE_MAX / 2));

    cb_str text;
    cb_str_init(&text, &arena);
    for (int i = 0; i < 100; i++) cb_str_addf(&text, "%d,", i);
    cb_str_addf(&text, "%300s|", "right");
    cb_str_addf(&text, "%g", 0.5);
    cb_str_add(&text, "", 0);
    CHECK(!text.failed && strlen(text.at) == text.len && text.len == 290 + 301 + 3);
    CHECK(strncmp(text.at, "0,1,2,", 6) == 0 && strstr(text.at, "right|0.5"));
    cb_arena_free(&arena);
}

TEST(bitset) {
    cb_alloc a;
    cb_arena arena;
    cb_bitset set;
    cb_alloc_init(&a);
    cb_arena_init(&arena, &a);
    CHECK(cb_bitset_init(&set, &arena, 130));
    for (size_t i = 0; i < 130; i += 3) cb_bitset_add(&set, i);
    for (size_t i = 0; i < 130; i++) CHECK(cb_bitset_has(&set, i) == (i % 3 == 0));
    cb_arena_free(&arena);
}

static cb_status fill(cb_alloc *alloc, void *user) {
    (void)user;
    cb_arena arena;
    cb_status status = CB_OK;
    cb_arena_init(&arena, alloc);
    CB_VEC(double) numbers = {0};
    cb_str text;
    cb_str_init(&text, &arena);
    for (int i = 0; i < 5000 && status == CB_OK; i++) {
        if (!CB_PUSH(&arena, numbers, i)) status = cb_no_memory(NULL);
        cb_str_addf(&text, "%d ", i);
    }
    if (text.failed) status = CB_NOMEM;
    cb_arena_free(&arena);
    return status;
}
TEST(out_of_memory) { check_oom(fill, NULL); }

int main(void) {
    RUN(alloc_counts);
    RUN(alloc_fails_once);
    RUN(alloc_refuses_absurd_sizes);
    RUN(checked_arithmetic);
    RUN(arena_gives_zeroed_aligned_items);
    RUN(arena_big_items_leave_the_head_in_use);
    RUN(vectors_and_text_grow);
    RUN(bitset);
    RUN(out_of_memory);
    return check_report();
}
