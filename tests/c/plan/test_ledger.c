/* The ledger against the simulator and against itself; the floor and the bound against plans. */
#include "check.h"

#include "plan/planner.h"
#include "plan/search/floor.h"
#include "plan/search/ladder.h"
#include "plan/search/spare.h"
#include "problems.h"

static cb_alloc alloc;

typedef struct bench {
    cb_problem *p;
    cb_arena arena;
    cb_facts given, f; /* `f` of every third bench has spare ops */
    cb_sim sim;
    cb_ledger ledger, fresh;
    bool *may_rerun, early;
} bench;

static bool insides, inlinings, over, updates; /* for the next benches */

static bool start_as(bench *b, uint64_t seed, uint32_t n_forward, bool spared) {
    static maker m;
    if (insides) make_random_insides(&m, seed, n_forward);
    else make_random(&m, seed, n_forward);
    if (seed % 2) hold_parts(&m, seed);
    if (inlinings) give_inlinings(&m, seed);
    if (over) m.over = 1 + (uint32_t)seed;
    if (updates) m.updates = 1 + (uint32_t)seed;
    m.reruns = seed / 2 % 3 == 1 ? CB_RERUNS_ALL : CB_RERUNS_FORWARD;
    *b = (bench){.p = make_problem(&m, &alloc), .early = seed % 4 == 3 || spared};
    b->p->keep_saved = over && (seed + 1) / 2 % 2;
    cb_arena_init(&b->arena, &alloc);
    CHECK_OK(cb_problem_verify(b->p, &err));
    if (cb_facts_make(b->p, cb_device_find("a100"), &b->arena, &b->given, &err) != CB_OK)
        return false;
    b->f = b->given;
    if (spared && cb_add_spares(&b->given, NULL, &b->arena, &b->f, &err) != CB_OK) return false;
    b->may_rerun = CB_NEW(&b->arena, bool, b->f.n_unit);
    cb_facts_mark_free(&b->f, b->may_rerun);
    return cb_sim_init(&b->sim, &b->f, &alloc, &err) == CB_OK &&
           cb_ledger_init(&b->ledger, &b->f, b->may_rerun, &alloc, &err) == CB_OK &&
           cb_ledger_init(&b->fresh, &b->f, b->may_rerun, &alloc, &err) == CB_OK;
}

static bool start(bench *b, uint64_t seed, uint32_t n_forward) {
    return start_as(b, seed, n_forward, seed % 3 == 2);
}

static void end(bench *b) {
    cb_ledger_free(&b->ledger);
    cb_ledger_free(&b->fresh);
    cb_sim_free(&b->sim);
    cb_arena_free(&b->arena);
    cb_problem_free(b->p);
}

static bool same_moments(const cb_ledger *a, const cb_ledger *b) {
    bool same = a->peak == b->peak && a->area == b->area;
    for (uint32_t k = 0; k < a->n; k++) same &= cb_ledger_moment(a, k) == cb_ledger_moment(b, k);
    return same;
}

static bool same_books(const cb_ledger *a, const cb_ledger *b) {
    return same_moments(a, b) && a->extra_ps == b->extra_ps;
}

/* Replaces a random anchor's chain by a random set of ops, some of them early. */
static bool set_at_random(bench *b, uint64_t *state) {
    uint32_t op[12], n = maker_draw(state, 12), anchor = maker_draw(state, b->ledger.n), len = 0;
    bool may = b->early && !(b->f.p->op_flags[b->f.base[anchor]] & CB_POP_VIEW);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = maker_draw(state, anchor + 1), unit = b->f.base[k];
        if (cb_has_units(&b->f, unit))
            unit = b->f.unit_begin[unit] +
                   maker_draw(state, b->f.unit_begin[unit + 1] - b->f.unit_begin[unit]);
        if (k >= anchor || !b->may_rerun[unit]) continue;
        uint32_t how = may && maker_draw(state, 4) == 0 ? CB_EARLY : 0;
        if (inlinings && maker_draw(state, 3)) how = CB_INLINE;
        op[len++] = unit | how;
    }
    return cb_ledger_set(&b->ledger, anchor, op, len);
}

static bool move_at_random(bench *b, uint64_t *state) {
    return set_at_random(b, state) && cb_ledger_settle(&b->ledger);
}

