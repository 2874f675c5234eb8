/* everywhere.h: a small forward graph, compiled with one set of options and run by three backends.
 *
 * For each graph that compiles:
 *   - `cpu` and `debug` give the bits of the step that saves everything, `ref` has its own bits;
 *   - `cpu` measures the planned arena, `debug` the planned liveness peak, and the budget is kept;
 *   - outputs that are exact (exact.h) have the same bits in `cpu` and `ref`;
 *   - a failing run (an index out of range) fails in the same way everywhere;
 *   - inputs are unchanged, states are replaced by the same values;
 *   - running out of memory is CB_NOMEM, and nothing leaks. */
#ifndef CB_FUZZ_EVERYWHERE_H
#define CB_FUZZ_EVERYWHERE_H

#include "ad/joint.h"
#include "exact.h"
#include "include/cutback.h"
#include "ir/verify.h"
#include "ir/work.h"
#include "numbers.h"

#define MOST_ARGUMENTS 64
#define MOST_BYTES_HELD (1 << 18) /* over all storages of a graph that is run */
#define MOST_STEPS 80
#define MOST_FLOPS 1e7

typedef struct asked { /* how a graph is compiled and run */
    cb_compile_options options;
    uint32_t wrt[MOST_ARGUMENTS];
    patience patience;
    uint32_t fill; /* how inputs are filled, see fill_input */
    uint64_t seed;
    uint64_t starve; /* the allocation that fails in a second compile; 0: none */
} asked;

static cb_context *everywhere_ctx;

static inline cb_context *context(void) {
    const cb_context_options options = {.n_threads = 1};
    if (!everywhere_ctx) EXPECT_OK(cb_context_new(&options, &everywhere_ctx, &err));
    return everywhere_ctx;
}

