/* The public face of a compiled step. Pointers from outside are checked before anything runs: what
 * is missing, misaligned or overlapping is named. Neither a run nor an optimizer step allocates. */
#include "pipeline.h"

/* ---- what a step is ------------------------------------------------------------------------- */

static cb_argument_info info_of(const cb_program *p, const cb_argument *a) {
    return (cb_argument_info){
        .name = a->name,
        .dtype = a->dtype,
        .shape = a->shape,
        .bytes = a->bytes,
        .role_or_kind = (int)a->role_or_kind,
        .input = a->input,
        .inside = p->operand[a->operand].space == CB_SPACE_ARENA,
    };
}

uint32_t cb_step_n_inputs(const cb_step *step) { return step->program->n_input; }
uint32_t cb_step_n_outputs(const cb_step *step) { return step->program->n_output; }

cb_argument_info cb_step_input(const cb_step *step, uint32_t i) {
    if (i >= step->program->n_input) return (cb_argument_info){0};
    return info_of(step->program, &step->program->input[i]);
}

cb_argument_info cb_step_output(const cb_step *step, uint32_t i) {
    if (i >= step->program->n_output) return (cb_argument_info){0};
    return info_of(step->program, &step->program->output[i]);
}

cb_step_numbers cb_step_get_numbers(const cb_step *step) {
    const cb_plan *plan = step->plan;
    const cb_program *program = step->program;
    return (cb_step_numbers){
        .arena_bytes = program->arena_bytes,
        .live_bytes = program->live_bytes,
        .saved_bytes = plan->saved_bytes,
        .total_bytes = plan->total_bytes - (plan->live_bytes - program->live_bytes),
        .save_all_arena_bytes = plan->save_all_arena_bytes,
        .save_all_live_bytes = plan->save_all_live_bytes,
        .save_all_saved_bytes = plan->save_all_saved_bytes,
        .budget_bytes = plan->budget_bytes,
        .time_ps = plan->time_ps,
        .once_ps = plan->once_ps,
        .lower_bound_ps = plan->lower_bound_ps,
        .n_groups = step->program->n_group,
        .n_recomputed = plan->lives.n_recomputed,
    };
}

/* ---- checking memory ------------------------------------------------------------------------ */

/* Adds one argument's memory to the step's list; empty arguments need none. */
static cb_status add_range(cb_step *step, uint32_t *n, const char *kind, const cb_argument *a,
                           const void *data, bool written, cb_error *err) {
    uintptr_t begin = (uintptr_t)data;
    size_t size = cb_dtype_size(a->dtype);
    if (a->bytes == 0) return CB_OK;
    if (!data) {
        return cb_fail(err, CB_INVALID, "%s \"%s\": no memory given (NULL), %llu bytes needed",
                       kind, a->name, (unsigned long long)a->bytes);
    }
    if (begin % size) {
        return cb_fail(err, CB_INVALID, "%s \"%s\": %s at an address that is not a multiple of %zu",
                       kind, a->name, cb_dtype_name(a->dtype), size);
    }
    if (begin > UINTPTR_MAX - a->bytes) {
        return cb_fail(err, CB_INVALID, "%s \"%s\": ends past all memory", kind, a->name);
    }
    step->ranges[(*n)++] = (cb_range){
        .begin = begin, .end = begin + a->bytes, .kind = kind, .name = a->name, .written = written};
    return CB_OK;
}

/* Shell sort by address: in place, and quick on lists of this length. */
static void sort_ranges(cb_range *at, uint32_t n) {
    for (uint32_t gap = n / 2; gap > 0; gap /= 2) {
        for (uint32_t i = gap; i < n; i++) {
            cb_range moved = at[i];
            uint32_t j = i;
            for (; j >= gap && at[j - gap].begin > moved.begin; j -= gap) at[j] = at[j - gap];
            at[j] = moved;
        }
    }
}

/* What is written must have memory of its own; what is only read may be shared. */
static cb_status check_ranges(cb_range *at, uint32_t n, cb_error *err) {
    const cb_range *any = NULL, *written = NULL; /* those that reach furthest so far */
    sort_ranges(at, n);
    for (uint32_t i = 0; i < n; i++) {
        const cb_range *before = at[i].written ? any : written;
        if (before && before->end > at[i].begin) {
            return cb_fail(err, CB_INVALID,
                           "%s \"%s\" and %s \"%s\" overlap in memory; what is written needs "
                           "memory of its own",
                           before->kind, before->name, at[i].kind, at[i].name);
        }
        if (!any || at[i].end > any->end) any = &at[i];
        if (at[i].written && (!written || at[i].end > written->end)) written = &at[i];
    }
    return CB_OK;
}

static cb_status check_run(cb_step *step, const cb_run *run, cb_error *err) {
    const cb_program *p = step->program;
    uint32_t n = 0;
    if ((p->n_input && !run->inputs) || (p->n_output && !run->outputs)) {
        return cb_fail(err, CB_INVALID, "run: takes %u inputs and %u outputs; a list is NULL",
                       p->n_input, p->n_output);
    }
    for (uint32_t i = 0; i < p->n_input; i++) {
        bool written = p->input[i].role_or_kind == CB_ROLE_STATE || step->is_stepped[i];
        CB_TRY(add_range(step, &n, "input", &p->input[i], run->inputs[i], written, err));
    }
    for (uint32_t i = 0; i < p->n_output; i++) {
        if (p->operand[p->output[i].operand].space != CB_SPACE_OUTPUT) continue;
        CB_TRY(add_range(step, &n, "output", &p->output[i], run->outputs[i], true, err));
    }
    return check_ranges(step->ranges, n, err);
}

