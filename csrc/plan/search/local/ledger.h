/* ledger.h: the incremental evaluator: it keeps the peak of one plan, its time and its bytes over a
 * target up to date after each change. Internal.
 *
 *     CB_TRY(cb_ledger_init(&l, f, may_rerun, alloc, err));
 *     CB_TRY(cb_ledger_load(&l, pair, n_pair, target, err));
 *     cb_ledger_set(&l, anchor, op, n) && cb_ledger_settle(&l)      false: out of memory
 *     l.peak, l.extra_ps, l.area
 *
 * A move replaces the reruns at one anchor. Its cost depends on the lives it touches, whereas
 * cb_sim_run processes the whole plan. At 2,000 ops a move costs 100 times less. As in the
 * simulator, a first run that nothing reads before its op runs again is idle: it takes neither time
 * nor memory. If the two differ (for an idle op's own chain, or values held for one step only), the
 * ledger's peak is higher.
 *
 * Held outputs belong to the op's first run: that span lasts until the hold ends, in addition to
 * the span of a rerun.
 *
 * The ledger works by unit (facts.h): outputs of an op with an inside are added and removed one by
 * one, its base run shrinks to the outputs that are read, and outputs needed together are one run.
 *
 * An inlined unit (taking.h) comes in the chain before the run into which it is inlined, or last if
 * that is the base op. It has no lives; reads of it at its anchor are kept among the uses, but
 * ignored. */
#ifndef CB_PLAN_LEDGER_H
#define CB_PLAN_LEDGER_H

#include "../../schedule/sim.h"
#include "../../schedule/taking.h"

typedef struct cb_ledger_use { /* reads of a storage by the steps of one anchor */
    uint32_t anchor, count;
} cb_ledger_use;

typedef struct cb_ledger_span { /* one life of a storage: anchors that make and last read it */
    uint32_t made, last;
} cb_ledger_span;

typedef CB_VEC(uint32_t) cb_ledger_ids;
typedef CB_VEC(cb_ledger_use) cb_ledger_uses;
typedef CB_VEC(cb_ledger_span) cb_ledger_spans;

typedef struct cb_ledger_sums {
    double peak, area;
    int64_t extra_ps; /* in f->cost_ps */
} cb_ledger_sums;

typedef struct cb_ledger_run { /* a run that was added or removed */
    uint32_t op, anchor;
    bool came;
} cb_ledger_run;

typedef struct cb_ledger_notes { /* the undo log: old contents that a trial overwrote, in order */
    bool on;
    uint32_t trial;
    cb_ledger_sums before;
    CB_VEC(cb_ledger_run) run;
    cb_ledger_ids idle;                    /* ops whose base run was removed or restored */
    cb_ledger_ids chained, n_chain, chain; /* anchors, and their old chains */
    double *sums;                          /* [3 n_block] peaks, areas and lifts of all blocks */
    cb_ledger_ids block;
    CB_VEC(double) moment; /* moments of each block */
    cb_ledger_ids anchor;
    CB_VEC(double) local; /* rise inside each anchor */
    cb_ledger_ids storage, n_span;
    cb_ledger_spans span;           /* spans of each storage, `n_span` of them */
    uint32_t *moment_in, *chain_in; /* [n_block], [n] the last trial that saved them */
} cb_ledger_notes;

typedef struct cb_ledger {
    const cb_facts *f;
    cb_arena arena;
    uint32_t n;            /* anchors: f->n_base */
    uint32_t arrived;      /* cb_arrived */
    const bool *may_rerun; /* [n_unit] */
    uint32_t *read_begin;  /* [n_unit + 1] into `read` */
    uint32_t *read;        /* storages an op reads, also through views, each once */
    uint32_t *made_begin;  /* [n_unit + 1] into `made` */
    uint32_t *made;        /* storages an op allocates, largest first; those that stay to the end
                              come last, because no rerun frees their bytes */
    uint32_t *twin;        /* [n_storage] its representative in `use` and `span`, made by the same
                             op, read and held alike */
    uint32_t *life_begin;  /* [n_unit + 1] into `life` */
    uint32_t *life;        /* outputs of an op that represent themselves */
    uint32_t *need_begin;  /* [n_unit + 1] into `need` */
    uint32_t *need;        /* inputs of an op that represent themselves */
    uint32_t *over_begin;  /* [n_unit + 1] into `over`; NULL: nothing is taken over */
    uint32_t *over;        /* storages whose memory an output may take over, as represented */
    double *life_bytes;    /* [n_storage] bytes of it and of those that it represents */
    double *made_bytes;    /* [n_unit] bytes of all its outputs */
    uint32_t *held_until;  /* [n_storage] anchor until which the first run's instance is held; n: to
                              the end; 0: not held */
    bool *holds;           /* [n_unit] true if some output of it is held */
    cb_ledger_ids *chain;  /* [n] ops that run again at an anchor, in running order; with CB_EARLY
                             for later readers (sim.h) */
    cb_ledger_ids *runs;   /* [n_unit] anchors at which an op runs, rising */
    cb_ledger_ids *taken;  /* [n_unit] anchors at which it is inlined, rising; NULL: no inlinings */
    bool *idle;            /* [n_unit] the base run is dropped */
    cb_ledger_uses *use;   /* [n_storage] rising */
    cb_ledger_spans *span; /* [n_storage] rising */
    cb_ledger_ids busy;    /* anchors with a chain, in any order */
    uint32_t *busy_at;     /* [n] index in `busy` */
    double *moment;        /* [n, up to whole blocks] see cb_ledger_moment */
    double *lift;          /* [n_block] added to all moments of a block */
    double *rise;          /* [n_block + 1] to be added to the lifts from that block on */
    double *block_peak;    /* [n_block] largest `moment` of a block */
    double *block_area;    /* [n_block] */
    bool *stale;           /* [n_block] true if peak and area of the block are out of date */
    uint32_t n_block;
    double *local; /* [n] the part of `moment` above the bytes alive when the anchor is entered */
    double target;
    /* results of cb_ledger_settle */
    double peak;
    double area; /* bytes over the target, summed over anchors */
    int64_t extra_ps;
    /* scratch */
    cb_ledger_ids touched, marked, path, grown;
    uint32_t *touched_in, *marked_in;        /* [n_storage], [n] stamps */
    uint32_t *wanted, *early, *done, *stood; /* [n_unit] stamps */
    uint32_t *reached, reach;                /* [n_unit] stamps, where ops have insides */
    cb_taking taking;
    bool asks;      /* the problem has insides or inlinings */
    bool records;   /* visited units are noted in `taking` */
    uint32_t *left; /* [n_storage] remaining reads */
    uint32_t round, visit;
    cb_ledger_spans fresh;
    cb_ledger_notes notes;
} cb_ledger;

