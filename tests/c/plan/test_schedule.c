/* The evaluator on schedules small enough to count by hand, with each of its rules broken once; and
 * offsets. */
#include "plan/schedule/schedule.h"

#include "check.h"
#include "oom.h"
#include "problems.h"

static cb_alloc alloc;

/* Makes x -> a (100) -> b (200) -> c (300); backward: g = f(tangent, b), h = f(g, a). Ops 0..5 are
 * x a b c tangent g h. */
static cb_problem *chain(void) {
    static maker m;
    memset(&m, 0, sizeof m);
    uint32_t x = make_input(&m, 1000), a = make_op(&m, CB_POP_FUSIBLE, 1, &x, 100),
             b = make_op(&m, CB_POP_FUSIBLE, 1, &a, 200);
    uint32_t c = make_op(&m, CB_POP_FUSIBLE, 1, &b, 300);
    m.backward_starts = m.n_op;
    m.result[m.n_result++] = c;
    uint32_t t = make_input(&m, 8);
    m.flags[m.n_op - 1] |= CB_POP_BACKWARD;
    uint32_t g = make_op(&m, CB_POP_BACKWARD, 2, (const uint32_t[]){t, b}, 10);
    m.workspace[m.n_op] = 7;
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 2, (const uint32_t[]){g, a}, 20);
    return make_problem(&m, &alloc);
}

static cb_status walk(const cb_problem *p, cb_arena *arena, uint32_t n, const uint32_t *steps,
                      uint32_t starts, cb_lives *lives) {
    cb_schedule s = {.n_step = n, .step = steps, .backward_starts = starts};
    return cb_schedule_walk(p, &s, cb_device_find("cpu"), arena, lives, &err);
}

TEST(counts_bytes_and_steps) {
    cb_problem *p = chain();
    cb_arena arena;
    cb_lives lives;
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_problem_verify(p, &err));
    CHECK_OK(walk(p, &arena, 5, (const uint32_t[]){1, 2, 3, 5, 6}, 3, &lives));
    /* a | a b | a b c | a b c g: the result lives until the backward starts | a g h and 7 of
     * scratch */
    CHECK(lives.live_bytes[0] == 100 && lives.live_bytes[1] == 300 && lives.live_bytes[2] == 600);
    CHECK(lives.live_bytes[3] == 610 && lives.live_bytes[4] == 137);
    CHECK(lives.peak_bytes == 610 && lives.peak_step == 3 && lives.saved_bytes == 600);
    CHECK(lives.n_recomputed == 0 && lives.time_ps == lives.once_ps && lives.n_instance == 6);
    CHECK(lives.instance[lives.value_instance_out[lives.out_begin[4]]].last ==
          5); /* a gradient lives to the end */
    CHECK(lives.scratch_instance[4] != CB_NONE && lives.scratch_instance[3] == CB_NONE);
    /* a runs again for h, so its first result is freed after b. */
    CHECK_OK(walk(p, &arena, 6, (const uint32_t[]){1, 2, 3, 5, 1, 6}, 3, &lives));
    CHECK(lives.saved_bytes == 500 && lives.n_recomputed == 1 && lives.time_ps > lives.once_ps);
    CHECK(lives.live_bytes[3] == 510 && lives.live_bytes[4] == 110 && lives.live_bytes[5] == 137);
    cb_arena_free(&arena);
    cb_problem_free(p);
}

