/* Groups that the search finds are granted, planned, merged and lowered within the plan. */
#include "fuse/contract.h"
#include "fuse/find_groups.h"
#include "lower/within.h"

#include "oom.h"
#include "random.h"

typedef struct found { /* what is made from one graph */
    cb_arena arena;
    cb_group_request request;
    cb_grouping grouping;
    cb_problem *problem;
    cb_plan *plan;
    cb_expanded expanded;
    cb_program *program;
} found;

static void found_free(found *x) {
    cb_program_free(x->program);
    cb_plan_free(x->plan);
    cb_problem_free(x->problem);
    cb_arena_free(&x->arena);
}

static cb_status make_found(const model *m, cb_alloc *alloc, cb_preset preset, found *x) {
    const cb_plan_options options = {.preset = preset};
    *x = (found){0};
    cb_arena_init(&x->arena, alloc);
    CB_TRY(cb_find_groups(m->joint, m->problem, fuses_all, &x->arena, &x->request, &err));
    CB_TRY(cb_grouping_make(m->joint, m->problem, &x->request, fuses_all, &x->arena, &x->grouping,
                            &err));
    CB_TRY(cb_grouping_verify(&x->grouping, m->joint, m->problem, &err));
    CB_TRY(cb_contract(m->joint, m->problem, &x->grouping, alloc, &x->problem, &err));
    CB_TRY(cb_plan_make(x->problem, &options, alloc, &x->plan, &err));
    const cb_lowered of = {m->joint, m->problem, x->problem, &x->grouping, fuses_all};
    CB_TRY(cb_lower_plan(&of, x->plan, &x->arena, &x->expanded, &x->program, &err));
    return cb_program_verify(x->program, &err);
}

static uint32_t n_groups, n_merged, n_taken, n_inside; /* over all graphs */

static void check_found(const found *x) {
    const cb_schedule *s = &x->plan->schedule;
    CHECK(x->program->live_bytes <= x->plan->live_bytes);
    CHECK(x->program->arena_bytes <= x->plan->arena_bytes);
    CHECK(x->program->n_group <= s->n_step);
    n_merged += s->n_step - x->program->n_group;
    n_groups += x->request.n_group;
    for (uint32_t t = 0; t < s->n_step; t++) n_taken += cb_taken_at(s, t) != 0;
    for (uint32_t op = 0; op < x->problem->n_op; op++) n_inside += cb_has_inside(x->problem, op);
}

TEST(found_groups_are_lowered_within_the_plan) {
    static const cb_preset presets[] = {CB_PRESET_AUTOGRAD, CB_PRESET_RECOMPUTE_ALL,
                                        CB_PRESET_AGGRESSIVE};
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    for (uint32_t seed = 1; seed <= check_rounds(150, 1000); seed++) {
        const cb_plan_options options = {.preset = CB_PRESET_AUTOGRAD};
        model m = {0};
        CHECK_OK(random_make(&alloc, seed, &options, &m, &err));
        for (uint32_t k = 0; k < 3; k++) {
            found x;
            CHECK_OK(make_found(&m, &alloc, presets[k], &x));
            if (x.program) check_found(&x);
            found_free(&x);
        }
        model_free(&m);
    }
    CHECK(n_groups > 1000 && n_inside > 1000 && n_merged > 1000 && n_taken > 100);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
}

/* The same graph gives the same request twice; without a backend that fuses, the request is
 * empty. */
TEST(requests_are_repeatable) {
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    const cb_plan_options options = {.preset = CB_PRESET_AUTOGRAD};
    model m = {0};
    cb_arena arena;
    cb_group_request a = {0}, b = {0};
    cb_arena_init(&arena, &alloc);
    CHECK_OK(random_make(&alloc, 5, &options, &m, &err));
    CHECK_OK(cb_find_groups(m.joint, m.problem, fuses_all, &arena, &a, &err));
    CHECK_OK(cb_find_groups(m.joint, m.problem, fuses_all, &arena, &b, &err));
    CHECK(a.n_group > 0 && a.n_group == b.n_group && a.n_inlining == b.n_inlining);
    CHECK(memcmp(a.op, b.op, a.begin[a.n_group] * sizeof *a.op) == 0);
    CHECK(memcmp(a.value, b.value, a.n_inlining * sizeof *a.value) == 0);
    CHECK_OK(cb_find_groups(m.joint, m.problem, NULL, &arena, &b, &err));
    CHECK(b.n_group == 0 && b.n_inlining == 0);
    cb_arena_free(&arena);
    model_free(&m);
}

