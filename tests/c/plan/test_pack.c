/* Packing against lower bounds: blocks that were cut into pieces, all orders of a few lives, and
 * the bytes live at the fullest moment. */
#include "plan/pack/blocks.h"
#include "plan/pack/place_within.h"

#include "check.h"
#include "oom.h"
#include "problems.h"

#define MOST 240

static cb_alloc alloc;

static bool meet(const cb_pack_life *a, const cb_pack_life *b) {
    return a->made <= b->last && b->made <= a->last;
}

/* Checks that every life has an offset below the capacity, and that no two overlap. */
static void check_offsets(const cb_pack *z) {
    for (uint32_t i = 0; i < z->n; i++) {
        const uint64_t begin = z->offset[i], end = begin + z->life[i].bytes;
        CHECK(end <= z->capacity);
        for (uint32_t j = 0; j < i; j++) {
            const uint64_t other = z->offset[j];
            if (!meet(&z->life[i], &z->life[j])) continue;
            CHECK(end <= other || other + z->life[j].bytes <= begin);
        }
    }
}

static bool packs(const cb_pack_life *life, uint32_t n, uint64_t capacity) {
    cb_arena arena;
    cb_pack z;
    bool fits, found = false;
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_pack_init(&z, life, n, &arena, (cb_poll){0}, &fits, &err));
    CHECK(fits);
    CHECK_OK(cb_pack_within(&z, capacity, &found, &err));
    if (found) check_offsets(&z);
    cb_arena_free(&arena);
    return found;
}

/* Cuts a block of 100 moments by `bytes` into `n` pieces. */
static void cut_block(uint64_t *state, cb_pack_life *life, uint32_t n, uint64_t bytes) {
    life[0] = (cb_pack_life){.bytes = bytes, .last = 99};
    for (uint32_t k = 1; k < n;) {
        cb_pack_life *a = &life[maker_draw(state, k)], *b = &life[k];
        const uint32_t moments = a->last - a->made + 1;
        *b = *a;
        if (maker_draw(state, 2) && moments > 1) {
            a->last = a->made + maker_draw(state, moments - 1);
            b->made = a->last + 1;
        } else if (a->bytes > 1) {
            a->bytes = 1 + maker_draw(state, (uint32_t)a->bytes - 1);
            b->bytes -= a->bytes;
        } else {
            continue;
        }
        k++;
    }
}

TEST(blocks_are_put_together) {
    uint32_t whole = 0, rounds = 100;
    for (uint32_t round = 0; round < rounds; round++) {
        uint64_t state = round;
        cb_pack_life life[MOST];
        const uint32_t n = 2 + maker_draw(&state, 60);
        cut_block(&state, life, n, 4096);
        whole += packs(life, n, 4096);
        CHECK(!packs(life, n, 4095));
    }
    CHECK(whole == rounds);
}

/* Long-lived saved values under short-lived ones, as in a step: no gap is needed. */
TEST(steps_need_what_lives_at_once) {
    for (uint32_t round = 0; round < 50; round++) {
        uint64_t state = round, live[200] = {0}, most = 0;
        cb_pack_life life[MOST];
        const uint32_t n = 40 + maker_draw(&state, 60);
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t saved = 64 * (1 + maker_draw(&state, 90)), brief = 64 * (1 + i % 9);
            life[2 * i] = (cb_pack_life){.bytes = saved, .made = i, .last = 2 * n - 1 - i};
            life[2 * i + 1] = (cb_pack_life){.bytes = brief, .made = i, .last = i + 1};
        }
        for (uint32_t i = 0; i < 2 * n; i++)
            for (uint32_t t = life[i].made; t <= life[i].last; t++) live[t] += life[i].bytes;
        for (uint32_t t = 0; t < 2 * n; t++)
            if (live[t] > most) most = live[t];
        CHECK(packs(life, 2 * n, most) && !packs(life, 2 * n, most - 1));
    }
}

#define FEW 6

