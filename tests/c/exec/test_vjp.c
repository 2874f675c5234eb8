/* Every op's gradient, and the gradient of its gradient, against central differences in f64. The
 * table drives the test: an op without a recipe fails it. */
#include "ad/joint.h"

#include "check.h"
#include "exec/graph_eval.h"
#include "exec/recipes.h"
#include "ir/text.h"
#include "ir/verify.h"

#define STEP 1e-5
#define TOLERANCE 2e-6

static cb_alloc alloc;

static uint64_t random_state = 1;
static uint32_t random_u32(void) { /* PCG */
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

/* A graph under test: inputs with ranges, output 0 a scalar loss. The ranges of the recipe come
 * first, then those of the weights. */
typedef struct subject {
    cb_graph *g;
    recipe r;
    uint32_t wrt[RECIPE_INPUTS];
    uint32_t n_wrt;
} subject;

/* Adds sum(f(value) * weight) to the loss, with a weight input of the value's shape. */
static cb_status weigh(cb_graph *g, cb_value_id value, bool squared, cb_value_id *loss) {
    cb_value_id weight, term;
    CB_TRY(cb_build_cast(g, value, CB_F64, &term, &err));
    if (squared) CB_TRY(cb_build1(g, CB_OP_SQUARE, term, &term, &err));
    const cb_shape shape = g->values.at[term].shape;
    CB_TRY(cb_graph_append_input(g, "weight", CB_ROLE_DATA, CB_F64, &shape, &weight, &err));
    CB_TRY(cb_build2(g, CB_OP_MUL, term, weight, &term, &err));
    CB_TRY(cb_build_sum(g, term, 0, NULL, false, &term, &err));
    if (*loss == CB_NONE) {
        *loss = term;
        return CB_OK;
    }
    return cb_build2(g, CB_OP_ADD, *loss, term, loss, &err);
}

/* Builds a loss that depends on every output. An output without a gradient becomes a factor of one
 * that has one. */
static cb_status build_subject(subject *s, cb_opcode code, cb_dtype dtype, int64_t n, int turn) {
    cb_value_id loss = CB_NONE;
    CB_TRY(cb_graph_create(&alloc, &s->g, &err));
    s->r = (recipe){.g = s->g, .code = code, .dtype = dtype, .n = n, .turn = turn, .err = &err};
    CB_TRY(recipe_build(&s->r));
    if (s->r.is_missing) return cb_fail(&err, CB_INTERNAL, "no recipe");
    const bool flat = strcmp(cb_op_def_of(code)->vjp, "zero") == 0;
    for (int i = 0; i < cb_op_def_of(code)->n_outs; i++)
        CB_TRY(weigh(s->g, s->r.outs[i], true, &loss));
    if (flat) {
        cb_value_id sum = CB_NONE, x = s->r.n_inputs ? 0 : floats(&s->r, S1(2));
        if (s->r.status != CB_OK) return s->r.status;
        CB_TRY(weigh(s->g, x, true, &sum));
        CB_TRY(cb_build2(s->g, CB_OP_MUL, loss, sum, &loss, &err));
    }
    CB_TRY(cb_graph_append_output(s->g, loss, "loss", CB_OUTPUT_RESULT, CB_NONE, &err));
    s->n_wrt = 0;
    for (uint32_t i = 0; i < s->g->inputs.len; i++) {
        const cb_op *op = &s->g->ops.at[s->g->inputs.at[i]];
        if (cb_op_attrs(s->g, s->g->inputs.at[i])->i[0] != CB_ROLE_PARAM) continue;
        if (cb_dtype_is_float(s->g->values.at[op->out_begin].dtype)) s->wrt[s->n_wrt++] = i;
    }
    return CB_OK;
}

/* Builds the joint graph of `s` as a separate forward graph, with a loss made of its gradients. */
static cb_status build_second(const subject *s, const cb_graph *joint, cb_graph **out) {
    cb_arena arena;
    cb_status status = CB_OK;
    cb_value_id loss = CB_NONE, *map;
    cb_graph *g = NULL;
    cb_arena_init(&arena, &alloc);
    map = CB_NEW(&arena, cb_value_id, joint->values.len);
    CB_TRY_DONE(cb_graph_create(&alloc, &g, &err));
    for (cb_op_id i = 0; i < joint->ops.len; i++) {
        const cb_op *op = &joint->ops.at[i];
        cb_value_id ins[16];
        cb_op_id copy;
        for (uint32_t k = 0; k < op->n_in; k++) ins[k] = map[cb_op_ins(joint, i)[k]];
        CB_TRY_DONE(
            cb_graph_append(g, op->code, op->n_in, ins, cb_op_attrs(joint, i), &copy, &err));
        for (uint32_t k = 0; k < op->n_out; k++)
            map[op->out_begin + k] = g->ops.at[copy].out_begin + k;
    }
    for (uint32_t i = 0; i < s->n_wrt; i++) {
        CB_TRY_DONE(weigh(g, map[joint->outputs.at[joint->outputs.len - s->n_wrt + i].value], false,
                          &loss));
    }
    CB_TRY_DONE(cb_graph_append_output(g, loss, "loss", CB_OUTPUT_RESULT, CB_NONE, &err));
done:
    cb_arena_free(&arena);
    if (status != CB_OK) cb_graph_free(g);
    else *out = g;
    return status;
}

/* Fills an input with distinct values spread evenly over the range in random order: no ties, and
 * none at a kink. */
static void fill_input(eval *e, const subject *s, uint32_t position) {
    const cb_value_id value = eval_input(e, position);
    const int64_t n = cb_numel(&e->g->values.at[value].shape);
    const bool is_weight = position >= s->r.n_inputs;
    double low = is_weight ? 0.3 : s->r.range[position].low,
           high = is_weight ? 1.4 : s->r.range[position].high;
    int64_t order[256];
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = random_u32() % (i + 1);
        order[i] = order[k];
        order[k] = i;
    }
    for (int64_t i = 0; i < n; i++) {
        if (!is_weight && s->r.range[position].is_int)
            eval_put(e, value, i, low + random_u32() % (uint32_t)(high - low));
        else
            eval_put(e, value, i,
                     low + (high - low) * ((double)order[i] + 0.3 + 0.04 * position) / (double)n);
    }
}

