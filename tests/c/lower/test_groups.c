/* Groups chosen before planning, from the graph to the program. */
#include "fuse/contract.h"
#include "fuse/expand.h"

#include "oom.h"
#include "random.h"

#define WISHES 2048

typedef struct grouped { /* what is made from one graph */
    cb_arena arena;
    cb_grouping grouping;
    cb_problem *problem;
    cb_plan *plan;
    cb_expanded expanded;
    cb_program *program;
} grouped;

static void grouped_free(grouped *x) {
    cb_program_free(x->program);
    cb_plan_free(x->plan);
    cb_problem_free(x->problem);
    cb_arena_free(&x->arena);
}

static cb_status make_grouped(const model *m, const cb_group_request *ask, cb_alloc *alloc,
                              cb_preset preset, grouped *x) {
    const cb_plan_options options = {.preset = preset};
    *x = (grouped){0};
    cb_arena_init(&x->arena, alloc);
    CB_TRY(cb_grouping_make(m->joint, m->problem, ask, fuses_all, &x->arena, &x->grouping, &err));
    CB_TRY(cb_contract(m->joint, m->problem, &x->grouping, alloc, &x->problem, &err));
    CB_TRY(cb_plan_make(x->problem, &options, alloc, &x->plan, &err));
    const cb_lowered of = {m->joint, m->problem, x->problem, &x->grouping, NULL};
    CB_TRY(cb_lower_plan(&of, x->plan, &x->arena, &x->expanded, &x->program, &err));
    return cb_program_verify(x->program, &err);
}

typedef struct wishes {
    cb_group_request ask;
    uint32_t begin[WISHES], op[WISHES], value[WISHES], reader[WISHES];
} wishes;

static bool works(const model *m, const wishes *w, cb_alloc *alloc) {
    cb_arena arena;
    cb_grouping grouping;
    cb_arena_init(&arena, alloc);
    cb_status status =
        cb_grouping_make(m->joint, m->problem, &w->ask, fuses_all, &arena, &grouping, &err);
    CHECK(status == CB_OK || status == CB_UNSUPPORTED || status == CB_INVALID);
    cb_arena_free(&arena);
    return status == CB_OK;
}

/* Adds each op to the current group if the result is still valid; otherwise starts another
 * group. */
static void draw(const model *m, uint32_t seed, wishes *w, cb_alloc *alloc) {
    random_graph r = {.state = seed};
    *w = (wishes){0};
    w->ask =
        (cb_group_request){.begin = w->begin, .op = w->op, .value = w->value, .reader = w->reader};
    for (uint32_t i = 0; i < m->joint->ops.len; i++) {
        if (m->problem->op_flags[i] & (CB_POP_VIEW | CB_POP_PLACEHOLDER)) continue;
        uint32_t n = w->ask.n_group;
        const bool opens = n == 0 || below(&r, 3) == 0;
        w->ask.n_group = n += opens;
        if (opens) w->begin[n] = w->begin[n - 1];
        w->op[w->begin[n]++] = i;
        if (works(m, w, alloc)) continue;
        w->begin[n]--;
        w->ask.n_group -= opens;
    }
    for (uint32_t v = 0; v < m->joint->values.len; v++) {
        for (uint32_t i = v; i < m->joint->ops.len && w->ask.n_inlining < WISHES; i++) {
            if (below(&r, 2)) continue;
            w->value[w->ask.n_inlining] = v;
            w->reader[w->ask.n_inlining++] = i;
        }
    }
}

static uint32_t n_several, n_partial, n_alone; /* n_alone: steps of one op that have a local */

static void check_bytes(const grouped *x) {
    const cb_schedule *s = &x->plan->schedule;
    CHECK(x->program->n_group == s->n_step);
    CHECK(x->program->live_bytes == x->plan->live_bytes);
    CHECK(x->program->arena_bytes == x->plan->arena_bytes);
    for (uint32_t t = 0; t < s->n_step; t++) {
        const cb_group *group = &x->program->group[t];
        n_several += group->n_instr > 1;
        n_alone += group->n_instr == 1 && cb_group_fuses(group);
        n_partial += cb_made_at(x->problem, s, t) != cb_all_made(x->problem, s->step[t]);
    }
}

/* Checks that the problem survives a round trip through JSON. */
static void check_text(const cb_problem *p, cb_alloc *alloc) {
    cb_arena arena;
    cb_str text;
    cb_problem *again = NULL;
    cb_arena_init(&arena, alloc);
    cb_str_init(&text, &arena);
    CHECK_OK(cb_problem_to_json(p, &text, &err));
    CHECK_OK(cb_problem_from_json(alloc, text.at, text.len, &again, &err));
    if (again) CHECK(cb_problem_fingerprint(again) == cb_problem_fingerprint(p));
    cb_problem_free(again);
    cb_arena_free(&arena);
}