/* Returns the smallest arena over all orders, with each life placed as low as possible. */
static uint64_t least_arena(cb_pack_life *life, uint64_t *offset, uint32_t all, uint32_t n,
                            uint64_t top) {
    if (n == all) return top;
    uint64_t best = UINT64_MAX;
    for (uint32_t i = n; i < all; i++) {
        const cb_pack_life kept = life[i];
        life[i] = life[n];
        life[n] = kept;
        offset[n] = 0;
        for (uint32_t j = 0; j < n; j++) {
            const uint64_t end = offset[j] + life[j].bytes;
            bool apart = offset[n] >= end || offset[n] + kept.bytes <= offset[j];
            if (apart || !meet(&kept, &life[j])) continue;
            offset[n] = end;
            j = UINT32_MAX; /* start again at the first */
        }
        const uint64_t end = offset[n] + kept.bytes;
        const uint64_t bytes = least_arena(life, offset, all, n + 1, end > top ? end : top);
        if (bytes < best) best = bytes;
        life[n] = life[i];
        life[i] = kept;
    }
    return best;
}

TEST(few_are_packed_as_tightly_as_can_be) {
    for (uint32_t round = 0; round < 400; round++) {
        uint64_t state = round, offset[FEW];
        cb_pack_life life[FEW], copy[FEW];
        for (uint32_t i = 0; i < FEW; i++) {
            const uint32_t made = maker_draw(&state, 8);
            life[i] = (cb_pack_life){.bytes = 1 + maker_draw(&state, 9),
                                     .made = made,
                                     .last = made + maker_draw(&state, 5)};
        }
        memcpy(copy, life, sizeof copy);
        const uint64_t least = least_arena(copy, offset, FEW, 0, 0);
        CHECK(packs(life, FEW, least) && !packs(life, FEW, least - 1));
    }
}

/* Tests blocks with a part removed: the live bytes leave no slack, or little. */
TEST(blocks_with_holes_are_put_together) {
    for (uint32_t round = 0; round < 40; round++) {
        uint64_t state = 1000 + round, offset[MOST];
        cb_pack_life life[MOST];
        cb_arena arena;
        cb_placed placed;
        uint32_t n = 120;
        cut_block(&state, life, n, 4096);
        for (uint32_t k = 0; k < 6; k++, n--) life[maker_draw(&state, n)] = life[n - 1];
        cb_arena_init(&arena, &alloc);
        CHECK_OK(cb_place_within(life, n, 4096, 40 * (uint64_t)CB_PACK_EFFORT, &arena, (cb_poll){0},
                                 offset, &placed, &err));
        CHECK(placed.fit == CB_FIT_FOUND && placed.arena_bytes <= 4096);
        for (uint32_t i = 0; placed.fit == CB_FIT_FOUND && i < n; i++)
            for (uint32_t j = 0; j < i; j++)
                CHECK(!meet(&life[i], &life[j]) || offset[i] + life[i].bytes <= offset[j] ||
                      offset[j] + life[j].bytes <= offset[i]);
        cb_arena_free(&arena);
    }
}

/* Tests lives that end at random: if the arena has room for all of them side by side, a placement
 * always exists. */
TEST(an_attempt_takes_more_room_where_it_is_stuck) {
    for (uint32_t round = 0; round < 60; round++) {
        uint64_t state = 2000 + round, live[200] = {0}, least = 0, all = 0;
        cb_pack_life life[80];
        cb_arena arena;
        cb_pack z;
        bool fits, found;
        for (uint32_t i = 0; i < 80; i++) {
            life[i] = (cb_pack_life){.bytes = 1 + maker_draw(&state, 99), .made = i};
            life[i].last = i + maker_draw(&state, 40);
            all += life[i].bytes;
            for (uint32_t t = i; t <= life[i].last; t++) live[t] += life[i].bytes;
        }
        for (uint32_t t = 0; t < 200; t++)
            if (live[t] > least) least = live[t];
        cb_arena_init(&arena, &alloc);
        CHECK_OK(cb_pack_init(&z, life, 80, &arena, (cb_poll){0}, &fits, &err));
        for (uint32_t rule = CB_PACK_LENGTH; rule < CB_PACK_RULES; rule++) {
            CHECK_OK(cb_pack_loosely(&z, least, all, (cb_pack_rule)rule, &found, &err));
            CHECK(found && z.capacity <= all);
            check_offsets(&z);
            CHECK_OK(cb_pack_loosely(&z, least - 1, least - 1, (cb_pack_rule)rule, &found, &err));
            CHECK(!found);
        }
        cb_arena_free(&arena);
    }
}