TEST(names_the_broken_rule) {
    cb_problem *p = chain();
    cb_arena arena;
    cb_lives lives;
    cb_arena_init(&arena, &alloc);
    CHECK_FAIL(walk(p, &arena, 1, (const uint32_t[]){9}, 0, &lives), CB_INVALID, "op 9, but there");
    CHECK_FAIL(walk(p, &arena, 1, (const uint32_t[]){0}, 0, &lives), CB_INVALID,
               "op_0 is a placeholder");
    CHECK_FAIL(walk(p, &arena, 1, (const uint32_t[]){2}, 1, &lives), CB_INVALID,
               "op_2 needs value 1 of op_1");
    CHECK_FAIL(walk(p, &arena, 1, (const uint32_t[]){1}, 2, &lives), CB_INVALID,
               "starts at step 2, but the plan has 1 step");
    CHECK_FAIL(walk(p, &arena, 5, (const uint32_t[]){1, 2, 3, 5, 6}, 4, &lives), CB_INVALID,
               "op_5 depends on a tangent");
    CHECK_FAIL(walk(p, &arena, 4, (const uint32_t[]){1, 2, 5, 6}, 2, &lives), CB_INVALID,
               "forward output 0 of op_3");
    CHECK_FAIL(walk(p, &arena, 4, (const uint32_t[]){1, 2, 3, 5}, 3, &lives), CB_INVALID,
               "backward output 0 of op_6");
    p->op_flags[1] |= CB_POP_UNKNOWN;
    CHECK_FAIL(walk(p, &arena, 6, (const uint32_t[]){1, 2, 3, 5, 1, 6}, 3, &lives), CB_INVALID,
               "op_1 may run only once");
    p->op_flags[1] = CB_POP_EFFECT;
    CHECK_OK(walk(p, &arena, 5, (const uint32_t[]){1, 2, 3, 5, 6}, 3, &lives));
    p->op_flags[4] = CB_POP_PLACEHOLDER | CB_POP_BACKWARD;
    p->storage_flags[1] = CB_STORE_HOLD_END;
    p->storage_flags[2] = CB_STORE_HOLD_FORWARD;
    CHECK_OK(walk(p, &arena, 5, (const uint32_t[]){1, 2, 3, 5, 6}, 3, &lives));
    CHECK(lives.instance[0].last == 5);
    cb_arena_free(&arena);
    cb_problem_free(p);
}

TEST(views_hold_their_storage) {
    static maker m;
    memset(&m, 0, sizeof m);
    uint32_t x = make_input(&m, 8), a = make_op(&m, 0, 1, &x, 100), v = make_view(&m, 0, a),
             w = make_view(&m, 0, x);
    make_op(&m, 0, 2, (const uint32_t[]){v, w}, 10);
    m.backward_starts = m.n_op;
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 1, &v, 1);
    cb_problem *p = make_problem(&m, &alloc);
    cb_arena arena;
    cb_lives lives;
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_problem_verify(p, &err));
    CHECK_OK(walk(p, &arena, 5, (const uint32_t[]){1, 2, 3, 4, 5}, 4, &lives));
    CHECK(lives.n_instance == 3 && lives.saved_bytes == 100 && lives.peak_bytes == 110);
    CHECK(lives.value_instance_out[lives.out_begin[1]] == 0 &&
          lives.value_instance_out[lives.out_begin[2]] == CB_NONE);
    /* The op runs again but not its view: the backward reads the view of the first run. */
    CHECK_OK(walk(p, &arena, 6, (const uint32_t[]){1, 2, 3, 4, 1, 5}, 4, &lives));
    CHECK(lives.saved_bytes == 100 && lives.live_bytes[4] == 200);
    CHECK_OK(walk(p, &arena, 7, (const uint32_t[]){1, 2, 3, 4, 1, 2, 5}, 4, &lives));
    CHECK(lives.saved_bytes == 0 && lives.live_bytes[4] == 100);
    cb_arena_free(&arena);
    cb_problem_free(p);
}

/* Makes x -> (a 100, s 30), b = f(a) of 200; backward: g = f(tangent, b), h = f(g, a, maybe s). s
 * is held to the end, or is the caller's. */
