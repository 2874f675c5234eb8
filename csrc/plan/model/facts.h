/* facts.h: facts about a problem that all parts of the planner need, computed once: the op that
 * allocates each storage, the ops that may run twice, the user's constraints, and the base order.
 * Internal.
 *
 * The base order is the given order without placeholders and unneeded ops, forward first. A
 * position is an index into it.
 *
 * Reruns are counted in units: a unit is an op, or one output of an op with an inside (inside.h),
 * whose runs make some of the outputs. Outputs are numbered after the ops, those of an op
 * consecutively; an op without an inside is its own unit. The id of an op with an inside represents
 * all its needed outputs. */
#ifndef CB_PLAN_FACTS_H
#define CB_PLAN_FACTS_H

#include "cost.h"
#include "updates.h"

typedef struct cb_facts {
    const cb_problem *p;
    const cb_device *device;
    cb_alloc *alloc;      /* allocator for users of the facts */
    uint32_t n_unit;      /* ids: n_op ops, and the units of those with an inside */
    uint32_t *unit_begin; /* [n_op + 1] the units of op i's outputs; NULL: no op has an inside */
    uint32_t *unit_op;    /* [n_unit - n_op] */
    uint32_t *useful;     /* [n_op] needed outputs of an op with an inside; NULL */
    int64_t *time_ps;     /* [n_unit] time of one run */
    int64_t *cost_ps; /* [n_unit] cost of a rerun in searches: its time, more if the user prefers to
                        save, less if the user prefers to recompute */
    bool bent;        /* true if the two differ for a unit */
    int64_t once_ps; /* minimum time of a plan: the base order with each op once, or inlined if that
                        is less */
    int64_t inlining_ps;     /* additional time of the base order, without inlining */
    bool *inlines;           /* [n_unit] true if it may be inlined into some op (inlining.h) and may
                                run twice; NULL: no inlinings */
    int64_t *inline_cost_ps; /* [inlinings] its cost in searches, like `cost_ps` */
    int64_t *least_cost_ps;  /* [n_unit] cheapest cost of recomputing it: `cost_ps` or an inlining;
                                the same array without inlinings */
    uint32_t
        *root; /* [n_storage] op that allocates it, CB_NONE: static, unused or of a dropped op */
    uint32_t *unit; /* [n_storage] the unit that makes it, CB_NONE likewise */
    bool *once;     /* [n_unit] must not run twice: by its flags, or because it, or a view of its
                   result, uses memory that is mutated */
    uint64_t
        *again_bytes; /* [n_unit] bytes of the private copies that a rerun makes of the caller's
                         storages, whose memory is written once */
    bool has_again;   /* true if a rerun of any op makes such copies */
    bool *stays;      /* [n_unit] its first run is never dropped, although it may run again: it
                         makes storages of the caller, or it is a collective */
    bool *held;       /* [n_storage] alive when the backward starts in every plan */
    uint32_t *scope;  /* [n_storage] innermost region that holds its op and all its forward readers,
                        CB_NONE: none */
    uint8_t *wish;    /* [n_unit] cb_constraint of the storage that it allocates, considering all
                         views */
    uint32_t *wish_value; /* [n_unit] the value with that constraint; CB_NONE: none */
    bool offloads;        /* some constraint asks for offload */
    cb_follows follows;   /* gradients that are alive while an op runs */
    uint32_t n_base;
    uint32_t *base;         /* [n_base] ops */
    uint32_t *position;     /* [n_unit] CB_NONE: dropped or a placeholder */
    uint32_t base_backward; /* position of the first backward op */
    bool all;               /* ops of the backward may run late, and again, like those of the
                               forward (CB_RERUNS_ALL). A copy of the facts may clear it */
    bool spared; /* each op of the base order is preceded by one that does nothing (spare.h) */
    uint32_t first_spare; /* if `spared`: ops with this id or a larger one are spare */
} cb_facts;

/* Returns CB_INVALID if constraints contradict each other; the text names both sides. */
CB_MUST_CHECK cb_status cb_facts_make(const cb_problem *p, const cb_device *device, cb_arena *arena,
                                      cb_facts *out, cb_error *err);

/* Copies the facts and moves ops of the backward that no tangent reaches to the end of the forward:
 * those in `hoist` [n_op] and what they need. Ops that may run only once, ops that use memory
 * written by the backward, and their users stay where they are. Constraints and regions do not
 * change. The copy shares all arrays but the base order with `f`, and that too if nothing moves. */
CB_MUST_CHECK cb_status cb_facts_hoist(const cb_facts *f, const bool *hoist, cb_arena *arena,
                                       cb_facts *out, cb_error *err);

/* True if `storage` counts against the limit of `region`: its op and all its forward readers are in
 * the region (or its subregions) and it is not held. Values that leave a region do not count. */
bool cb_inside_region(const cb_facts *f, uint32_t storage, uint32_t region);

