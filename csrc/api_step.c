/* Public functions of a compiled step. Pointers from outside are checked before anything runs;
 * errors name the missing, misaligned or overlapping argument. A run allocates only if it is the
 * first or the largest so far in its memory; an optimizer step never does. */
#include "step_parts.h"

/* ---- arguments and numbers ------------------------------------------------------------------ */

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

bool cb_step_updates_inside(const cb_step *step) {
    return step->updates_inside && step->backend->updates_inside;
}

const char *cb_step_updates_reason(const cb_step *step) {
    if (!step->updates_inside) return step->updates_reason;
    return step->backend->updates_inside ? "" : CB_UPDATES_AFTER_RUNS;
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

cb_status cb_step_check_run(cb_step *step, const cb_run *run, cb_error *err) {
    const cb_program *p = step->program;
    uint32_t n = 0;
    if ((p->n_input && !run->inputs) || (p->n_output && !run->outputs)) {
        return cb_fail(err, CB_INVALID, "run: takes %u inputs and %u outputs; a list is NULL",
                       p->n_input, p->n_output);
    }
    for (uint32_t i = 0; i < p->n_input; i++)
        if (step->is_stepped[i])
            CB_TRY(cb_step_add_range(step, &n, "input", &p->input[i], run->inputs[i], true, err));
    CB_TRY(cb_step_add_others(step, &n, run, err));
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
    const uint64_t bytes = cb_step_run_bytes(step), there = cb_step_block(step)->bytes;
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
        step->pinned = cb_step_block(step);
        step->pinned->refs++;
    }
    cb_run_memory_unlock(step->memory);
    return status;
}

/* Runs in one memory are sequential: a run on another stream waits for the previous run. */
static cb_status follow(cb_step *step, cb_stream *stream, uint64_t *n_alloc, cb_error *err) {
    const cb_backend *b = step->backend;
    const cb_turn *last = cb_step_block(step)->last;
    if (last && stream != last->stream) CB_TRY(b->wait(step->device, stream, last->ended, err));
    CB_TRY(b->record(step->device, stream, step->began, err));
    CB_TRY(fit(step, n_alloc, err));
    cb_run_block *block = cb_step_block(step);
    if (block->last && block->last != &step->turn && b->let_go) b->let_go(block->last->state);
    step->turn.stream = stream;
    block->last = &step->turn;
    return CB_OK;
}

cb_status cb_step_enter(cb_step *step, cb_bindings *bindings, uint64_t *n_alloc, cb_error *err) {
    cb_run_memory_lock(step->memory);
    const cb_status status = follow(step, bindings->stream, n_alloc, err);
    if (status == CB_OK && step->backend->uses_arena) {
        bindings->arena = cb_step_block(step)->data;
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

/* Runs in the caller's block, so the step's memory is not touched. */
static cb_status use_block(const cb_step *step, void *block, cb_bindings *bindings, cb_error *err) {
    const cb_backend *b = step->backend;
    if (!b->is_host) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "run: the backend \"%s\" does not accept a block of the caller", b->name);
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
    CB_TRY(cb_step_check_run(step, run, err));
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
    cb_inner_updates inner = {.step = step, .update = run->update};
    if (run->update) {
        CB_TRY(cb_inner_updates_check(step, run, err));
        bindings.after_group = cb_inner_updates_after;
        bindings.after_user = &inner;
    }
    step->has_run = step->has_update = false;
    CB_TRY(run->block ? use_block(step, run->block, &bindings, err)
                      : cb_step_enter(step, &bindings, &n_alloc, err));
    if (run->on_host)
        CB_TRY(cb_step_after_copies(step, run_staged(step, run, &bindings, &stats, err), err));
    else CB_TRY(step->backend->run(step->state, &bindings, &stats, err));
    if (run->update) cb_inner_updates_end(&inner);
    CB_TRY(step->backend->record(step->device, step->turn.stream, step->turn.ended, err));
    step->has_run = !run->block; /* with the caller's block, the gradients kept inside are lost */
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

cb_status cb_step_resident(const cb_step *step, uint32_t group, cb_resident *out, cb_error *err) {
    if (!step->backend->resident)
        return cb_fail(
            err, CB_UNSUPPORTED,
            "resident: the backend \"%s\" does not keep the numbers of updates in device memory",
            step->backend->name);
    if (step->backend->resident(step->state, group, out)) return CB_OK;
    return cb_fail(err, CB_INVALID, "resident: there has been no update of group %u", group);
}