TEST(random_groups_are_lowered_as_planned) {
    static const cb_preset presets[] = {CB_PRESET_AUTOGRAD, CB_PRESET_RECOMPUTE_ALL,
                                        CB_PRESET_CONSERVATIVE};
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    for (uint32_t seed = 1; seed <= check_rounds(60, 400); seed++) {
        const cb_plan_options options = {.preset = CB_PRESET_AUTOGRAD};
        model m = {0};
        wishes w;
        CHECK_OK(random_make(&alloc, seed, &options, &m, &err));
        draw(&m, seed, &w, &alloc);
        for (uint32_t k = 0; k < 3; k++) {
            grouped x;
            CHECK_OK(make_grouped(&m, &w.ask, &alloc, presets[k], &x));
            if (x.program) check_bytes(&x);
            if (x.problem) check_text(x.problem, &alloc);
            grouped_free(&x);
        }
        model_free(&m);
    }
    CHECK(n_several > 100 && n_partial > 100 && n_alone > 10);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
}

/* ---- invalid groups -------------------------------------------------------------------------- */

static cb_op_id find(const cb_graph *g, cb_opcode code, cb_phase phase) {
    cb_op_id i = 0;
    while (i < g->ops.len && (g->ops.at[i].code != code || g->ops.at[i].phase != phase)) i++;
    CHECK(i < g->ops.len);
    return i;
}

static void refuse(const model *m, uint32_t a, uint32_t b, cb_status status, const char *text) {
    const uint32_t begin[] = {0, 2}, op[] = {a, b};
    const cb_group_request ask = {.n_group = 1, .begin = begin, .op = op};
    cb_arena arena;
    cb_grouping grouping;
    cb_arena_init(&arena, m->joint->arena.alloc);
    CHECK_FAIL(cb_grouping_make(m->joint, m->problem, &ask, fuses_all, &arena, &grouping, &err),
               status, text);
    cb_arena_free(&arena);
}

TEST(what_is_no_group_is_refused_by_name) {
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    model m = {0};
    CHECK_OK(model_make(&alloc, true, false, CB_PRESET_AUTOGRAD, &m, &err));
    const cb_graph *g = m.joint;
    const cb_op_id add = find(g, CB_OP_ADD, CB_FORWARD), gelu = find(g, CB_OP_GELU, CB_FORWARD),
                   drop = find(g, CB_OP_DROPOUT, CB_FORWARD),
                   product = find(g, CB_OP_MATMUL, CB_FORWARD),
                   view = find(g, CB_OP_RESHAPE, CB_FORWARD), sum = find(g, CB_OP_SUM, CB_FORWARD),
                   late = find(g, CB_OP_GELU_BWD, CB_BACKWARD),
                   seed = find(g, CB_OP_FULL, CB_BACKWARD);
    refuse(&m, product, add, CB_UNSUPPORTED, "it iterates over other elements");
    refuse(&m, add, drop, CB_UNSUPPORTED, "but an op between them is not");
    refuse(&m, add, late, CB_INVALID, "both the forward and the backward");
    refuse(&m, seed, late, CB_UNSUPPORTED, "represents the tangent");
    refuse(&m, add, view, CB_INVALID, "a view, an input");
    refuse(&m, add, 0, CB_INVALID, "a view, an input");
    refuse(&m, gelu, gelu, CB_INVALID, "and again in group 0");
    refuse(&m, gelu, 100000, CB_INVALID, "no op 100000");
    refuse(&m, sum, gelu, CB_UNSUPPORTED, "but an op between them is not");
    model_free(&m);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
}

TEST(requests_are_read) {
    cb_alloc alloc;
    cb_arena arena;
    cb_group_request r;
    cb_alloc_init(&alloc);
    cb_arena_init(&arena, &alloc);
    const char *good = "{\"groups\": [[3, 4], [7]], \"inlinings\": [[8, 9]]}";
    CHECK_OK(cb_group_request_read(good, strlen(good), &arena, &r, &err));
    CHECK(r.n_group == 2 && r.begin[1] == 2 && r.begin[2] == 3 && r.op[2] == 7);
    CHECK(r.n_inlining == 1 && r.value[0] == 8 && r.reader[0] == 9);
    static const char *const bad[][2] = {{"{\"groups\": []}", "inlinings"},
                                         {"{\"groups\": [[]], \"inlinings\": []}", "line 1"},
                                         {"{\"groups\": [1], \"inlinings\": []}", "lists of ids"},
                                         {"{\"groups\": [[-1]], \"inlinings\": []}", "an id"},
                                         {"{\"groups\": [], \"inlinings\": [[1]]}", "pairs"},
                                         {"[", "line 1"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_FAIL(cb_group_request_read(bad[i][0], strlen(bad[i][0]), &arena, &r, &err),
                   CB_INVALID, bad[i][1]);
    cb_arena_free(&arena);
}

/* ---- out of memory --------------------------------------------------------------------------- */

static const model *swept;

static cb_status sweep(cb_alloc *alloc, void *user) {
    grouped x;
    cb_status status = make_grouped(swept, user, alloc, CB_PRESET_RECOMPUTE_ALL, &x);
    grouped_free(&x);
    return status;
}

TEST(out_of_memory_anywhere) {
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    const cb_plan_options options = {.preset = CB_PRESET_AUTOGRAD};
    model m = {0};
    wishes w;
    CHECK_OK(random_make(&alloc, 3, &options, &m, &err));
    draw(&m, 3, &w, &alloc);
    swept = &m;
    check_oom(sweep, &w.ask);
    model_free(&m);
}

int main(void) {
    RUN(random_groups_are_lowered_as_planned);
    RUN(what_is_no_group_is_refused_by_name);
    RUN(requests_are_read);
    RUN(out_of_memory_anywhere);
    return check_report();
}
