/* Presets, constraints and limits of regions: by hand, and against all subsets on small random
 * problems. */
#include "plan/cut/mincut.h"

#include "check.h"
#include "oom.h"
#include "plan/schedule/sim.h"
#include "problems.h"

static cb_alloc alloc;

typedef struct fixture {
    cb_problem *p;
    cb_arena arena;
    cb_facts f;
    cb_cut cut;
} fixture;

static cb_status set_up(fixture *x, const maker *m) {
    x->p = make_problem(m, &alloc);
    cb_arena_init(&x->arena, &alloc);
    CB_TRY(cb_problem_verify(x->p, &err));
    CB_TRY(cb_facts_make(x->p, cb_device_find("cpu"), &x->arena, &x->f, &err));
    return cb_cut_init(&x->cut, &x->f, &x->arena, &err);
}

static void tear_down(fixture *x) {
    cb_arena_free(&x->arena);
    cb_problem_free(x->p);
}

static uint64_t saved_bytes(const fixture *x) {
    uint64_t sum = 0;
    for (uint32_t s = 0; s < x->p->n_storage; s++)
        sum += x->cut.saved[s] && !x->f.held[s] ? x->p->storage_bytes[s] : 0;
    return sum;
}

/* Makes matmul (100) -> gelu (100) -> sum (4), all three of which the backward reads. */
static maker block(void) {
    maker m = {0};
    uint32_t x = make_input(&m, 8), a = make_op(&m, CB_POP_COMPUTE, 1, &x, 100),
             b = make_op(&m, CB_POP_FUSIBLE, 1, &a, 100);
    uint32_t c = make_op(&m, CB_POP_FUSIBLE | CB_POP_REDUCTION, 1, &b, 4);
    m.backward_starts = m.n_op;
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 3, (const uint32_t[]){a, b, c}, 8);
    return m;
}
enum { MATMUL = 1, GELU, SUM }; /* op and storage ids of `block` */

TEST(presets_allow_what_they_say) {
    static const bool expected[CB_PRESET_COUNT][3] = {
        /* whether it is recomputed: matmul, gelu, sum */
        [CB_PRESET_AUTOGRAD] = {false, false, false},
        [CB_PRESET_RECOMPUTE_ALL] = {true, true, true},
        [CB_PRESET_CONSERVATIVE] = {false, true, false},
        /* the sum would read the whole gelu again */
        [CB_PRESET_AGGRESSIVE] = {false, true, false},
        /* no forward op needs them, so PyTorch runs them in the backward */
        [CB_PRESET_TORCH_COMPAT] = {true, true, true},
        /* 1e6 operations in the product, 1e3 in the others; two of those in a row are too many */
        [CB_PRESET_SHAPE_AWARE] = {false, true, false},
    };
    maker m = block();
    fixture x;
    CHECK_OK(set_up(&x, &m));
    for (cb_preset preset = CB_PRESET_AUTOGRAD; preset < CB_PRESET_COUNT; preset++) {
        CHECK_OK(cb_cut_preset(&x.cut, preset, &err));
        for (uint32_t op = MATMUL; op <= SUM; op++) {
            CHECK(x.cut.recompute[op] == expected[preset][op - 1]);
            CHECK(x.cut.saved[op] == !expected[preset][op - 1]);
        }
    }
    tear_down(&x);
}

TEST(wishes_go_before_presets) {
    maker m = block();
    fixture x;
    m.constraint[MATMUL] = CB_MUST_RECOMPUTE;
    m.constraint[GELU] = CB_PREFER_SAVE;
    CHECK_OK(set_up(&x, &m));
    for (cb_preset preset = CB_PRESET_AUTOGRAD; preset < CB_PRESET_COUNT; preset++) {
        CHECK_OK(cb_cut_preset(&x.cut, preset, &err));
        CHECK(x.cut.recompute[MATMUL] && !x.cut.recompute[GELU] && x.cut.saved[GELU]);
    }
    tear_down(&x);
}

static void expect_refusal(const maker *m, cb_status status, const char *part) {
    fixture x;
    CHECK_FAIL(set_up(&x, m), status, part);
    tear_down(&x);
}

