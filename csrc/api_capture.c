/* Public functions of captured steps. A graph reads its arguments at the addresses of its capture;
 * copies to and from them are queued before and after it. The copies are not part of the graph, so
 * a replay may be given any arrays. */
#include <string.h>

#include "include/cutback_capture.h"
#include "step_parts.h"

struct cb_captured {
    cb_step *step;
    cb_arena arena;                /* the object itself is in it */
    void *graph;                   /* the backend's */
    const cb_optimizer *optimizer; /* NULL: there is no update */
    cb_optim_row *rows;            /* [n_gradients] */
    uint32_t n_groups;
    void **inputs, **outputs; /* [n_input], [n_output] of the graph */
};

/* ---- capturing ------------------------------------------------------------------------------- */

static cb_status check(cb_step *step, const cb_run *run, const cb_update *update, cb_error *err) {
    if (!step->backend->capturing)
        return cb_fail(err, CB_UNSUPPORTED, "capture: the backend \"%s\" cannot replay graphs",
                       step->backend->name);
    if (!run) return cb_fail(err, CB_INVALID, "capture: no bindings given (NULL)");
    if (run->on_host || run->block || run->update || (update && update->extras))
        return cb_fail(
            err, CB_INVALID,
            "capture: needs arrays on the device, and supports neither a block nor extras");
    CB_TRY(cb_step_check_run(step, run, err));
    if (update && update->optimizer && !cb_step_has_kernels(step, update->optimizer))
        return cb_fail(err, CB_UNSUPPORTED,
                       "capture: the backend \"%s\" steps %s in the host's memory, which cannot be "
                       "part of a graph; call the step itself",
                       step->backend->name, update->optimizer->name);
    return update ? cb_step_check_update(step, update, err) : CB_OK;
}

static cb_status copy_list(cb_captured *c, void *const *from, size_t n, void ***out,
                           cb_error *err) {
    CB_TRY_NEW(*out, &c->arena, n + 1, err);
    if (n) memcpy(*out, from, n * sizeof *from);
    return CB_OK;
}

static cb_status take_rows(cb_captured *c, const cb_update *update, cb_error *err) {
    cb_step *step = c->step;
    CB_TRY(cb_step_fill_rows(step, update, err));
    CB_TRY_NEW(c->rows, &c->arena, step->n_gradients + 1, err);
    if (step->n_gradients) memcpy(c->rows, step->rows, step->n_gradients * sizeof *c->rows);
    c->optimizer = update->optimizer;
    c->n_groups = update->n_groups;
    return CB_OK;
}

static cb_optim_table table_of(const cb_captured *c, const double *hyper) {
    return (cb_optim_table){.optimizer = c->optimizer,
                            .grad_factor = 1,
                            .rows = c->rows,
                            .hyper = hyper,
                            .n_rows = c->step->n_gradients,
                            .n_groups = c->n_groups,
                            .n_hyper = c->optimizer->n_hyper};
}

static cb_status make(cb_captured *c, const cb_run *run, const cb_update *update, cb_error *err) {
    cb_step *step = c->step;
    const cb_program *p = step->program;
    CB_TRY(copy_list(c, run->inputs, p->n_input, &c->inputs, err));
    CB_TRY(copy_list(c, run->outputs, p->n_output, &c->outputs, err));
    CB_TRY(cb_step_pin(step, err));
    const cb_bindings bindings = {.inputs = c->inputs,
                                  .outputs = c->outputs,
                                  .arena = cb_step_block(step)->data,
                                  .seed = run->seed,
                                  .step = run->random_step};
    const cb_capturing *k = step->backend->capturing;
    k->use(step->state, bindings.arena);
    if (!update) return k->capture(step->state, &bindings, NULL, &c->graph, err);
    CB_TRY(take_rows(c, update, err));
    const cb_optim_table table = table_of(c, update->hyper);
    return k->capture(step->state, &bindings, &table, &c->graph, err);
}

cb_status cb_step_capture(cb_step *step, const cb_run *run, const cb_update *update,
                          cb_captured **out, cb_error *err) {
    CB_TRY(check(step, run, update, err));
    cb_arena arena;
    cb_arena_init(&arena, &step->ctx->alloc);
    cb_captured *c = CB_NEW(&arena, cb_captured, 1);
    if (!c) {
        cb_arena_free(&arena);
        return cb_no_memory(err);
    }
    *c = (cb_captured){.step = step, .arena = arena};
    const cb_status status = make(c, run, update, err);
    if (status == CB_OK) *out = c;
    else cb_captured_free(c);
    return status;
}

void cb_captured_free(cb_captured *captured) {
    if (!captured) return;
    captured->step->backend->capturing->release(captured->graph);
    cb_arena arena = captured->arena; /* the object is allocated in it */
    cb_arena_free(&arena);
}

/* ---- replaying ------------------------------------------------------------------------------- */

static cb_status check_list(const cb_captured_copy *list, uint32_t n, const cb_argument *all,
                            uint32_t n_all, cb_error *err) {
    if (n && !list) return cb_fail(err, CB_INVALID, "replay: a list is NULL");
    for (uint32_t k = 0; k < n; k++) {
        if (list[k].i >= n_all)
            return cb_fail(err, CB_INVALID, "replay: array %u of %u does not exist", list[k].i,
                           n_all);
        if (!list[k].data && all[list[k].i].bytes)
            return cb_fail(err, CB_INVALID, "replay: the address of array %u is NULL", list[k].i);
    }
    return CB_OK;
}

