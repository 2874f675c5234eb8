#include "expression.h"

#include "compile.h"
#include "nodes.h"
#include "step.h"

static char *copy_text(cb_expression *x, const char *text) {
    return cb_arena_strdup(&x->arena, text, strlen(text));
}

/* Creates the interface of an optimizer: its names, and its hyper-parameters, which only need to be
 * finite. */
static cb_status make_face(cb_expression *x, const cb_expression_spec *s, cb_error *err) {
    const char **state = CB_NEW(&x->arena, const char *, s->n_states);
    cb_hyper *hyper = CB_NEW(&x->arena, cb_hyper, s->n_hyper);
    const char *name = copy_text(x, s->name);
    if (!state || !hyper || !name) return cb_no_memory(err);
    for (uint32_t k = 0; k < s->n_states; k++)
        if (!(state[k] = copy_text(x, s->states[k]))) return cb_no_memory(err);
    for (uint32_t k = 0; k < s->n_hyper; k++) {
        hyper[k] = (cb_hyper){copy_text(x, s->hyper[k]), -CB_HYPER_MOST, CB_HYPER_MOST, false};
        if (!hyper[k].name) return cb_no_memory(err);
    }
    x->base = (cb_optimizer){.name = name,
                             .n_state = s->n_states,
                             .n_hyper = s->n_hyper,
                             .state = state,
                             .hyper = hyper,
                             .is_f32 = true,
                             .step = cb_e_step,
                             .scratch = cb_e_scratch};
    return CB_OK;
}

cb_status cb_expression_make(cb_alloc *alloc, const cb_expression_spec *spec, cb_expression **out,
                             cb_error *err) {
    cb_arena arena;
    cb_arena_init(&arena, alloc);
    cb_expression *x = CB_NEW(&arena, cb_expression, 1);
    if (!x) {
        cb_arena_free(&arena);
        return cb_no_memory(err);
    }
    x->arena = arena;
    cb_status status = make_face(x, spec, err);
    if (status == CB_OK) status = cb_e_read(x, spec, err);
    if (status == CB_OK) status = cb_e_compile(x, err);
    if (status == CB_OK) *out = x;
    else cb_expression_free(x);
    return status;
}

void cb_expression_free(cb_expression *x) {
    if (!x) return;
    cb_arena arena = x->arena;
    cb_arena_free(&arena);
}

const cb_optimizer *cb_expression_optimizer(const cb_expression *x) { return &x->base; }