TEST(sizes_that_overflow_are_refused) {
    const cb_pack_life life[] = {{.bytes = INT64_MAX}, {.bytes = 1}};
    uint64_t offset[2];
    cb_arena arena;
    cb_placed placed;
    cb_arena_init(&arena, &alloc);
    CHECK(cb_place_within(life, 2, UINT64_MAX, 1, &arena, (cb_poll){0}, offset, &placed, &err) ==
          CB_INVALID);
    CHECK_OK(cb_place_within(life, 0, 0, 1, &arena, (cb_poll){0}, offset, &placed, &err));
    CHECK(placed.fit == CB_FIT_FOUND);
    cb_arena_free(&arena);
}

TEST(one_search_serves_several_capacities) {
    uint64_t state = 3;
    cb_pack_life life[MOST];
    cb_arena arena;
    cb_pack z;
    bool fits, found;
    cut_block(&state, life, 50, 4096);
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_pack_init(&z, life, 50, &arena, (cb_poll){0}, &fits, &err));
    const uint64_t capacity[] = {4000, 4096, 5000, 4095, UINT64_MAX, 4096};
    for (uint32_t i = 0; i < 6; i++) {
        CHECK_OK(cb_pack_within(&z, capacity[i], &found, &err));
        CHECK(found == (capacity[i] >= 4096));
        if (found) check_offsets(&z);
    }
    cb_arena_free(&arena);
}

static int refuse(void *user) {
    (void)user;
    return CB_POLL_CANCEL;
}

TEST(ends_where_it_is_told_to) {
    cb_arena arena;
    cb_pack z;
    bool fits, found;
    uint32_t n = 3000;
    uint64_t state = 1;
    cb_arena_init(&arena, &alloc);
    cb_pack_life *life = CB_NEW(&arena, cb_pack_life, n);
    for (uint32_t i = 0; i < n; i++)
        life[i] = (cb_pack_life){.bytes = 1 + maker_draw(&state, 99), .made = i, .last = i + n / 3};
    CHECK_OK(cb_pack_init(&z, life, n, &arena, (cb_poll){0}, &fits, &err));
    CHECK(!fits);
    CHECK_OK(cb_pack_init(&z, life, 1500, &arena, (cb_poll){refuse, NULL}, &fits, &err));
    CHECK(fits);
    CHECK_OK(cb_pack_within(&z, 20000, &found, &err)); /* too small, detected without a search */
    CHECK(!found);
    for (uint32_t i = 0; i < 1500; i++) life[i].last = i + 1 + maker_draw(&state, 90);
    CHECK_OK(cb_pack_init(&z, life, 1500, &arena, (cb_poll){refuse, NULL}, &fits, &err));
    uint64_t live[1600] = {0}, most = 0;
    for (uint32_t i = 0; i < 1500; i++)
        for (uint32_t t = i; t <= life[i].last; t++) live[t] += life[i].bytes;
    for (uint32_t t = 0; t < 1600; t++)
        if (live[t] > most) most = live[t];
    CHECK(cb_pack_within(&z, most, &found, &err) == CB_CANCELLED);
    cb_arena_free(&arena);
}

/* Thousands of candidates, no two alike, where a gap cannot be avoided elsewhere: the work and
 * memory per level do not grow quadratically. */
TEST(many_choices_cost_little) {
    enum { LONG = 2500, HARD = 300, ALL = LONG + HARD };
    static cb_pack_life life[ALL];
    uint64_t state = 9, live[HARD] = {0}, most = (uint64_t)LONG * (LONG + 1) / 2;
    cb_arena arena;
    cb_pack z;
    bool fits, found;
    for (uint32_t i = 0; i < LONG; i++)
        life[i] = (cb_pack_life){.bytes = i + 1, .made = i, .last = LONG};
    for (uint32_t i = 0; i < HARD; i++) {
        uint32_t a = maker_draw(&state, HARD), b = maker_draw(&state, HARD);
        cb_pack_life *l = &life[LONG + i];
        l->bytes = 1 + maker_draw(&state, 1000000);
        l->made = LONG + 1 + (a < b ? a : b);
        l->last = LONG + 1 + (a < b ? b : a);
        for (uint32_t t = l->made; t <= l->last; t++) live[t - LONG - 1] += l->bytes;
    }
    for (uint32_t t = 0; t < HARD; t++)
        if (live[t] > most) most = live[t];
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_pack_init(&z, life, ALL, &arena, (cb_poll){0}, &fits, &err));
    CHECK(fits);
    CHECK_OK(cb_pack_within(&z, most, &found, &err));
    if (found) check_offsets(&z);
    CHECK(z.choice.cap < 200 * ALL);
    cb_arena_free(&arena);
}

