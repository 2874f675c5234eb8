/* Plans with fetches: the simulator against the evaluator, on random problems and random plans. */
#include "plan/schedule/offload_sim.h"

#include "base/sort.h"
#include "check.h"
#include "oom.h"
#include "problems.h"

static cb_alloc alloc;
static maker made;

static int compare_pairs(const void *a, const void *b) {
    cb_pair x = *(const cb_pair *)a, y = *(const cb_pair *)b;
    return x < y ? -1 : x > y;
}

static size_t draw_plan(const cb_offload_sim *m, uint64_t *state, cb_pair *pair, size_t most) {
    const cb_facts *f = m->f;
    size_t n = 0, want = maker_draw(state, (uint32_t)most);
    for (size_t i = 0; i < want; i++) {
        uint32_t op = f->base[maker_draw(state, f->base_backward)];
        uint32_t anchor = f->position[op] + 1 + maker_draw(state, f->n_base - f->position[op]);
        if (anchor >= f->n_base) continue;
        bool carries = false;
        for (uint32_t v = f->p->out_begin[op]; v < f->p->out_begin[op + 1]; v++)
            carries |= m->carrier[f->p->value_storage[v]] == op;
        if (carries && maker_draw(state, 3)) pair[n++] = cb_pair_fetch(anchor, op);
        else if (!f->once[op]) pair[n++] = cb_pair_make(anchor, op);
    }
    if (n > 0) cb_sort(pair, n, sizeof *pair, compare_pairs);
    return n;
}

static bool agree(cb_offload_sim *m, const cb_pair *pair, size_t n, uint64_t target,
                  uint64_t *moved) {
    cb_arena arena;
    cb_schedule schedule;
    cb_lives lives = {0};
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_offload_sim_run(m, pair, n, target, &err));
    bool ok = m->broken;
    if (!ok) {
        CHECK_OK(cb_offload_sim_schedule(m, &arena, &schedule, &err));
        CHECK_OK(cb_schedule_walk(m->f->p, &schedule, m->f->device, &arena, &lives, &err));
        ok = lives.peak_bytes == m->peak && lives.time_ps == m->time_ps &&
             lives.stall_ps == m->stall_ps && lives.out_bytes == m->moved_bytes &&
             lives.host_bytes == m->host_bytes;
        *moved += lives.in_bytes;
    }
    cb_arena_free(&arena);
    return ok;
}

TEST(agrees_with_the_evaluator) {
    uint64_t moved = 0;
    uint32_t broken = 0, runs = 0;
    for (uint64_t seed = 0; seed < 900; seed++) {
        uint64_t state = seed;
        cb_pair pair[64];
        cb_arena arena;
        cb_facts f;
        cb_offload_sim m;
        make_random(&made, seed, 4 + maker_draw(&state, 30));
        if (seed % 2) hold_parts(&made, seed);
        if (seed % 3 == 1) made.over = 1 + (uint32_t)(seed + seed / 6 % 2); /* problems.h */
        cb_problem *p = make_problem(&made, &alloc);
        p->link_bytes_per_s = 1e6 * (1 << maker_draw(&state, 12));
        cb_arena_init(&arena, &alloc);
        CHECK_OK(cb_problem_verify(p, &err));
        CHECK_OK(cb_facts_make(p, cb_device_find("cpu"), &arena, &f, &err));
        CHECK_OK(cb_offload_sim_init(&m, &f, false, &alloc, &err));
        CHECK_OK(cb_offload_sim_run(&m, NULL, 0, 0, &err));
        uint64_t whole = m.peak;
        for (int round = 0; round < 30; round++) {
            size_t n = draw_plan(&m, &state, pair, 60);
            uint64_t target = round % 3 == 0 ? UINT64_MAX : whole * maker_draw(&state, 100) / 100;
            CHECK(agree(&m, pair, n, target, &moved));
            broken += m.broken;
            runs++;
        }
        cb_offload_sim_free(&m);
        cb_arena_free(&arena);
        cb_problem_free(p);
    }
    CHECK(moved > 0 && broken < runs / 20);
}

static cb_status run_once(cb_alloc *a, void *user) {
    cb_arena arena;
    cb_facts f;
    cb_offload_sim m = {0};
    cb_schedule schedule;
    cb_arena_init(&arena, a);
    cb_status status;
    CB_TRY_DONE(cb_facts_make(user, cb_device_find("cpu"), &arena, &f, &err));
    CB_TRY_DONE(cb_offload_sim_init(&m, &f, false, a, &err));
    cb_pair pair = cb_pair_fetch(f.n_base - 1, 2);
    CB_TRY_DONE(cb_offload_sim_run(&m, &pair, 1, 0, &err));
    CB_TRY_DONE(cb_offload_sim_schedule(&m, &arena, &schedule, &err));
done:
    cb_offload_sim_free(&m);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    make_random(&made, 3, 8);
    cb_problem *p = make_problem(&made, &alloc);
    p->link_bytes_per_s = 1e9;
    check_oom(run_once, p);
    cb_problem_free(p);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(agrees_with_the_evaluator);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
