/* Groups of several instructions: groups of random plans, and errors that the verifier finds in a
 * group. */
#include "lower/program.h"

#include "random.h"

static cb_alloc alloc;

static bool fuses_pairs_of_gelu(cb_opcode code, cb_part part, const cb_domain *domain,
                                const cb_dtype *in, uint32_t n_in, const cb_dtype *out,
                                uint32_t n_out) {
    (void)part, (void)domain, (void)in, (void)n_in, (void)out, (void)n_out;
    return code == CB_OP_GELU || code == CB_OP_ADD;
}

static uint32_t n_grouped, n_locals, n_programs, seen[CB_PART_LINES + 1], ended[CB_END_LIMIT + 1];

/* Checks that each step of the plan, except views, appears once. */
static void check_steps(const model *m, const cb_program *p) {
    const cb_schedule *s = &m->plan->schedule;
    uint8_t *ran = calloc(s->n_step, 1);
    uint32_t n_real = 0;
    for (uint32_t i = 0; i < p->n_instr; i++) {
        CHECK(p->instr[i].step < s->n_step && s->step[p->instr[i].step] == p->instr[i].op);
        CHECK(!ran[p->instr[i].step]);
        ran[p->instr[i].step] = 1;
        seen[p->instr[i].part]++;
    }
    for (uint32_t t = 0; t < s->n_step; t++)
        n_real += !(m->problem->op_flags[s->step[t]] & CB_POP_VIEW);
    CHECK(n_real == p->n_instr);
    free(ran);
}

/* Checks that each group ends before a step that runs later, or has one op because of its kind. */
static void check_ends(const cb_program *p) {
    for (uint32_t g = 0; g < p->n_group; g++) {
        const cb_group *group = &p->group[g];
        const cb_instr *first = &p->instr[group->instr_begin], *all_end = p->instr + p->n_instr;
        ended[group->end]++;
        CHECK((group->end_wait != CB_NONE) == (group->end == CB_END_WAIT));
        CHECK((group->end_step == CB_NONE) == (group->end == CB_END_PROGRAM));
        if (group->end_step == CB_NONE) continue;
        const cb_instr *before = first;
        while (before < all_end && before->step != group->end_step) before++;
        CHECK(before < all_end && (before == first || before >= first + group->n_instr));
        if (before == first) {
            CHECK(group->n_instr == 1 && (group->end == CB_END_OP || group->end == CB_END_ROOM));
        }
    }
}

static void check_program(const model *m, const cb_program *p) {
    CHECK(p->live_bytes <= m->plan->live_bytes && p->arena_bytes <= m->plan->arena_bytes);
    check_steps(m, p);
    check_ends(p);
    for (uint32_t g = 0; g < p->n_group; g++) {
        n_grouped += p->group[g].n_instr > 1;
        CHECK(p->group[g].n_instr > 1 || p->group[g].domain.count == 0);
        const uint32_t first = p->instr[p->group[g].instr_begin].step;
        CHECK((first >= m->plan->schedule.backward_starts) == (g >= p->backward_starts));
    }
    n_locals += p->n_local;
    n_programs++;
}

TEST(random_plans_lower_in_groups) {
    for (uint32_t seed = 1; seed <= check_rounds(30, 600); seed++) {
        const int before = check_failures;
        for (int k = 0; k < 4; k++) {
            const cb_plan_options options = {
                .preset = k == 0   ? CB_PRESET_AUTOGRAD
                          : k == 1 ? CB_PRESET_RECOMPUTE_ALL
                                   : CB_PRESET_CONSERVATIVE,
                .budget = {.kind = k == 3 ? CB_BUDGET_SHARE : CB_BUDGET_NONE, .share = 0.8}};
            model m = {0};
            cb_program *p = NULL;
            const cb_status status = random_make(&alloc, seed, &options, &m, &err);
            CHECK(status == CB_OK || status == CB_INFEASIBLE);
            if (status == CB_OK) {
                CHECK_OK(lower_single(m.joint, m.problem, m.plan, fuses_all, &alloc, &p, &err));
                CHECK_OK(cb_program_verify(p, &err));
                check_program(&m, p);
                cb_program_free(p);
            }
            model_free(&m);
        }
        if (check_failures != before) printf("seed %u\n", seed);
    }
    CHECK(n_grouped > 2 * n_programs && n_locals > 4 * n_programs);
    for (int part = CB_PART_NONE; part <= CB_PART_ONE; part++) CHECK(seen[part] > 0);
    for (int end = CB_END_PROGRAM; end < CB_END_LIMIT; end++)
        CHECK((ended[end] > 0) == (end != CB_END_BACKEND));
    CHECK(ended[CB_END_NONE] == 0);
}

