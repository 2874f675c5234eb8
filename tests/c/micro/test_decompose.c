/* Groups as microcode: a value that a group computes twice is emitted once. */
#include "../lower/model.h"

#include "micro/decompose.h"

static cb_alloc alloc;
static const cb_shape rows = {2, {8, 256}};

/* Builds x / sqrt(sum of the row of x), with one number per row in between. */
static cb_status scaled(cb_graph *g, cb_value_id x, cb_value_id *out, cb_error *e) {
    const int64_t axis = 1;
    cb_value_id s;
    CB_TRY(cb_build_sum(g, x, 1, &axis, true, &s, e));
    CB_TRY(cb_build1(g, CB_OP_RSQRT, s, &s, e));
    CB_TRY(cb_build_expand(g, s, &rows, &s, e));
    return cb_build2(g, CB_OP_MUL, x, s, out, e);
}

static cb_status graph_of(bool is_twice, cb_graph *g, cb_error *e) {
    cb_value_id x, y, again;
    CB_TRY(cb_graph_append_input(g, "x", CB_ROLE_DATA, CB_F32, &rows, &x, e));
    CB_TRY(scaled(g, x, &y, e));
    again = y;
    if (is_twice) CB_TRY(scaled(g, x, &again, e));
    CB_TRY(cb_build2(g, CB_OP_ADD, y, again, &y, e));
    return cb_graph_append_output(g, y, "y", CB_OUTPUT_RESULT, CB_NONE, e);
}

static cb_status lower(bool is_twice, model *m, cb_program **program, cb_error *e) {
    const cb_annotate_options annotate = {.keep_gradients = true, MODEL_BACKEND};
    const cb_plan_options plan = {.preset = CB_PRESET_AUTOGRAD};
    CB_TRY(cb_graph_create(&alloc, &m->forward, e));
    CB_TRY(graph_of(is_twice, m->forward, e));
    CB_TRY(cb_joint_build(m->forward, &(cb_joint_options){0}, &alloc, &m->joint, e));
    CB_TRY(cb_annotate(m->joint, &annotate, &alloc, &m->problem, e));
    CB_TRY(cb_plan_make(m->problem, &plan, &alloc, &m->plan, e));
    return lower_single(m->joint, m->problem, m->plan, cb_kernels_fuse, &alloc, program, e);
}

/* Fills the microcode; returns the number of instructions. */
static uint32_t microcode(bool is_twice, cb_microcode *out) {
    static const cb_x_limits limits = {CB_X_STREAMS, CB_X_SCALARS, CB_X_ACCS, true};
    static cb_x_room room;
    cb_program *program = NULL;
    model m = {0};
    CHECK_OK(lower(is_twice, &m, &program, &err));
    CHECK(program->n_group == 1);
    CHECK_OK(cb_microcode_of(program, 0, &limits, &room, out, &err));
    const uint32_t n_instr = program->group[0].n_instr;
    cb_program_free(program);
    model_free(&m);
    return n_instr;
}

TEST(what_is_computed_twice_is_there_once) {
    cb_microcode once = {0}, twice = {0};
    CHECK(microcode(false, &once) + 3 == microcode(true, &twice));
    CHECK(once.n_phase == 2 && twice.n_phase == 2);
    CHECK(once.n_number == 2 && twice.n_number == 2); /* the sum and its root */
    CHECK(once.n_micro == twice.n_micro && once.n_scalar == twice.n_scalar);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(what_is_computed_twice_is_there_once);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