/* Damages a grouping in one of several ways. Returns false if this grouping has no place for it. */
static bool damage(const model *m, cb_grouping *x, uint32_t kind) {
    uint32_t op = 0, i = 0;
    while (op < x->n_op && cb_group_size(x, op) < 2) op++;
    if (op == x->n_op) return false;
    uint32_t *first = &x->member[x->begin[op]];
    switch (kind) {
        case 0: x->op_of[*first] = op + 1; return true;
        case 1: first[1] = first[0]; return true;
        case 2: x->begin[op + 1]--; return true;
        case 3: x->begin[x->n_op]--; return true;
        case 4: memset(x->is_given, 0, m->joint->values.len); return true;
        case 5:
            if (x->n_inlining == 0) return false;
            x->inlining[x->n_inlining - 1].value = (uint32_t)m->joint->values.len;
            return true;
        case 6:
            if (x->n_inlining < 2) return false;
            x->inlining[1] = x->inlining[0];
            return true;
        case 7:
            while (i < m->joint->ops.len && !(m->problem->op_flags[i] & CB_POP_VIEW)) i++;
            if (i == m->joint->ops.len) return false;
            x->op_of[i] = op;
            return true;
        default: x->root[cb_op_ins(m->joint, first[1])[0]]++; return true;
    }
}

TEST(damaged_groupings_are_found) {
    cb_alloc alloc;
    uint32_t n[9] = {0};
    cb_alloc_init(&alloc);
    for (uint32_t seed = 1; seed <= 40; seed++) {
        const cb_plan_options options = {.preset = CB_PRESET_AUTOGRAD};
        model m = {0};
        CHECK_OK(random_make(&alloc, seed, &options, &m, &err));
        for (uint32_t kind = 0; kind < 9; kind++) {
            found x;
            CHECK_OK(make_found(&m, &alloc, CB_PRESET_AUTOGRAD, &x));
            if (damage(&m, &x.grouping, kind)) {
                CHECK_FAIL(cb_grouping_verify(&x.grouping, m.joint, m.problem, &err), CB_INTERNAL,
                           "groups: ");
                n[kind]++;
            }
            found_free(&x);
        }
        model_free(&m);
    }
    for (uint32_t kind = 0; kind < 9; kind++) CHECK(n[kind] > 0);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
}

/* Each op of the graph except views is named once, and so is each inlining. */
TEST(groups_as_text) {
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    const cb_plan_options options = {.preset = CB_PRESET_AUTOGRAD};
    model m = {0};
    found x;
    cb_str text;
    uint32_t n_line = 0, n_value = 0;
    CHECK_OK(random_make(&alloc, 5, &options, &m, &err));
    CHECK_OK(make_found(&m, &alloc, CB_PRESET_AUTOGRAD, &x));
    cb_str_init(&text, &x.arena);
    CHECK_OK(cb_grouping_print(&x.grouping, m.joint, &text, &err));
    CHECK(strncmp(text.at, "cutback.groups 1\nop 0", 21) == 0);
    for (const char *c = text.at; *c; c++) n_line += *c == '\n', n_value += *c == '(';
    CHECK(n_line == x.grouping.n_op + 1);
    CHECK(n_value == x.grouping.begin[x.grouping.n_op]);
    found_free(&x);
    model_free(&m);
}

static const model *swept;

static cb_status sweep(cb_alloc *alloc, void *user) {
    (void)user;
    found x;
    cb_status status = make_found(swept, alloc, CB_PRESET_RECOMPUTE_ALL, &x);
    found_free(&x);
    return status;
}

TEST(out_of_memory_anywhere) {
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    const cb_plan_options options = {.preset = CB_PRESET_AUTOGRAD};
    model m = {0};
    CHECK_OK(random_make(&alloc, 3, &options, &m, &err));
    swept = &m;
    check_oom(sweep, NULL);
    model_free(&m);
}

int main(void) {
    RUN(found_groups_are_lowered_within_the_plan);
    RUN(requests_are_repeatable);
    RUN(damaged_groupings_are_found);
    RUN(groups_as_text);
    RUN(out_of_memory_anywhere);
    return check_report();
}
