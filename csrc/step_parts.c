#include "step_parts.h"

cb_status cb_step_add_range(cb_step *step, uint32_t *n, const char *kind, const cb_argument *a,
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
        return cb_fail(err, CB_INVALID, "%s \"%s\": ends past the address space", kind, a->name);
    step->ranges[(*n)++] = (cb_range){
        .begin = begin, .end = begin + a->bytes, .kind = kind, .name = a->name, .written = written};
    return CB_OK;
}

cb_status cb_step_add_others(cb_step *step, uint32_t *n, const cb_run *run, cb_error *err) {
    const cb_program *p = step->program;
    for (uint32_t i = 0; i < p->n_input; i++) {
        const bool written = p->input[i].role_or_kind == CB_ROLE_STATE;
        if (step->is_stepped[i]) continue;
        CB_TRY(cb_step_add_range(step, n, "input", &p->input[i], run->inputs[i], written, err));
    }
    for (uint32_t i = 0; i < p->n_output; i++) {
        if (p->operand[p->output[i].operand].space != CB_SPACE_OUTPUT) continue;
        CB_TRY(cb_step_add_range(step, n, "output", &p->output[i], run->outputs[i], true, err));
    }
    return CB_OK;
}

cb_run_block *cb_step_block(const cb_step *step) {
    return cb_run_block_of(step->memory, step->backend, step->pinned);
}

cb_status cb_step_after_copies(const cb_step *step, cb_status status, cb_error *err) {
    const cb_status synced =
        step->backend->sync(step->device, step->turn.stream, status == CB_OK ? err : NULL);
    return status == CB_OK ? synced : status;
}