static cb_problem *pair(uint8_t flag, bool reads) {
    static maker m;
    memset(&m, 0, sizeof m);
    uint32_t x = make_input(&m, 1000), a = make_pair_op(&m, CB_POP_FUSIBLE, 1, &x, 100, 30),
             b = make_op(&m, CB_POP_FUSIBLE, 1, &a, 200);
    m.storage_flags[m.storage[a + 1]] |= flag;
    m.result[m.n_result++] = a + 1;
    m.backward_starts = m.n_op;
    uint32_t t = make_input(&m, 8);
    m.flags[m.n_op - 1] |= CB_POP_BACKWARD;
    uint32_t g = make_op(&m, CB_POP_BACKWARD, 2, (const uint32_t[]){t, b}, 10);
    g = make_op(&m, CB_POP_BACKWARD, 2, (const uint32_t[]){g, a}, 20);
    m.grad[m.n_grad++] =
        make_op(&m, CB_POP_BACKWARD, reads ? 2 : 1, (const uint32_t[]){g, a + 1}, 40);
    return make_problem(&m, &alloc);
}

TEST(what_is_held_is_of_the_first_run) {
    const uint32_t again[] = {1, 2, 4, 1, 5, 6}, held[] = {CB_STORE_HOLD_END, CB_STORE_STATIC, 0};
    /* bytes while the op runs again, the step after, and the last */
    static const uint64_t bytes[3][2][3] = {
        {{30 + 10 + 100 + 30, 30 + 10 + 100 + 20, 30 + 20 + 40},
         {30 + 10 + 100 + 30, 30 + 10 + 100 + 20 + 30, 30 + 20 + 40 + 30}},
        {{10 + 100 + 30, 10 + 100 + 20, 20 + 40}, {10 + 100 + 30, 10 + 100 + 20, 20 + 40}},
        {{10 + 100 + 30, 10 + 100 + 20, 20 + 40},
         {10 + 100 + 30, 10 + 100 + 20 + 30, 20 + 40 + 30}}};
    for (int i = 0; i < 3; i++) {
        for (int reads = 0; reads < 2; reads++) {
            cb_problem *p = pair((uint8_t)held[i], reads);
            cb_arena arena;
            cb_lives lives;
            cb_arena_init(&arena, &alloc);
            CHECK_OK(cb_problem_verify(p, &err));
            CHECK_OK(walk(p, &arena, 6, again, 2, &lives));
            for (int k = 0; k < 3; k++) CHECK(lives.live_bytes[3 + k] == bytes[i][reads][k]);
            uint32_t first = lives.value_instance_out[lives.out_begin[0] + 1],
                     copy = lives.value_instance_out[lives.out_begin[3] + 1];
            CHECK(copy != CB_NONE && copy != first);
            CHECK((first == CB_NONE) == (held[i] == CB_STORE_STATIC));
            CHECK(held[i] != CB_STORE_HOLD_END || lives.instance[first].last == 6);
            cb_arena_free(&arena);
            cb_problem_free(p);
        }
    }
}

/* Makes w, x -> h = f(x, w) -> c; backward: d = f(t, x) is w's gradient, e = f(t, w), last = f(e,
 * x, h). Ops 0..7 are w x h c t d e last. */
static cb_problem *with_update(void) {
    static maker m;
    memset(&m, 0, sizeof m);
    uint32_t w = make_input(&m, 64), x = make_input(&m, 64),
             h = make_op(&m, CB_POP_FUSIBLE, 2, (const uint32_t[]){x, w}, 100),
             c = make_op(&m, CB_POP_FUSIBLE, 1, &h, 8);
    m.backward_starts = m.n_op;
    m.result[m.n_result++] = c;
    uint32_t t = make_input(&m, 8);
    m.flags[m.n_op - 1] |= CB_POP_BACKWARD;
    uint32_t d = make_op(&m, CB_POP_BACKWARD, 2, (const uint32_t[]){t, x}, 64);
    uint32_t e = make_op(&m, CB_POP_BACKWARD, 2, (const uint32_t[]){t, w}, 32);
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 3, (const uint32_t[]){e, x, h}, 16);
    cb_problem *p = make_problem(&m, &alloc);
    CHECK_OK(cb_set_update(p, p->value_storage[d], p->value_storage[w], &err));
    return p;
}

