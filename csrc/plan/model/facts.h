/* facts.h: what every part of the planner asks of a problem again and again, worked out once: which
 * op allocates a storage, what may run twice, what the user wants, and the base order. Internal.
 *
 * The base order is the given order without the ops that nobody needs: placeholders excluded,
 * forward first. A position is an index into it.
 *
 * What runs again is a unit: an op, or one output of an op with an inside (inside.h), whose runs
 * make some of the outputs. Units are numbered behind the ops, an op's next to each other; an op
 * without an inside is its own unit. An op with an inside is an id of its own too, which stands for
 * all of its outputs that anybody needs. */
#ifndef CB_PLAN_FACTS_H
#define CB_PLAN_FACTS_H

#include "cost.h"

typedef struct cb_facts {
    const cb_problem *p;
    const cb_device *device;
    cb_alloc *alloc;      /* for scratch of whoever works with the facts */
    uint32_t n_unit;      /* ids: n_op ops, and the units of those with an inside */
    uint32_t *unit_begin; /* [n_op + 1] the units of op i's outputs; NULL: no op has an inside */
    uint32_t *unit_op;    /* [n_unit - n_op] */
    uint32_t *useful;     /* [n_op] outputs that anybody needs, of an op with an inside; NULL */
    int64_t *time_ps;     /* [n_unit] of one run */
    int64_t
        *cost_ps;    /* [n_unit] what searches count for a run after the first: its time, more where
                         the user prefers to save, less where the user prefers to recompute */
    bool bent;       /* do the two differ anywhere? */
    int64_t once_ps; /* the least that a plan takes: the base order, each op once, or taken in where
                        that is less */
    int64_t inlining_ps;     /* what the base order takes more than that */
    bool *inlines;           /* [n_unit] some op may take it in (inlining.h), and it may run twice;
                                NULL: no op may take in anything */
    int64_t *inline_cost_ps; /* [inlinings] what searches count for it, as `cost_ps` */
    int64_t *least_cost_ps;  /* [n_unit] of making it again, whichever way is cheapest: `cost_ps` or
                                an inlining; the same array where nothing is taken in */
    uint32_t
        *root; /* [n_storage] op that allocates it, CB_NONE: static, unused or of a dropped op */
    uint32_t *unit; /* [n_storage] the unit that makes it, CB_NONE likewise */
    bool *once; /* [n_unit] may not run twice: by its flags, or as it, or a view of what it makes,
                   touches memory that is mutated */
    uint64_t
        *again_bytes; /* [n_unit] what a run after the first makes of the caller's storages, for
                              itself alone: the caller's memory is written once */
    bool has_again;   /* does any op? */
    bool *stays;      /* [n_unit] its first run never falls away though later runs may: it makes
                         storages of the caller, or it is a collective */
    bool *held;       /* [n_storage] alive when the backward starts whatever the plan */
    uint32_t *scope;  /* [n_storage] innermost region that holds its op and all its forward readers,
                        CB_NONE: none */
    uint8_t *wish;    /* [n_unit] cb_constraint of what it allocates, all views considered */
    uint32_t *wish_value; /* [n_unit] the value that says so, CB_NONE: none */
    bool offloads;        /* some wish is to offload */
    uint32_t n_base;
    uint32_t *base;         /* [n_base] ops */
    uint32_t *position;     /* [n_unit] CB_NONE: dropped or a placeholder */
    uint32_t base_backward; /* position of the first backward op */
    bool all;               /* ops of the backward may run late, and again, like those of the
                               forward (CB_RERUNS_ALL). Whoever copies facts may clear it */
    bool spared; /* before each op of the base order stands one that does nothing (spare.h) */
    uint32_t first_spare; /* if `spared`: ops with this id or a larger one are spare */
} cb_facts;

/* CB_INVALID: constraints contradict each other; the text names both sides. */
CB_MUST_CHECK cb_status cb_facts_make(const cb_problem *p, const cb_device *device, cb_arena *arena,
                                      cb_facts *out, cb_error *err);

/* Moves ops of the backward that no tangent reaches to the end of the forward, in place: those in
 * `hoist` [n_op] and what they need. Ops that may run only once, and ops beside memory that the
 * backward writes into, stay where they are, and so does whatever needs them. Wishes and regions
 * stay those of the given order. */
CB_MUST_CHECK cb_status cb_facts_hoist(cb_facts *f, const bool *hoist, cb_error *err);

/* Does `storage` count against the limit of `region`? It does when its op and all its forward
 * readers lie in the region (or regions inside it) and it is not held: what leaves a region is its
 * caller's business. */