static cb_status check_replay(const cb_captured *c, const cb_captured_run *r, cb_error *err) {
    const cb_optimizer *o = c->optimizer;
    const cb_program *p = c->step->program;
    if (!r) return cb_fail(err, CB_INVALID, "replay: no arguments given (NULL)");
    CB_TRY(check_list(r->inputs, r->n_inputs, p->input, p->n_input, err));
    CB_TRY(check_list(r->outputs, r->n_outputs, p->output, p->n_output, err));
    if (!o) return CB_OK;
    if (!r->hyper || (o->n_number && !r->numbers))
        return cb_fail(err, CB_INVALID, "%s: a list is NULL", o->name);
    if (r->t < 1)
        return cb_fail(err, CB_INVALID, "%s: steps are numbered from 1, not %lld", o->name,
                       (long long)r->t);
    return cb_optimizer_check(o, r->hyper, c->n_groups, err);
}

static cb_status copy_inputs(const cb_captured *c, const cb_captured_run *r, cb_error *err) {
    const cb_step *step = c->step;
    const cb_backend *b = step->backend;
    cb_stream *const stream = step->turn.stream;
    for (const cb_captured_copy *x = r->inputs; x < r->inputs + r->n_inputs; x++) {
        const size_t bytes = (size_t)step->program->input[x->i].bytes;
        void *const to = c->inputs[x->i];
        if (x->data == to || bytes == 0) continue;
        if (x->there) CB_TRY(b->capturing->move(step->device, stream, to, x->data, bytes, err));
        else CB_TRY(b->copy(step->device, stream, CB_WAY_IN, to, x->data, bytes, err));
    }
    return CB_OK;
}

static cb_status copy_outputs(const cb_captured *c, const cb_captured_run *r, cb_error *err) {
    const cb_step *step = c->step;
    for (const cb_captured_copy *x = r->outputs; x < r->outputs + r->n_outputs; x++) {
        if (x->data == c->outputs[x->i]) continue;
        CB_TRY(step->backend->capturing->move(step->device, step->turn.stream, x->data,
                                              c->outputs[x->i],
                                              (size_t)step->program->output[x->i].bytes, err));
    }
    return CB_OK;
}

static void numbers_of(const cb_captured *c, const cb_captured_run *r, uint32_t k, double *number) {
    const cb_optimizer *o = c->optimizer;
    for (uint32_t i = 0; i < o->n_number; i++) number[i] = r->numbers[k * o->n_number + i];
    if (r->t == 1)
        cb_optimizer_count_on(o, r->hyper + (size_t)c->rows[k].group * o->n_hyper, 0, number);
}

/* Writes the caller's counts into the rows, for a replay that does not continue the latest one. */
static void refresh(cb_captured *c, const cb_captured_run *r) {
    for (uint32_t k = 0; k < c->step->n_gradients; k++) {
        c->rows[k].t = r->t;
        numbers_of(c, r, k, c->rows[k].number);
    }
}

/* Updates the numbers that are stored per parameter, after a step. */
static void count_on(const cb_captured *c, const cb_captured_run *r) {
    const cb_optimizer *o = c->optimizer;
    for (uint32_t k = 0; o->n_number && k < c->step->n_gradients; k++) {
        double *number = r->numbers + k * o->n_number;
        numbers_of(c, r, k, number);
        cb_optimizer_count_on(o, r->hyper + (size_t)c->rows[k].group * o->n_hyper, r->t, number);
    }
}

static cb_status launch(cb_captured *c, const cb_captured_run *r, cb_error *err) {
    const cb_step *step = c->step;
    const cb_capturing *k = step->backend->capturing;
    cb_stream *const stream = step->turn.stream;
    if (!c->optimizer) return k->replay(c->graph, stream, r->random_step, NULL, err);
    cb_optim_table table = table_of(c, r->hyper);
    if (k->continues(c->graph, r->t)) table.rows = NULL;
    else refresh(c, r);
    return k->replay(c->graph, stream, r->random_step, &table, err);
}

static cb_status put(cb_captured *c, const cb_captured_run *r, cb_error *err) {
    cb_step *step = c->step;
    CB_TRY(copy_inputs(c, r, err));
    CB_TRY(launch(c, r, err));
    if (c->optimizer) count_on(c, r);
    if (r->was_put) *r->was_put = true;
    CB_TRY(copy_outputs(c, r, err));
    return step->backend->record(step->device, step->turn.stream, step->turn.ended, err);
}

cb_status cb_captured_replay(cb_captured *captured, const cb_captured_run *replay, cb_error *err) {
    cb_step *step = captured->step;
    cb_bindings bindings = {.stream = replay ? (cb_stream *)replay->stream : NULL};
    uint64_t n_alloc = 0;
    bool copies = false;
    CB_TRY(check_replay(captured, replay, err));
    for (uint32_t k = 0; k < replay->n_inputs; k++) copies |= !replay->inputs[k].there;
    step->has_run = step->has_update = false;
    CB_TRY(cb_step_enter(step, &bindings, &n_alloc, err));
    const cb_status status = put(captured, replay, err);
    if (copies) CB_TRY(cb_step_after_copies(step, status, err));
    else CB_TRY(status);
    step->has_run = true;
    return CB_OK;
}

cb_status cb_captured_counts(cb_captured *captured, int64_t *t, double *numbers, cb_error *err) {
    const cb_step *step = captured->step;
    if (!captured->optimizer)
        return cb_fail(err, CB_INVALID, "counts: the captured step has no update");
    const cb_optim_table table = table_of(captured, NULL);
    return step->backend->capturing->counts(captured->graph, step->turn.stream, &table, t, numbers,
                                            err);
}

cb_status cb_captured_resident(const cb_captured *captured, uint32_t group, cb_resident *out,
                               cb_error *err) {
    const cb_step *step = captured->step;
    if (captured->optimizer && step->backend->capturing->resident(captured->graph, group, out))
        return CB_OK;
    return cb_fail(err, CB_INVALID, "resident: the captured update has no group %u", group);
}
