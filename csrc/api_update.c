/* Public functions of a step's optimizer. An update is checked before the run whose gradients it
 * steps. It comes after the run or, if the step was compiled with updates inside, during the run,
 * gradient by gradient. Both use the same functions; inside a run, their table has one or a few
 * rows. */
#include "step_parts.h"

#include "optim/extras.h"

static const cb_argument *gradient_of(const cb_step *step, uint32_t k) {
    const cb_program *p = step->program;
    return &p->output[p->n_output - step->n_gradients + k];
}

static const double *hyper_of(const cb_update *u, uint32_t k) {
    return u->hyper + (size_t)u->group[k] * u->optimizer->n_hyper;
}

/* Returns the number of states of a parameter's group. */
static uint32_t n_used(const cb_update *u, uint32_t k) {
    return cb_optimizer_n_used(u->optimizer, hyper_of(u, k));
}

/* Returns a row without arrays: what the forms of its states depend on. */
static cb_optim_row row_of(const cb_step *step, const cb_update *u, uint32_t k) {
    const cb_argument *gradient = gradient_of(step, k);
    cb_optim_row row = {
        .n = cb_numel(&gradient->shape), .t = u->t, .dtype = gradient->dtype, .group = u->group[k]};
    (void)cb_optimizer_see(u->optimizer, gradient->shape.rank, gradient->shape.dim, &row);
    return row;
}

static uint64_t state_bytes(const cb_step *step, const cb_update *u, uint32_t s, uint32_t k) {
    const cb_optim_row row = row_of(step, u, k);
    return cb_optim_state_bytes(u->optimizer, s, hyper_of(u, k), &row);
}

/* Adds the memory of one state to the step's list. */
static cb_status add_state(cb_step *step, uint32_t *n, const cb_update *u, uint32_t s, uint32_t k,
                           cb_error *err) {
    const cb_optimizer *o = u->optimizer;
    const cb_state_kind kind = cb_optimizer_state_kind(o, s);
    cb_argument state = *gradient_of(step, k);
    state.bytes = state_bytes(step, u, s, k);
    if (kind == CB_STATE_CODES) state.dtype = CB_U8;
    if (kind == CB_STATE_SCALES) state.dtype = CB_F32;
    return cb_step_add_range(step, n, o->state[s], &state, u->states[s][k], true, err);
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
                       "%s: parameter \"%s\" is in group %u, but there are %u groups", o->name,
                       gradient->name, u->group[k], u->n_groups);
    }
    cb_optim_row row = {.n = 0};
    if (!cb_optimizer_see(o, gradient->shape.rank, gradient->shape.dim, &row)) {
        return cb_fail(err, CB_INVALID,
                       "%s: parameter \"%s\" has %d axes; only matrices are stepped, so take the "
                       "gradients of the other parameters and step them with another optimizer",
                       o->name, gradient->name, gradient->shape.rank);
    }
    CB_TRY(cb_step_add_range(step, n, "parameter", gradient, u->params[k], true, err));
    for (uint32_t s = 0; s < n_used(u, k); s++) CB_TRY(add_state(step, n, u, s, k, err));
    return CB_OK;
}

/* Lists what an update writes in addition to parameters and states. */
static cb_status add_beside(cb_step *step, uint32_t *n, const cb_extra_row *row, uint32_t k,
                            cb_error *err) {
    cb_argument copy = *gradient_of(step, k);
    CB_TRY(row->average ? cb_step_add_range(step, n, "average", &copy, row->average, true, err)
                        : CB_OK);
    copy.bytes = copy.bytes / cb_dtype_size(copy.dtype) * cb_dtype_size(row->copy_dtype);
    copy.dtype = row->copy_dtype;
    return row->copy ? cb_step_add_range(step, n, "copy", &copy, row->copy, true, err) : CB_OK;
}

static cb_status check_extras(cb_step *step, uint32_t *n, const cb_update *u, cb_error *err) {
    const char *name = u->optimizer->name;
    if (!u->extras) return CB_OK;
    if (step->updates_inside) {
        return cb_fail(
            err, CB_UNSUPPORTED,
            "%s: this step updates inside its runs, which neither clip, scale, average nor copy; "
            "compile it with updates after the run",
            name);
    }
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
    return u->run && u->run->inputs && u->run->outputs ? cb_step_add_others(step, n, u->run, err)
                                                       : CB_OK;
}