bool cb_inside_region(const cb_facts *f, uint32_t storage, uint32_t region);

#define CB_AGAINST_PREFERENCE 4 /* factor on the cost of going against a PREFER_* */

/* May a plan run the op again, or for the first time after its place in the base order? Ops of the
 * forward that are free to run twice may, whatever they make: what is held of it belongs to the
 * first run (schedule.h). With `all`, ops of the backward may as well, except collectives and the
 * first op. The search, the floor and explain all ask here. */
bool cb_may_rerun(const cb_facts *f, uint32_t unit);
/* The same of all units, into `out` [n_unit], but for those of which all stays to the end: a search
 * frees nothing by them. */
void cb_facts_mark_free(const cb_facts *f, bool *out);
/* May a plan run this op of the backward late? */
static inline bool cb_may_delay(const cb_facts *f, uint32_t unit) {
    return f->position[unit] != CB_NONE && f->position[unit] >= f->base_backward &&
           cb_may_rerun(f, unit);
}
/* True if any op of the backward may run late. */
static inline bool cb_may_delay_any(const cb_facts *f) {
    for (uint32_t k = f->base_backward; k < f->n_base; k++)
        if (cb_may_delay(f, f->base[k])) return true;
    return false;
}
/* Do flags keep all that the op makes to the end? Then a rerun would free nothing. */
bool cb_makes_only_held(const cb_facts *f, uint32_t op);
/* May a plan let the op take in what lies in the storage, which then needs no bytes there? */
bool cb_may_take_in(const cb_facts *f, uint32_t op, uint32_t storage);
/* Bytes of what every plan has at its end: results and gradients. */
uint64_t cb_held_bytes(const cb_facts *f);
/* Is the storage there from its op's first run to the end, so that no rerun frees it? */
static inline bool cb_stays_to_end(const cb_facts *f, uint32_t storage) {
    return f->p->storage_flags[storage] & CB_STORE_HOLD_END;
}

static inline bool cb_is_view(const cb_facts *f, uint32_t op) {
    return op < f->p->n_op && (f->p->op_flags[op] & CB_POP_VIEW);
}

static inline uint32_t cb_unit_op(const cb_facts *f, uint32_t unit) {
    return unit < f->p->n_op ? unit : f->unit_op[unit - f->p->n_op];
}
/* Is the id an op whose outputs are units? */
static inline bool cb_has_units(const cb_facts *f, uint32_t op) {
    return f->unit_begin && op < f->p->n_op && f->unit_begin[op] < f->unit_begin[op + 1];
}
/* The outputs that an id stands for. */
static inline uint32_t cb_unit_made(const cb_facts *f, uint32_t unit) {
    if (unit >= f->p->n_op) return UINT32_C(1) << (unit - f->unit_begin[cb_unit_op(f, unit)]);
    return cb_has_units(f, unit) ? f->useful[unit] : CB_ALL_OUTPUTS;
}
/* The output of its op, as a set, that a value is; 0: its op has no inside. */
static inline uint32_t cb_value_made(const cb_facts *f, uint32_t value) {
    uint32_t op = f->p->value_op[value];
    return cb_has_units(f, op) ? UINT32_C(1) << (value - f->p->out_begin[op]) : 0;
}
/* The value that a unit makes which some op may take in. */
static inline uint32_t cb_unit_value(const cb_facts *f, uint32_t unit) {
    uint32_t op = cb_unit_op(f, unit);
    return f->p->out_begin[op] + (unit < f->p->n_op ? 0 : unit - f->unit_begin[op]);
}
static inline bool cb_unit_inlines(const cb_facts *f, uint32_t unit) {
    return f->inlines && f->inlines[unit];
}
/* True if the value is a forward value that the end of the backward needs and the cut may make
 * there: it is not a view, and nothing holds it in memory from its first run on. Not for problems
 * with insides or inlinings. */
bool cb_may_remake_at_end(const cb_facts *f, uint32_t value);
/* What searches count for a run after the first that makes these outputs. */
int64_t cb_again_cost_ps(const cb_facts *f, uint32_t op, uint32_t made);

#define CB_OP_TEXT 160
/* "matmul_12 (model.py:3)" */
const char *cb_op_text(const cb_problem *p, uint32_t op, char buffer[CB_OP_TEXT]);
/* Name and source line of an op; CB_NONE leaves them empty. */
void cb_refusal_set_op(cb_refusal *refusal, const cb_problem *p, uint32_t op);

#endif
