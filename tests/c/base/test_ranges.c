/* Overlapping memory ranges against a check of every pair; known ranges are not sorted again; and
 * orders for which a shell sort with halved gaps takes quadratic time. */
#include "base/ranges.h"
#include "check.h"

enum { MOST = 64 };

static uint32_t state = 1;
static uint32_t chance(uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

static cb_range range(uintptr_t begin, uintptr_t end, bool written) {
    return (cb_range){.begin = begin, .end = end, .kind = "array", .name = "x", .written = written};
}

static bool some_pair_overlaps(const cb_range *at, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = i + 1; j < n; j++)
            if ((at[i].written || at[j].written) && at[i].begin < at[j].end &&
                at[j].begin < at[i].end)
                return true;
    return false;
}

TEST(agrees_with_all_pairs) {
    cb_known_range room[MOST];
    cb_known_ranges known = {.at = room};
    int good = 0;
    for (uint32_t round = 0; round < 4000; round++) {
        const uint32_t n = chance(MOST), spread = 1 + chance(40000);
        cb_range at[MOST] = {{0}}, same[MOST];
        for (uint32_t i = 0; i < n; i++) {
            const uintptr_t begin = 1000 + chance(spread);
            at[i] = range(begin, begin + 1 + chance(20), chance(3) == 0);
        }
        memcpy(same, at, sizeof at);
        const bool overlaps = some_pair_overlaps(at, n);
        CHECK((cb_ranges_check(at, n, NULL, &err) == CB_OK) == !overlaps);
        for (int turn = 0; turn < 2; turn++) {
            memcpy(at, same, sizeof at);
            CHECK((cb_ranges_check(at, n, &known, &err) == CB_OK) == !overlaps);
        }
        CHECK(known.n == (overlaps ? 0 : n));
        good += !overlaps;
    }
    CHECK(good > 400 && good < 3600);
}

/* Any change to the known ranges is detected: of an address, an end, or the write flag. */
TEST(what_changed_is_looked_at) {
    cb_known_range room[3];
    cb_known_ranges known = {.at = room};
    const cb_range good[3] = {range(10, 20, true), range(20, 30, false), range(25, 35, false)};
    cb_range at[3];
    for (int change = 0; change < 4; change++) {
        memcpy(at, good, sizeof at);
        CHECK_OK(cb_ranges_check(at, 3, &known, &err));
        memcpy(at, good, sizeof at);
        if (change == 0) at[1].begin = 19;
        if (change == 1) at[0].end = 21;
        if (change == 2) at[2].written = true;
        if (change == 3) at[0] = range(24, 26, true);
        CHECK_FAIL(cb_ranges_check(at, 3, &known, &err), CB_INVALID, "overlap");
        CHECK(known.n == 0);
    }
    memcpy(at, good, sizeof at);
    CHECK_OK(cb_ranges_check(at, 2, &known, &err));
    CHECK(known.n == 2);
}

/* Known ranges stay in the order in which they were given. */
TEST(known_ranges_are_not_sorted) {
    cb_known_range room[2];
    cb_known_ranges known = {.at = room};
    cb_range at[2] = {range(20, 30, true), range(10, 20, true)};
    CHECK_OK(cb_ranges_check(at, 2, &known, &err));
    CHECK(at[0].begin == 10);
    at[0] = range(20, 30, true);
    at[1] = range(10, 20, true);
    CHECK_OK(cb_ranges_check(at, 2, &known, &err));
    CHECK(at[0].begin == 20);
}

/* Parameters alternate with states, and all states are after all parameters in memory. With gaps of
 * n/2, n/4, ... sorting took 2^33 moves, that is, minutes. */
TEST(alternating_arrays_are_sorted_soon) {
    enum { N = 1 << 18 };
    cb_range *at = malloc(N * sizeof *at);
    CHECK(at);
    for (uint32_t i = 0; i < N; i++) {
        const uintptr_t begin = 16 + 16 * (uintptr_t)(i / 2 + (i % 2) * (N / 2));
        at[i] = range(begin, begin + 16, true);
    }
    CHECK_OK(cb_ranges_check(at, N, NULL, &err));
    for (uint32_t i = 0; i + 1 < N; i++) CHECK(at[i].begin < at[i + 1].begin);
    free(at);
}

int main(void) {
    RUN(agrees_with_all_pairs);
    RUN(what_changed_is_looked_at);
    RUN(known_ranges_are_not_sorted);
    RUN(alternating_arrays_are_sorted_soon);
    return check_report();
}