TEST(contradictions_name_both_sides) {
    maker m = block();
    m.flags[GELU] |= CB_POP_RANDOM_STATEFUL;
    m.constraint[GELU] = CB_MUST_RECOMPUTE;
    expect_refusal(&m, CB_INVALID,
                   "MUST_RECOMPUTE of op_2 (model.py:7) contradicts op_2 (model.py:7), which may "
                   "run only once (it draws from a hidden");
    m.constraint[GELU] = CB_PREFER_RECOMPUTE; /* gives way */
    fixture x;
    CHECK_OK(set_up(&x, &m));
    CHECK_OK(cb_cut_preset(&x.cut, CB_PRESET_RECOMPUTE_ALL, &err));
    CHECK(!x.cut.recompute[GELU] && x.cut.saved[GELU]);
    tear_down(&x);
    m = (maker){0};
    uint32_t in = make_input(&m, 8), a = make_op(&m, CB_POP_FUSIBLE, 1, &in, 100),
             v = make_view(&m, 0, a);
    m.backward_starts = m.n_op;
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 1, &v, 8);
    m.constraint[a] = CB_MUST_SAVE;
    m.constraint[v] = CB_MUST_RECOMPUTE;
    expect_refusal(&m, CB_INVALID,
                   "MUST_SAVE of op_1 (model.py:7) and MUST_RECOMPUTE of op_2 (model.py:7) "
                   "contradict each other");
    m.constraint[a] = CB_MUST_OFFLOAD;
    expect_refusal(&m, CB_INVALID,
                   "MUST_OFFLOAD of op_1 (model.py:7) and MUST_RECOMPUTE of op_2 (model.py:7) "
                   "contradict each other");
    m.constraint[a] = CB_PREFER_SAVE;
    CHECK_OK(set_up(&x, &m));
    CHECK_OK(cb_cut_preset(&x.cut, CB_PRESET_AUTOGRAD, &err));
    CHECK(x.cut.recompute[1]);
    tear_down(&x);
}

/* Four equal layers in a region: the limit determines how many outputs may be saved. */
TEST(regions_keep_their_limits) {
    maker m = {0};
    uint32_t value = make_input(&m, 8), layer[4];
    for (uint32_t i = 0; i < 4; i++) {
        m.region[m.n_op] = 1;
        layer[i] = value = make_op(&m, CB_POP_COMPUTE, 1, &value, 100);
    }
    value = make_op(&m, CB_POP_COMPUTE, 1, &value,
                    10); /* reads the last layer from outside: that one leaves the region */
    m.backward_starts = m.n_op;
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 4, layer, 8);
    m.result[m.n_result++] = value;
    m.n_region = 1;
    fixture x;
    for (uint64_t limit = 0; limit <= 300; limit += 100) {
        m.limit[0] = limit;
        CHECK_OK(set_up(&x, &m));
        CHECK_OK(cb_cut_preset(&x.cut, CB_PRESET_AUTOGRAD, &err));
        CHECK(saved_bytes(&x) - 100 <= limit && x.cut.saved[x.p->value_storage[layer[3]]]);
        tear_down(&x);
    }
    m.constraint[layer[1]] = CB_MUST_SAVE;
    m.limit[0] = 60;
    CHECK_OK(set_up(&x, &m));
    CHECK_FAIL(cb_cut_preset(&x.cut, CB_PRESET_AUTOGRAD, &err), CB_INFEASIBLE,
               "a region must save more than its limit allows");
    CHECK(err.refusal.reason == CB_REFUSED_REGION && strcmp(err.refusal.region, "block") == 0);
    CHECK(err.refusal.budget_bytes == 60 && err.refusal.smallest_bytes == 100);
    tear_down(&x);
}

/* ---- all subsets ----------------------------------------------------------------------------- */

/* Returns the bytes saved when the backward recomputes those forward ops of `set` that it needs
 * (bits index cut.run_op). */
static uint64_t bytes_of(const fixture *x, uint32_t set) {
    const cb_problem *p = x->p;
    bool need[MAKER_MOST] = {0}, again[MAKER_MOST] = {0};
    uint64_t sum = 0;
    for (uint32_t i = 0; i < x->cut.n_run; i++) again[x->cut.run_op[i]] = set >> i & 1;
    for (uint32_t k = x->f.n_base; k-- > 0;) {
        uint32_t op = x->f.base[k];
        bool runs = k >= x->f.base_backward;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            runs |= again[op] && x->f.root[p->value_storage[v]] == op && need[p->value_storage[v]];
        }
        for (uint32_t j = p->in_begin[op]; runs && j < p->in_begin[op + 1]; j++)
            need[p->value_storage[p->in_value[j]]] = true;
    }
    for (uint32_t i = 0; i < x->cut.n_save; i++) {
        uint32_t s = x->cut.save_storage[i];
        if (need[s] && !again[x->f.root[s]] && !x->f.held[s]) sum += p->storage_bytes[s];
    }
    return sum;
}