TEST(a_gradient_ends_with_the_last_reader_of_its_parameter) {
    cb_problem *p = with_update();
    cb_arena arena;
    cb_lives lives;
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_problem_verify(p, &err));
    /* h | h c | h c d | h d e | h e last */
    CHECK_OK(walk(p, &arena, 5, (const uint32_t[]){2, 3, 5, 6, 7}, 2, &lives));
    const uint64_t want[] = {100, 108, 172, 196, 148};
    for (int t = 0; t < 5; t++) CHECK(lives.live_bytes[t] == want[t]);
    /* h runs again for the last op and reads w, so the update waits, and d is kept. */
    CHECK_OK(walk(p, &arena, 6, (const uint32_t[]){2, 3, 5, 6, 2, 7}, 2, &lives));
    const uint64_t again[] = {100, 108, 72, 96, 196, 148};
    for (int t = 0; t < 6; t++) CHECK(lives.live_bytes[t] == again[t]);
    cb_arena_free(&arena);
    cb_problem_free(p);
}

TEST(names_what_no_update_can_read) {
    cb_problem *p = with_update();
    const uint32_t d = p->value_storage[p->out_begin[5]], e = p->value_storage[p->out_begin[6]],
                   h = p->value_storage[p->out_begin[2]], last = p->value_storage[p->out_begin[7]];
    const struct {
        uint32_t gradient, parameter;
        const char *why;
    } wrong[] = {{d, 99, "but there are 8 storages"},
                 {d, h, "not that of a placeholder"},
                 {e, 0, "another update"},
                 {last, 1, "the backward returns it"},
                 {1, 0, "static or held"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        uint32_t *at = &p->updates[wrong[i].gradient], kept = *at;
        *at = wrong[i].parameter;
        CHECK_FAIL(cb_problem_verify(p, &err), CB_INVALID, wrong[i].why);
        *at = kept;
    }
    p->op_flags[6] |= CB_POP_MUTATES; /* e = f(t, w) writes into w */
    p->value_storage[p->out_begin[6]] = 0;
    CHECK_FAIL(cb_problem_verify(p, &err), CB_INVALID, "writes into what it updates");
    cb_problem_free(p);
}

TEST(mutation_pins_its_readers) {
    static maker m;
    memset(&m, 0, sizeof m);
    uint32_t x = make_input(&m, 8), a = make_op(&m, 0, 1, &x, 100),
             before = make_op(&m, 0, 1, &a, 10);
    m.storage[m.n_value] = m.storage[a];
    uint32_t changed = end_op(&m, CB_POP_MUTATES, 1, &a, 1);
    m.backward_starts = m.n_op;
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 2, (const uint32_t[]){before, changed}, 1);
    cb_problem *p = make_problem(&m, &alloc);
    cb_arena arena;
    cb_lives lives;
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_problem_verify(p, &err));
    CHECK_OK(walk(p, &arena, 4, (const uint32_t[]){1, 2, 3, 4}, 3, &lives));
    CHECK(lives.n_instance == 3);
    CHECK_FAIL(walk(p, &arena, 5, (const uint32_t[]){1, 2, 3, 2, 4}, 3, &lives), CB_INVALID,
               "op_2 reads storage 1 after op_3");
    CHECK_FAIL(walk(p, &arena, 3, (const uint32_t[]){1, 2, 4}, 2, &lives), CB_INVALID,
               "op_4 needs value 3 of op_3");
    cb_arena_free(&arena);
    cb_problem_free(p);
}

/* Makes the chain with three ops in its backward: g(tangent, b), h(g), k(tangent, a). */
static cb_problem *three(uint32_t flags) {
    static maker m;
    memset(&m, 0, sizeof m);
    uint32_t x = make_input(&m, 8), a = make_op(&m, 0, 1, &x, 64), b = make_op(&m, 0, 1, &a, 64);
    m.backward_starts = m.n_op;
    uint32_t t = make_input(&m, 8);
    m.flags[m.n_op - 1] |= CB_POP_BACKWARD;
    uint32_t g = make_op(&m, CB_POP_BACKWARD | flags, 2, (const uint32_t[]){t, b}, 64);
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 1, &g, 64);
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 2, (const uint32_t[]){t, a}, 64);
    return make_problem(&m, &alloc);
}

