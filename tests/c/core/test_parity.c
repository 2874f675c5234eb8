/* Every op through the whole pipeline on the CPU backend against the reference interpreter: sizes
 * 0, 1 and odd ones, contiguous inputs and strided views, all floating dtypes, gradients included.
 * The table drives the test: an op without a recipe fails it. */
#include <stdlib.h>

#include "base/sanitize.h"
#include "check.h"
#include "close.h"
#include "exec/recipes.h"
#include "numbers.h"

#define MAX_OUTPUTS 16

static cb_context *ctx;
static uint64_t random_state = 1;

static uint32_t random_u32(void) { /* PCG */
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

/* Builds a graph whose results are the op's outputs; with `wrt`, the first result is a loss that
 * weights them. */
static cb_status build(recipe *r, uint32_t *n_wrt, uint32_t *wrt) {
    const cb_op_def *def = cb_op_def_of(r->code);
    cb_value_id loss = CB_NONE, term;
    *n_wrt = 0;
    CB_TRY(recipe_build(r));
    if (r->is_missing) return cb_fail(r->err, CB_INTERNAL, "no recipe for %s", def->name);
    for (int i = 0; i < def->n_outs; i++) {
        if (!cb_dtype_is_float(r->g->values.at[r->outs[i]].dtype)) continue;
        CB_TRY(cb_build_cast(r->g, r->outs[i], CB_F64, &term, r->err));
        CB_TRY(cb_build1(r->g, CB_OP_SQUARE, term, &term, r->err));
        CB_TRY(cb_build_sum(r->g, term, 0, NULL, false, &term, r->err));
        if (loss == CB_NONE) loss = term;
        else CB_TRY(cb_build2(r->g, CB_OP_ADD, loss, term, &loss, r->err));
    }
    if (loss != CB_NONE) {
        CB_TRY(cb_graph_append_output(r->g, loss, "loss", CB_OUTPUT_RESULT, CB_NONE, r->err));
        for (uint32_t i = 0; i < r->n_inputs; i++)
            if (!r->range[i].is_int) wrt[(*n_wrt)++] = i;
    }
    for (int i = 0; i < def->n_outs; i++)
        CB_TRY(cb_graph_append_output(r->g, r->outs[i], "out", CB_OUTPUT_RESULT, CB_NONE, r->err));
    return CB_OK;
}

static void *new_input(const recipe *r, uint32_t i, const cb_argument_info *info) {
    const double low = r->range[i].low, high = r->range[i].high;
    const int64_t n = (int64_t)(info->bytes / cb_dtype_size(info->dtype));
    void *data = malloc(info->bytes + 1);
    for (int64_t k = 0; k < n; k++) {
        const double unit = (random_u32() + 0.5) / 2147483648.0;
        put_number(info->dtype, data, (size_t)k,
                   r->range[i].is_int ? floor(low + (high - low) * unit)
                                      : low + (high - low) * unit);
    }
    return data;
}

static void run(cb_step *step, void **inputs, void **outputs) {
    for (uint32_t i = 0; i < cb_step_n_outputs(step); i++)
        outputs[i] = calloc(1, cb_step_output(step, i).bytes + 1);
    const cb_run binding = {.inputs = inputs, .outputs = outputs, .on_host = true, .seed = 3};
    CHECK_OK(cb_step_run(step, &binding, NULL, &err));
}

static cb_dtype narrowest(const cb_graph *g) {
    cb_dtype found = CB_F64;
    for (size_t i = 0; i < g->values.len; i++) {
        const cb_dtype dtype = g->values.at[i].dtype;
        if (cb_dtype_is_float(dtype) && ulp_of(dtype) > ulp_of(found)) found = dtype;
    }
    return found;
}

static void compare(const recipe *r, cb_step *cpu, cb_step *ref) {
    void *inputs[RECIPE_INPUTS] = {0}, *a[MAX_OUTPUTS] = {0}, *b[MAX_OUTPUTS] = {0};
    for (uint32_t i = 0; i < cb_step_n_inputs(cpu); i++) {
        const cb_argument_info info = cb_step_input(cpu, i);
        inputs[i] = new_input(r, i, &info);
    }
    run(cpu, inputs, a);
    run(ref, inputs, b);
    for (uint32_t i = 0; i < cb_step_n_outputs(cpu); i++) {
        const cb_argument_info info = cb_step_output(cpu, i);
        CHECK(is_close("cpu", &info, a[i], b[i], narrowest(r->g)));
    }
    for (uint32_t i = 0; i < RECIPE_INPUTS; i++) free(inputs[i]);
    for (uint32_t i = 0; i < MAX_OUTPUTS; i++) {
        free(a[i]);
        free(b[i]);
    }
}

static void check_op(cb_opcode code, cb_dtype dtype, int64_t n, int turn, bool strided) {
    const int failures = check_failures;
    recipe r = {
        .code = code, .dtype = dtype, .n = n, .turn = turn, .strided = strided, .err = &err};
    cb_step *cpu = NULL, *ref = NULL;
    uint32_t wrt[RECIPE_INPUTS], n_wrt;
    CHECK_OK(cb_graph_new(ctx, &r.g, &err));
    CHECK_OK(build(&r, &n_wrt, wrt));
    cb_compile_options options = {.wrt = wrt, .n_wrt = n_wrt};
    if (check_failures == failures) CHECK_OK(cb_compile(ctx, r.g, &options, &cpu, &err));
    options.backend = "ref";
    if (cpu) CHECK_OK(cb_compile(ctx, r.g, &options, &ref, &err));
    if (ref) compare(&r, cpu, ref);
    if (check_failures > failures) {
        printf("  %s %s n=%d turn=%d%s\n", cb_op_def_of(code)->name, cb_dtype_name(dtype), (int)n,
               turn, strided ? " strided" : "");
    }
    cb_step_free(cpu);
    cb_step_free(ref);
    cb_graph_free(r.g);
}

static void check_all(cb_dtype dtype) {
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 17};
    const int n_turn = (int)check_rounds(CB_ASAN ? 1 : 4, 4);
    for (int code = 0; code < CB_OP_COUNT; code++) {
        if (code == CB_OP_INPUT) continue;
        for (int k = 0; k < 6; k++) {
            for (int turn = 0; turn < n_turn; turn++) {
                check_op((cb_opcode)code, dtype, sizes[k], (turn + k) % 4, false);
                check_op((cb_opcode)code, dtype, sizes[k], (turn + k) % 4, true);
            }
        }
    }
}

TEST(f64) { check_all(CB_F64); }
TEST(f32) { check_all(CB_F32); }
TEST(f16) { check_all(CB_F16); }
TEST(bf16) { check_all(CB_BF16); }

int main(void) {
    const cb_context_options options = {.n_threads = 2};
    CHECK_OK(cb_context_new(&options, &ctx, &err));
    const uint64_t before = cb_context_memory(ctx).live_bytes;
    RUN(f64);
    RUN(f32);
    RUN(f16);
    RUN(bf16);
    CHECK(cb_context_memory(ctx).live_bytes == before);
    cb_context_free(ctx);
    return check_report();
}