static void copy_input(eval *to, const eval *from, uint32_t position) {
    const cb_value_id a = eval_input(to, position), b = eval_input(from, position);
    const int64_t n = cb_numel(&to->g->values.at[a].shape);
    for (int64_t i = 0; i < n; i++) eval_put(to, a, i, eval_get(from, b, i));
}

static double loss_at(eval *e, cb_value_id x, int64_t element, double value) {
    const double before = eval_get(e, x, element);
    eval_put(e, x, element, value);
    CHECK_OK(eval_run(e, &err));
    eval_put(e, x, element, before);
    return eval_get(e, e->g->outputs.at[0].value, 0);
}

/* True if a value is f32, which needs larger steps and a looser tolerance. */
static bool is_rounded(const cb_graph *g) {
    for (size_t i = 0; i < g->values.len; i++) {
        if (g->values.at[i].dtype == CB_F32) return true;
    }
    return false;
}

static void compare_element(const subject *s, eval *f, cb_value_id x, int64_t i, double got,
                            const char *what) {
    const bool rounded = is_rounded(f->g);
    const double step = rounded ? 1e-2 : STEP, tolerance = rounded ? 1e-3 : TOLERANCE,
                 at = eval_get(f, x, i);
    const double slope = (loss_at(f, x, i, at + step) - loss_at(f, x, i, at - step)) / (2 * step);
    if (s->r.n == 0 && isnan(slope)) return; /* statistics of empty rows, and therefore the loss */
    const bool close = fabs(got - slope) <= tolerance * (1 + fabs(slope));
    CHECK(close);
    if (close) return;
    printf("  %s n=%d turn=%d %s: %s[%d]: %.9g, differences say %.9g\n",
           cb_op_def_of(s->r.code)->name, (int)s->r.n, s->r.turn, what,
           cb_graph_name(f->g, f->g->ops.at[f->g->values.at[x].producer].name), (int)i, got, slope);
}