TEST(late_first_runs) {
    cb_problem *p = three(0), *once = three(CB_POP_RANDOM_STATEFUL);
    const uint32_t late[] = {1, 2, 6, 4, 5}, again[] = {1, 2, 4, 5, 4, 6};
    cb_arena arena;
    cb_lives lives;
    cb_arena_init(&arena, &alloc);
    CHECK_FAIL(walk(p, &arena, 5, late, 2, &lives), CB_INVALID,
               "step 3: op_4 depends on a tangent and first runs after op_6, which follows it");
    CHECK_FAIL(walk(p, &arena, 6, again, 2, &lives), CB_INVALID,
               "step 4: op_4 depends on a tangent and runs again, but reruns is \"forward\"");
    p->reruns = once->reruns = CB_RERUNS_ALL;
    CHECK_OK(walk(p, &arena, 5, late, 2, &lives));
    CHECK(lives.time_ps == lives.once_ps);
    CHECK_FAIL(walk(once, &arena, 5, late, 2, &lives), CB_INVALID, "op_4 may run only once");
    cb_arena_free(&arena);
    cb_problem_free(p);
    cb_problem_free(once);
}

static bool is_any(const void *c, const cb_problem *p, uint32_t op, uint32_t at) {
    return !c && op < p->n_op && at < p->n_value;
}

/* With keep_saved, g takes over b only if the backward makes b. */
TEST(memory_taken_over) {
    cb_problem *p = three(0);
    cb_arena arena;
    cb_lives lives;
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_list_over(p, is_any, NULL, &err));
    CHECK_OK(walk(p, &arena, 5, (const uint32_t[]){1, 2, 4, 5, 6}, 2, &lives));
    CHECK(lives.peak_bytes == 128);
    p->keep_saved = true;
    CHECK_OK(walk(p, &arena, 5, (const uint32_t[]){1, 2, 4, 5, 6}, 2, &lives));
    CHECK(lives.live_bytes[2] == 192 && lives.live_bytes[3] == 128 && lives.live_bytes[4] == 192);
    CHECK_OK(walk(p, &arena, 5, (const uint32_t[]){1, 2, 4, 5, 6}, 1, &lives));
    CHECK(lives.live_bytes[2] == 128 && lives.live_bytes[4] == 192);
    cb_arena_free(&arena);
    cb_problem_free(p);
}

/* The chain; a is offloaded from its last use in the forward until h needs it. */
enum { RUN = CB_ACTION_RUN, OUT = CB_ACTION_OUT, WAIT = CB_ACTION_WAIT, IN = CB_ACTION_IN };
static const uint32_t moved_step[] = {1, 2, 1, 3, 5, 1, 1, 6};
static const uint8_t moved_action[] = {RUN, RUN, OUT, RUN, RUN, WAIT, IN, RUN};

static cb_status walk_moved(const cb_problem *p, cb_arena *arena, cb_lives *lives) {
    cb_schedule s = {.n_step = 8, .step = moved_step, .action = moved_action, .backward_starts = 4};
    cb_device device = *cb_device_find("cpu");
    device.link_bytes_per_s = 0; /* the problem gives the copy speed */
    return cb_schedule_walk(p, &s, &device, arena, lives, &err);
}