static cb_status lower_model(cb_preset preset, cb_fuses_fn fuses, cb_program **out) {
    model m = {0};
    cb_status status = model_make(&alloc, true, true, preset, &m, &err);
    if (status == CB_OK)
        status = lower_single(m.joint, m.problem, m.plan, fuses, &alloc, out, &err);
    model_free(&m);
    return status;
}

TEST(only_what_the_backend_fuses) {
    cb_program *p = NULL;
    uint32_t together = 0;
    CHECK_OK(lower_model(CB_PRESET_AUTOGRAD, fuses_pairs_of_gelu, &p));
    CHECK_OK(cb_program_verify(p, &err));
    for (uint32_t g = 0; g < p->n_group; g++) {
        const cb_instr *instr = &p->instr[p->group[g].instr_begin];
        if (p->group[g].n_instr == 1) continue;
        together++;
        CHECK(instr[0].code == CB_OP_ADD && instr[1].code == CB_OP_GELU);
    }
    CHECK(together == 1);
    cb_program_free(p);
}

TEST(text_of_a_group) {
    cb_program *p = NULL;
    cb_arena scratch;
    cb_str text;
    cb_arena_init(&scratch, &alloc);
    cb_str_init(&text, &scratch);
    CHECK_OK(lower_model(CB_PRESET_RECOMPUTE_ALL, fuses_all, &p));
    CHECK_OK(cb_program_print(p, &text, &err));
    CHECK(strstr(text.at, " locals=") != NULL);
    CHECK(strstr(text.at, " [128]:\n    ") != NULL);
    CHECK(strstr(text.at, "    l0:f32[") != NULL);
    cb_arena_free(&scratch);
    cb_program_free(p);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static cb_instr *find_part(const cb_program *p, cb_part part) {
    for (uint32_t i = 0; i < p->n_instr; i++) {
        if (p->instr[i].part == part) return &p->instr[i];
    }
    return NULL;
}

/* Returns an input operand that reads a local. */
static cb_operand *find_local_read(const cb_program *p) {
    for (uint32_t i = 0; i < p->n_instr; i++) {
        for (uint32_t k = 0; k < p->instr[i].n_in; k++) {
            cb_operand *x = &p->operand[p->operand_id[p->instr[i].in_begin + k]];
            if (x->space == CB_SPACE_LOCAL) return x;
        }
    }
    return NULL;
}

TEST(verifier_finds_what_is_wrong_in_a_group) {
    cb_program *p = NULL;
    CHECK_OK(lower_model(CB_PRESET_AUTOGRAD, fuses_all, &p));
    CHECK_OK(cb_program_verify(p, &err));
    cb_operand *local = find_local_read(p);
    cb_instr *map = find_part(p, CB_PART_MAP), *alone = find_part(p, CB_PART_NONE);
    CHECK(local && map && alone);
    if (!local || !map || !alone) return;
    cb_local *home = &p->locals[local->buffer];
    cb_domain *domain = &p->group[home->group].domain;

    map->part = CB_PART_ONE;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "its part is not the one that its op has");
    map->part = CB_PART_MAP;
    alone->part = CB_PART_MAP;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL,
               "it is the only instruction of its group but has a part");
    alone->part = CB_PART_NONE;
    domain->count++;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "its part is not the one that its op has");
    domain->count--;
    home->bytes--;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "covers elements");
    home->bytes++;
    home->group++;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "may not write");
    home->group--;
    const cb_operand kept = *local;
    local->buffer = p->n_local;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "refers to memory");
    *local = kept;
    alone->scratch = p->n_buffer;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "scratch");
    alone->scratch = CB_NONE;
    CHECK_OK(cb_program_verify(p, &err));
    cb_program_free(p);
}

/* Swaps two instructions, one of which reads what the other makes. */
TEST(verifier_finds_reads_before_writes) {
    cb_program *p = NULL;
    bool found = false;
    CHECK_OK(lower_model(CB_PRESET_AUTOGRAD, fuses_all, &p));
    for (uint32_t i = 1; i < p->n_instr && !found; i++) {
        cb_instr *a = &p->instr[i - 1], *b = &p->instr[i];
        const cb_operand *made = &p->operand[p->operand_id[a->out_begin]],
                         *read = &p->operand[p->operand_id[b->in_begin]];
        if (a->part == CB_PART_NONE || made->space != CB_SPACE_LOCAL ||
            read->space != CB_SPACE_LOCAL || read->buffer != made->buffer)
            continue;
        const cb_instr kept = *a;
        found = true;
        *a = *b;
        *b = kept;
        CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "which is not in memory");
    }
    CHECK(found);
    cb_program_free(p);
}