/* Returns the bytes of the op's largest input if its output has less than a quarter of them,
 * otherwise 0. */
static uint64_t read_again(const fixture *x, uint32_t op) {
    const cb_problem *p = x->p;
    uint64_t largest = 0;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint64_t bytes = p->storage_bytes[p->value_storage[p->in_value[j]]];
        largest = bytes > largest ? bytes : largest;
    }
    return 4 * p->storage_bytes[p->value_storage[p->out_begin[op]]] < largest ? largest : 0;
}

static uint64_t read_again_by(const fixture *x, uint32_t set) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < x->cut.n_run; i++)
        sum += set >> i & 1 ? read_again(x, x->cut.run_op[i]) : 0;
    return sum;
}

static uint64_t cost_found(const fixture *x, bool by_bytes) {
    uint32_t set = 0;
    for (uint32_t i = 0; i < x->cut.n_run; i++)
        set |= (uint32_t)x->cut.recompute[x->cut.run_op[i]] << i;
    return saved_bytes(x) + (by_bytes ? 0 : read_again_by(x, set));
}

static uint32_t try_all_subsets(cb_preset preset, bool by_bytes) {
    static maker m;
    uint32_t n_tried = 0;
    for (uint64_t seed = 0; seed < 150; seed++) {
        fixture x;
        make_random(&m, seed, 10);
        CHECK_OK(set_up(&x, &m));
        if (by_bytes) CHECK_OK(cb_cut_preset_by_bytes(&x.cut, preset, &err));
        else CHECK_OK(cb_cut_preset(&x.cut, preset, &err));
        uint64_t best = UINT64_MAX;
        for (uint32_t set = 0; set < 1u << x.cut.n_run; set++) {
            bool allowed = true;
            for (uint32_t i = 0; i < x.cut.n_run; i++)
                allowed &= !(set >> i & 1) || x.cut.run_cost[i] != CB_FLOW_INF;
            if (!allowed) continue;
            uint64_t bytes = bytes_of(&x, set) + (by_bytes ? 0 : read_again_by(&x, set));
            if (bytes < best) best = bytes;
        }
        CHECK(cost_found(&x, by_bytes) == best);
        n_tried += best > 0;
        tear_down(&x);
    }
    return n_tried;
}

TEST(cuts_save_least) {
    CHECK(try_all_subsets(CB_PRESET_AGGRESSIVE, true) > 50);
    CHECK(try_all_subsets(CB_PRESET_AGGRESSIVE, false) > 50);
    CHECK(try_all_subsets(CB_PRESET_CONSERVATIVE, true) > 50);
    CHECK(try_all_subsets(CB_PRESET_CONSERVATIVE, false) > 50);
    CHECK(try_all_subsets(CB_PRESET_SHAPE_AWARE, true) > 50);
    CHECK(try_all_subsets(CB_PRESET_SHAPE_AWARE, false) > 50);
}

/* On the cpu device an operation takes 10 ps and a byte 50 ps, so by shape the limit is five
 * operations per byte moved. The result has 100 bytes: by the aggressive rule the limit is 64
 * operations per byte, or 16 if the caller holds the inputs. */
TEST(shapes_decide) {
    static const struct {
        uint64_t bytes;
        double flops;
        bool by_shape, aggressively, as_layer;
    } product[] = {{1000, 4999, true, true, false},   {1000, 5000, false, true, false},
                   {1000, 1600, true, true, true},    {1000, 1601, true, true, false},
                   {1000, 6400, false, true, false},  {1000, 6401, false, false, false},
                   {10000, 6401, true, false, false}, {1000, 1e9, false, false, false},
                   {1000, 0, false, false, false}};
    for (size_t i = 0; i < sizeof product / sizeof *product; i++) {
        maker m = block();
        fixture x;
        CHECK_OK(set_up(&x, &m));
        x.p->op_bytes[MATMUL] = product[i].bytes;
        x.p->op_flops[MATMUL] = product[i].flops;
        CHECK_OK(cb_cut_preset(&x.cut, CB_PRESET_SHAPE_AWARE, &err));
        CHECK(x.cut.recompute[MATMUL] == product[i].by_shape);
        CHECK_OK(cb_cut_preset(&x.cut, CB_PRESET_AGGRESSIVE, &err));
        CHECK(x.cut.recompute[MATMUL] == product[i].as_layer);
        x.p->storage_flags[0] = 0; /* the input is computed as well */
        CHECK_OK(cb_cut_preset(&x.cut, CB_PRESET_AGGRESSIVE, &err));
        CHECK(x.cut.recompute[MATMUL] == product[i].aggressively);
        tear_down(&x);
    }
}