/* Runs the joint graph at random inputs; with `what`, compares its gradients with differences of
 * `forward`. */
static void compare_gradients(const subject *s, const cb_graph *forward, const cb_graph *joint,
                              const char *what) {
    eval f, j;
    CHECK_OK(eval_init(&f, forward, &alloc, &err));
    CHECK_OK(eval_init(&j, joint, &alloc, &err));
    for (uint32_t i = 0; i < forward->inputs.len; i++) {
        fill_input(&f, s, i);
        copy_input(&j, &f, i);
    }
    CHECK_OK(eval_run(&j, &err));
    for (uint32_t k = 0; what && k < s->n_wrt; k++) {
        const cb_value_id x = eval_input(&f, s->wrt[k]);
        const cb_value_id dx = joint->outputs.at[joint->outputs.len - s->n_wrt + k].value;
        const int64_t n = cb_numel(&forward->values.at[x].shape);
        for (int64_t i = 0; i < n; i++) compare_element(s, &f, x, i, eval_get(&j, dx, i), what);
    }
    eval_free(&f);
    eval_free(&j);
}

/* Checks first and second derivatives of one op. They are compared with differences if `compare`;
 * otherwise they must only build and run. */
static void check_op(cb_opcode code, cb_dtype dtype, int64_t n, int turn, bool compare) {
    subject s = {0};
    cb_graph *joint = NULL, *second = NULL, *joint2 = NULL;
    const int failures = check_failures;
    CHECK_OK(build_subject(&s, code, dtype, n, turn));
    const cb_joint_options options = {.wrt = s.wrt, .n_wrt = s.n_wrt};
    if (check_failures == failures) CHECK_OK(cb_joint_build(s.g, &options, &alloc, &joint, &err));
    if (joint) compare_gradients(&s, s.g, joint, compare ? "first" : NULL);
    if (joint) CHECK_OK(build_second(&s, joint, &second));
    if (second) CHECK_OK(cb_joint_build(second, &options, &alloc, &joint2, &err));
    if (joint2) compare_gradients(&s, second, joint2, compare ? "second" : NULL);
    if (check_failures > failures) {
        printf("  %s %s n=%d turn=%d\n", cb_op_def_of(code)->name, cb_dtype_name(dtype), (int)n,
               turn);
    }
    cb_graph_free(joint2);
    cb_graph_free(second);
    cb_graph_free(joint);
    cb_graph_free(s.g);
}

static void check_all(cb_dtype dtype, int64_t n, int turn, bool compare) {
    for (int code = 0; code < CB_OP_COUNT; code++) {
        if (code != CB_OP_INPUT) check_op((cb_opcode)code, dtype, n, turn, compare);
    }
}

TEST(differences_n2) { check_all(CB_F64, 2, 0, true); }
TEST(differences_n3) { check_all(CB_F64, 3, 1, true); }
TEST(differences_n1) { check_all(CB_F64, 1, 2, true); }
TEST(differences_empty) {
    check_all(CB_F64, 0, 0, true);
    check_all(CB_F64, 0, 1, true);
}
TEST(narrow_dtypes_build_and_run) {
    check_all(CB_F32, 2, 1, false);
    check_all(CB_BF16, 2, 0, false);
    check_all(CB_F16, 3, 3, false);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(differences_n2);
    RUN(differences_n3);
    RUN(differences_n1);
    RUN(differences_empty);
    RUN(narrow_dtypes_build_and_run);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