TEST(copies_take_their_time) {
    cb_problem *p = chain();
    cb_arena arena;
    cb_lives lives;
    uint64_t bytes;
    cb_arena_init(&arena, &alloc);
    for (uint32_t op = 0; op < p->n_op; op++) p->op_time_ps[op] = 1000;
    CHECK_FAIL(walk_moved(p, &arena, &lives), CB_UNSUPPORTED, "device cpu has none");
    p->link_bytes_per_s = 1e9; /* 1000 ps per byte */
    CHECK_OK(walk_moved(p, &arena, &lives));
    /* The copy takes from 2000 to 102000: while c and g run, a keeps its memory. The wait frees it,
     * and h waits for the copy back. */
    CHECK(lives.live_bytes[2] == 300 && lives.live_bytes[3] == 600 && lives.live_bytes[4] == 610);
    CHECK(lives.live_bytes[5] == 10 && lives.live_bytes[6] == 110 && lives.live_bytes[7] == 137);
    CHECK(lives.time_ps == 203000 && lives.stall_ps == 198000 && lives.once_ps == 5000);
    CHECK(lives.out_bytes == 100 && lives.in_bytes == 100 && lives.host_bytes == 100);
    CHECK(lives.saved_bytes == 600 && lives.instance[0].last == 4 && lives.n_recomputed == 0);
    CHECK_OK(cb_place(p, &lives, &arena, (cb_poll){0}, &bytes, &err));
    p->link_bytes_per_s = 1e11; /* copied before g starts */
    CHECK_OK(walk_moved(p, &arena, &lives));
    CHECK(lives.live_bytes[3] == 600 && lives.live_bytes[4] == 510);
    CHECK(lives.saved_bytes == 600 && lives.instance[0].last == 3);
    cb_arena_free(&arena);
    cb_problem_free(p);
}

static bool overlap(const cb_instance *a, const cb_instance *b) {
    bool in_time = a->made <= b->last && b->made <= a->last;
    return in_time && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

TEST(offsets_never_overlap) {
    for (uint64_t round = 0; round < 300; round++) {
        uint64_t state = round;
        uint32_t n = maker_draw(&state, 120);
        cb_instance life[120];
        cb_problem p = {.align = UINT64_C(1) << maker_draw(&state, 9)};
        cb_lives lives = {.n_instance = n, .instance = life};
        uint64_t bytes, again;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t made = maker_draw(&state, 60);
            life[i] = (cb_instance){.storage = i,
                                    .made = made,
                                    .last = made + maker_draw(&state, 30),
                                    .bytes = maker_draw(&state, 3000)};
            if (maker_draw(&state, 9) == 0) life[i].bytes = 0;
        }
        cb_arena arena;
        cb_arena_init(&arena, &alloc);
        CHECK_OK(cb_place(&p, &lives, &arena, (cb_poll){0}, &bytes, &err));
        CHECK(bytes % p.align == 0);
        for (uint32_t i = 0; i < n; i++) {
            CHECK(life[i].offset % p.align == 0 && life[i].offset + life[i].bytes <= bytes);
            for (uint32_t j = 0; j < i; j++) CHECK(!overlap(&life[i], &life[j]));
        }
        cb_instance first[120];
        memcpy(first, life, sizeof first);
        CHECK_OK(cb_place(&p, &lives, &arena, (cb_poll){0}, &again, &err));
        for (uint32_t i = 0; i < n; i++) CHECK(again == bytes && first[i].offset == life[i].offset);
        cb_arena_free(&arena);
    }
}

/* Places lives that end a little later than those placed before. */
TEST(what_is_placed_again_stays_near) {
    uint32_t stayed = 0, all = 0;
    for (uint64_t round = 0; round < 100; round++) {
        uint64_t state = round;
        cb_instance life[80], first[80];
        cb_problem p = {.align = 64};
        cb_lives lives = {.n_instance = 80, .instance = life};
        uint64_t bytes, again, end = 0;
        for (uint32_t i = 0; i < 80; i++) {
            uint32_t made = maker_draw(&state, 60);
            life[i] = (cb_instance){.storage = i,
                                    .made = made,
                                    .last = made + maker_draw(&state, 30),
                                    .bytes = maker_draw(&state, 3000)};
        }
        cb_arena arena;
        cb_arena_init(&arena, &alloc);
        CHECK_OK(cb_place(&p, &lives, &arena, (cb_poll){0}, &bytes, &err));
        memcpy(first, life, sizeof first);
        CHECK_OK(cb_place_near(&p, &lives, &arena, (cb_poll){0}, &again, &err));
        for (uint32_t i = 0; i < 80; i++)
            CHECK(again == bytes && first[i].offset == life[i].offset);
        for (uint32_t i = 0; i < 80; i++) life[i].last += maker_draw(&state, 8) == 0;
        CHECK_OK(cb_place_near(&p, &lives, &arena, (cb_poll){0}, &again, &err));
        for (uint32_t i = 0; i < 80; i++) {
            for (uint32_t j = 0; j < i; j++) CHECK(!overlap(&life[i], &life[j]));
            CHECK(life[i].offset % p.align == 0);
            if (life[i].offset + life[i].bytes > end) end = life[i].offset + life[i].bytes;
            stayed += first[i].offset == life[i].offset;
        }
        CHECK(again == ((end + 63) & ~UINT64_C(63)));
        all += 80;
        cb_arena_free(&arena);
    }
    CHECK(10 * stayed > 9 * all && stayed < all);
}