/* Reads a value of the group through a view other than the one it was written in. */
TEST(verifier_finds_reads_in_another_order) {
    cb_program *p = NULL;
    CHECK_OK(lower_model(CB_PRESET_AUTOGRAD, fuses_all, &p));
    cb_operand *more = calloc(p->n_operand + (size_t)1, sizeof *more), *own = p->operand;
    bool found = false;
    memcpy(more, own, p->n_operand * sizeof *more);
    p->operand = more;
    for (uint32_t i = 0; i < p->n_instr && !found; i++) {
        const cb_instr *instr = &p->instr[i];
        uint32_t *in = &p->operand_id[instr->in_begin];
        if (instr->part != CB_PART_MAP || instr->n_in == 0) continue;
        if (more[*in].space != CB_SPACE_LOCAL || more[*in].shape.rank != 2) continue;
        cb_operand *turned = &more[p->n_operand];
        *turned = more[*in];
        turned->stride[0] = 1;
        turned->stride[1] = turned->shape.dim[0];
        *in = p->n_operand++;
        found = true;
    }
    CHECK(found);
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "it reads a value before it is complete");
    p->operand = own;
    cb_program_free(p);
    free(more);
}

/* Returns the bytes of a copy of eight indices for each op with indices. */
static uint64_t index_copy(const cb_graph *g, cb_op_id id) {
    return cb_op_index_input(g->ops.at[id].code) < 0 ? 0 : 64;
}

static cb_status make_losses(model *m) {
    const cb_shape full = {2, {8, 64}}, rows = {1, {8}};
    const uint32_t wrt[] = {0};
    const cb_joint_options options = {.wrt = wrt, .n_wrt = 1};
    const cb_annotate_options annotate = {.alignment = 64, .workspace = index_copy};
    const cb_plan_options plan = {.preset = CB_PRESET_AUTOGRAD};
    cb_value_id in[2], other, nll[2], loss;
    CB_TRY(cb_graph_create(&alloc, &m->forward, &err));
    cb_graph *g = m->forward;
    CB_TRY(cb_graph_append_input(g, "x", CB_ROLE_PARAM, CB_F32, &full, &in[0], &err));
    CB_TRY(cb_graph_append_input(g, "label", CB_ROLE_DATA, CB_I64, &rows, &in[1], &err));
    CB_TRY(cb_graph_append_input(g, "other", CB_ROLE_DATA, CB_I64, &rows, &other, &err));
    CB_TRY(cb_build(g, CB_OP_CROSS_ENTROPY, 2, in, NULL, nll, &err));
    CB_TRY(cb_build_sum(g, nll[0], 0, NULL, false, &loss, &err));
    CB_TRY(cb_graph_append_output(g, loss, "loss", CB_OUTPUT_RESULT, CB_NONE, &err));
    CB_TRY(cb_joint_build(g, &options, &alloc, &m->joint, &err));
    CB_TRY(cb_annotate(m->joint, &annotate, &alloc, &m->problem, &err));
    return cb_plan_make(m->problem, &plan, &alloc, &m->plan, &err);
}

/* A loss and its gradient copy the same labels to one scratch; other ops have their own. */
TEST(scratch_is_shared_by_who_copies_the_same) {
    model m = {0};
    cb_program *p = NULL;
    const cb_instr *shared[2] = {NULL, NULL};
    CHECK_OK(make_losses(&m));
    CHECK_OK(lower_single(m.joint, m.problem, m.plan, fuses_all, &alloc, &p, &err));
    CHECK_OK(cb_program_verify(p, &err));
    for (uint32_t i = 0; i < p->n_instr; i++) {
        if (p->instr[i].code == CB_OP_CROSS_ENTROPY) shared[0] = &p->instr[i];
        if (p->instr[i].code == CB_OP_CROSS_ENTROPY_BWD) shared[1] = &p->instr[i];
    }
    CHECK(shared[0] && shared[1] && shared[0]->part == CB_PART_ROWS);
    CHECK(shared[1]->part == CB_PART_ROW_WISE && shared[0]->scratch == shared[1]->scratch);
    CHECK(shared[0]->scratch != CB_NONE && p->buffer[shared[0]->scratch].bytes == 64);
    p->operand_id[shared[1]->in_begin + 2] = p->input[2].operand;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "has no valid scratch");
    cb_program_free(p);
    check_nomem(&alloc, &m, fuses_all);
    model_free(&m);
}

TEST(out_of_memory) {
    model m = {0};
    const cb_plan_options options = {.preset = CB_PRESET_RECOMPUTE_ALL};
    CHECK_OK(random_make(&alloc, 7, &options, &m, &err));
    check_nomem(&alloc, &m, fuses_all);
    model_free(&m);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(random_plans_lower_in_groups);
    RUN(only_what_the_backend_fuses);
    RUN(text_of_a_group);
    RUN(verifier_finds_what_is_wrong_in_a_group);
    RUN(verifier_finds_reads_before_writes);
    RUN(verifier_finds_reads_in_another_order);
    RUN(scratch_is_shared_by_who_copies_the_same);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    printf("%u programs, %u groups of several, %u locals\n", n_programs, n_grouped, n_locals);
    return check_report();
}
