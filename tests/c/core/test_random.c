/* Random graphs through the whole pipeline: ops, views, dtypes, constraints, regions and state at
 * random. For each, every preset and several budgets must give the bits of the save-everything step
 * in exactly the planned memory. Seeds are fixed; a failure prints its own. */
#include <stdlib.h>

#include "base/sanitize.h"
#include "include/cutback.h"

#include "check.h"

#define N_GRAPHS (CB_TSAN ? 3 : CB_ASAN ? 24 : 60) /* default; the first argument overrides it */
#define MAX_VALUES 64
#define MAX_ARGS 32

static cb_context *ctx;
static uint32_t state; /* state of the random generator */

static uint32_t below(uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

typedef struct made {
    cb_graph *g;
    cb_value_id value[MAX_VALUES]; /* rank 2, f32 */
    uint32_t n, n_inputs, n_wrt, wrt[MAX_ARGS];
} made;

/* ---- one random graph -------------------------------------------------------------------------
 */

static cb_shape shape_at(const made *m, cb_value_id v) {
    cb_dtype dtype;
    cb_shape shape = {0};
    CHECK_OK(cb_graph_value_info(m->g, v, &dtype, &shape, &err));
    return shape;
}

static cb_value_id pick(const made *m) {
    return m->value[below(2) ? below(m->n) : m->n - 1 - below(m->n < 4 ? m->n : 4)];
}

static void keep(made *m, cb_value_id v) {
    if (m->n < MAX_VALUES) m->value[m->n++] = v;
}

static cb_value_id op(made *m, const char *name, uint32_t n_ins, const cb_value_id *ins,
                      cb_attrs attrs, uint32_t n_outs) {
    cb_value_id outs[4] = {0};
    CHECK_OK(cb_graph_add_op(m->g, name, n_ins, ins, &attrs, n_outs, outs, &err));
    return outs[0];
}

static cb_value_id op1(made *m, const char *name, cb_value_id x, cb_attrs attrs) {
    return op(m, name, 1, &x, attrs, 1);
}

static void add_input(made *m, cb_role role, int64_t rows, int64_t columns) {
    cb_value_id v = 0;
    if (role == CB_ROLE_PARAM) m->wrt[m->n_wrt++] = m->n_inputs;
    m->n_inputs++;
    CHECK_OK(cb_graph_add_input(m->g, "", role, CB_F32, (cb_shape){2, {rows, columns}}, &v, &err));
    keep(m, v);
}

static cb_value_id add_pointwise(made *m, cb_value_id x) {
    static const char *const unary[] = {"tanh", "sigmoid", "gelu",   "silu",   "relu",
                                        "erf",  "neg",     "square", "softmax"};
    static const char *const binary[] = {"add", "mul", "sub", "maximum"};
    if (below(2)) return op1(m, unary[below(9)], x, (cb_attrs){0});
    for (uint32_t tries = 0; tries < 20; tries++) {
        cb_value_id y = pick(m);
        cb_shape a = shape_at(m, x), b = shape_at(m, y);
        const cb_value_id ins[2] = {x, y};
        if (a.dim[0] == b.dim[0] && a.dim[1] == b.dim[1])
            return op(m, binary[below(4)], 2, ins, (cb_attrs){0}, 1);
        if (a.dim[1] == b.dim[0])
            return op1(m, "tanh", op(m, "matmul", 2, ins, (cb_attrs){0}, 1), (cb_attrs){0});
    }
    return op1(m, "dropout", x, (cb_attrs){.f = {0.3}, .i = {(int64_t)m->n}});
}

static cb_value_id add_view(made *m, cb_value_id x) {
    cb_shape shape = shape_at(m, x);
    int64_t rows = shape.dim[0], columns = shape.dim[1], axis = below(2);
    switch (below(4)) {
        case 0: return op1(m, "transpose", x, (cb_attrs){.dims = {2, {1, 0}}});
        case 1:
            if (rows % 2) return op1(m, "reshape", x, (cb_attrs){.dims = {2, {columns, rows}}});
            return op1(m, "reshape", x, (cb_attrs){.dims = {2, {rows / 2, columns * 2}}});
        case 2: return op1(m, "slice", x, (cb_attrs){.i = {axis, 0, (shape.dim[axis] + 1) / 2, 1}});
        default: {
            cb_value_id row = op1(m, "mean", x, (cb_attrs){.dims = {1, {axis}}, .i = {1}});
            return op1(m, "expand", row, (cb_attrs){.dims = shape});
        }
    }
}

static cb_value_id add_other(made *m, cb_value_id x) {
    cb_shape shape = shape_at(m, x);
    const cb_value_id twice[2] = {x, x};
    switch (below(5)) {
        case 0:
            if (shape.dim[0] * shape.dim[1] > 200) return op1(m, "tril", x, (cb_attrs){.f = {0.5}});
            return op(m, "concat", 2, twice, (cb_attrs){.i = {below(2)}}, 1);
        case 1:
            return op1(m, "cast", op1(m, "cast", x, (cb_attrs){.dtype = CB_BF16}),
                       (cb_attrs){.dtype = CB_F32});
        case 2:
            return op1(m, "pad", op1(m, "slice", x, (cb_attrs){.i = {0, 0, 1, 1}}),
                       (cb_attrs){.i = {0, 1, 1, 0}});
        case 3: return op1(m, "dropout", x, (cb_attrs){.f = {0.5}, .i = {(int64_t)m->n}});
        default: {
            const cb_value_id ins[2] = {x,
                                        op1(m, "mean", x, (cb_attrs){.dims = {1, {0}}, .i = {0}})};
            return op(m, "rms_norm", 2, ins, (cb_attrs){.f = {1e-3}}, 2);
        }
    }
}

/* Draws a constraint and a region for the ops that follow. MUST_RECOMPUTE of an op and MUST_SAVE of
 * its view contradict each other, so only the latter is drawn. */
static void vary_context(made *m) {
    static const cb_constraint choices[] = {CB_FREE, CB_FREE, CB_MUST_SAVE, CB_PREFER_SAVE,
                                            CB_PREFER_RECOMPUTE};
    cb_graph_set_constraint(m->g, choices[below(5)]);
    if (below(4) == 0) {
        uint32_t region;
        CHECK_OK(cb_graph_add_region(m->g, "region", CB_NONE, UINT64_MAX, &region, &err));
        CHECK_OK(cb_graph_set_region(m->g, below(2) ? region : CB_NONE, &err));
    }
}

static void build(made *m) {
    *m = (made){0};
    CHECK_OK(cb_graph_new(ctx, &m->g, &err));
    int64_t size = below(3) ? 3 + below(8) : 32 + 8 * below(2); /* 32: wide enough for rows */
    add_input(m, CB_ROLE_DATA, size, size);
    for (uint32_t k = 0; k < 3; k++) add_input(m, CB_ROLE_PARAM, size, k == 2 ? 2 * size : size);
    uint32_t n_ops = 6 + below(30);
    for (uint32_t k = 0; k < n_ops; k++) {
        if (below(6) == 0) vary_context(m);
        cb_value_id x = pick(m);
        uint32_t kind = below(8);
        keep(m, kind < 4 ? add_pointwise(m, x) : kind < 6 ? add_view(m, x) : add_other(m, x));
    }
    cb_value_id loss = op1(m, "mean", m->value[m->n - 1], (cb_attrs){0});
    for (uint32_t k = 0; k < 2; k++) {
        cb_value_id other = op1(m, "mean", pick(m), (cb_attrs){0});
        const cb_value_id ins[2] = {loss, other};
        loss = op(m, "add", 2, ins, (cb_attrs){0}, 1);
    }
    CHECK_OK(cb_graph_add_output(m->g, loss, "loss", &err));
    cb_value_id any = pick(m); /* any value, also an input or a view */
    CHECK_OK(cb_graph_add_output(m->g, any, "value", &err));
}

/* ---- running it --------------------------------------------------------------------------------
 */

typedef struct outcome {
    cb_status status;
    uint64_t hash, peak;
    cb_step_numbers numbers;
} outcome;

static float *new_input(uint64_t bytes, uint32_t argument) {
    float *data = malloc(bytes ? bytes : 1);
    for (size_t i = 0; i < bytes / 4; i++)
        data[i] = (float)((i * 2654435761u + argument * 977u) % 1999u) / 1000.0f - 1.0f;
    return data;
}

static outcome run(const made *m, cb_compile_options options) {
    outcome out = {.hash = UINT64_C(14695981039346656037)};
    cb_step *step = NULL;
    void *inputs[MAX_ARGS] = {0}, *outputs[MAX_ARGS] = {0};
    options.wrt = m->wrt;
    options.n_wrt = m->n_wrt;
    out.status = cb_compile(ctx, m->g, &options, &step, &err);
    if (out.status != CB_OK) return out;
    for (uint32_t i = 0; i < cb_step_n_inputs(step); i++)
        inputs[i] = new_input(cb_step_input(step, i).bytes, i);
    for (uint32_t i = 0; i < cb_step_n_outputs(step); i++)
        outputs[i] = malloc(cb_step_output(step, i).bytes + 1);
    cb_run_result result = {0};
    const cb_run binding = {.inputs = inputs, .outputs = outputs, .on_host = true, .seed = 5};
    CHECK_OK(cb_step_run(step, &binding, &result, &err));
    for (uint32_t i = 0; i < cb_step_n_outputs(step); i++) {
        const unsigned char *data = outputs[i];
        for (uint64_t k = 0; k < cb_step_output(step, i).bytes; k++)
            out.hash = (out.hash ^ data[k]) * UINT64_C(1099511628211);
    }
    out.peak = result.peak_bytes;
    out.numbers = cb_step_get_numbers(step);
    for (uint32_t i = 0; i < MAX_ARGS; i++) {
        free(inputs[i]);
        free(outputs[i]);
    }
    cb_step_free(step);
    return out;
}

static void check_graph(const made *m) {
    outcome want = run(m, (cb_compile_options){0});
    CHECK(want.status == CB_OK);
    for (int preset = 0; preset < CB_PRESET_COUNT; preset++) {
        outcome cpu = run(m, (cb_compile_options){.preset = (cb_preset)preset});
        CHECK(cpu.status == CB_OK && cpu.hash == want.hash && cpu.peak == cpu.numbers.arena_bytes);
        outcome debug =
            run(m, (cb_compile_options){.preset = (cb_preset)preset, .backend = "debug"});
        CHECK(debug.status == CB_OK && debug.hash == want.hash &&
              debug.peak == debug.numbers.live_bytes);
    }
    for (int k = 0; k < 4; k++) {
        const cb_budget budget = {.kind = CB_BUDGET_SHARE,
                                  .share = 0.55 + 0.12 * k,
                                  .measure = k % 2 ? CB_MEASURE_LIVE : CB_MEASURE_ARENA};
        outcome cpu = run(m, (cb_compile_options){.budget = budget});
        CHECK(cpu.status == CB_OK || cpu.status == CB_INFEASIBLE);
        if (cpu.status != CB_OK) continue;
        CHECK(cpu.hash == want.hash && cpu.peak == cpu.numbers.arena_bytes);
        uint64_t measured = k % 2 ? cpu.numbers.live_bytes : cpu.numbers.arena_bytes;
        CHECK(measured <= cpu.numbers.budget_bytes);
    }
}

static uint64_t n_graphs;

TEST(random_graphs) {
    for (uint32_t seed = 1; seed <= n_graphs; seed++) {
        int before = check_failures;
        made m;
        state = seed;
        build(&m);
        check_graph(&m);
        cb_graph_free(m.g);
        if (check_failures != before) printf("seed %u\n", seed);
    }
}

int main(int argc, char **argv) {
    n_graphs = argc > 1 ? strtoul(argv[1], NULL, 10) : check_rounds((N_GRAPHS + 2) / 3, N_GRAPHS);
    CHECK_OK(cb_context_new(NULL, &ctx, &err));
    uint64_t before = cb_context_memory(ctx).live_bytes;
    RUN(random_graphs);
    CHECK(cb_context_memory(ctx).live_bytes == before);
    cb_context_free(ctx);
    return check_report();
}