/* True if the walk of the schedule agrees with the simulation of the pairs. */
static bool walk_agrees(bench *b) {
    cb_schedule s;
    cb_lives lives;
    CHECK_OK(cb_sim_schedule(&b->sim, &b->arena, &s, &err));
    CHECK_OK(cb_schedule_walk(b->p, &s, b->f.device, &b->arena, &lives, &err));
    return lives.peak_bytes == b->sim.peak && lives.time_ps == b->sim.time_ps &&
           lives.saved_bytes == b->sim.saved;
}

/* Checks that after any moves the ledger equals one built from scratch for the same plan and is
 * never below the simulator's peak and time, and that no plan is below the floor. */
static void check_books(void) {
    uint32_t exact = 0, total = 0, taking = 0;
    for (uint64_t seed = 0; seed < 60; seed += check_rounds(3, 1)) {
        bench b;
        CHECK(start(&b, seed, 4 + (uint32_t)seed));
        uint64_t state = seed;
        cb_floor floor;
        CHECK_OK(cb_sim_run(&b.sim, NULL, 0, &err));
        double target = 0.7 * (double)b.sim.peak;
        CHECK_OK(cb_ledger_load(&b.ledger, NULL, 0, target, &err));
        CHECK_OK(cb_find_floor(&b.ledger, &b.arena, &floor, &err));
        CHECK(floor.bytes <= b.sim.peak);
        for (int i = 0; i < 40; i++) {
            cb_pairs pairs = {.arena = &b.arena};
            CHECK(move_at_random(&b, &state));
            CHECK(cb_ledger_pairs(&b.ledger, &pairs));
            CHECK_OK(cb_ledger_load(&b.fresh, pairs.list.at, pairs.list.len, target, &err));
            CHECK(same_books(&b.ledger, &b.fresh));
            CHECK_OK(cb_sim_run(&b.sim, pairs.list.at, pairs.list.len, &err));
            CHECK(walk_agrees(&b));
            CHECK(b.ledger.peak >= (double)b.sim.peak);
            CHECK(b.ledger.extra_ps + b.f.once_ps >= b.sim.time_ps);
            CHECK(b.sim.peak >= floor.bytes);
            exact += b.ledger.peak == (double)b.sim.peak &&
                     b.ledger.extra_ps + b.f.once_ps == b.sim.time_ps;
            total++;
            uint64_t taken = 0;
            for (size_t t = 0; t < b.sim.taken.len; t++)
                if (b.sim.keep.at[t]) taken |= b.sim.taken.at[t];
            taking += taken != 0;
        }
        end(&b);
    }
    printf("     exact for %u of %u plans, something taken in by %u\n", exact, total, taking);
    CHECK(exact > total / 2 && (!inlinings || taking > total / 4));
}

TEST(books_agree) { check_books(); }

TEST(books_agree_about_insides) {
    insides = true;
    check_books();
    insides = false;
}

TEST(books_agree_about_inlinings) {
    inlinings = true;
    check_books();
    insides = true;
    check_books();
    insides = inlinings = false;
}

TEST(books_agree_about_memory_taken_over) {
    over = true;
    check_books();
    insides = inlinings = true;
    check_books();
    over = insides = inlinings = false;
}

TEST(books_agree_about_updates) {
    updates = true;
    check_books();
    over = insides = inlinings = true;
    check_books();
    updates = over = insides = inlinings = false;
}

static bool same_schedules(const cb_schedule *a, const cb_schedule *b) {
    return a->n_step == b->n_step && a->backward_starts == b->backward_starts &&
           (a->n_step == 0 || memcmp(a->step, b->step, a->n_step * sizeof *a->step) == 0);
}

/* Spare ops leave no steps: a plan that does not use their anchors equals the plan without them;
 * with them an op may run twice before another. */
