/* Every op of the table on the cuda backend against the reference interpreter in f64: sizes 0, 1
 * and odd ones, contiguous inputs and strided views, all floating dtypes, gradients included. An op
 * has a recipe that runs, or a reason why it has none. All ops of a dtype are in one graph, so that
 * they are compiled at once. */
#include <math.h>

#include "base/sanitize.h"
#include "check.h"
#include "close.h"
#include "exec/recipes.h"
#include "gpu.h"
#include "numbers.h"

#define MANY 1024

static cb_context *ctx;
static gpu_hooks hooks;

/* Ops that the backend does not run, with the reason. */
static const struct {
    cb_opcode code;
    const char *why;
} without[] = {
    {CB_OP_CONV2D, "convolutions need cuDNN or an implicit product"},
    {CB_OP_CONV2D_DGRAD, "as conv2d"},
    {CB_OP_CONV2D_WGRAD, "as conv2d"},
    {CB_OP_MAX_POOL2D, "pooling is planned together with convolutions"},
    {CB_OP_AVG_POOL2D, "as max_pool2d"},
    {CB_OP_AVG_POOL2D_BWD, "as max_pool2d"},
};

static const char *reason_of(cb_opcode code) {
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        if (without[i].code == code) return without[i].why;
    }
    return NULL;
}

static uint64_t random_state = 1;
static double unit(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return ((double)(uint32_t)(random_state >> 33) + 0.5) / 2147483648.0;
}

typedef struct all { /* a graph of all ops */
    cb_graph *g;
    struct {
        double low, high;
        bool is_int;
    } range[MANY];
    uint32_t n_inputs, n_outputs;
    uint32_t wrt[MANY], n_wrt;
    cb_value_id out[MANY];
    const char *name[MANY]; /* name of the op that produces the output */
    cb_value_id loss;
} all;

static cb_status add_loss(all *a, cb_value_id value) {
    cb_value_id term;
    CB_TRY(cb_build_cast(a->g, value, CB_F64, &term, &err));
    CB_TRY(cb_build1(a->g, CB_OP_SQUARE, term, &term, &err));
    CB_TRY(cb_build_sum(a->g, term, 0, NULL, false, &term, &err));
    if (a->loss == CB_NONE) a->loss = term;
    else CB_TRY(cb_build2(a->g, CB_OP_ADD, a->loss, term, &a->loss, &err));
    return CB_OK;
}

static cb_status add_op(all *a, cb_opcode code, cb_dtype dtype, int64_t n, int turn, bool strided) {
    recipe r = {.code = code,
                .g = a->g,
                .dtype = dtype,
                .n = n,
                .turn = turn,
                .strided = strided,
                .err = &err};
    const cb_op_def *def = cb_op_def_of(code);
    CB_TRY(recipe_build(&r));
    for (uint32_t i = 0; i < r.n_inputs; i++) {
        const uint32_t at = a->n_inputs++;
        a->range[at].low = r.range[i].low;
        a->range[at].high = r.range[i].high;
        a->range[at].is_int = r.range[i].is_int;
        if (!r.range[i].is_int) a->wrt[a->n_wrt++] = at;
    }
    for (int i = 0; i < def->n_outs; i++) {
        if (cb_dtype_is_float(a->g->values.at[r.outs[i]].dtype)) CB_TRY(add_loss(a, r.outs[i]));
        a->name[a->n_outputs] = def->name;
        a->out[a->n_outputs++] = r.outs[i];
    }
    return CB_OK;
}

static void fill(const all *a, uint32_t i, const cb_argument_info *info, void *data) {
    const int64_t n = (int64_t)(info->bytes / cb_dtype_size(info->dtype));
    for (int64_t k = 0; k < n; k++) {
        const double x = a->range[i].low + (a->range[i].high - a->range[i].low) * unit();
        put_number(info->dtype, data, (size_t)k, a->range[i].is_int ? floor(x) : x);
    }
}

static void run(cb_step *step, void **inputs, void **outputs) {
    for (uint32_t i = 0; i < cb_step_n_outputs(step); i++)
        outputs[i] = calloc(1, cb_step_output(step, i).bytes + 1);
    const cb_run binding = {.inputs = inputs, .outputs = outputs, .on_host = true, .seed = 3};
    CHECK_OK(cb_step_run(step, &binding, NULL, &err));
}

