/* The report on groups: bytes and reasons of small graphs, worked out by hand. */
#include "lower/group_time.h"

#include "model.h"

static cb_alloc alloc;

typedef cb_status (*ops_fn)(cb_graph *g, cb_error *e);

typedef struct kernels {
    model m;
    cb_program *program;
    cb_arena arena;
    const cb_json *groups;
} kernels;

static cb_status kernels_make(ops_fn ops, cb_fuses_fn fuses, kernels *k, cb_error *e) {
    const cb_annotate_options annotate = {.keep_gradients = true, MODEL_BACKEND};
    const cb_plan_options plan = {.preset = CB_PRESET_AUTOGRAD};
    const cb_json *document;
    cb_str text;
    *k = (kernels){0};
    cb_arena_init(&k->arena, &alloc);
    cb_str_init(&text, &k->arena);
    CB_TRY(cb_graph_create(&alloc, &k->m.forward, e));
    CB_TRY(ops(k->m.forward, e));
    CB_TRY(cb_joint_build(k->m.forward, &(cb_joint_options){0}, &alloc, &k->m.joint, e));
    CB_TRY(cb_annotate(k->m.joint, &annotate, &alloc, &k->m.problem, e));
    CB_TRY(cb_plan_make(k->m.problem, &plan, &alloc, &k->m.plan, e));
    CB_TRY(lower_single(k->m.joint, k->m.problem, k->m.plan, fuses, &alloc, &k->program, e));
    CB_TRY(cb_program_kernels(k->program, k->m.problem, k->m.plan, &text, e));
    CB_TRY(cb_json_parse(&k->arena, text.at, text.len, &document, e));
    return cb_json_want(document, "groups", CB_JSON_ARRAY, &k->groups, e);
}

static void kernels_free(kernels *k) {
    cb_program_free(k->program);
    model_free(&k->m);
    cb_arena_free(&k->arena);
}

/* ---- expected groups ------------------------------------------------------------------------- */

typedef struct expected {
    const char *ops; /* kinds */
    uint64_t elements, columns, in, out, apart, scratch, local;
    const char *reason, *before; /* kind of the op; "": none */
} expected;

static uint64_t number(const cb_json *object, const char *key) {
    const cb_json *node = cb_json_get(object, key);
    return node && node->kind == CB_JSON_INT ? (uint64_t)node->as.integer : UINT64_MAX;
}

static const char *string(const cb_json *object, const char *key) {
    const cb_json *node = cb_json_get(object, key);
    return node && node->kind == CB_JSON_STRING ? node->as.string : "";
}

static void check_group(const cb_json *group, const expected *want) {
    char ops[200] = "";
    uint64_t local = 0;
    const cb_json *node = cb_json_get(group, "ops")->as.child, *end = cb_json_get(group, "end");
    for (; node; node = node->next) {
        strcat(ops, ops[0] ? " " : "");
        strcat(ops, string(node, "kind"));
    }
    for (node = cb_json_get(group, "locals")->as.child; node; node = node->next)
        local += number(node, "bytes");
    CHECK(strcmp(ops, want->ops) == 0);
    CHECK(number(group, "elements") == want->elements && number(group, "columns") == want->columns);
    CHECK(number(group, "read_bytes") == want->in);
    CHECK(number(group, "written_bytes") == want->out);
    CHECK(number(group, "apart_bytes") == want->apart);
    CHECK(number(group, "scratch_bytes") == want->scratch && local == want->local);
    CHECK(strcmp(string(end, "reason"), want->reason) == 0);
    const char *before = string(end, "before"); /* "matmul_12" */
    const size_t length = strlen(want->before);
    CHECK(strncmp(before, want->before, length) == 0 && (length == 0 || before[length] == '_'));
    const bool waits = strstr(string(end, "waits_for"), "matmul_") != NULL;
    CHECK(waits == (strcmp(want->reason, "wait") == 0));
    if (length == 0) CHECK(cb_json_get(end, "before")->kind == CB_JSON_NULL);
}