static bool is_alive(const cb_block *b, uint32_t made, uint32_t last) {
    return b->made <= last && made <= b->last;
}

/* Finds the smallest gap; every gap begins at 0 or where a block ends. */
static uint64_t find_gap(const cb_block *block, uint32_t n, uint64_t bytes, uint32_t made,
                         uint32_t last) {
    uint64_t best = UINT64_MAX, least = UINT64_MAX, top = 0;
    for (uint32_t i = 0; i <= n; i++) {
        if (i > 0 && !is_alive(&block[i - 1], made, last)) continue;
        const uint64_t begin = i > 0 ? block[i - 1].end : 0;
        uint64_t end = UINT64_MAX;
        for (uint32_t j = 0; j < n; j++) {
            if (!is_alive(&block[j], made, last)) continue;
            if (block[j].begin <= begin && begin < block[j].end) end = begin;
            if (block[j].begin > begin && block[j].begin < end) end = block[j].begin;
        }
        if (begin > top) top = begin;
        if (end == UINT64_MAX || end - begin < bytes) continue;
        if (end - begin > least || (end - begin == least && begin > best)) continue;
        best = begin;
        least = end - begin;
    }
    return best == UINT64_MAX ? top : best;
}

/* Tests lives that span one window, some windows, and so many that all blocks are scanned. */
TEST(blocks_find_the_smallest_gap) {
    enum { N = 400, MOMENTS = 20000 };
    static cb_block block[N];
    uint64_t state = 3;
    for (uint32_t round = 0; round < 12; round++) {
        cb_arena arena;
        cb_blocks b;
        cb_arena_init(&arena, &alloc);
        CHECK_OK(cb_blocks_init(&b, MOMENTS, &arena, &err));
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t lengths[] = {4, 300, MOMENTS}, length = lengths[maker_draw(&state, 3)];
            const uint32_t made = maker_draw(&state, MOMENTS - 1);
            const uint32_t most = MOMENTS - 1 - made < length ? MOMENTS - 1 - made : length;
            const uint32_t last = made + maker_draw(&state, most);
            const uint64_t bytes = 1 + maker_draw(&state, round < 6 ? 8 : 1000);
            const uint64_t begin = cb_blocks_find_gap(&b, bytes, made, last);
            CHECK(begin == find_gap(block, i, bytes, made, last));
            block[i] = (cb_block){begin, begin + bytes, made, last};
            CHECK(cb_blocks_put(&b, block[i]));
        }
        cb_blocks_clear(&b);
        CHECK(cb_blocks_find_gap(&b, 1, 0, MOMENTS - 1) == 0);
        cb_arena_free(&arena);
    }
}

static cb_status put_blocks(cb_alloc *a, void *user) {
    cb_arena arena;
    cb_blocks b;
    (void)user;
    cb_arena_init(&arena, a);
    cb_status status = cb_blocks_init(&b, 1000, &arena, &err);
    for (uint32_t i = 0; i < 40 && status == CB_OK; i++)
        if (!cb_blocks_put(&b, (cb_block){i, i + 1, i, 900})) status = cb_no_memory(&err);
    cb_arena_free(&arena);
    return status;
}

static cb_status pack_block(cb_alloc *a, void *user) {
    cb_arena arena;
    cb_pack z;
    bool fits, found = false;
    cb_arena_init(&arena, a);
    cb_status status = cb_pack_init(&z, user, 40, &arena, (cb_poll){0}, &fits, &err);
    if (status == CB_OK) status = cb_pack_within(&z, 4096, &found, &err);
    cb_arena_free(&arena);
    return status;
}

TEST(memory_runs_out) {
    uint64_t state = 5;
    cb_pack_life life[MOST];
    cut_block(&state, life, 40, 4096);
    check_oom(pack_block, life);
    check_oom(put_blocks, NULL);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(blocks_are_put_together);
    RUN(steps_need_what_lives_at_once);
    RUN(few_are_packed_as_tightly_as_can_be);
    RUN(blocks_with_holes_are_put_together);
    RUN(an_attempt_takes_more_room_where_it_is_stuck);
    RUN(sizes_that_overflow_are_refused);
    RUN(one_search_serves_several_capacities);
    RUN(ends_where_it_is_told_to);
    RUN(many_choices_cost_little);
    RUN(blocks_find_the_smallest_gap);
    RUN(memory_runs_out);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