CB_MUST_CHECK cb_status cb_ledger_init(cb_ledger *l, const cb_facts *f, const bool *may_rerun,
                                       cb_alloc *alloc, cb_error *err);
void cb_ledger_free(cb_ledger *l);
/* Loads this plan; pairs of ops that may not run again are left out. */
CB_MUST_CHECK cb_status cb_ledger_load(cb_ledger *l, const cb_pair *pair, size_t n_pair,
                                       double target, cb_error *err);
/* Marks an entry of a chain: another output of the same run as the previous entry. */
#define CB_JOINED (UINT32_C(1) << 29)
/* Marks an entry of a chain: inlined into the next run. CB_INLINE only requests inlining. */
#define CB_TAKEN (UINT32_C(1) << 27)
static inline uint32_t cb_chain_op(uint32_t id) {
    return id & ~(CB_EARLY | CB_JOINED | CB_INLINE | CB_TAKEN);
}
/* Sets the reruns at `anchor` to entries of `op` [n], which is like a chain: early entries, and
 * those that the base op or an early entry needs. No op runs again before an arrival (cb_arrived in
 * facts.h). The results are stale until cb_ledger_settle. */
CB_MUST_CHECK bool cb_ledger_set(cb_ledger *l, uint32_t anchor, const uint32_t *op, size_t n);
CB_MUST_CHECK bool cb_ledger_settle(cb_ledger *l);
/* Begins a trial: changes are logged from here on, until they are kept or undone. Must be called
 * between settlings; undone changes need not have been settled. */
void cb_ledger_try(cb_ledger *l);
static inline bool cb_ledger_has_tried(const cb_ledger *l) { return l->notes.chained.len > 0; }
void cb_ledger_keep(cb_ledger *l);
CB_MUST_CHECK bool cb_ledger_take_back(cb_ledger *l);
/* Computes the results that cb_ledger_set and cb_ledger_settle would give, without changing the
 * ledger. Must be called between settlings, outside a trial. */
CB_MUST_CHECK bool cb_ledger_probe(cb_ledger *l, uint32_t anchor, const uint32_t *op, size_t n,
                                   cb_ledger_sums *out);
/* Appends the plan, sorted. */
CB_MUST_CHECK bool cb_ledger_pairs(const cb_ledger *l, cb_pairs *out);

static inline const cb_ledger_uses *cb_ledger_uses_of(const cb_ledger *l, uint32_t storage) {
    return &l->use[l->twin[storage]];
}
static inline const cb_ledger_spans *cb_ledger_spans_of(const cb_ledger *l, uint32_t storage) {
    return &l->span[l->twin[storage]];
}

#define CB_LEDGER_BLOCK 5 /* log2 of the number of anchors in a block */
/* Returns the peak of bytes while an anchor's steps run. */
static inline double cb_ledger_moment(const cb_ledger *l, uint32_t anchor) {
    return l->moment[anchor] + l->lift[anchor >> CB_LEDGER_BLOCK];
}

/* Returns the latest of these lives that has begun when `anchor` has run; NULL: none has. */
static inline const cb_ledger_span *cb_spans_latest(const cb_ledger_spans *spans, uint32_t anchor) {
    size_t i = spans->len;
    while (i > 0 && spans->at[i - 1].made > anchor) i--;
    return i > 0 ? &spans->at[i - 1] : NULL;
}

/* Returns the end of that life; 0: none has begun. */
static inline uint32_t cb_spans_last(const cb_ledger_spans *spans, uint32_t anchor) {
    const cb_ledger_span *life = cb_spans_latest(spans, anchor);
    return life ? life->last : 0;
}

/* True if the storage is alive when `anchor` is entered and when it ends, and is not held there.
 * `next` receives the anchor that reads it next. */
bool cb_ledger_crosses(const cb_ledger *l, uint32_t storage, uint32_t anchor, uint32_t *next);
/* True if the storage is alive when `anchor` is entered. */
bool cb_ledger_alive(const cb_ledger *l, uint32_t storage, uint32_t anchor);
/* Returns a lower bound on the peak if `op` no longer ran at `anchor`; 0 if only a trial can tell.
 * Must be called between settlings; it takes a small part of the time of one. */
double cb_ledger_peak_without(cb_ledger *l, uint32_t anchor, uint32_t op);
static inline uint64_t cb_ledger_bytes(const cb_ledger *l, uint32_t op) {
    uint64_t bytes = 0;
    for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++)
        bytes += l->f->p->storage_bytes[l->made[j]];
    return bytes;
}

#endif
