/* Every element is updated on its own, so any way of cutting the work gives the same bits. */
#include "elements.h"

#include "extras.h"
#include "split.h"

#include <string.h>

typedef struct region {
    cb_split split;
    cb_factors_fn factors;
    cb_formula_fn update;
} region;

static bool have_same_factors(const cb_optim_row *a, const cb_optim_row *b) {
    return a->group == b->group && a->t == b->t &&
           memcmp(a->number, b->number, sizeof a->number) == 0;
}

static void update(const region *x, const double *factor, const cb_stretch *part) {
    const cb_optim_table *table = x->split.table;
    const cb_optim_row *row = &table->rows[part->row];
    const int64_t end = part->from + part->n;
    if (!table->extras) {
        x->update(factor, row, part->from, part->n);
        return;
    }
    for (int64_t at = part->from; at < end; at += CB_EXTRAS_BLOCK) {
        const int64_t n = end - at < CB_EXTRAS_BLOCK ? end - at : CB_EXTRAS_BLOCK;
        x->update(factor, row, at, n);
        cb_extras_of(table, part->row, at, n);
    }
}

static void run_task(void *user, int64_t task, int thread) {
    const region *x = user;
    const cb_optim_table *table = x->split.table;
    double factor[CB_MAX_FACTORS];
    const cb_optim_row *known = NULL; /* the factors are those of its group and step */
    cb_stretches parts = cb_stretches_of(&x->split, task);
    (void)thread;
    for (cb_stretch part; cb_next_stretch(&parts, &part);) {
        const cb_optim_row *row = &table->rows[part.row];
        if (!known || !have_same_factors(known, row)) {
            x->factors(table->hyper + (size_t)row->group * table->n_hyper, row, factor);
            factor[CB_GRAD_SCALE] *= table->grad_factor;
        }
        known = row;
        update(x, factor, &part);
    }
}

void cb_step_elements(const cb_optim_table *table, cb_threads *pool, cb_factors_fn factors,
                      cb_formula formula) {
    region x = {.split = cb_split_of(table, pool, CB_STATE_BLOCK),
                .factors = factors,
                .update = cb_formula_of(formula)};
    cb_parallel(pool, x.split.n_tasks, run_task, &x);
}