void cb_step_group_steps(const cb_step *step, uint32_t *out) {
    const cb_program *p = step->program;
    for (uint32_t g = 0; g < p->n_group; g++) out[g] = p->instr[p->group[g].instr_begin].step;
}

uint32_t cb_step_group_members(const cb_step *step, uint32_t group, uint32_t *out, uint32_t room) {
    const cb_program *p = step->program;
    if (group >= p->n_group) return 0;
    const cb_group *g = &p->group[group];
    for (uint32_t i = 0; i < g->n_instr && i < room; i++)
        out[i] = p->instr[g->instr_begin + i].step;
    return g->n_instr;
}

/* ---- running -------------------------------------------------------------------------------- */

/* New states replace the old ones when nothing can fail any more. The null backend has none. */
static void copy_states(const cb_step *step, const cb_run *run) {
    const cb_program *p = step->program;
    for (uint32_t i = 0; i < p->n_output; i++) {
        const cb_argument *a = &p->output[i];
        if (a->role_or_kind != CB_OUTPUT_STATE || a->bytes == 0) continue;
        const void *from = step->backend->address(step->state, a->operand);
        if (from) memcpy(run->inputs[a->input], from, a->bytes);
    }
}

cb_status cb_step_run(cb_step *step, const cb_run *run, cb_run_result *result, cb_error *err) {
    if (!run) return cb_fail(err, CB_INVALID, "run: no bindings given (NULL)");
    CB_TRY(check_run(step, run, err));
    const cb_bindings bindings = {
        .inputs = run->inputs,
        .outputs = run->outputs,
        .seed = run->seed,
        .step = run->random_step,
        .poll = run->poll,
        .poll_user = run->poll_user,
        .group_seconds = run->group_seconds,
        .group_bytes = run->group_bytes,
    };
    cb_run_stats stats = {0};
    step->has_run = false;
    CB_TRY(step->backend->run(step->state, &bindings, &stats, err));
    copy_states(step, run);
    step->has_run = true;
    if (result) *result = (cb_run_result){.peak_bytes = stats.peak_bytes, .n_alloc = stats.n_alloc};
    return CB_OK;
}

/* ---- the optimizer -------------------------------------------------------------------------- */

static const cb_argument *gradient_of(const cb_step *step, uint32_t k) {
    const cb_program *p = step->program;
    return &p->output[p->n_output - step->n_gradients + k];
}

static cb_status check_rows(cb_step *step, void *const *params, void *const *m, void *const *v,
                            const uint32_t *group, uint32_t n_groups, cb_error *err) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < step->n_gradients; k++) {
        const cb_argument *gradient = gradient_of(step, k);
        if (gradient->dtype != CB_F32 && gradient->dtype != CB_F64) {
            return cb_fail(err, CB_UNSUPPORTED,
                           "adamw: parameter \"%s\" is %s; only f32 and f64 are stepped, so keep "
                           "it in f32 and cast it in the model",
                           gradient->name, cb_dtype_name(gradient->dtype));
        }
        if (group[k] >= n_groups) {
            return cb_fail(err, CB_INVALID,
                           "adamw: parameter \"%s\" is in group %u, and there are %u groups",
                           gradient->name, group[k], n_groups);
        }
        CB_TRY(add_range(step, &n, "parameter", gradient, params[k], true, err));
        CB_TRY(add_range(step, &n, "first moment of", gradient, m[k], true, err));
        CB_TRY(add_range(step, &n, "second moment of", gradient, v[k], true, err));
    }
    return check_ranges(step->ranges, n, err);
}

cb_status cb_step_check_adamw(cb_step *step, void *const *params, void *const *m, void *const *v,
                              const uint32_t *group, const cb_adamw_options *groups,
                              uint32_t n_groups, cb_error *err) {
    if (!step->keep_gradients) {
        return cb_fail(err, CB_INVALID, "adamw: the step was compiled without keep_gradients");
    }
    if (step->n_gradients && (!params || !m || !v || !group)) {
        return cb_fail(err, CB_INVALID, "adamw: a list is NULL");
    }
    if (n_groups && !groups) {
        return cb_fail(err, CB_INVALID, "adamw: n_groups is %u and groups is NULL", n_groups);
    }
    CB_TRY(cb_adamw_check(groups, n_groups, err));
    return check_rows(step, params, m, v, group, n_groups, err);
}

cb_status cb_step_adamw(cb_step *step, void *const *params, void *const *m, void *const *v,
                        const uint32_t *group, const cb_adamw_options *groups, uint32_t n_groups,
                        int64_t t, cb_error *err) {
    CB_TRY(cb_step_check_adamw(step, params, m, v, group, groups, n_groups, err));
    if (!step->has_run) {
        return cb_fail(err, CB_INVALID, "adamw: there are no gradients yet; run the step first");
    }
    for (uint32_t k = 0; k < step->n_gradients; k++) {
        const cb_argument *gradient = gradient_of(step, k);
        const void *grad = step->backend->address(step->state, gradient->operand);
        if (!grad && gradient->bytes) {
            return cb_fail(err, CB_UNSUPPORTED, "adamw: the backend \"%s\" has no gradients",
                           step->backend->name);
        }
        step->rows[k] = (cb_adamw_row){.param = params[k],
                                       .grad = grad,
                                       .m = m[k],
                                       .v = v[k],
                                       .n = cb_numel(&gradient->shape),
                                       .dtype = gradient->dtype,
                                       .group = group[k]};
    }
    return cb_adamw_step(step->ctx->runtime.pool, groups, n_groups, step->rows, step->n_gradients,
                         t, err);
}
