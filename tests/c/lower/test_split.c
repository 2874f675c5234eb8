#include "lower/split.h"

#include "ir/text.h"
#include "ir/verify.h"
#include "model.h"

static cb_alloc alloc;

static bool is_view(const model *m, cb_op_id op) {
    return (m->problem->op_flags[op] & CB_POP_VIEW) != 0;
}

/* Checks that the steps of the two graphs, except views, are those of the plan, in order. */
static void check_order(const model *m, const cb_split *split) {
    uint32_t step = 0, n_step = m->plan->schedule.n_step;
    const cb_graph *halves[2] = {split->forward, split->backward};
    for (int half = 0; half < 2; half++) {
        for (size_t i = 0; i < halves[half]->ops.len; i++) {
            const cb_op *op = &halves[half]->ops.at[i];
            if (op->code == CB_OP_INPUT || is_view(m, op->origin)) continue;
            while (step < n_step && is_view(m, m->plan->schedule.step[step])) step++;
            CHECK(step < n_step && m->plan->schedule.step[step] == op->origin);
            CHECK((step >= m->plan->schedule.backward_starts) == (half == 1));
            step++;
        }
    }
    while (step < n_step && is_view(m, m->plan->schedule.step[step])) step++;
    CHECK(step == n_step);
}

/* Checks that saved values are outputs of the forward graph and inputs of the backward graph, with
 * the same names and types, and take as many bytes as planned. */
static void check_saved(const model *m, const cb_split *split) {
    const cb_graph *f = split->forward, *b = split->backward;
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < split->n_saved; k++) {
        const cb_output *output = &f->outputs.at[f->outputs.len - split->n_saved + k];
        const cb_op *input = &b->ops.at[b->inputs.at[k]];
        const cb_value *from = &f->values.at[output->value], *to = &b->values.at[input->out_begin];
        CHECK(strcmp(cb_graph_name(f, output->name), cb_graph_name(b, input->name)) == 0);
        CHECK(strncmp(cb_graph_name(f, output->name), "saved_", 6) == 0);
        CHECK(from->dtype == to->dtype && cb_shape_equal(&from->shape, &to->shape));
        CHECK(input->origin == f->ops.at[from->producer].origin);
        cb_storage_id storage =
            m->joint->values.at[m->joint->ops.at[input->origin].out_begin + from->out_index]
                .storage;
        if (!(m->problem->storage_flags[storage] & CB_STORE_STATIC)) {
            bytes += b->storages.at[to->storage].bytes;
        }
    }
    CHECK(bytes == m->plan->saved_bytes);
}

static uint32_t count_outputs(const cb_graph *g, cb_output_kind kind) {
    uint32_t n = 0;
    for (size_t i = 0; i < g->outputs.len; i++) n += g->outputs.at[i].kind == kind;
    return n;
}

TEST(halves_are_the_plan) {
    for (int preset = 0; preset < CB_PRESET_COUNT; preset++) {
        model m = {0};
        cb_split split = {0};
        CHECK_OK(model_make(&alloc, false, false, (cb_preset)preset, &m, &err));
        CHECK_OK(cb_split_make(m.joint, m.plan, &alloc, &split, &err));
        CHECK_OK(cb_graph_verify(split.forward, CB_SPEC_SPLIT, &err));
        CHECK_OK(cb_graph_verify(split.backward, CB_SPEC_SPLIT, &err));
        check_order(&m, &split);
        check_saved(&m, &split);
        CHECK(count_outputs(split.forward, CB_OUTPUT_RESULT) == 1 + split.n_saved);
        CHECK(count_outputs(split.backward, CB_OUTPUT_GRAD) == 3);
        cb_split_free(&split);
        model_free(&m);
    }
}

TEST(state_belongs_to_the_forward) {
    model m = {0};
    cb_split split = {0};
    CHECK_OK(model_make(&alloc, true, true, CB_PRESET_CONSERVATIVE, &m, &err));
    CHECK_OK(cb_split_make(m.joint, m.plan, &alloc, &split, &err));
    CHECK(count_outputs(split.forward, CB_OUTPUT_STATE) == 1 &&
          count_outputs(split.backward, CB_OUTPUT_STATE) == 0);
    cb_split_free(&split);
    model_free(&m);
}

/* A handmade plan that runs the reshape only in the forward: its clone in the backward costs
 * nothing. */
TEST(views_of_saved_storages_are_cloned) {
    model m = {0};
    cb_split split = {0};
    CHECK_OK(model_make(&alloc, false, false, CB_PRESET_AUTOGRAD, &m, &err));
    uint32_t *steps = CB_NEW(&m.plan->arena, uint32_t, m.joint->ops.len), n = 0, starts = 0;
    for (cb_op_id op = 0; op < m.joint->ops.len; op++) {
        if (m.joint->ops.at[op].code == CB_OP_INPUT) continue;
        if (op < m.joint->backward_starts) starts = n + 1;
        steps[n++] = op;
    }
    m.plan->schedule = (cb_schedule){.n_step = n, .step = steps, .backward_starts = starts};
    CHECK_OK(cb_schedule_walk(m.problem, &m.plan->schedule, cb_device_find("cpu"), &m.plan->arena,
                              &m.plan->lives, &err));
    m.plan->saved_bytes = m.plan->lives.saved_bytes;
    CHECK_OK(cb_split_make(m.joint, m.plan, &alloc, &split, &err));
    CHECK_OK(cb_graph_verify(split.backward, CB_SPEC_SPLIT, &err));
    check_order(&m, &split);
    check_saved(&m, &split);
    cb_split_free(&split);
    model_free(&m);
}

TEST(halves_print_and_parse) {
    model m = {0};
    cb_split split = {0};
    cb_arena scratch;
    cb_str text, again;
    cb_graph *parsed = NULL;
    cb_arena_init(&scratch, &alloc);
    cb_str_init(&text, &scratch);
    cb_str_init(&again, &scratch);
    CHECK_OK(model_make(&alloc, true, false, CB_PRESET_AGGRESSIVE, &m, &err));
    CHECK_OK(cb_split_make(m.joint, m.plan, &alloc, &split, &err));
    CHECK_OK(cb_graph_print(split.backward, &text, &err));
    CHECK_OK(cb_graph_parse(&alloc, text.at, text.len, &parsed, &err));
    CHECK_OK(cb_graph_print(parsed, &again, &err));
    CHECK(strcmp(text.at, again.at) == 0);
    cb_graph_free(parsed);
    cb_arena_free(&scratch);
    cb_split_free(&split);
    model_free(&m);
}

TEST(out_of_memory) {
    model m = {0};
    CHECK_OK(model_make(&alloc, true, true, CB_PRESET_RECOMPUTE_ALL, &m, &err));
    uint64_t before = cb_alloc_stats(&alloc).live_bytes;
    cb_status status = CB_NOMEM;
    for (uint64_t n = 1; status == CB_NOMEM; n++) {
        cb_split split = {0};
        cb_alloc_fail(&alloc, n);
        status = cb_split_make(m.joint, m.plan, &alloc, &split, &err);
        cb_alloc_fail(&alloc, 0);
        CHECK(status == CB_NOMEM || status == CB_OK);
        cb_split_free(&split);
        CHECK(cb_alloc_stats(&alloc).live_bytes == before);
    }
    model_free(&m);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(halves_are_the_plan);
    RUN(state_belongs_to_the_forward);
    RUN(views_of_saved_storages_are_cloned);
    RUN(halves_print_and_parse);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