/* Six pointwise ops in a row on 100 bytes, 400 operations each. A chain moves 200 bytes, so it may
 * have 1,000 operations, and the third op of each chain is saved. */
TEST(chains_end_at_the_balance_point) {
    maker m = {0};
    uint32_t value[7] = {make_input(&m, 100)};
    for (uint32_t i = 1; i <= 6; i++) {
        value[i] = make_op(&m, CB_POP_FUSIBLE, 1, &value[i - 1], 100);
        m.flops[m.n_op - 1] = 400;
    }
    m.backward_starts = m.n_op;
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 6, value + 1, 8);
    fixture x;
    CHECK_OK(set_up(&x, &m));
    CHECK_OK(cb_cut_preset(&x.cut, CB_PRESET_SHAPE_AWARE, &err));
    for (uint32_t op = 1; op <= 6; op++) CHECK(x.cut.recompute[op] == (op % 3 != 0));
    x.p->op_flops[2] = 200;
    /* now the first chain has three ops */
    CHECK_OK(cb_cut_preset(&x.cut, CB_PRESET_SHAPE_AWARE, &err));
    for (uint32_t op = 1; op <= 6; op++) CHECK(x.cut.recompute[op] == (op != 4));
    tear_down(&x);
}

/* ---- decisions and their simulator ----------------------------------------------------------- */

/* Any set of pairs gives a schedule that the evaluator accepts, with the simulator's numbers. */
TEST(simulator_agrees_with_the_evaluator) {
    static maker m;
    for (uint64_t seed = 0; seed < 400; seed++) {
        fixture x;
        cb_sim sim;
        cb_pair pair[80];
        size_t n = 0;
        uint64_t state = seed;
        make_random(&m, seed, 5 + maker_draw(&state, 40));
        CHECK_OK(set_up(&x, &m));
        CHECK_OK(cb_sim_init(&sim, &x.f, &alloc, &err));
        for (uint32_t k = 0; k < x.f.n_base; k++) {
            for (uint32_t op = 0; op < x.p->backward_starts && n < 80; op++) {
                bool may = !x.f.once[op] && x.f.position[op] != CB_NONE && x.f.position[op] < k;
                if (may && maker_draw(&state, 12) == 0) pair[n++] = cb_pair_make(k, op);
            }
        }
        CHECK_OK(cb_sim_run(&sim, pair, n, &err));
        cb_schedule schedule;
        cb_lives lives = {0};
        CHECK_OK(cb_sim_schedule(&sim, &x.arena, &schedule, &err));
        CHECK_OK(cb_schedule_walk(x.p, &schedule, x.f.device, &x.arena, &lives, &err));
        CHECK(lives.peak_bytes == sim.peak && lives.saved_bytes == sim.saved &&
              lives.time_ps == sim.time_ps);
        CHECK(lives.once_ps == x.f.once_ps);
        cb_sim_free(&sim);
        tear_down(&x);
    }
}

static cb_status cut_and_simulate(cb_alloc *a, void *user) {
    const cb_problem *p = user;
    cb_arena arena;
    cb_facts f;
    cb_cut cut;
    cb_sim sim = {0};
    cb_arena_init(&arena, a);
    cb_pairs pairs = {.arena = &arena};
    cb_status status = cb_facts_make(p, cb_device_find("cpu"), &arena, &f, &err);
    if (status == CB_OK) status = cb_cut_init(&cut, &f, &arena, &err);
    if (status == CB_OK) status = cb_sim_init(&sim, &f, a, &err);
    if (status == CB_OK) status = cb_cut_preset(&cut, CB_PRESET_AGGRESSIVE, &err);
    if (status == CB_OK) status = cb_recompute_lazily(&f, cut.recompute, NULL, &pairs, &err);
    if (status == CB_OK) status = cb_sim_run(&sim, pairs.list.at, pairs.list.len, &err);
    cb_sim_free(&sim);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    static maker m;
    make_random(&m, 4, 60);
    cb_problem *p = make_problem(&m, &alloc);
    check_oom(cut_and_simulate, p);
    cb_problem_free(p);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(presets_allow_what_they_say);
    RUN(wishes_go_before_presets);
    RUN(contradictions_name_both_sides);
    RUN(regions_keep_their_limits);
    RUN(cuts_save_least);
    RUN(shapes_decide);
    RUN(chains_end_at_the_balance_point);
    RUN(simulator_agrees_with_the_evaluator);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