#define CB_AGAINST_PREFERENCE 4 /* factor on the cost of violating a PREFER_* */

/* True if a plan may run the op again, or for the first time after its place in the base order.
 * Every op of the forward that may run twice qualifies, even if it makes held outputs, because
 * these belong to the first run (schedule.h). With `all`, ops of the backward qualify as well,
 * except collectives and the first op. The search, the floor and explain all use this. */
bool cb_may_rerun(const cb_facts *f, uint32_t unit);
/* Computes the same for all units, in `out` [n_unit], except for those whose outputs all stay to
 * the end, because rerunning them frees nothing. */
void cb_facts_mark_free(const cb_facts *f, bool *out);
/* True if a plan may run this op of the backward late. */
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
/* Returns the position of the first op of the backward before which others may run again. The ops
 * before it are arrivals, such as tangents: they are the first ops of the backward, have an effect
 * and read nothing. Their outputs come from outside and all exist when the backward begins, so
 * nothing can run between them or before them. */
uint32_t cb_arrived(const cb_facts *f);
/* True if flags keep all outputs of the op to the end, so that a rerun would free nothing. */
bool cb_makes_only_held(const cb_facts *f, uint32_t op);
/* True if a plan may inline the storage's value into the op, so that it needs no bytes there. */
bool cb_may_take_in(const cb_facts *f, uint32_t op, uint32_t storage);
/* True if the storage is alive from its op's first run to the end, so that no rerun frees it. */
static inline bool cb_stays_to_end(const cb_facts *f, uint32_t storage) {
    return f->p->storage_flags[storage] & CB_STORE_HOLD_END;
}
/* True if an op of the base order makes the storage. */
static inline bool cb_is_made(const cb_facts *f, uint32_t storage) {
    return f->root[storage] != CB_NONE && f->position[f->root[storage]] != CB_NONE;
}
/* Returns the bytes that every plan holds at its end: results and gradients. */
static inline uint64_t cb_held_bytes(const cb_facts *f) {
    uint64_t held = 0;
    for (uint32_t s = 0; s < f->p->n_storage; s++)
        if (f->root[s] != CB_NONE && cb_stays_to_end(f, s)) held += f->p->storage_bytes[s];
    return held;
}

static inline bool cb_is_view(const cb_facts *f, uint32_t op) {
    return op < f->p->n_op && (f->p->op_flags[op] & CB_POP_VIEW);
}

static inline uint32_t cb_unit_op(const cb_facts *f, uint32_t unit) {
    return unit < f->p->n_op ? unit : f->unit_op[unit - f->p->n_op];
}
/* True if the id is an op whose outputs are units. */
static inline bool cb_has_units(const cb_facts *f, uint32_t op) {
    return f->unit_begin && op < f->p->n_op && f->unit_begin[op] < f->unit_begin[op + 1];
}
/* Returns the outputs that an id represents. */
static inline uint32_t cb_unit_made(const cb_facts *f, uint32_t unit) {
    if (unit >= f->p->n_op) return UINT32_C(1) << (unit - f->unit_begin[cb_unit_op(f, unit)]);
    return cb_has_units(f, unit) ? f->useful[unit] : CB_ALL_OUTPUTS;
}
/* Returns the value as a set of its op's outputs; 0 if its op has no inside. */
static inline uint32_t cb_value_made(const cb_facts *f, uint32_t value) {
    uint32_t op = f->p->value_op[value];
    return cb_has_units(f, op) ? UINT32_C(1) << (value - f->p->out_begin[op]) : 0;
}
/* Returns the value of a unit that may be inlined. */
static inline uint32_t cb_unit_value(const cb_facts *f, uint32_t unit) {
    uint32_t op = cb_unit_op(f, unit);
    return f->p->out_begin[op] + (unit < f->p->n_op ? 0 : unit - f->unit_begin[op]);
}
static inline bool cb_unit_inlines(const cb_facts *f, uint32_t unit) {
    return f->inlines && f->inlines[unit];
}
/* True if the value is a forward value that the end of the backward needs and the cut may make
 * there: it is not a view, and nothing holds it in memory from its first run on. Must not be used
 * for problems with insides or inlinings. */
bool cb_may_remake_at_end(const cb_facts *f, uint32_t value);
/* Returns the cost in searches of a rerun that makes these outputs. */
int64_t cb_again_cost_ps(const cb_facts *f, uint32_t op, uint32_t made);

#define CB_OP_TEXT 160
/* Writes a text like "matmul_12 (model.py:3)" to `buffer`, and returns it. */
const char *cb_op_text(const cb_problem *p, uint32_t op, char buffer[CB_OP_TEXT]);
/* Sets the op of a refusal: its name and source line. */
void cb_refusal_set_op(cb_refusal *refusal, const cb_problem *p, uint32_t op);

#endif