TEST(spare_ops_leave_no_steps) {
    uint32_t twice = 0;
    for (uint64_t seed = 0; seed < 40; seed += check_rounds(3, 1)) {
        bench b;
        CHECK(start_as(&b, 3 + 4 * seed, 4 + (uint32_t)seed, true));
        cb_sim plain;
        cb_schedule want, got;
        uint64_t state = seed;
        CHECK_OK(cb_sim_init(&plain, &b.given, &alloc, &err));
        CHECK_OK(cb_ledger_load(&b.ledger, NULL, 0, 3000, &err));
        for (int i = 0; i < 20; i++) {
            cb_pairs pairs = {.arena = &b.arena}, mapped = {.arena = &b.arena};
            CHECK(move_at_random(&b, &state) && cb_ledger_pairs(&b.ledger, &pairs));
            CHECK_OK(cb_sim_run(&b.sim, pairs.list.at, pairs.list.len, &err));
            CHECK_OK(cb_sim_schedule(&b.sim, &b.arena, &got, &err));
            cb_lives lives;
            CHECK_OK(cb_schedule_walk(b.p, &got, b.f.device, &b.arena, &lives, &err));
            CHECK(lives.peak_bytes == b.sim.peak && lives.time_ps == b.sim.time_ps);
            for (size_t j = 0; j < pairs.list.len; j++) {
                cb_pair pair = pairs.list.at[j];
                bool spare = cb_pair_anchor(pair) % 2 == 0;
                if (spare) twice++;
                else
                    CHECK(CB_PUSH(&b.arena, mapped.list,
                                  cb_pair_make(cb_pair_anchor(pair) / 2, cb_pair_id(pair))));
            }
            if (mapped.list.len < pairs.list.len) continue;
            CHECK_OK(cb_sim_run(&plain, mapped.list.at, mapped.list.len, &err));
            CHECK_OK(cb_sim_schedule(&plain, &b.arena, &want, &err));
            CHECK(same_schedules(&want, &got) && plain.peak == b.sim.peak);
        }
        cb_sim_free(&plain);
        end(&b);
    }
    CHECK(twice > 20);
}

static bool same_chains(const cb_ledger *a, const cb_ledger *b) {
    bool same = a->busy.len == b->busy.len;
    for (uint32_t k = 0; k < a->n && same; k++) {
        size_t n = a->chain[k].len;
        same = n == b->chain[k].len &&
               (n == 0 || memcmp(a->chain[k].at, b->chain[k].at, n * sizeof(uint32_t)) == 0);
    }
    return same;
}

/* Checks that after any trial, settled never, once or several times, undoing it restores the ledger
 * of the old plan and keeping it gives that of the new one. */
static void check_trials(void) {
    uint32_t taken = 0;
    for (uint64_t seed = 0; seed < 40; seed += check_rounds(3, 1)) {
        bench b;
        CHECK(start(&b, 300 + seed, 4 + 2 * (uint32_t)seed));
        uint64_t state = seed;
        CHECK_OK(cb_ledger_load(&b.ledger, NULL, 0, 3000, &err));
        for (int i = 0; i < 40; i++) {
            cb_pairs pairs = {.arena = &b.arena};
            bool keeps = maker_draw(&state, 4) == 0, settles = true;
            CHECK(cb_ledger_pairs(&b.ledger, &pairs));
            cb_ledger_try(&b.ledger);
            CHECK(!cb_ledger_has_tried(&b.ledger));
            for (uint32_t n = 1 + maker_draw(&state, 4); n > 0; n--) {
                CHECK(set_at_random(&b, &state));
                settles = keeps || maker_draw(&state, 2);
                if (settles) CHECK(cb_ledger_settle(&b.ledger));
            }
            CHECK(cb_ledger_has_tried(&b.ledger));
            if (keeps) {
                cb_ledger_keep(&b.ledger);
                pairs.list.len = 0;
                CHECK(cb_ledger_pairs(&b.ledger, &pairs));
            } else {
                CHECK(cb_ledger_take_back(&b.ledger));
                taken++;
            }
            CHECK_OK(cb_ledger_load(&b.fresh, pairs.list.at, pairs.list.len, 3000, &err));
            CHECK(same_books(&b.ledger, &b.fresh) && same_chains(&b.ledger, &b.fresh));
        }
        end(&b);
    }
    CHECK(taken > 200);
}

TEST(trials_are_taken_back) {
    check_trials();
    over = true;
    check_trials();
    over = false;
    insides = true;
    check_trials();
    insides = false;
    updates = true;
    check_trials();
    updates = false;
}

/* Makes the same problem, but every other op makes two storages instead of one, for the same
 * readers. */