/* Reads the options. The caller, which knows the graph, chooses the gradients. */
static inline void take_asked(bytes *b, asked *a) {
    static const double shares[] = {0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1};
    const uint32_t what = take(b), how = take(b), more = take(b);
    cb_budget *budget = &a->options.budget;
    a->options.preset = (cb_preset)(what % CB_PRESET_COUNT);
    budget->measure = (cb_measure)(what / 8 % CB_MEASURE_COUNT);
    budget->kind = how % 4 == 0 ? CB_BUDGET_NONE : how % 4 == 1 ? CB_BUDGET_MIN : CB_BUDGET_SHARE;
    if (budget->kind != CB_BUDGET_NONE) budget->share = shares[how / 4 % 8];
    budget->exact = how / 128;
    a->options.keep_gradients = what / 64 % 2;
    a->options.device = how / 32 % 2 ? "a100+fused" : "cpu";
    a->patience = (patience){.left = 2, .then = CB_POLL_FINISH}; /* fuzz_problem searches longer */
    a->fill = more % 8;
    a->seed = more / 8 % 4;
    a->starve = more / 32 == 7 ? 1 + (uint64_t)take(b) * 4 : 0;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static inline uint32_t next_random(uint64_t *state) { /* PCG */
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static inline double one_number(cb_dtype dtype, uint32_t fill, uint64_t *state) {
    static const double odd[] = {NAN, INFINITY, -INFINITY, -0.0, 1e-40, 3e38, 65504, 1e-7};
    const uint32_t r = next_random(state);
    if (!cb_dtype_is_float(dtype)) return dtype == CB_BOOL ? r % 2 : fill == 7 ? r % 9 : r % 2;
    if (fill < 4) return (double)(r % 5) - 2;
    if (fill == 6 && r % 4 == 0) return odd[r / 4 % 8];
    return (double)(r % 4001) / 1000 - 2;
}

/* Returns `most` of exact.h. */
static inline double fill_input(const asked *a, const cb_argument_info *info, uint32_t number,
                                void *data) {
    uint64_t state = a->seed * 977 + number;
    double most = 0;
    for (size_t i = 0; i < info->bytes / cb_dtype_size(info->dtype); i++) {
        put_number(info->dtype, data, i, one_number(info->dtype, a->fill, &state));
        most = fmax(most, whole(get_number(info->dtype, data, i)));
        if (isnan(get_number(info->dtype, data, i))) most = INFINITY;
    }
    return most;
}

/* ---- one run --------------------------------------------------------------------------------- */

typedef struct outcome {
    bool compiled; /* if not, `status` says why */
    cb_status status;
    uint32_t n_in, n_out;
    cb_argument_info in_info[MOST_ARGUMENTS], out_info[MOST_ARGUMENTS]; /* without names */
    void *in[MOST_ARGUMENTS], *out[MOST_ARGUMENTS];
    double most[MOST_ARGUMENTS]; /* `most` of the inputs (exact.h) */
} outcome;

static inline void *room(uint64_t n) {
    void *block = calloc(1, n ? n : 1);
    if (!block) abort();
    return block;
}

static inline void forget(outcome *o) {
    for (uint32_t i = 0; i < o->n_in; i++) free(o->in[i]);
    for (uint32_t i = 0; i < o->n_out; i++) free(o->out[i]);
    *o = (outcome){0};
}

/* True if the bits are equal; any two NaNs count as equal. */
static inline bool same_numbers(const cb_argument_info *info, const void *x, const void *y) {
    const size_t size = cb_dtype_size(info->dtype);
    for (size_t i = 0; i < info->bytes / size; i++) {
        if (memcmp((const char *)x + i * size, (const char *)y + i * size, size) == 0) continue;
        const double a = get_number(info->dtype, x, i), b = get_number(info->dtype, y, i);
        if (isnan(a) && isnan(b)) continue;
        fprintf(stderr, "element %zu of a %s: %.17g and %.17g\n", i, cb_dtype_name(info->dtype), a,
                b);
        return false;
    }
    return true;
}

/* Inputs that no state replaces are unchanged. */
static inline void expect_inputs(const asked *a, const outcome *o) {
    for (uint32_t i = 0; i < o->n_in; i++) {
        if (o->in_info[i].role_or_kind == CB_ROLE_STATE && o->status == CB_OK) continue;
        void *again = room(o->in_info[i].bytes);
        fill_input(a, &o->in_info[i], i, again);
        EXPECT(memcmp(again, o->in[i], o->in_info[i].bytes) == 0);
        free(again);
    }
}

static inline void run_step(const asked *a, cb_step *step, const char *backend, outcome *o) {
    cb_run_result result = {0};
    const cb_step_numbers numbers = cb_step_get_numbers(step);
    *o = (outcome){
        .compiled = true, .n_in = cb_step_n_inputs(step), .n_out = cb_step_n_outputs(step)};
    for (uint32_t i = 0; i < o->n_in; i++) {
        o->in_info[i] = cb_step_input(step, i);
        o->in[i] = room(o->in_info[i].bytes);
        o->most[i] = fill_input(a, &o->in_info[i], i, o->in[i]);
    }
    for (uint32_t i = 0; i < o->n_out; i++) {
        o->out_info[i] = cb_step_output(step, i);
        if (!o->out_info[i].inside) o->out[i] = room(o->out_info[i].bytes);
    }
    const cb_run binding = {
        .inputs = o->in, .outputs = o->out, .on_host = true, .seed = a->seed, .random_step = 1};
    o->status = cb_step_run(step, &binding, &result, &err);
    if (o->status != CB_OK) expect_refusal(o->status);
    else if (strcmp(backend, "cpu") == 0) EXPECT(result.peak_bytes == numbers.arena_bytes);
    else if (strcmp(backend, "debug") == 0) EXPECT(result.peak_bytes == numbers.live_bytes);
    expect_inputs(a, o);
}

/* Replaces gradients kept inside the step by the parameters after one step of AdamW. */
static inline void step_adamw(cb_step *step, const asked *a, outcome *o) {
    static const double rates[7] = {0.125, 0.5, 0.75, 1e-3, 0.25};
    void *param[MOST_ARGUMENTS] = {0}, *m[MOST_ARGUMENTS] = {0}, *v[MOST_ARGUMENTS] = {0};
    uint32_t group[MOST_ARGUMENTS] = {0};
    for (uint32_t k = 0; k < a->options.n_wrt; k++) {
        const uint32_t i = a->options.wrt[k];
        param[k] = o->in[i];
        m[k] = room(o->in_info[i].bytes);
        v[k] = room(o->in_info[i].bytes);
    }
    void *const *states[] = {m, v, v}; /* without amsgrad the third is ignored */
    const cb_update update = {.optimizer = cb_optimizer_find("adamw"),
                              .on_host = true,
                              .params = param,
                              .states = states,
                              .group = group,
                              .hyper = rates,
                              .n_groups = 1,
                              .t = 1};
    cb_status status = cb_step_update(step, &update, &err);
    if (status != CB_OK) expect_refusal(status);
    for (uint32_t k = 0; k < a->options.n_wrt; k++) {
        free(m[k]);
        free(v[k]);
    }
}

/* Compiles and runs; `plan` (may be NULL) is the plan to use. An outcome of a failed compile has no
 * arguments. `text` (may be NULL) gets the plan. */
static inline outcome run_on(const asked *a, const cb_graph *g, const char *backend,
                             const char *plan, char **text) {
    outcome o = {0};
    cb_step *step = NULL;
    patience calls = a->patience;
    cb_compile_options options = a->options;
    options.backend = backend;
    options.plan_json = plan;
    options.poll = run_out;
    options.poll_user = &calls;
    o.status = cb_compile(context(), g, &options, &step, &err);
    if (o.status != CB_OK) {
        expect_refusal(o.status);
        return o;
    }
    const cb_step_numbers numbers = cb_step_get_numbers(step);
    if (!plan && options.budget.kind == CB_BUDGET_SHARE) {
        const uint64_t measured[] = {numbers.arena_bytes, numbers.live_bytes, numbers.saved_bytes,
                                     numbers.total_bytes};
        EXPECT(measured[options.budget.measure] <= numbers.budget_bytes);
    }
    run_step(a, step, backend, &o);
    if (o.status == CB_OK && options.keep_gradients) step_adamw(step, a, &o);
    if (text) EXPECT_OK(cb_step_text(step, "plan", text, &err));
    cb_step_free(step);
    return o;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static inline void expect_same(const outcome *x, const outcome *y) {
    EXPECT(x->status == y->status && x->n_in == y->n_in && x->n_out == y->n_out);
    if (x->status != CB_OK) return;
    for (uint32_t i = 0; i < x->n_in; i++) EXPECT(same_numbers(&x->in_info[i], x->in[i], y->in[i]));
    for (uint32_t i = 0; i < x->n_out; i++) {
        EXPECT(x->out_info[i].inside == y->out_info[i].inside);
        if (x->out[i]) EXPECT(same_numbers(&x->out_info[i], x->out[i], y->out[i]));
    }
}

/* Compares the outputs that are exact. */
static inline void expect_exact(const asked *a, const cb_graph *g, const outcome *cpu,
                                const outcome *ref) {
    const cb_joint_options options = {.wrt = a->options.wrt, .n_wrt = a->options.n_wrt};
    cb_alloc alloc;
    cb_graph *joint = NULL;
    cb_alloc_init(&alloc);
    EXPECT_OK(cb_joint_build(g, &options, &alloc, &joint, &err));
    double *most = room(joint->values.len * sizeof *most);
    for (uint32_t i = 0; i < cpu->n_in; i++)
        most[joint->ops.at[joint->inputs.at[i]].out_begin] = cpu->most[i];
    find_exact(joint, most);
    EXPECT(joint->outputs.len == cpu->n_out);
    for (uint32_t i = 0; i < cpu->n_out; i++) {
        if (!cpu->out[i] || most[joint->outputs.at[i].value] == INFINITY) continue;
        EXPECT(same_numbers(&cpu->out_info[i], cpu->out[i], ref->out[i]));
    }
    free(most);
    cb_graph_free(joint);
}

static inline bool is_small(const cb_graph *g) {
    uint64_t held = 0;
    double flops = 0;
    if (g->ops.len > MOST_STEPS || g->inputs.len + g->outputs.len > MOST_ARGUMENTS / 2)
        return false;
    for (size_t i = 0; i < g->storages.len; i++) {
        if (g->storages.at[i].bytes > MOST_BYTES_HELD) return false;
        held += g->storages.at[i].bytes;
    }
    for (size_t i = 0; i < g->values.len; i++) /* views show elements more than once */
        if (cb_numel(&g->values.at[i].shape) > MOST_BYTES_HELD / 8) return false;
    for (size_t i = 0; i < g->ops.len; i++) flops += cb_op_work(g, (cb_op_id)i).flops;
    return held <= MOST_BYTES_HELD && flops <= MOST_FLOPS;
}

/* Runs out of memory while compiling: the same answer, or CB_NOMEM. */
static inline void starve(const asked *a, const cb_graph *g, cb_status want) {
    cb_step *step = NULL;
    patience calls = a->patience;
    cb_compile_options options = a->options;
    options.poll = run_out;
    options.poll_user = &calls;
    cb_context_fail_alloc(context(), a->starve);
    cb_status status = cb_compile(context(), g, &options, &step, &err);
    cb_context_fail_alloc(context(), 0);
    EXPECT(status == want || status == CB_NOMEM);
    cb_step_free(step);
}

static inline void run_everywhere(const asked *a, const cb_graph *g) {
    const uint64_t before = cb_context_memory(context()).live_bytes;
    asked everything = *a; /* the step that all plans must agree with */
    everything.options.preset = CB_PRESET_AUTOGRAD;
    everything.options.budget = (cb_budget){0};
    char *plan = NULL;
    outcome want = run_on(&everything, g, "cpu", NULL, NULL);
    outcome cpu = run_on(a, g, "cpu", NULL, &plan);
    if (!want.compiled) { /* if this one moves values, another plan might */
        EXPECT(!plan || want.status == CB_UNSUPPORTED);
    } else if (plan) {
        outcome debug = run_on(a, g, "debug", plan, NULL);
        outcome ref_want = run_on(&everything, g, "ref", NULL, NULL);
        outcome ref = run_on(a, g, "ref", plan, NULL);
        expect_same(&want, &cpu);
        expect_same(&want, &debug);
        expect_same(&ref_want, &ref);
        EXPECT(want.status == ref.status);
        if (want.status == CB_OK) expect_exact(a, g, &want, &ref_want);
        forget(&debug);
        forget(&ref_want);
        forget(&ref);
    }
    if (a->starve) starve(a, g, plan ? CB_OK : cpu.status);
    cb_text_free(context(), plan);
    forget(&want);
    forget(&cpu);
    EXPECT(cb_context_memory(context()).live_bytes == before);
}

#endif
