/* Updates on the host for a backend that has no kernels for the optimizer: parameters, gradients
 * and states are copied to host memory, stepped as on a CPU, with the same bits, and copied back.
 * The update waits for the run first, because a failed run must not change anything. */
#include "step_parts.h"

bool cb_step_has_kernels(const cb_step *step, const cb_optimizer *optimizer) {
    return !step->backend->steps || step->backend->steps(optimizer);
}

enum { PARAM, GRAD, STATE }; /* arrays of a row */

static uint64_t whole_lines(uint64_t bytes) { return (bytes + CB_ALIGN - 1) / CB_ALIGN * CB_ALIGN; }

/* Returns the bytes of an array of a row; 0: the row does not have it. */
static uint64_t bytes_of(const cb_update *u, const cb_optim_row *row, uint32_t array) {
    const cb_optimizer *o = u->optimizer;
    const double *hyper = u->hyper + (size_t)row->group * o->n_hyper;
    if (array < STATE) return (uint64_t)row->n * cb_dtype_size(row->dtype);
    if (array - STATE >= cb_optimizer_n_used(o, hyper)) return 0;
    return cb_optim_state_bytes(o, array - STATE, hyper, row);
}

uint64_t cb_host_update_bytes(const cb_step *step, const cb_update *u) {
    uint64_t bytes = whole_lines(step->n_gradients * sizeof(cb_optim_row));
    for (uint32_t k = 0; k < step->n_gradients; k++)
        for (uint32_t a = 0; a < STATE + u->optimizer->n_state; a++)
            bytes += whole_lines(bytes_of(u, &step->rows[k], a));
    return bytes;
}

static void *array_of(const cb_optim_row *row, uint32_t array) {
    if (array == GRAD) return (void *)(uintptr_t)row->grad;
    return array == PARAM ? row->param : row->state[array - STATE];
}

static void set_array(cb_optim_row *row, uint32_t array, void *data) {
    if (array == GRAD) row->grad = data;
    else if (array == PARAM) row->param = data;
    else row->state[array - STATE] = data;
}

/* Lays out the copies of a row at *at, and queues the copying of its arrays. */
static cb_status bring(const cb_step *step, const cb_update *u, const cb_optim_row *from,
                       cb_optim_row *to, char **at, cb_error *err) {
    *to = *from;
    for (uint32_t a = 0; a < STATE + u->optimizer->n_state; a++) {
        const uint64_t bytes = bytes_of(u, from, a);
        if (bytes == 0) continue;
        set_array(to, a, *at);
        CB_TRY(step->backend->copy(step->device, step->turn.stream, CB_WAY_OUT, *at,
                                   array_of(from, a), bytes, err));
        *at += whole_lines(bytes);
    }
    return CB_OK;
}

static cb_status take_back(const cb_step *step, const cb_update *u, const cb_optim_row *host,
                           const cb_optim_row *device, cb_error *err) {
    for (uint32_t a = 0; a < STATE + u->optimizer->n_state; a++) {
        const uint64_t bytes = a == GRAD ? 0 : bytes_of(u, host, a);
        if (bytes == 0) continue;
        CB_TRY(step->backend->copy(step->device, step->turn.stream, CB_WAY_IN, array_of(device, a),
                                   array_of(host, a), bytes, err));
    }
    return CB_OK;
}

static cb_status bring_all(cb_step *step, const cb_update *u, cb_optim_row *rows, char *at,
                           cb_error *err) {
    for (uint32_t k = 0; k < step->n_gradients; k++)
        CB_TRY(bring(step, u, &step->rows[k], &rows[k], &at, err));
    return CB_OK;
}

static cb_status step_copies(cb_step *step, const cb_update *u, cb_optim_table *table,
                             cb_error *err) {
    CB_TRY(cb_optim_step(table, step->ctx->runtime.pool, err));
    for (uint32_t k = 0; k < step->n_gradients; k++)
        CB_TRY(take_back(step, u, &table->rows[k], &step->rows[k], err));
    return CB_OK;
}

cb_status cb_host_update_do(cb_step *step, const cb_update *u, const cb_optim_table *table,
                            cb_error *err) {
    const uint64_t beside = cb_host_update_bytes(step, u);
    cb_optim_row *rows = step->scratch;
    char *at = (char *)rows + whole_lines(step->n_gradients * sizeof *rows);
    cb_optim_table copies = *table;
    copies.rows = rows;
    copies.scratch = (char *)step->scratch + beside;
    CB_TRY(step->backend->finish(step->state, step->turn.stream, err));
    CB_TRY(cb_step_after_copies(step, bring_all(step, u, rows, at, err), err));
    return cb_step_after_copies(step, step_copies(step, u, &copies, err), err);
}