static void split_outputs(const maker *m, maker *out) {
    static uint32_t first[MAKER_MOST];
    *out = *m;
    out->n_value = out->n_in = 0;
    for (uint32_t op = 0; op < m->n_op; op++) {
        uint32_t v = m->out_begin[op], s = m->storage[v];
        bool whole = m->out_begin[op + 1] - v != 1 || op % 2 || m->storage_flags[s] ||
                     m->flags[op] & (CB_POP_VIEW | CB_POP_PLACEHOLDER) || m->bytes[s] < 2;
        for (uint32_t i = 0; i < m->n_op && !whole; i++) /* views refer to one storage */
            whole = (m->flags[i] & CB_POP_VIEW) && m->storage[m->out_begin[i]] == s;
        for (uint32_t i = 0; i < m->n_result; i++) whole |= m->result[i] == v;
        for (uint32_t i = 0; i < m->n_grad; i++) whole |= m->grad[i] == v;
        for (uint32_t j = m->in_begin[op]; j < m->in_begin[op + 1]; j++) {
            uint32_t in = m->in[j], op_in = 0;
            while (m->out_begin[op_in + 1] <= in) op_in++;
            uint32_t n_now = out->out_begin[op_in + 1] - out->out_begin[op_in];
            bool split = n_now != m->out_begin[op_in + 1] - m->out_begin[op_in];
            out->in[out->n_in++] = first[in];
            if (split) out->in[out->n_in++] = first[in] + 1;
        }
        out->in_begin[op + 1] = out->n_in;
        out->out_begin[op] = out->n_value;
        for (; v < m->out_begin[op + 1]; v++) {
            first[v] = out->n_value;
            out->storage[out->n_value++] = m->storage[v];
        }
        if (!whole) {
            uint32_t twin = make_storage(out, m->bytes[s] / 3, 0);
            out->bytes[s] -= out->bytes[twin];
            out->storage[out->n_value++] = twin;
        }
        out->out_begin[op + 1] = out->n_value;
    }
    for (uint32_t i = 0; i < m->n_result; i++) out->result[i] = first[m->result[i]];
    for (uint32_t i = 0; i < m->n_grad; i++) out->grad[i] = first[m->grad[i]];
}

/* Storages that are made, read and held together cost the same as one storage with the sum of their
 * bytes. */
TEST(twins_are_as_one) {
    static maker m, split;
    uint32_t n_twin = 0;
    for (uint64_t seed = 0; seed < 24; seed += check_rounds(3, 1)) {
        bench b;
        CHECK(start_as(&b, 500 + seed, 6 + (uint32_t)seed, false));
        make_random(&m, 500 + seed, 6 + (uint32_t)seed);
        if ((500 + seed) % 2) hold_parts(&m, 500 + seed);
        split_outputs(&m, &split);
        cb_problem *p = make_problem(&split, &alloc);
        cb_facts f;
        cb_ledger ledger;
        CHECK_OK(cb_facts_make(p, cb_device_find("a100"), &b.arena, &f, &err));
        CHECK_OK(cb_ledger_init(&ledger, &f, b.may_rerun, &alloc, &err));
        for (uint32_t s = 0; s < p->n_storage; s++) n_twin += ledger.twin[s] != s;
        uint64_t state = seed;
        CHECK_OK(cb_ledger_load(&b.ledger, NULL, 0, 3000, &err));
        CHECK_OK(cb_ledger_load(&ledger, NULL, 0, 3000, &err));
        for (int i = 0; i < 40; i++) {
            cb_pairs pairs = {.arena = &b.arena};
            CHECK(move_at_random(&b, &state));
            CHECK(cb_ledger_pairs(&b.ledger, &pairs));
            CHECK_OK(cb_ledger_load(&ledger, pairs.list.at, pairs.list.len, 3000, &err));
            CHECK(same_moments(&b.ledger, &ledger));
        }
        cb_ledger_free(&ledger);
        cb_problem_free(p);
        end(&b);
    }
    printf("     %u twins\n", n_twin);
    CHECK(n_twin > 20);
}

/* Checks that the predicted effect of removing a rerun is right, over several blocks of moments. */
static void check_peaks_without(void) {
    uint32_t known = 0, total = 0;
    for (uint64_t seed = 0; seed < 24; seed += check_rounds(3, 1)) {
        bench b;
        CHECK(start(&b, 1000 + seed, seed < 16 ? 6 + 2 * (uint32_t)seed : insides ? 60 : 150));
        uint64_t state = seed;
        CHECK_OK(cb_ledger_load(&b.ledger, NULL, 0, 1, &err));
        for (int i = 0; i < 200; i++) {
            CHECK(move_at_random(&b, &state));
            cb_pairs pairs = {.arena = &b.arena};
            CHECK(cb_ledger_pairs(&b.ledger, &pairs));
            for (int drawn = 0; drawn < 4 && pairs.list.len > 0; drawn++) {
                cb_pair pair = pairs.list.at[maker_draw(&state, (uint32_t)pairs.list.len)];
                uint32_t anchor = cb_pair_anchor(pair), op[64], n = 0;
                double least = cb_ledger_peak_without(&b.ledger, anchor, cb_pair_op(pair));
                for (size_t j = 0; j < pairs.list.len && n < 64; j++) {
                    if (cb_pair_anchor(pairs.list.at[j]) == anchor && pairs.list.at[j] != pair)
                        op[n++] = cb_pair_id(pairs.list.at[j]);
                }
                CHECK_OK(cb_ledger_load(&b.fresh, pairs.list.at, pairs.list.len, 1, &err));
                CHECK(cb_ledger_set(&b.fresh, anchor, op, n) && cb_ledger_settle(&b.fresh));
                CHECK(b.fresh.peak >= least);
                known += least > 0;
                total++;
            }
        }
        end(&b);
    }
    printf("     known for %u of %u reruns\n", known, total);
    CHECK(known > total / 4);
}

