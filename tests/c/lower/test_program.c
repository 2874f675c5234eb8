#include "lower/program.h"

#include "model.h"

static cb_alloc alloc;

static uint32_t real_steps(const model *m) {
    uint32_t n = 0;
    for (uint32_t s = 0; s < m->plan->schedule.n_step; s++) {
        n += !(m->problem->op_flags[m->plan->schedule.step[s]] & CB_POP_VIEW);
    }
    return n;
}

TEST(every_plan_lowers_to_the_bytes_it_promised) {
    for (int preset = 0; preset < CB_PRESET_COUNT; preset++) {
        for (int keep = 0; keep < 2; keep++) {
            model m = {0};
            cb_program *program = NULL;
            CHECK_OK(model_make(&alloc, true, keep, (cb_preset)preset, &m, &err));
            CHECK_OK(lower_single(m.joint, m.problem, m.plan, NULL, &alloc, &program, &err));
            CHECK_OK(cb_program_verify(program, &err));
            CHECK(program->live_bytes == m.plan->live_bytes &&
                  program->arena_bytes <= m.plan->arena_bytes);
            CHECK(program->n_group == real_steps(&m));
            uint32_t n_recomputed = 0;
            for (uint32_t i = 0; i < program->n_instr; i++) {
                CHECK(!(cb_op_def_of(program->instr[i].code)->flags & CB_OPF_VIEW));
                n_recomputed += program->instr[i].recomputed;
            }
            CHECK(n_recomputed <= m.plan->lives.n_recomputed);
            CHECK((preset == CB_PRESET_RECOMPUTE_ALL) <= (n_recomputed > 0));
            cb_program_free(program);
            model_free(&m);
        }
    }
}

TEST(arguments) {
    model m = {0};
    cb_program *p = NULL;
    CHECK_OK(model_make(&alloc, true, true, CB_PRESET_AUTOGRAD, &m, &err));
    CHECK_OK(lower_single(m.joint, m.problem, m.plan, NULL, &alloc, &p, &err));
    model_free(&m); /* the program owns its memory */
    CHECK_OK(cb_program_verify(p, &err));
    CHECK(p->n_input == 5 && p->n_output == 5);
    CHECK(strcmp(p->input[1].name, "w1") == 0 && p->input[1].role_or_kind == CB_ROLE_PARAM &&
          p->input[1].bytes == 4 * 8 * 16);
    CHECK(p->output[0].role_or_kind == CB_OUTPUT_RESULT &&
          p->operand[p->output[0].operand].space == CB_SPACE_OUTPUT);
    CHECK(p->output[1].role_or_kind == CB_OUTPUT_STATE && p->output[1].input == 4);
    CHECK(p->operand[p->output[1].operand].space == CB_SPACE_ARENA);
    CHECK(p->output[2].role_or_kind == CB_OUTPUT_GRAD && p->output[2].input == 1);
    const cb_operand *gradient = &p->operand[p->output[2].operand];
    CHECK(gradient->space == CB_SPACE_ARENA && p->buffer[gradient->buffer].last == p->n_group);
    cb_program_free(p);
}

TEST(text) {
    model m = {0};
    cb_program *p = NULL;
    cb_arena scratch;
    cb_str text;
    cb_arena_init(&scratch, &alloc);
    cb_str_init(&text, &scratch);
    CHECK_OK(model_make(&alloc, true, true, CB_PRESET_RECOMPUTE_ALL, &m, &err));
    CHECK_OK(lower_single(m.joint, m.problem, m.plan, NULL, &alloc, &p, &err));
    CHECK_OK(cb_program_print(p, &text, &err));
    CHECK(strstr(text.at, "cutback.program 1\narena=") == text.at);
    CHECK(strstr(text.at, "input 1 \"w1\" f32[8,16] param\n") != NULL);
    CHECK(strstr(text.at, "output 0 \"loss\" f32[] result\n") != NULL);
    CHECK(strstr(text.at, "output 1 \"s\" f32[] state of input 4 in b") != NULL);
    CHECK(strstr(text.at, "--- backward\n") != NULL && strstr(text.at, " recomputed") != NULL);
    CHECK(strstr(text.at, "@\"model.py:7\"") != NULL);
    cb_arena_free(&scratch);
    cb_program_free(p);
    model_free(&m);
}

/* Finds two non-empty buffers that are live at the same time. */
static bool find_pair(const cb_program *p, uint32_t *a, uint32_t *b) {
    for (*a = 0; *a < p->n_buffer; (*a)++) {
        for (*b = *a + 1; *b < p->n_buffer; (*b)++) {
            const cb_buffer *x = &p->buffer[*a], *y = &p->buffer[*b];
            if (x->bytes && y->bytes && x->made <= y->last && y->made <= x->last) return true;
        }
    }
    return false;
}

