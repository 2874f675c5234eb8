/* A run: fills in the addresses of its arguments, and launches the kernels one after another. */
#include "run.h"

#include "device/device.h"
#include "ops/product.h"

typedef cb_cu_executable executable;
typedef cb_cu_failure failure;

static uint64_t step_at(const executable *x) { return x->failed + sizeof(failure); }

cb_status cb_cu_bring_step(executable *x, void *stream, uint32_t step, bool *captured,
                           cb_error *err) {
    *captured = false;
    if (!x->code.reads_step) return CB_OK;
    CB_TRY(cb_cu_is_captured(x->d, stream, captured, err));
    const bool is_there = *captured || (x->knows_step && x->step_there == step);
    x->knows_step = false; /* unknown until the whole run has been launched */
    x->step_wanted = step;
    if (!is_there)
        CB_CU(&x->d->driver,
              cuMemcpyHtoDAsync(step_at(x), &x->step_wanted, sizeof x->step_wanted, stream));
    x->step_there = (uint64_t)step + 1;
    return CB_OK;
}

void cb_cu_use_arena(executable *x, uint64_t arena) {
    if (x->arena == arena) return;
    x->arena = arena;
    for (size_t k = 0; k < x->code.params.len; k++) {
        const cb_cu_param *p = &x->code.params.at[k];
        switch (p->place) {
            case CB_CU_ARENA: x->value[k] = x->arena + p->offset; break;
            case CB_CU_EXTRA: x->value[k] = x->extra + p->offset; break;
            case CB_CU_FAILURE: x->value[k] = x->failed; break;
            case CB_CU_STEP:
            case CB_CU_COUNT: x->value[k] = step_at(x); break;
            case CB_CU_NUMBER: x->value[k] = p->offset; break;
            default: break;
        }
    }
}

/* Checks that an argument is in this device's memory. An address that passed the check last time is
 * not checked again. */
static cb_status check_argument(executable *x, const cb_argument *a, const char *kind, uint32_t i,
                                const void *at, const void **known, cb_error *err) {
    enum { DEVICE_ORDINAL = 9, UNKNOWN = 1 };
    const char *name = a->name ? a->name : "";
    int ordinal;
    if (a->bytes == 0 || (at && at == *known)) return CB_OK;
    if (!at)
        return cb_fail(err, CB_INVALID, "run: no buffer was given for %s %u (\"%s\")", kind, i,
                       name);
    const int code =
        x->d->driver.cuPointerGetAttribute(&ordinal, DEVICE_ORDINAL, (uint64_t)(uintptr_t)at);
    if (code == UNKNOWN)
        return cb_fail(err, CB_INVALID, "run: %s %u (\"%s\") is not in a device's memory", kind, i,
                       name);
    if (code) return cb_cu_failed(&x->d->driver, "cuPointerGetAttribute", code, err);
    if (ordinal != x->d->ordinal)
        return cb_fail(err, CB_INVALID,
                       "run: %s %u (\"%s\") is on device %d, but the step runs on device %d", kind,
                       i, name, ordinal, x->d->ordinal);
    *known = at;
    return CB_OK;
}

static cb_status bind(executable *x, const cb_bindings *b, cb_error *err) {
    const cb_program *p = x->program;
    for (uint32_t i = 0; i < p->n_input; i++)
        CB_TRY(check_argument(x, &p->input[i], "input", i, b->inputs[i], &x->known[i], err));
    for (uint32_t i = 0; i < p->n_output; i++) {
        const bool inside = p->operand[p->output[i].operand].space == CB_SPACE_ARENA;
        if (!inside)
            CB_TRY(check_argument(x, &p->output[i], "output", i, b->outputs[i],
                                  &x->known[p->n_input + i], err));
    }
    for (size_t k = 0; k < x->code.params.len; k++) {
        const cb_cu_param *at = &x->code.params.at[k];
        switch (at->place) {
            case CB_CU_INPUT:
                x->value[k] = (uint64_t)(uintptr_t)b->inputs[at->index] + at->offset;
                break;
            case CB_CU_OUTPUT:
                x->value[k] = (uint64_t)(uintptr_t)b->outputs[at->index] + at->offset;
                break;
            case CB_CU_SEED: x->value[k] = b->seed; break;
            default: break;
        }
    }
    return CB_OK;
}

/* Records events between groups, if times of groups are requested. */
static cb_status mark(executable *x, void *stream, uint32_t *at, uint32_t group, cb_error *err) {
    for (; x->group_seconds && *at <= group; (*at)++)
        CB_CU(&x->d->driver, cuEventRecord(x->event[*at], stream));
    return CB_OK;
}

static cb_status multiply(executable *x, const cb_cu_launch *l, void *stream, cb_error *err) {
    const cb_cu_call *c = &x->code.calls.at[l->call];
    const uint64_t *value = x->value + l->param_begin;
    return cb_cu_product_put(&x->blaslt, x->code.products, &c->product, value[c->x], value[c->y],
                             value[c->out], c->room < 0 ? 0 : value[c->room], stream, err);
}

static cb_status launch(executable *x, void *stream, cb_error *err) {
    uint32_t marked = 0;
    for (size_t k = 0; k < x->code.launches.len; k++) {
        const cb_cu_launch *l = &x->code.launches.at[k];
        CB_TRY(mark(x, stream, &marked, l->group, err));
        if (l->call != CB_NONE) {
            CB_TRY(multiply(x, l, stream, err));
            continue;
        }
        CB_CU(&x->d->driver,
              cuLaunchKernel(x->function[l->kernel], l->grid.x, l->grid.y, l->grid.z, l->threads, 1,
                             1, l->shared, stream, x->parameter + l->param_begin, NULL));
    }
    return mark(x, stream, &marked, x->program->n_group, err);
}

cb_status cb_cu_put_run(executable *x, const cb_bindings *b, cb_error *err) {
    void *const stream = cb_cu_stream_of(x->d, b->stream);
    CB_TRY(cb_cu_check_stream(x->d, stream, err));
    cb_cu_use_arena(x, (uint64_t)(uintptr_t)b->arena);
    CB_TRY(bind(x, b, err));
    x->group_seconds = b->group_seconds;
    bool captured;
    CB_TRY(cb_cu_bring_step(x, stream, b->step, &captured, err));
    CB_TRY(launch(x, stream, err));
    x->was_captured |= captured;
    x->knows_step = !x->was_captured;
    return CB_OK;
}