static void check_groups(ops_fn ops, cb_fuses_fn fuses, const expected *want, uint32_t n) {
    kernels k;
    CHECK_OK(kernels_make(ops, fuses, &k, &err));
    CHECK(k.groups && k.groups->n == n);
    const cb_json *group = k.groups && k.groups->n == n ? k.groups->as.child : NULL;
    for (uint32_t i = 0; i < n && group; i++, group = group->next) {
        const int before = check_failures;
        check_group(group, &want[i]);
        if (check_failures != before) printf("group %u\n", i);
    }
    kernels_free(&k);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static const cb_shape square = {2, {128, 128}}, row = {1, {128}}, seven = {1, {7}};
enum { SQUARE = 128 * 128 * 4, ROW = 128 * 4, SEVEN = 7 * 4 };

static cb_status input(cb_graph *g, const char *name, const cb_shape *shape, cb_value_id *out,
                       cb_error *e) {
    return cb_graph_append_input(g, name, CB_ROLE_DATA, CB_F32, shape, out, e);
}

/* Builds s = gelu(x + b); r = sum over rows of s @ w * x + x.T; outputs r * r and exp(z). */
static cb_status chain(cb_graph *g, cb_error *e) {
    const int64_t axis = 0;
    cb_value_id x, b, w, z, s, turned;
    CB_TRY(input(g, "x", &square, &x, e));
    CB_TRY(input(g, "b", &row, &b, e));
    CB_TRY(input(g, "w", &square, &w, e));
    CB_TRY(input(g, "z", &seven, &z, e));
    CB_TRY(cb_build2(g, CB_OP_ADD, x, b, &s, e));
    CB_TRY(cb_build1(g, CB_OP_GELU, s, &s, e));
    CB_TRY(cb_build_matmul(g, s, w, &s, e));
    CB_TRY(cb_build_swap_last(g, x, &turned, e));
    CB_TRY(cb_build2(g, CB_OP_MUL, s, x, &s, e));
    CB_TRY(cb_build2(g, CB_OP_ADD, s, turned, &s, e));
    CB_TRY(cb_build_sum(g, s, 1, &axis, false, &s, e));
    CB_TRY(cb_build2(g, CB_OP_MUL, s, s, &s, e));
    CB_TRY(cb_build1(g, CB_OP_EXP, z, &z, e));
    CB_TRY(cb_graph_append_output(g, s, "s", CB_OUTPUT_RESULT, CB_NONE, e));
    return cb_graph_append_output(g, z, "z", CB_OUTPUT_RESULT, CB_NONE, e);
}

TEST(bytes_and_reasons) {
    const expected want[] = {
        {"add gelu", 128 * 128, 0, SQUARE + ROW, SQUARE, 4 * SQUARE + ROW, 0, SQUARE, "op",
         "matmul"},
        {"matmul", 0, 0, 2 * SQUARE, SQUARE, 3 * SQUARE, 0, 0, "op", "matmul"},
        /* x and x.T are one memory; 8 blocks of 16 rows have partial sums */
        {"mul add sum", 128 * 128, 128, 2 * SQUARE, ROW, 7 * SQUARE + ROW, 8 * ROW, 2 * SQUARE,
         "read", "mul"},
        {"mul", 0, 0, ROW, ROW, 2 * ROW, 0, 0, "domain", "exp"},
        {"exp", 0, 0, SEVEN, SEVEN, 2 * SEVEN, 0, 0, "program", ""},
    };
    check_groups(chain, fuses_all, want, 5);
}

TEST(a_backend_that_fuses_nothing) {
    const expected want[] = {
        {"add", 0, 0, SQUARE + ROW, SQUARE, 2 * SQUARE + ROW, 0, 0, "backend", ""},
        {"gelu", 0, 0, SQUARE, SQUARE, 2 * SQUARE, 0, 0, "backend", ""},
        {"matmul", 0, 0, 2 * SQUARE, SQUARE, 3 * SQUARE, 0, 0, "backend", ""},
        {"mul", 0, 0, 2 * SQUARE, SQUARE, 3 * SQUARE, 0, 0, "backend", ""},
        {"add", 0, 0, 2 * SQUARE, SQUARE, 3 * SQUARE, 0, 0, "backend", ""},
        {"sum", 0, 0, SQUARE, ROW, SQUARE + ROW, 8 * ROW, 0, "backend", ""},
        {"mul", 0, 0, ROW, ROW, 2 * ROW, 0, 0, "backend", ""},
        {"exp", 0, 0, SEVEN, SEVEN, 2 * SEVEN, 0, 0, "backend", ""},
    };
    check_groups(chain, NULL, want, 8);
}

/* Builds a = gelu(x); m = x @ w; b = exp(x); m * b: the reader of m has to wait. */
static cb_status passed_over(cb_graph *g, cb_error *e) {
    cb_value_id x, w, a, m, b;
    CB_TRY(input(g, "x", &square, &x, e));
    CB_TRY(input(g, "w", &square, &w, e));
    CB_TRY(cb_build1(g, CB_OP_GELU, x, &a, e));
    CB_TRY(cb_build_matmul(g, x, w, &m, e));
    CB_TRY(cb_build1(g, CB_OP_EXP, x, &b, e));
    CB_TRY(cb_build2(g, CB_OP_MUL, m, b, &m, e));
    CB_TRY(cb_graph_append_output(g, a, "a", CB_OUTPUT_RESULT, CB_NONE, e));
    return cb_graph_append_output(g, m, "m", CB_OUTPUT_RESULT, CB_NONE, e);
}

TEST(what_reads_a_step_that_was_passed_over_waits) {
    const expected want[] = {
        {"gelu exp", 128 * 128, 0, SQUARE, 2 * SQUARE, 4 * SQUARE, 0, 0, "wait", "mul"},
        {"matmul", 0, 0, 2 * SQUARE, SQUARE, 3 * SQUARE, 0, 0, "op", "matmul"},
        {"mul", 0, 0, 2 * SQUARE, SQUARE, 3 * SQUARE, 0, 0, "program", ""},
    };
    check_groups(passed_over, fuses_all, want, 3);
}

/* Builds exp(x) + exp(x), written as two ops. */
static cb_status twice(cb_graph *g, cb_error *e) {
    cb_value_id x, a, b;
    CB_TRY(input(g, "x", &square, &x, e));
    CB_TRY(cb_build1(g, CB_OP_EXP, x, &a, e));
    CB_TRY(cb_build1(g, CB_OP_EXP, x, &b, e));
    CB_TRY(cb_build2(g, CB_OP_ADD, a, b, &a, e));
    return cb_graph_append_output(g, a, "a", CB_OUTPUT_RESULT, CB_NONE, e);
}

/* Costs per element of moving data to and from memory, besides arithmetic (group_time.c). */
#define STREAM INT64_C(700)        /* thousandths of an operation */
#define GATHERED INT64_C(1500)     /* additional cost of gathered rows */
#define ONE_NUMBER INT64_C(300000) /* cost of the sum of a row */

/* Returns thousandths of operations of the only group, on a device where bytes cost nothing. */
static int64_t operations(ops_fn ops) {
    cb_device d = {.name = "d", .bytes_per_s = 1e9};
    kernels k;
    d.point_per_s[CB_WORK_F32] = 1e9;
    CHECK_OK(kernels_make(ops, fuses_all, &k, &err));
    CHECK(k.program->n_group == 1 && cb_group_fuses(k.program->group));
    const int64_t found = cb_group_time_ps(k.program, k.program->group, k.m.problem, 0, &d);
    kernels_free(&k);
    return found;
}

TEST(time_of_a_group) {
    kernels k;
    CHECK_OK(kernels_make(twice, fuses_all, &k, &err));
    CHECK(k.program->n_group == 1 && k.program->group[0].n_instr == 3);
    cb_device d = {.name = "d", .bytes_per_s = 1e9, .launch_s = 1e-6};
    d.flops_per_s[CB_WORK_F32] = 1e30;
    d.point_per_s[CB_WORK_F32] = 1e9; /* one exponential and one addition per element */
    const int64_t launch = 1000000, work = INT64_C(128) * 128 * (10500 + 2 * STREAM);
    CHECK(cb_group_time_ps(k.program, k.program->group, k.m.problem, 0, &d) == work + launch);
    const int64_t bytes = 2 * work / 1000; /* a nanosecond per byte */
    CHECK(cb_group_time_ps(k.program, k.program->group, k.m.problem, (uint64_t)bytes, &d) ==
          bytes * 1000 + work * 3 / 10 + launch); /* the two overlap only in part */
    d.point_per_s[CB_WORK_F32] = 0;
    CHECK(cb_group_time_ps(k.program, k.program->group, k.m.problem, 0, &d) == launch);
    CHECK(number(k.groups->as.child, "modelled_ps") > 1000000); /* on "cpu" */
    kernels_free(&k);
}

/* Builds x w, where w[128] has one number per row, or alternates between two numbers every 64
 * elements; and sums of rows. */
static cb_status weighted(cb_graph *g, bool in_pieces, cb_error *e) {
    const cb_shape one = {3, {128, 1, 1}}, by_turns = {3, {1, 2, 64}}, full = {3, {128, 2, 64}};
    const cb_shape pair = {3, {1, 2, 1}}, two = {1, {2}};
    const int64_t axis = 1;
    cb_value_id x, w, s;
    CB_TRY(input(g, "x", &square, &x, e));
    CB_TRY(input(g, "w", in_pieces ? &two : &row, &w, e));
    CB_TRY(cb_build_reshape(g, w, in_pieces ? &pair : &one, &w, e));
    if (in_pieces) CB_TRY(cb_build_expand(g, w, &by_turns, &w, e));
    CB_TRY(cb_build_expand(g, w, &full, &w, e));
    CB_TRY(cb_build_reshape(g, x, &full, &x, e));
    CB_TRY(cb_build2(g, CB_OP_MUL, x, w, &x, e));
    CB_TRY(cb_build_reshape(g, x, &square, &x, e));
    CB_TRY(cb_build_sum(g, x, 1, &axis, false, &s, e));
    CB_TRY(cb_graph_append_output(g, x, "x", CB_OUTPUT_RESULT, CB_NONE, e));
    return cb_graph_append_output(g, s, "s", CB_OUTPUT_RESULT, CB_NONE, e);
}
static cb_status weighted_rows(cb_graph *g, cb_error *e) { return weighted(g, false, e); }
static cb_status weighted_pieces(cb_graph *g, cb_error *e) { return weighted(g, true, e); }

TEST(time_of_rows) {
    /* a product and a sum per element, which is read and written; one number per row */
    const int64_t elements = INT64_C(128) * 128, plain = 500 + 2000 + 2 * STREAM;
    CHECK(operations(weighted_rows) == elements * plain + 128 * ONE_NUMBER);
    CHECK(operations(weighted_pieces) == elements * (plain + STREAM + GATHERED) + 128 * ONE_NUMBER);
}

/* Builds the cosine and the sine of x, which are computed together. */
static cb_status turned(cb_graph *g, cb_error *e) {
    cb_value_id x, a, b;
    CB_TRY(input(g, "x", &square, &x, e));
    CB_TRY(cb_build1(g, CB_OP_COS, x, &a, e));
    CB_TRY(cb_build1(g, CB_OP_SIN, x, &b, e));
    CB_TRY(cb_build2(g, CB_OP_ADD, a, b, &a, e));
    return cb_graph_append_output(g, a, "a", CB_OUTPUT_RESULT, CB_NONE, e);
}

TEST(time_of_what_is_computed_at_once) {
    CHECK(operations(turned) == INT64_C(128) * 128 * (15000 + 1500 + 500 + 2 * STREAM));
}

static cb_status long_chain(cb_graph *g, cb_error *e) {
    cb_value_id x;
    CB_TRY(input(g, "x", &seven, &x, e));
    for (int k = 0; k < 70; k++) CB_TRY(cb_build1(g, CB_OP_TANH, x, &x, e));
    return cb_graph_append_output(g, x, "x", CB_OUTPUT_RESULT, CB_NONE, e);
}

TEST(no_more_than_64) {
    kernels k;
    CHECK_OK(kernels_make(long_chain, fuses_all, &k, &err));
    CHECK(k.program->n_group == 2 && k.program->group[0].n_instr == 64);
    CHECK(k.program->group[0].end == CB_END_LIMIT && k.program->group[0].end_step == 64);
    CHECK(k.program->group[1].end == CB_END_PROGRAM);
    CHECK(k.program->group[1].end_step == CB_NONE);
    kernels_free(&k);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(bytes_and_reasons);
    RUN(a_backend_that_fuses_nothing);
    RUN(what_reads_a_step_that_was_passed_over_waits);
    RUN(time_of_a_group);
    RUN(time_of_rows);
    RUN(time_of_what_is_computed_at_once);
    RUN(no_more_than_64);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