/* Saved values that are freed in reverse order need no more than the peak. */
TEST(stacks_fit_exactly) {
    cb_instance life[40];
    cb_problem p = {.align = 64};
    cb_lives lives = {.n_instance = 40, .instance = life};
    uint64_t bytes, peak = 0;
    for (uint32_t i = 0; i < 40; i++) {
        life[i] =
            (cb_instance){.storage = i, .made = i, .last = 99 - i, .bytes = 64 * (1 + i * 7 % 11)};
        peak += life[i].bytes;
    }
    cb_arena arena;
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_place(&p, &lives, &arena, (cb_poll){0}, &bytes, &err));
    CHECK(bytes == peak);
    cb_arena_free(&arena);
}

#define FEW 6

/* Returns the smallest arena over all orders, where each life takes the lowest free offset. An
 * optimal arena is among them, because any arena can be compacted by lowering its lives in order of
 * offset. */
static uint64_t least_arena(cb_instance *life, uint32_t n) {
    uint64_t best = 0;
    if (n == FEW) {
        for (uint32_t i = 0; i < FEW; i++)
            if (life[i].offset + life[i].bytes > best) best = life[i].offset + life[i].bytes;
        return best;
    }
    best = UINT64_MAX;
    for (uint32_t i = n; i < FEW; i++) {
        const cb_instance kept = life[i];
        life[i] = life[n];
        life[n] = kept;
        uint64_t at = 0;
        for (uint32_t j = 0; j < n; j++) {
            life[n].offset = at;
            if (!overlap(&life[n], &life[j])) continue;
            at = life[j].offset + life[j].bytes;
            j = UINT32_MAX; /* start again at the first */
        }
        life[n].offset = at;
        const uint64_t bytes = least_arena(life, n + 1);
        if (bytes < best) best = bytes;
        life[n] = life[i];
        life[i] = kept;
    }
    return best;
}

TEST(few_lives_take_the_least_arena) {
    uint32_t least = 0, rounds = 400;
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t state = round, bytes;
        cb_instance life[FEW], copy[FEW];
        cb_problem p = {.align = 1};
        cb_lives lives = {.n_instance = FEW, .instance = life};
        for (uint32_t i = 0; i < FEW; i++) {
            uint32_t made = maker_draw(&state, 8);
            life[i] = (cb_instance){.storage = i,
                                    .made = made,
                                    .last = made + maker_draw(&state, 5),
                                    .bytes = 1 + maker_draw(&state, 9)};
        }
        memcpy(copy, life, sizeof copy);
        cb_arena arena;
        cb_arena_init(&arena, &alloc);
        CHECK_OK(cb_place(&p, &lives, &arena, (cb_poll){0}, &bytes, &err));
        const uint64_t want = least_arena(copy, 0);
        CHECK(bytes >= want);
        least += bytes == want;
        cb_arena_free(&arena);
    }
    CHECK(least == rounds);
}

