#include "updates.h"

cb_status cb_set_update(cb_problem *p, uint32_t gradient, uint32_t parameter, cb_error *err) {
    if (!p->updates) {
        CB_TRY_NEW(p->updates, &p->arena, p->n_storage, err);
        for (uint32_t s = 0; s < p->n_storage; s++) p->updates[s] = CB_NONE;
    }
    p->updates[gradient] = parameter;
    return CB_OK;
}

/* Fills the lists if they are allocated, otherwise counts. `gradient_of` [n_storage]. */
static uint32_t list(const cb_problem *p, const uint32_t *gradient_of, cb_follows *out) {
    uint32_t n = 0;
    for (uint32_t op = 0; op < p->n_op; op++) {
        bool runs = !(p->op_flags[op] & (CB_POP_VIEW | CB_POP_PLACEHOLDER));
        for (uint32_t j = p->in_begin[op]; runs && j < p->in_begin[op + 1]; j++) {
            uint32_t gradient = gradient_of[p->value_storage[p->in_value[j]]];
            if (gradient == CB_NONE) continue;
            if (out->gradient) out->gradient[n] = gradient;
            n++;
        }
        if (out->begin) out->begin[op + 1] = n;
    }
    return n;
}

cb_status cb_list_follows(const cb_problem *p, cb_arena *arena, cb_follows *out, cb_error *err) {
    cb_follows made = {0};
    uint32_t *gradient_of;
    *out = made;
    if (!p->updates) return CB_OK;
    CB_TRY_NEW(gradient_of, arena, p->n_storage, err);
    for (uint32_t s = 0; s < p->n_storage; s++) gradient_of[s] = CB_NONE;
    for (uint32_t s = 0; s < p->n_storage; s++)
        if (cb_is_updating(p, s)) gradient_of[p->updates[s]] = s;
    const uint32_t n = list(p, gradient_of, &made);
    CB_TRY_NEW(made.begin, arena, (size_t)p->n_op + 1, err);
    CB_TRY_NEW(made.gradient, arena, n, err);
    list(p, gradient_of, &made);
    *out = made;
    return CB_OK;
}

static cb_status refuse(uint32_t gradient, const char *why, cb_error *err) {
    return cb_fail(err, CB_INVALID, "storage %u: it cannot be read by an update: %s", gradient,
                   why);
}

static cb_status verify_one(const cb_problem *p, const uint32_t *root, const bool *returned,
                            uint32_t gradient, cb_error *err) {
    const uint32_t parameter = p->updates[gradient];
    if (parameter >= p->n_storage) {
        return cb_fail(err, CB_INVALID, "storage %u: updates storage %u, but there are %u storages",
                       gradient, parameter, p->n_storage);
    }
    if (p->storage_flags[gradient]) return refuse(gradient, "it is static or held", err);
    if (root[gradient] == CB_NONE) return refuse(gradient, "no op makes it", err);
    if (returned[gradient]) return refuse(gradient, "the forward or the backward returns it", err);
    if (root[parameter] == CB_NONE || !(p->op_flags[root[parameter]] & CB_POP_PLACEHOLDER))
        return refuse(gradient, "the storage that it updates is not that of a placeholder", err);
    return CB_OK;
}

/* Checks that no op writes into a gradient or a parameter, and that a parameter has one update. */
static cb_status verify_all(const cb_problem *p, const uint32_t *root, bool *returned,
                            bool *touched, cb_error *err) {
    for (uint32_t i = 0; i < p->n_forward_output; i++)
        returned[p->value_storage[p->forward_output[i]]] = true;
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        returned[p->value_storage[p->backward_output[i]]] = true;
    for (uint32_t v = 0; v < p->n_value; v++) {
        const uint32_t op = p->value_op[v], s = p->value_storage[v];
        touched[s] |= root[s] != op && !(p->op_flags[op] & CB_POP_VIEW);
    }
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (!cb_is_updating(p, s)) continue;
        CB_TRY(verify_one(p, root, returned, s, err));
        if (touched[s]) return refuse(s, "another op writes into it", err);
        if (touched[p->updates[s]])
            return refuse(s, "an op, or another update, writes into what it updates", err);
        touched[p->updates[s]] = true;
    }
    return CB_OK;
}

cb_status cb_verify_updates(const cb_problem *p, const uint32_t *root, cb_error *err) {
    if (!p->updates) return CB_OK;
    cb_arena scratch;
    cb_arena_init(&scratch, p->arena.alloc);
    bool *returned = CB_NEW(&scratch, bool, p->n_storage),
         *touched = CB_NEW(&scratch, bool, p->n_storage);
    const cb_status status =
        returned && touched ? verify_all(p, root, returned, touched, err) : cb_no_memory(err);
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_refuse_updates(const cb_problem *p, const char *what, cb_error *err) {
    if (!p->updates) return CB_OK;
    return cb_fail(
        err, CB_UNSUPPORTED,
        "%s: this problem has updates inside, which need gradients that are freed early; plan "
        "with the optimizer's step after the run",
        what);
}