static void compare(const all *a, cb_step *gpu, cb_step *ref, cb_dtype dtype) {
    static void *inputs[MANY], *x[2 * MANY], *y[2 * MANY];
    for (uint32_t i = 0; i < a->n_inputs; i++) {
        const cb_argument_info info = cb_step_input(gpu, i);
        inputs[i] = calloc(1, info.bytes + 1);
        fill(a, i, &info, inputs[i]);
    }
    run(gpu, inputs, x);
    run(ref, inputs, y);
    for (uint32_t i = 0; i < cb_step_n_outputs(gpu); i++) {
        const cb_argument_info info = cb_step_output(gpu, i);
        const bool narrow = cb_dtype_is_float(info.dtype) && ulp_of(info.dtype) > ulp_of(dtype);
        /* Some recipes have f32 statistics, and casts to f32. */
        const cb_dtype worst = dtype == CB_F64 ? CB_F32 : narrow ? info.dtype : dtype;
        CHECK(is_close("cuda", &info, x[i], y[i], worst));
        free(x[i]);
        free(y[i]);
    }
    for (uint32_t i = 0; i < a->n_inputs; i++) free(inputs[i]);
}

static void check_all(cb_dtype dtype, int64_t n, int turn, bool strided) {
    static all a;
    cb_step *gpu = NULL, *ref = NULL;
    const int failures = check_failures;
    a = (all){.loss = CB_NONE};
    CHECK_OK(cb_graph_new(ctx, &a.g, &err));
    for (int code = 0; code < CB_OP_COUNT; code++) {
        if (code == CB_OP_INPUT || reason_of((cb_opcode)code)) continue;
        CHECK_OK(add_op(&a, (cb_opcode)code, dtype, n, turn, strided));
    }
    /* The loss is the first result of a graph that is differentiated. */
    CHECK_OK(cb_graph_append_output(a.g, a.loss, "loss", CB_OUTPUT_RESULT, CB_NONE, &err));
    for (uint32_t i = 0; i < a.n_outputs; i++)
        CHECK_OK(cb_graph_append_output(a.g, a.out[i], a.name[i], CB_OUTPUT_RESULT, CB_NONE, &err));
    cb_compile_options options = {.wrt = a.wrt, .n_wrt = a.n_wrt};
    if (check_failures == failures) CHECK_OK(cb_compile(ctx, a.g, &options, &gpu, &err));
    options.backend = "ref";
    if (gpu) CHECK_OK(cb_compile(ctx, a.g, &options, &ref, &err));
    if (ref) compare(&a, gpu, ref, dtype);
    char text[4096];
    if (hooks.reports(text, sizeof text)) printf("%s\n", text), check_failures++;
    if (check_failures > failures)
        printf("  %s n=%d turn=%d%s\n", cb_dtype_name(dtype), (int)n, turn,
               strided ? " strided" : "");
    cb_step_free(gpu);
    cb_step_free(ref);
    cb_graph_free(a.g);
}

/* True if all variants are tested. Each compiles its own program, which takes most of the time, so
 * by default a type has one or two turns of the recipes, and both layouts occur. */
static bool every_one(void) { return check_rounds(0, 1) > 0; }

TEST(f32) {
    check_all(CB_F32, 5, 0, false);
    check_all(CB_F32, 0, 1, false);
    if (!every_one()) return;
    check_all(CB_F32, 1, 3, false);
    check_all(CB_F32, 3, 1, true);
    check_all(CB_F32, 2, 2, true);
}
TEST(f64) { check_all(CB_F64, 3, 1, true); }
TEST(f16) { /* its code differs from bf16's only in conversions */
    if (!every_one()) return;
    check_all(CB_F16, 1, 3, true);
    check_all(CB_F16, 3, 0, true);
}
TEST(bf16) {
    check_all(CB_BF16, 17, 2, true);
    if (every_one()) check_all(CB_BF16, 3, 1, false);
}

/* An op that cannot run is refused by name at compile time. */
TEST(what_has_a_reason_is_refused_by_name) {
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        recipe r = {.code = without[i].code, .dtype = CB_F32, .n = 2, .err = &err};
        cb_step *step = NULL;
        CHECK_OK(cb_graph_new(ctx, &r.g, &err));
        CHECK_OK(recipe_build(&r));
        CHECK_OK(cb_graph_append_output(r.g, r.outs[0], "y", CB_OUTPUT_RESULT, CB_NONE, &err));
        const cb_compile_options options = {0};
        CHECK_FAIL(cb_compile(ctx, r.g, &options, &step, &err), CB_UNSUPPORTED,
                   cb_op_def_of(without[i].code)->name);
        CHECK(strstr(err.text, "the cuda backend has no kernel for this op"));
        cb_graph_free(r.g);
    }
}

int main(void) {
    const cb_context_options options = {.n_threads = 1};
    hooks = gpu_hooks_of();
    hooks.set("races", 1);
    CHECK_OK(cb_context_new(&options, &ctx, &err));
    RUN(what_has_a_reason_is_refused_by_name);
    RUN(f32);
    RUN(f64);
    RUN(f16);
    RUN(bf16);
    cb_context_free(ctx);
    return check_report();
}