/* A block of 100 moments by 4,096 bytes, cut in two repeatedly: the pieces fit into it. */
TEST(what_was_one_block_fits_into_it) {
    uint64_t sum = 0, rounds = 60;
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t state = round, bytes;
        cb_instance life[50] = {{.last = 99, .bytes = 4096}};
        uint32_t n = 1;
        while (n < 50) {
            cb_instance *a = &life[maker_draw(&state, n)], *b = &life[n];
            const uint32_t moments = a->last - a->made + 1;
            *b = *a;
            if (maker_draw(&state, 2) && moments > 1) {
                a->last = a->made + maker_draw(&state, moments - 1);
                b->made = a->last + 1;
            } else if (a->bytes > 64) {
                a->bytes = 64 * (1 + maker_draw(&state, (uint32_t)(a->bytes / 64 - 1)));
                b->bytes -= a->bytes;
            } else {
                continue;
            }
            n++;
        }
        cb_problem p = {.align = 64};
        cb_lives lives = {.n_instance = n, .instance = life};
        cb_arena arena;
        cb_arena_init(&arena, &alloc);
        CHECK_OK(cb_place(&p, &lives, &arena, (cb_poll){0}, &bytes, &err));
        CHECK(bytes >= 4096);
        sum += bytes;
        cb_arena_free(&arena);
    }
    CHECK(sum == 4096 * rounds);
}

static cb_status walk_and_place(cb_alloc *a, void *user) {
    const cb_problem *p = user;
    uint64_t bytes;
    cb_lives lives;
    cb_arena arena;
    cb_arena_init(&arena, a);
    cb_schedule s = {.n_step = 5, .step = (const uint32_t[]){1, 2, 3, 5, 6}, .backward_starts = 3};
    cb_status status = cb_schedule_walk(p, &s, cb_device_find("cpu"), &arena, &lives, &err);
    if (status == CB_OK) status = cb_place(p, &lives, &arena, (cb_poll){0}, &bytes, &err);
    cb_arena_free(&arena);
    return status;
}

static cb_status walk_moved_once(cb_alloc *a, void *user) {
    cb_lives lives;
    cb_arena arena;
    cb_arena_init(&arena, a);
    cb_status status = walk_moved(user, &arena, &lives);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    cb_problem *p = chain();
    check_oom(walk_and_place, p);
    p->link_bytes_per_s = 1e9;
    check_oom(walk_moved_once, p);
    cb_problem_free(p);
}

TEST(time_is_the_roofline) {
    cb_problem *p = chain();
    const cb_device *a100 = cb_device_find("a100");
    CHECK(cb_device_find("abacus") == NULL && cb_device_find("cpu") && cb_device_find("h100") &&
          cb_device_find("rtx4090"));
    CHECK(a100->flops_per_s[CB_WORK_F32] == 156e12 && a100->bytes_per_s == 1.555e12 &&
          a100->launch_s == 2e-6);
    p->op_flops[1] = 156e9; /* a millisecond */
    p->op_bytes[1] = 1555;
    CHECK(cb_op_time_ps(p, 1, a100) == 1002000000);
    p->op_bytes[1] = UINT64_C(3110000000); /* two */
    CHECK(cb_op_time_ps(p, 1, a100) == 2002000000);
    p->op_time_ps[1] = 5;
    CHECK(cb_op_time_ps(p, 1, a100) == 5);
    p->op_flags[1] = CB_POP_VIEW;
    CHECK(cb_op_time_ps(p, 1, a100) == 0 && cb_op_time_ps(p, 0, a100) == 0);
    cb_problem_free(p);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(counts_bytes_and_steps);
    RUN(names_the_broken_rule);
    RUN(views_hold_their_storage);
    RUN(what_is_held_is_of_the_first_run);
    RUN(a_gradient_ends_with_the_last_reader_of_its_parameter);
    RUN(names_what_no_update_can_read);
    RUN(mutation_pins_its_readers);
    RUN(late_first_runs);
    RUN(memory_taken_over);
    RUN(copies_take_their_time);
    RUN(offsets_never_overlap);
    RUN(what_is_placed_again_stays_near);
    RUN(stacks_fit_exactly);
    RUN(few_lives_take_the_least_arena);
    RUN(what_was_one_block_fits_into_it);
    RUN(out_of_memory);
    RUN(time_is_the_roofline);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
