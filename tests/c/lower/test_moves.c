/* Copies to the host and back: lowered from a plan that offloads, placed in the host's block, and
 * checked by the verifier. */
#include "lower/program.h"

#include "model.h"

static cb_alloc alloc;

/* Makes a program in which every value that may be offloaded is offloaded. */
static cb_status make(model *m, cb_program **program) {
    const cb_plan_options options = {.preset = CB_PRESET_AUTOGRAD};
    CB_TRY(model_make(&alloc, true, true, CB_PRESET_AUTOGRAD, m, &err));
    for (uint32_t v = 0; v < m->problem->n_value; v++)
        m->problem->value_constraint[v] = CB_PREFER_OFFLOAD;
    cb_plan_free(m->plan);
    m->plan = NULL;
    CB_TRY(cb_plan_make(m->problem, &options, &alloc, &m->plan, &err));
    return lower_single(m->joint, m->problem, m->plan, NULL, &alloc, program, &err);
}

TEST(what_leaves_comes_back) {
    model m = {0};
    cb_program *p = NULL;
    CHECK_OK(make(&m, &p));
    CHECK_OK(cb_program_verify(p, &err));
    CHECK(p->live_bytes <= m.plan->live_bytes && p->arena_bytes <= m.plan->arena_bytes);
    uint32_t n_out = 0, n_in = 0;
    for (uint32_t g = 0; g < p->n_group; g++) {
        for (uint32_t i = p->move_begin[g]; i < p->move_begin[g + 1]; i++) {
            const bool leaves = p->move[i].from == CB_NONE;
            CHECK(leaves ? g < p->backward_starts : g >= p->backward_starts);
            n_out += leaves;
            n_in += !leaves;
        }
    }
    CHECK(n_out > 1 && n_in == n_out && p->n_move == n_out + n_in);
    CHECK(p->host_bytes > 0 && p->host_bytes <= m.plan->lives.host_bytes + p->n_move * p->align);
    cb_program_free(p);
    model_free(&m);
}

static uint32_t find(const cb_program *p, bool leaves) {
    uint32_t i = 0;
    while ((p->move[i].from == CB_NONE) != leaves) i++;
    return i;
}

TEST(the_verifier_finds_wrong_moves) {
    model m = {0};
    cb_program *p = NULL;
    CHECK_OK(make(&m, &p));
    cb_move *in = &p->move[find(p, false)], *out = &p->move[in->from], kept = *in;
    in->host += p->align;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, ": it");
    *in = kept;
    in->from = (uint32_t)(in - p->move);
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL,
               "it returns from the host but never left for that place");
    *in = kept;
    in->buffer = out->buffer; /* the value is no longer there */
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "its buffer or its place on the host");
    *in = kept;
    kept = *out;
    out->host = p->host_bytes;
    CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, "or its place on the host");
    *out = kept;
    for (uint32_t i = in->from + 1; i < p->n_move; i++) {
        cb_move *other = &p->move[i], was = *other;
        if (other->from != CB_NONE) continue;
        other->host = out->host;
        CHECK_FAIL(cb_program_verify(p, &err), CB_INTERNAL, ": ");
        *other = was;
    }
    CHECK_OK(cb_program_verify(p, &err));
    cb_program_free(p);
    model_free(&m);
}

TEST(moves_are_part_of_the_text) {
    model m = {0};
    cb_program *p = NULL;
    cb_arena scratch;
    cb_str text;
    CHECK_OK(make(&m, &p));
    cb_arena_init(&scratch, &alloc);
    cb_str_init(&text, &scratch);
    CHECK_OK(cb_program_print(p, &text, &err));
    const char *to = strstr(text.at, " to the host at "), *from = strstr(text.at, " from the host");
    CHECK(to && from && to < from && strstr(text.at, " host="));
    cb_arena_free(&scratch);
    cb_program_free(p);
    model_free(&m);
}

TEST(out_of_memory) {
    model m = {0};
    cb_program *p = NULL;
    CHECK_OK(make(&m, &p));
    cb_program_free(p);
    check_nomem(&alloc, &m, NULL);
    model_free(&m);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(what_leaves_comes_back);
    RUN(the_verifier_finds_wrong_moves);
    RUN(moves_are_part_of_the_text);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
