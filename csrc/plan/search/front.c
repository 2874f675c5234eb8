/* Runs several walks, each from the results of earlier ones and with its own random numbers,
 * because with few ops the result depends on how varied the attempts are. Two walks run at a time,
 * so that two threads have work. */
#include "front.h"

#include "floor.h"
#include "tuning.h"

typedef struct walks {
    cb_ladder *d;
    uint32_t round;
    uint64_t floor; /* no known plan is smaller */
    cb_candidates *found[CB_FRONT_WALKS];
} walks;

static double share_of(const cb_worker *c) {
    double ease = CB_AT_EASE_OPS / (c->t->f->n_base + 1.0);
    return ease < 1 ? CB_POINT_SHARE * ease * ease : CB_POINT_SHARE;
}

/* Returns the next target, which is below `size`. */
static uint64_t below(const cb_ladder *d, uint64_t target, uint64_t size) {
    uint64_t step = d->whole / CB_FRONT_POINTS;
    uint64_t next = size > 0 ? size - 1 : 0, far = target > step ? target - step : 0;
    return next < far ? next : far;
}

/* Walks down the known plans and looks for faster ones. */
static cb_status walk_known(const cb_ladder *d, cb_worker *c, uint32_t attempt, cb_error *err) {
    uint64_t target = d->whole;
    uint32_t at = cb_candidates_fitting(c->work, target);
    while (at != CB_NONE && c->work->at[at].size > 0) {
        target = below(d, target, c->work->at[at].size);
        CB_TRY(cb_search_point(&c->moves, target, attempt, share_of(c), 0, err));
        at = cb_candidates_fitting(c->work, target);
    }
    return CB_OK;
}

/* Searches below the smallest plan. Every second round uses the full effort before it ends and also
 * tries the floor as a target, which leads to other plans if there is none just below. The next
 * round walks the front again from the result, so later rounds start from other plans. */
static cb_status walk_on(const walks *w, cb_worker *c, uint32_t attempt, cb_error *err) {
    const cb_candidates *all = c->work;
    bool deep = w->round % 2 == 1;
    uint32_t kind = deep ? 2 * CB_LAST_ATTEMPTS : 0;
    const uint64_t near = w->floor + (uint64_t)(CB_DUG_SHARE * (double)w->d->whole);
    uint64_t size;
    do {
        cb_candidate from = all->at[0];
        size = from.size;
        if (size <= w->floor) return CB_OK;
        cb_deep_search s = {.from = &from,
                            .target = size - 1,
                            .attempt = kind + attempt,
                            .descent = CB_DESCENT_SHARE,
                            .share = share_of(c)};
        CB_TRY(cb_search_deep_rung(&c->moves, &s, err));
        if (!deep || all->at[0].size < size || size <= near) continue;
        from = all->at[0]; /* a faster plan of this size may have replaced it */
        s.target = w->floor;
        CB_TRY(cb_search_deep_rung(&c->moves, &s, err));
    } while (all->at[0].size < size);
    return CB_OK;
}

static cb_status offer_all(cb_candidates *to, const cb_candidates *from, cb_error *err) {
    for (uint32_t i = 0; i < from->n; i++) {
        const cb_candidate *p = &from->at[i];
        CB_TRY(cb_candidates_offer(to, p->size, p->time_ps, p->pair, p->n_pair, err));
    }
    return CB_OK;
}

static cb_status walk(cb_worker *c, uint32_t job, void *user, cb_error *err) {
    walks *w = user;
    cb_ladder *d = w->d;
    cb_candidates *before = c->t->candidates;
    uint32_t attempt = w->round * CB_FRONT_WALKS + job;
    cb_ladder_begin(d, c);
    cb_status status = walk_known(d, c, attempt, err);
    if (status == CB_OK && c->work->n > 0) status = walk_on(w, c, attempt, err);
    if (status == CB_OK) status = offer_all(w->found[job], c->work, err);
    c->t->candidates = before;
    return status;
}

static cb_status walk_all(walks *w, cb_candidates *front, cb_error *err) {
    CB_TRY(cb_workers_run(w->d->workers, CB_FRONT_WALKS, walk, w, err));
    for (uint32_t job = 0; job < CB_FRONT_WALKS; job++)
        CB_TRY(offer_all(front, w->found[job], err));
    return CB_OK;
}

cb_status cb_front_walk(cb_ladder *d, cb_error *err) {
    cb_arena *scratch = d->first.t->scratch;
    walks w = {.d = d};
    cb_status status = CB_OK;
    if (d->has_front) return CB_OK;
    if (!d->front) d->front = CB_NEW(scratch, cb_candidates, 1);
    if (!d->front) return cb_no_memory(err);
    d->front->alloc = scratch->alloc;
    for (uint32_t job = 0; job < CB_FRONT_WALKS; job++) {
        CB_TRY_NEW(w.found[job], scratch, 1, err);
        w.found[job]->alloc = scratch->alloc;
    }
    cb_floor floor;
    CB_TRY(cb_find_floor(&d->first.ledger, scratch, &floor, err));
    w.floor = floor.apart;
    for (; w.round < CB_FRONT_ROUNDS && status == CB_OK; w.round++)
        status = walk_all(&w, d->front, err);
    if (status == CB_OK && d->front->n > 0)
        status = cb_sweep(d->few, &d->first.ledger, d->first.t, d->front->at[0].size, w.floor,
                          scratch, &d->swept, err);
    for (uint32_t job = 0; job < CB_FRONT_WALKS; job++) cb_candidates_free(w.found[job]);
    d->has_front = status == CB_OK;
    return status;
}