/* Parameters are inputs of the run, which must not share memory with anything that is updated. */
static cb_status check_inside(cb_step *step, uint32_t *n, const cb_update *u, cb_error *err) {
    const char *name = u->optimizer->name;
    if (!step->backend->updates_inside)
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s: the backend \"%s\" does not update inside its runs", name,
                       step->backend->name);
    if (!u->run || !u->run->inputs || !u->run->outputs)
        return cb_fail(err, CB_INVALID,
                       "%s: this step updates inside its runs, but no run is given", name);
    for (uint32_t k = 0; k < step->n_gradients; k++) {
        const cb_argument *gradient = gradient_of(step, k);
        if (gradient->bytes == 0 || u->params[k] == u->run->inputs[gradient->input]) continue;
        return cb_fail(err, CB_INVALID, "%s: parameter \"%s\" is not the input of the run", name,
                       gradient->name);
    }
    return cb_step_add_others(step, n, u->run, err);
}

/* Checks that no required list is missing. */
static cb_status check_lists(const cb_step *step, const cb_update *u, cb_error *err) {
    if (!u || !u->optimizer)
        return cb_fail(err, CB_INVALID, "update: no %s given (NULL)", u ? "optimizer" : "update");
    const char *name = u->optimizer->name;
    if (!step->keep_gradients)
        return cb_fail(err, CB_INVALID, "%s: the step was compiled without keep_gradients", name);
    if (!step->backend->update) {
        return cb_fail(err, CB_UNSUPPORTED, "%s: the backend \"%s\" has no optimizers", name,
                       step->backend->name);
    }
    if (u->n_groups && !u->hyper)
        return cb_fail(err, CB_INVALID, "%s: n_groups is %u, but hyper is NULL", name, u->n_groups);
    if (!step->n_gradients) return CB_OK;
    bool complete = u->params && u->states && u->group;
    for (uint32_t s = 0; complete && s < u->optimizer->n_state; s++) complete = u->states[s];
    complete = complete && (u->numbers || !u->optimizer->n_number);
    return complete ? CB_OK : cb_fail(err, CB_INVALID, "%s: a list is NULL", name);
}

static uint32_t state_slot(const cb_step *step, uint32_t s, uint32_t k) {
    return step->program->n_input + step->program->n_output + s * step->n_gradients + k;
}

/* Reads the numbers that are stored for a parameter, before the step. */
static void numbers_before(const cb_update *u, uint32_t k, double *number) {
    const cb_optimizer *o = u->optimizer;
    for (uint32_t i = 0; i < o->n_number; i++) number[i] = u->numbers[k * o->n_number + i];
    if (u->t == 1) cb_optimizer_count_on(o, u->hyper + (size_t)u->group[k] * o->n_hyper, 0, number);
}

/* Fills a row: the caller's parameter and states, and the gradient in the backend's memory. */
static void fill_row(const cb_step *step, const cb_update *u, uint32_t k, cb_optim_row *row) {
    *row = row_of(step, u, k);
    row->param = u->params[k];
    row->grad = step->backend->address(step->state, gradient_of(step, k)->operand);
    for (uint32_t s = 0; s < n_used(u, k); s++) row->state[s] = u->states[s][k];
    numbers_before(u, k, row->number);
}

cb_status cb_step_fill_rows(cb_step *step, const cb_update *u, cb_error *err) {
    for (uint32_t k = 0; k < step->n_gradients; k++) {
        const cb_argument *gradient = gradient_of(step, k);
        cb_optim_row *row = &step->rows[k];
        fill_row(step, u, k, row);
        if (!u->on_host) continue;
        CB_TRY(cb_stage(&step->staging, gradient->input, row->param, gradient->bytes,
                        u->there && u->there[k], &row->param, err));
        for (uint32_t s = 0; s < n_used(u, k); s++)
            CB_TRY(cb_stage(
                &step->staging, state_slot(step, s, k), row->state[s], state_bytes(step, u, s, k),
                u->there && u->there[(1 + s) * step->n_gradients + k], &row->state[s], err));
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
                         state_bytes(step, u, s, k), err));
    }
    return CB_OK;
}

cb_optim_table cb_step_table(const cb_step *step, const cb_update *u) {
    return (cb_optim_table){.optimizer = u->optimizer,
                            .grad_factor = 1,
                            .scratch = step->scratch,
                            .products = &step->ctx->products,
                            .rows = step->rows,
                            .hyper = u->hyper,
                            .n_rows = step->n_gradients,
                            .n_groups = u->n_groups,
                            .n_hyper = u->optimizer->n_hyper};
}

/* Allocates what the update needs before the run, because updates do not allocate and their failure
 * would lose the results of the run. */
static cb_status make_room(cb_step *step, const cb_update *u, cb_error *err) {
    for (uint32_t k = 0; k < step->n_gradients; k++) step->rows[k] = row_of(step, u, k);
    const cb_optim_table table = cb_step_table(step, u);
    const bool is_device = !step->backend->is_host;
    if (is_device && cb_step_has_kernels(step, u->optimizer)) return CB_OK;
    CB_TRY(cb_optim_check_sizes(u->optimizer, &table, err));
    const uint64_t scratch =
        cb_optim_scratch(u->optimizer, u->hyper, step->rows, step->n_gradients);
    const uint64_t beside = is_device ? cb_host_update_bytes(step, u) : 0;
    if (scratch + beside <= step->n_scratch) return CB_OK;
    void *made = cb_malloc(&step->ctx->alloc, scratch + beside);
    if (!made) return cb_no_memory(err);
    cb_free(&step->ctx->alloc, step->scratch);
    step->scratch = made;
    step->n_scratch = scratch + beside;
    return CB_OK;
}