TEST(verifier_finds_what_is_wrong) {
    model m = {0};
    cb_program *p = NULL;
    CHECK_OK(model_make(&alloc, true, true, CB_PRESET_AUTOGRAD, &m, &err));
    CHECK_OK(lower_single(m.joint, m.problem, m.plan, NULL, &alloc, &p, &err));
    uint32_t a = 0, b = 0;
    CHECK(find_pair(p, &a, &b));
    cb_buffer kept = p->buffer[a];
    p->buffer[a].offset = p->buffer[b].offset;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "are live at the same time and overlap");
    p->buffer[a].offset = p->arena_bytes;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "is not in the arena");
    p->buffer[a] = kept;
    p->buffer[a].made = p->buffer[a].last + 1;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "is live in groups");
    p->buffer[a] = kept;

    uint64_t live = p->live_bytes;
    p->live_bytes++;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "but live_bytes is");
    p->live_bytes = live;

    cb_instr *last = &p->instr[p->n_instr - 1], *first = &p->instr[0];
    uint32_t *read = &p->operand_id[first->in_begin], operand = *read;
    *read = p->operand_id[last->out_begin];
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "which is not in memory");
    *read = operand;

    uint32_t *write = &p->operand_id[first->out_begin];
    operand = *write;
    *write = p->input[0].operand;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "may not write");
    *write = operand;

    cb_operand *shown = &p->operand[p->operand_id[first->out_begin]];
    shown->offset++;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "covers elements");
    shown->offset--;
    shown->buffer = UINT32_MAX;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "refers to memory");
    cb_program_free(p);
    model_free(&m);
}

/* Makes a program in which a buffer takes over another one. */
static cb_status make_taking(model *m, cb_program **p) {
    const cb_annotate_options annotate = {.takes_over = true, MODEL_BACKEND};
    const cb_plan_options plan = {.preset = CB_PRESET_AUTOGRAD};
    CB_TRY(model_joint(&alloc, true, m, &err));
    CB_TRY(cb_annotate(m->joint, &annotate, &alloc, &m->problem, &err));
    CB_TRY(cb_plan_make(m->problem, &plan, &alloc, &m->plan, &err));
    return lower_single(m->joint, m->problem, m->plan, NULL, &alloc, p, &err);
}

static uint32_t find_taking(const cb_program *p) {
    uint32_t b = 0;
    while (b < p->n_buffer && !p->buffer[b].takes_over) b++;
    return b;
}

TEST(verifier_finds_memory_taken_over_wrongly) {
    model m = {0};
    cb_program *p = NULL;
    CHECK_OK(make_taking(&m, &p));
    CHECK_OK(cb_program_verify(p, &err));
    const uint32_t b = find_taking(p);
    CHECK(b < p->n_buffer);
    if (b == p->n_buffer) return;
    cb_buffer *to = &p->buffer[b], *from = &p->buffer[to->over], kept = *to, ended = *from;
    to->over = p->n_buffer;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "there is no such buffer");
    *to = kept;
    to->takes_over = false;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "are live at the same time and overlap");
    *to = kept;
    from->last++;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "its life does not end in the group");
    *from = ended;
    to->offset = to->offset > 0 ? 0 : p->align;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "the two differ in size or offset");
    *to = kept;
    for (uint32_t c = 0; c < p->n_buffer; c++) {
        cb_buffer *other = &p->buffer[c], before = *other;
        if (c == b || c == kept.over || other->takes_over || other->made <= from->made) continue;
        *other = (cb_buffer){.made = kept.made,
                             .last = before.last,
                             .bytes = kept.bytes,
                             .offset = kept.offset,
                             .takes_over = true,
                             .over = kept.over};
        CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "takes over buffer");
        *other = before;
    }
    CHECK_OK(cb_program_verify(p, &err));
    cb_program_free(p);
    model_free(&m);
}

TEST(out_of_memory) {
    model m = {0};
    CHECK_OK(model_make(&alloc, true, true, CB_PRESET_RECOMPUTE_ALL, &m, &err));
    check_nomem(&alloc, &m, NULL);
    model_free(&m);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(every_plan_lowers_to_the_bytes_it_promised);
    RUN(arguments);
    RUN(text);
    RUN(verifier_finds_what_is_wrong);
    RUN(verifier_finds_memory_taken_over_wrongly);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