TEST(peak_without_is_no_more) {
    check_peaks_without();
    over = true;
    check_peaks_without();
    over = false;
    insides = true;
    check_peaks_without();
    insides = false;
}

/* The same question gives the same bits, and the bound does not exceed the answer. */
TEST(plans_repeat) {
    static maker m;
    for (uint64_t seed = 0; seed < 6; seed += check_rounds(CB_ASAN ? 6 : 2, 1)) {
        make_random(&m, seed + 40, 24);
        cb_problem *p = make_problem(&m, &alloc);
        cb_plan_options o = {
            .budget = {.kind = CB_BUDGET_SHARE, .measure = CB_MEASURE_LIVE, .share = 0.8}};
        cb_plan *a = NULL, *b = NULL;
        cb_status status = cb_plan_make(p, &o, &alloc, &a, &err);
        CHECK(status == CB_OK || status == CB_INFEASIBLE);
        CHECK(cb_plan_make(p, &o, &alloc, &b, &err) == status);
        if (status == CB_OK) {
            CHECK(a->schedule.n_step == b->schedule.n_step &&
                  a->lower_bound_ps == b->lower_bound_ps);
            CHECK(memcmp(a->schedule.step, b->schedule.step,
                         a->schedule.n_step * sizeof(uint32_t)) == 0);
            CHECK(a->lower_bound_ps <= a->time_ps && a->live_bytes <= a->budget_bytes);
        }
        cb_plan_free(a);
        cb_plan_free(b);
        cb_problem_free(p);
    }
}

/* A chain of equal ops, read last to first: the known optimum reruns all but every second op. */
TEST(chain_is_optimal) {
    static maker m;
    memset(&m, 0, sizeof m);
    uint32_t value[17], gradient;
    value[0] = make_input(&m, 64);
    for (int i = 1; i <= 16; i++) value[i] = make_op(&m, CB_POP_FUSIBLE, 1, &value[i - 1], 6400);
    m.backward_starts = m.n_op;
    m.result[m.n_result++] = value[16];
    gradient = make_input(&m, 64);
    m.flags[m.n_op - 1] |= CB_POP_BACKWARD;
    for (int i = 16; i >= 1; i--) {
        uint32_t in[2] = {gradient, value[i]};
        gradient = make_op(&m, CB_POP_BACKWARD, 2, in, 640);
    }
    m.grad[m.n_grad++] = gradient;
    cb_problem *p = make_problem(&m, &alloc);
    cb_plan *plan = NULL;
    int64_t fewest = -1;
    const uint64_t step = check_rounds(CB_ASAN ? 7 : 3, 1);
    for (uint64_t kept = 10; kept <= 16; kept += step) { /* room for that many, and two gradients */
        cb_plan_options o = {.budget = {.kind = CB_BUDGET_BYTES, .measure = CB_MEASURE_LIVE}};
        o.budget.bytes = kept * 6400 + 1280;
        CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
        if (!plan) break;
        CHECK(plan->lives.n_recomputed <= 16 - kept);
        CHECK(fewest < 0 || (int64_t)plan->lives.n_recomputed <= fewest);
        fewest = plan->lives.n_recomputed;
        cb_plan_free(plan);
        plan = NULL;
    }
    cb_problem_free(p);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(books_agree);
    RUN(books_agree_about_insides);
    RUN(books_agree_about_inlinings);
    RUN(books_agree_about_memory_taken_over);
    RUN(books_agree_about_updates);
    RUN(spare_ops_leave_no_steps);
    RUN(trials_are_taken_back);
    RUN(twins_are_as_one);
    RUN(peak_without_is_no_more);
    RUN(plans_repeat);
    RUN(chain_is_optimal);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