cb_status cb_step_check_update(cb_step *step, const cb_update *u, cb_error *err) {
    uint32_t n = 0;
    CB_TRY(check_lists(step, u, err));
    CB_TRY(cb_optimizer_check(u->optimizer, u->hyper, u->n_groups, err));
    for (uint32_t k = 0; k < step->n_gradients; k++) CB_TRY(add_parameter(step, &n, u, k, err));
    CB_TRY(make_room(step, u, err));
    CB_TRY(check_extras(step, &n, u, err));
    if (step->updates_inside) CB_TRY(check_inside(step, &n, u, err));
    CB_TRY(cb_ranges_check(step->ranges, n, &step->update_ranges, err));
    if (step->backend->ready && cb_step_has_kernels(step, u->optimizer))
        CB_TRY(step->backend->ready(step->state, u->optimizer, err));
    const bool is_staged = u->on_host && !step->backend->is_host;
    return is_staged ? cb_step_fill_rows(step, u, err)
                     : CB_OK; /* allocates the memory for copies */
}

static cb_status put_update(cb_step *step, const cb_update *u, cb_optim_outcome *outcome,
                            cb_error *err) {
    cb_optim_table table = cb_step_table(step, u);
    if (u->extras)
        *outcome = cb_gradients_measure(&table, u->extras, step->ctx->runtime.pool, step->squares);
    if (outcome->skipped) return CB_OK;
    CB_TRY(step->backend->record(step->device, step->turn.stream, step->stepping, err));
    step->has_update = true;
    if (!cb_step_has_kernels(step, u->optimizer)) return cb_host_update_do(step, u, &table, err);
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

/* Updates the numbers that are stored per parameter, after the step. */
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
    if (step->updates_inside)
        return cb_fail(err, CB_INVALID,
                       "%s: this step updates inside its runs; give the update to "
                       "the run",
                       name);
    if (!step->has_run)
        return cb_fail(err, CB_INVALID, "%s: there are no gradients yet; run the step first", name);
    if (cb_step_block(step)->last != &step->turn) {
        return cb_fail(
            err, CB_INVALID,
            "%s: the gradients are gone: since the run, the memory of this step was used "
            "by another one or released; update before that",
            name);
    }
    CB_TRY(cb_step_fill_rows(step, u, err));
    for (uint32_t k = 0; k < step->n_gradients; k++) {
        if (step->rows[k].grad || step->rows[k].n == 0) continue;
        return cb_fail(err, CB_UNSUPPORTED, "%s: the backend \"%s\" has no gradients", name,
                       step->backend->name);
    }
    if (u->on_host) CB_TRY(cb_step_after_copies(step, update_staged(step, u, &outcome, err), err));
    else CB_TRY(put_update(step, u, &outcome, err));
    CB_TRY(step->backend->record(step->device, step->turn.stream, step->turn.ended, err));
    if (!outcome.skipped) count_on(step, u);
    if (u->outcome) *u->outcome = outcome;
    return CB_OK;
}

/* ---- inside a run ---------------------------------------------------------------------------- */

cb_status cb_inner_updates_check(cb_step *step, const cb_run *run, cb_error *err) {
    if (!step->updates_inside)
        return cb_fail(err, CB_INVALID,
                       "run: this step updates after its runs; call cb_step_update");
    if (run->update->run != run)
        return cb_fail(err, CB_INVALID, "run: the `run` of its update is not this run");
    return cb_step_check_update(step, run->update, err);
}

bool cb_inner_updates_after(void *user, uint32_t group) {
    cb_inner_updates *x = user;
    cb_step *step = x->step;
    const uint32_t first = x->n_done;
    while (x->n_done < step->n_gradients && step->due[x->n_done].group <= group) {
        fill_row(step, x->update, step->due[x->n_done].gradient, &step->rows[x->n_done]);
        x->n_done++;
    }
    cb_optim_table table = cb_step_table(step, x->update);
    table.rows += first;
    table.n_rows = x->n_done - first;
    if (table.n_rows > 0) x->update->optimizer->step(&table, step->ctx->runtime.pool);
    return x->n_done > 0;
}

void cb_inner_updates_end(const cb_inner_updates *x) {
    count_on(x->step, x->update);
    if (x->update->outcome) *x->update->outcome = (cb_optim_outcome){.norm = -1};
}
