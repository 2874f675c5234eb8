/* Public functions of a compiled step. Pointers from outside are checked before anything runs;
 * errors name the missing, misaligned or overlapping argument. A run allocates only if it is the
 * first or the largest so far in its memory; an optimizer step never does. */
#include "pipeline.h"

#include "optim/extras.h"

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
        .budget_bytes =
            plan->program_budget < UINT64_MAX ? plan->program_budget : plan->budget_bytes,
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
    if (begin > UINTPTR_MAX - a->bytes)
        return cb_fail(err, CB_INVALID, "%s \"%s\": ends past all memory", kind, a->name);
    step->ranges[(*n)++] = (cb_range){
        .begin = begin, .end = begin + a->bytes, .kind = kind, .name = a->name, .written = written};
    return CB_OK;
}

/* Lists what a run reads and writes, except the memory that an update steps. */
static cb_status add_others(cb_step *step, uint32_t *n, const cb_run *run, cb_error *err) {
    const cb_program *p = step->program;
    for (uint32_t i = 0; i < p->n_input; i++) {
        const bool written = p->input[i].role_or_kind == CB_ROLE_STATE;
        if (step->is_stepped[i]) continue;
        CB_TRY(add_range(step, n, "input", &p->input[i], run->inputs[i], written, err));
    }
    for (uint32_t i = 0; i < p->n_output; i++) {
        if (p->operand[p->output[i].operand].space != CB_SPACE_OUTPUT) continue;
        CB_TRY(add_range(step, n, "output", &p->output[i], run->outputs[i], true, err));
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
    for (uint32_t i = 0; i < p->n_input; i++)
        if (step->is_stepped[i])
            CB_TRY(add_range(step, &n, "input", &p->input[i], run->inputs[i], true, err));
    CB_TRY(add_others(step, &n, run, err));
    return cb_ranges_check(step->ranges, n, &step->run_ranges, err);
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

static cb_run_block *block_of(const cb_step *step) {
    return cb_run_block_of(step->memory, step->backend, step->pinned);
}

/* Returns the offset in the block of values moved to the host. */
static uint64_t host_at(const cb_step *step) {
    const uint64_t grain = step->backend->alignment, bytes = step->program->arena_bytes;
    return step->program->host_bytes ? (bytes + grain - 1) / grain * grain : bytes;
}

uint64_t cb_step_run_bytes(const cb_step *step) {
    uint64_t bytes;
    if (!step->backend->uses_arena) return 0;
    if (__builtin_add_overflow(host_at(step), step->program->host_bytes, &bytes)) return UINT64_MAX;
    return bytes;
}

uint64_t cb_step_growth(const cb_step *step) {
    const uint64_t bytes = cb_step_run_bytes(step), there = block_of(step)->bytes;
    return bytes > there ? bytes - there : 0;
}

static cb_status fit(cb_step *step, uint64_t *n_alloc, cb_error *err) {
    if (step->pinned || !step->backend->uses_arena) return CB_OK;
    return cb_run_memory_fit(step->memory, step->backend, step->device, cb_step_run_bytes(step),
                             n_alloc, err);
}

cb_status cb_step_pin(cb_step *step, cb_error *err) {
    uint64_t n_alloc = 0;
    cb_run_memory_lock(step->memory);
    const cb_status status = fit(step, &n_alloc, err);
    if (status == CB_OK && !step->pinned && step->backend->uses_arena) {
        step->pinned = block_of(step);
        step->pinned->refs++;
    }
    cb_run_memory_unlock(step->memory);
    return status;
}

/* Runs in one memory are sequential: a run on another stream waits for the previous run. */
static cb_status follow(cb_step *step, cb_stream *stream, uint64_t *n_alloc, cb_error *err) {
    const cb_backend *b = step->backend;
    const cb_turn *last = block_of(step)->last;
    if (last && stream != last->stream) CB_TRY(b->wait(step->device, stream, last->ended, err));
    CB_TRY(b->record(step->device, stream, step->began, err));
    CB_TRY(fit(step, n_alloc, err));
    cb_run_block *block = block_of(step);
    if (block->last && block->last != &step->turn && b->let_go) b->let_go(block->last->state);
    step->turn.stream = stream;
    block->last = &step->turn;
    return CB_OK;
}

static cb_status enter(cb_step *step, cb_bindings *bindings, uint64_t *n_alloc, cb_error *err) {
    cb_run_memory_lock(step->memory);
    const cb_status status = follow(step, bindings->stream, n_alloc, err);
    if (status == CB_OK && step->backend->uses_arena) {
        bindings->arena = block_of(step)->data;
        bindings->host = (char *)bindings->arena + host_at(step);
    }
    cb_run_memory_unlock(step->memory);
    return status;
}

/* Fills in the addresses of host arguments in the backend's memory. */
static cb_status stage_arguments(cb_step *step, const cb_run *run, cb_error *err) {
    const cb_program *p = step->program;
    for (uint32_t i = 0; i < p->n_input; i++)
        CB_TRY(cb_stage(&step->staging, i, run->inputs[i], p->input[i].bytes,
                        run->there && run->there[i], &step->inputs[i], err));
    for (uint32_t i = 0; i < p->n_output; i++) {
        if (p->operand[p->output[i].operand].space != CB_SPACE_OUTPUT) continue;
        CB_TRY(cb_stage(&step->staging, p->n_input + i, run->outputs[i], p->output[i].bytes,
                        run->there && run->there[p->n_input + i], &step->outputs[i], err));
    }
    return CB_OK;
}

/* Copies new states and results to the host. */
static cb_status fetch_results(cb_step *step, const cb_run *run, cb_error *err) {
    const cb_program *p = step->program;
    for (uint32_t i = 0; i < p->n_output; i++) {
        const cb_argument *a = &p->output[i];
        if (a->role_or_kind == CB_OUTPUT_STATE)
            CB_TRY(cb_stage_out(&step->staging, step->turn.stream, a->input, run->inputs[a->input],
                                a->bytes, err));
        if (p->operand[a->operand].space == CB_SPACE_OUTPUT)
            CB_TRY(cb_stage_out(&step->staging, step->turn.stream, p->n_input + i, run->outputs[i],
                                a->bytes, err));
    }
    return CB_OK;
}

/* Host memory changes only after the run has succeeded. */
static cb_status run_staged(cb_step *step, const cb_run *run, cb_bindings *bindings,
                            cb_run_stats *stats, cb_error *err) {
    const cb_program *p = step->program;
    CB_TRY(stage_arguments(step, run, err));
    for (uint32_t i = 0; i < p->n_input; i++)
        CB_TRY(cb_stage_in(&step->staging, step->turn.stream, i, run->inputs[i], p->input[i].bytes,
                           err));
    bindings->inputs = step->inputs;
    bindings->outputs = step->outputs;
    CB_TRY(step->backend->run(step->state, bindings, stats, err));
    CB_TRY(step->backend->finish(step->state, step->turn.stream, err));
    return fetch_results(step, run, err);
}

/* Even after a failure, no copy to or from the caller's memory is still running. */
static cb_status after_copies(const cb_step *step, cb_status status, cb_error *err) {
    const cb_status synced =
        step->backend->sync(step->device, step->turn.stream, status == CB_OK ? err : NULL);
    return status == CB_OK ? synced : status;
}

/* The run uses the caller's block, so nothing of the step's memory is looked at. */
static cb_status use_block(const cb_step *step, void *block, cb_bindings *bindings, cb_error *err) {
    const cb_backend *b = step->backend;
    if (!b->is_host) {
        return cb_fail(err, CB_UNSUPPORTED, "run: the backend \"%s\" takes no block of the caller",
                       b->name);
    }
    if ((uintptr_t)block % b->alignment) {
        return cb_fail(err, CB_INVALID, "run: the block is not aligned to %llu bytes",
                       (unsigned long long)b->alignment);
    }
    bindings->arena = block;
    bindings->host = (char *)block + host_at(step);
    return CB_OK;
}

cb_status cb_step_run(cb_step *step, const cb_run *run, cb_run_result *result, cb_error *err) {
    if (!run) return cb_fail(err, CB_INVALID, "run: no bindings given (NULL)");
    CB_TRY(check_run(step, run, err));
    cb_bindings bindings = {
        .stream = (cb_stream *)run->stream,
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
    uint64_t n_alloc = 0;
    step->has_run = step->has_update = false;
    CB_TRY(run->block ? use_block(step, run->block, &bindings, err)
                      : enter(step, &bindings, &n_alloc, err));
    if (run->on_host)
        CB_TRY(after_copies(step, run_staged(step, run, &bindings, &stats, err), err));
    else CB_TRY(step->backend->run(step->state, &bindings, &stats, err));
    CB_TRY(step->backend->record(step->device, step->turn.stream, step->turn.ended, err));
    step->has_run = !run->block; /* what is kept inside is gone with the caller's block */
    if (result)
        *result =
            (cb_run_result){.peak_bytes = stats.peak_bytes, .n_alloc = stats.n_alloc + n_alloc};
    return CB_OK;
}

cb_status cb_step_wait(cb_step *step, double *seconds, cb_error *err) {
    if (!step->has_run) return cb_fail(err, CB_INVALID, "wait: there is no run to wait for");
    step->has_run = false;
    CB_TRY(step->backend->finish(step->state, step->turn.stream, err));
    if (seconds)
        CB_TRY(step->backend->seconds(step->device, step->began, step->turn.ended, seconds, err));
    step->has_run = true;
    return CB_OK;
}

cb_status cb_step_update_seconds(cb_step *step, double *seconds, cb_error *err) {
    double all;
    *seconds = 0;
    CB_TRY(cb_step_wait(step, &all, err));
    if (!step->has_update) return CB_OK;
    return step->backend->seconds(step->device, step->stepping, step->turn.ended, seconds, err);
}

/* ---- the optimizer -------------------------------------------------------------------------- */

static const cb_argument *gradient_of(const cb_step *step, uint32_t k) {
    const cb_program *p = step->program;
    return &p->output[p->n_output - step->n_gradients + k];
}

/* Returns the number of states of a parameter's group. */
static uint32_t n_used(const cb_update *u, uint32_t k) {
    const cb_optimizer *o = u->optimizer;
    return cb_optimizer_n_used(o, u->hyper + (size_t)u->group[k] * o->n_hyper);
}

/* Adds one parameter of an update, with the states of its group. */
static cb_status add_parameter(cb_step *step, uint32_t *n, const cb_update *u, uint32_t k,
                               cb_error *err) {
    const cb_optimizer *o = u->optimizer;
    const cb_argument *gradient = gradient_of(step, k);
    if (gradient->dtype != CB_F32 && gradient->dtype != CB_F64) {
        return cb_fail(
            err, CB_UNSUPPORTED,
            "%s: parameter \"%s\" is %s; only f32 and f64 are stepped, so keep it in f32 "
            "and cast it in the model",
            o->name, gradient->name, cb_dtype_name(gradient->dtype));
    }
    if (u->group[k] >= u->n_groups) {
        return cb_fail(err, CB_INVALID,
                       "%s: parameter \"%s\" is in group %u, and there are %u groups", o->name,
                       gradient->name, u->group[k], u->n_groups);
    }
    CB_TRY(add_range(step, n, "parameter", gradient, u->params[k], true, err));
    for (uint32_t s = 0; s < n_used(u, k); s++)
        CB_TRY(add_range(step, n, o->state[s], gradient, u->states[s][k], true, err));
    return CB_OK;
}

/* Lists what an update writes in addition to parameters and states. */
static cb_status add_beside(cb_step *step, uint32_t *n, const cb_extra_row *row, uint32_t k,
                            cb_error *err) {
    cb_argument copy = *gradient_of(step, k);
    CB_TRY(row->average ? add_range(step, n, "average", &copy, row->average, true, err) : CB_OK);
    copy.bytes = copy.bytes / cb_dtype_size(copy.dtype) * cb_dtype_size(row->copy_dtype);
    copy.dtype = row->copy_dtype;
    return row->copy ? add_range(step, n, "copy", &copy, row->copy, true, err) : CB_OK;
}

static cb_status check_extras(cb_step *step, uint32_t *n, const cb_update *u, cb_error *err) {
    const char *name = u->optimizer->name;
    if (!u->extras) return CB_OK;
    if (!step->backend->is_host) {
        return cb_fail(
            err, CB_UNSUPPORTED,
            "%s: the backend \"%s\" only updates; steps that clip, skip, average or copy "
            "run on a CPU",
            name, step->backend->name);
    }
    if (u->extras->zeroes) {
        return cb_fail(
            err, CB_INVALID,
            "%s: a compiled step keeps its gradients inside and each run makes new ones; "
            "there is nothing to set to zero",
            name);
    }
    CB_TRY(cb_extras_check(u->optimizer, u->extras, step->n_gradients, err));
    for (uint32_t k = 0; u->extras->rows && k < step->n_gradients; k++)
        CB_TRY(add_beside(step, n, &u->extras->rows[k], k, err));
    return u->run && u->run->inputs && u->run->outputs ? add_others(step, n, u->run, err) : CB_OK;
}

/* Checks that the lists are given. */
static cb_status check_lists(const cb_step *step, const cb_update *u, cb_error *err) {
    if (!u || !u->optimizer)
        return cb_fail(err, CB_INVALID, "update: no %s given (NULL)", u ? "optimizer" : "update");
    const char *name = u->optimizer->name;
    if (!step->keep_gradients)
        return cb_fail(err, CB_INVALID, "%s: the step was compiled without keep_gradients", name);
    for (uint32_t s = 0; s < u->optimizer->n_state; s++) {
        if (cb_optimizer_state_kind(u->optimizer, s) == CB_STATE_ALIKE) continue;
        return cb_fail(
            err, CB_UNSUPPORTED,
            "%s keeps %s in its own format, so it steps arrays only outside of compiled steps",
            name, u->optimizer->state[s]);
    }
    if (!step->backend->update) {
        return cb_fail(err, CB_UNSUPPORTED, "%s: the backend \"%s\" has no optimizers", name,
                       step->backend->name);
    }
    if (u->n_groups && !u->hyper)
        return cb_fail(err, CB_INVALID, "%s: n_groups is %u and hyper is NULL", name, u->n_groups);
    if (!step->n_gradients) return CB_OK;
    bool complete = u->params && u->states && u->group;
    for (uint32_t s = 0; complete && s < u->optimizer->n_state; s++) complete = u->states[s];
    complete = complete && (u->numbers || !u->optimizer->n_number);
    return complete ? CB_OK : cb_fail(err, CB_INVALID, "%s: a list is NULL", name);
}

static uint32_t state_slot(const cb_step *step, uint32_t s, uint32_t k) {
    return step->program->n_input + step->program->n_output + s * step->n_gradients + k;
}

/* Reads the numbers that a parameter keeps, before the step. */
static void numbers_before(const cb_update *u, uint32_t k, double *number) {
    const cb_optimizer *o = u->optimizer;
    for (uint32_t i = 0; i < o->n_number; i++) number[i] = u->numbers[k * o->n_number + i];
    if (u->t == 1) cb_optimizer_count_on(o, u->hyper + (size_t)u->group[k] * o->n_hyper, 0, number);
}

/* Fills the rows: parameters, gradients and states in the backend's memory. */
static cb_status fill_rows(cb_step *step, const cb_update *u, cb_error *err) {
    for (uint32_t k = 0; k < step->n_gradients; k++) {
        const cb_argument *gradient = gradient_of(step, k);
        cb_optim_row *row = &step->rows[k];
        *row = (cb_optim_row){.param = u->params[k],
                              .grad = step->backend->address(step->state, gradient->operand),
                              .n = cb_numel(&gradient->shape),
                              .t = u->t,
                              .dtype = gradient->dtype,
                              .group = u->group[k]};
        for (uint32_t s = 0; s < n_used(u, k); s++) row->state[s] = u->states[s][k];
        numbers_before(u, k, row->number);
        if (!u->on_host) continue;
        CB_TRY(cb_stage(&step->staging, gradient->input, row->param, gradient->bytes,
                        u->there && u->there[k], &row->param, err));
        for (uint32_t s = 0; s < n_used(u, k); s++)
            CB_TRY(cb_stage(&step->staging, state_slot(step, s, k), row->state[s], gradient->bytes,
                            u->there && u->there[(1 + s) * step->n_gradients + k], &row->state[s],
                            err));
    }
    return CB_OK;
}

/* Copies parameters and states to the backend's memory, or back. */
typedef cb_status (*stage_fn)(const cb_staging *s, cb_stream *stream, uint32_t slot, void *host,
                              uint64_t bytes, cb_error *err);

static cb_status stage_in(const cb_staging *s, cb_stream *stream, uint32_t slot, void *host,
                          uint64_t bytes, cb_error *err) {
    return cb_stage_in(s, stream, slot, host, bytes, err);
}

static cb_status move_rows(const cb_step *step, const cb_update *u, stage_fn stage, cb_error *err) {
    for (uint32_t k = 0; k < step->n_gradients; k++) {
        const cb_argument *gradient = gradient_of(step, k);
        CB_TRY(stage(&step->staging, step->turn.stream, gradient->input, u->params[k],
                     gradient->bytes, err));
        for (uint32_t s = 0; s < n_used(u, k); s++)
            CB_TRY(stage(&step->staging, step->turn.stream, state_slot(step, s, k), u->states[s][k],
                         gradient->bytes, err));
    }
    return CB_OK;
}

static cb_optim_table table_of(const cb_step *step, const cb_update *u) {
    return (cb_optim_table){.optimizer = u->optimizer,
                            .grad_factor = 1,
                            .rows = step->rows,
                            .hyper = u->hyper,
                            .n_rows = step->n_gradients,
                            .n_groups = u->n_groups,
                            .n_hyper = u->optimizer->n_hyper};
}

/* Checks before the run, because the results of a run would be lost if its update were refused. */
static cb_status check_scratch(cb_step *step, const cb_update *u, cb_error *err) {
    for (uint32_t k = 0; k < step->n_gradients; k++)
        step->rows[k] = (cb_optim_row){.n = cb_numel(&gradient_of(step, k)->shape),
                                       .t = u->t,
                                       .dtype = gradient_of(step, k)->dtype,
                                       .group = u->group[k]};
    const cb_optim_table table = table_of(step, u);
    return cb_optim_check_scratch(&table, err);
}

cb_status cb_step_check_update(cb_step *step, const cb_update *u, cb_error *err) {
    uint32_t n = 0;
    CB_TRY(check_lists(step, u, err));
    if (u->optimizer->axes != CB_AXES_NONE)
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s steps matrices, so it steps arrays only outside of compiled steps",
                       u->optimizer->name);
    CB_TRY(cb_optimizer_check(u->optimizer, u->hyper, u->n_groups, err));
    for (uint32_t k = 0; k < step->n_gradients; k++) CB_TRY(add_parameter(step, &n, u, k, err));
    CB_TRY(check_scratch(step, u, err));
    CB_TRY(check_extras(step, &n, u, err));
    CB_TRY(cb_ranges_check(step->ranges, n, &step->update_ranges, err));
    if (step->backend->ready) CB_TRY(step->backend->ready(step->state, u->optimizer, err));
    const bool is_staged = u->on_host && !step->backend->is_host;
    return is_staged ? fill_rows(step, u, err) : CB_OK; /* allocates the memory for copies */
}

static cb_status put_update(cb_step *step, const cb_update *u, cb_optim_outcome *outcome,
                            cb_error *err) {
    cb_optim_table table = table_of(step, u);
    if (u->extras)
        *outcome = cb_gradients_measure(&table, u->extras, step->ctx->runtime.pool, step->squares);
    if (outcome->skipped) return CB_OK;
    CB_TRY(step->backend->record(step->device, step->turn.stream, step->stepping, err));
    step->has_update = true;
    return step->backend->update(step->device, step->state, step->turn.stream, u->optimizer, &table,
                                 err);
}

static cb_status update_staged(cb_step *step, const cb_update *u, cb_optim_outcome *outcome,
                               cb_error *err) {
    CB_TRY(move_rows(step, u, stage_in, err));
    CB_TRY(put_update(step, u, outcome, err));
    CB_TRY(step->backend->finish(step->state, step->turn.stream, err));
    return move_rows(step, u, cb_stage_out, err);
}

/* Writes the numbers that parameters keep, after the step. */
static void count_on(const cb_step *step, const cb_update *u) {
    const cb_optimizer *o = u->optimizer;
    for (uint32_t k = 0; o->n_number && k < step->n_gradients; k++) {
        double *number = u->numbers + k * o->n_number;
        numbers_before(u, k, number);
        cb_optimizer_count_on(o, u->hyper + (size_t)u->group[k] * o->n_hyper, u->t, number);
    }
}

cb_status cb_step_update(cb_step *step, const cb_update *u, cb_error *err) {
    cb_optim_outcome outcome = {.norm = -1};
    CB_TRY(cb_step_check_update(step, u, err));
    const char *name = u->optimizer->name;
    if (!step->has_run)
        return cb_fail(err, CB_INVALID, "%s: there are no gradients yet; run the step first", name);
    if (block_of(step)->last != &step->turn) {
        return cb_fail(
            err, CB_INVALID,
            "%s: the gradients are gone: since the run, the memory of this step was used "
            "by another one or released; update before that",
            name);
    }
    CB_TRY(fill_rows(step, u, err));
    for (uint32_t k = 0; k < step->n_gradients; k++) {
        if (step->rows[k].grad || step->rows[k].n == 0) continue;
        return cb_fail(err, CB_UNSUPPORTED, "%s: the backend \"%s\" has no gradients", name,
                       step->backend->name);
    }
    if (u->on_host) CB_TRY(after_copies(step, update_staged(step, u, &outcome, err), err));
    else CB_TRY(put_update(step, u, &outcome, err));
    CB_TRY(step->backend->record(step->device, step->turn.stream, step->turn.ended, err));
    if (!outcome.skipped) count_on(step, u);
    if (u->outcome) *u->outcome = outcome;
    return CB_OK;
}

cb_status cb_step_resident(const cb_step *step, uint32_t group, cb_resident *out, cb_error *err) {
    if (!step->backend->resident)
        return cb_fail(err, CB_UNSUPPORTED,
                       "resident: the backend \"%s\" takes the numbers of updates from the caller",
                       step->backend->name);
    if (step->backend->resident(step->state, group, out)) return CB_OK;
    return cb_fail(err, CB_INVALID, "resident: no update of group %u has been put", group);
}
