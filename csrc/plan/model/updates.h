/* updates.h: gradients that an optimizer update consumes inside the step. A storage may name the
 * static storage, a parameter's, that its update rewrites. The update is not an op, and takes no
 * step, time or bytes. It comes after the last of
 *
 *   - the step that makes the gradient, which runs once, and the gradient's last reader,
 *   - the first step of the backward,
 *   - the last run of an op that has an input in the parameter's storage, or into which the value
 *     of such an op is inlined. Views do not count: they read no memory.
 *
 * Until then the gradient is alive. So any schedule is valid, and a run that reads a parameter late
 * costs the bytes of its gradient. Internal. */
#ifndef CB_PLAN_UPDATES_H
#define CB_PLAN_UPDATES_H

#include "problem.h"

static inline bool cb_is_updating(const cb_problem *p, uint32_t storage) {
    return p->updates && p->updates[storage] != CB_NONE;
}

/* Gradients that are alive while an op runs. Without updates both are NULL. */
typedef struct cb_follows {
    uint32_t *begin;    /* [n_op + 1] into `gradient` */
    uint32_t *gradient; /* storages whose parameters the op reads */
} cb_follows;

static inline uint32_t cb_follows_begin(const cb_follows *x, uint32_t op) {
    return x->begin ? x->begin[op] : 0;
}
static inline uint32_t cb_follows_end(const cb_follows *x, uint32_t op) {
    return x->begin ? x->begin[op + 1] : 0;
}

/* Makes `gradient` the storage that an update of `parameter` reads. */
CB_MUST_CHECK cb_status cb_set_update(cb_problem *p, uint32_t gradient, uint32_t parameter,
                                      cb_error *err);
CB_MUST_CHECK cb_status cb_list_follows(const cb_problem *p, cb_arena *arena, cb_follows *out,
                                        cb_error *err);
/* `root` [n_storage]: the first op with an output in a storage. */
CB_MUST_CHECK cb_status cb_verify_updates(const cb_problem *p, const uint32_t *root, cb_error *err);
/* Features that keep gradients to the end refuse problems with updates. */
CB_MUST_CHECK cb_status cb_refuse_updates(const cb_problem *p, const char *what, cb_error *err);

#endif
