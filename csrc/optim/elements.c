/* Elements are updated independently, so any division of the work gives bitwise equal results. */
#include "elements.h"

#include "../base/cpu.h"
#include "extras.h"
#include "halves.h"
#include "split.h"

#include <string.h>

/* ---- formulas: one table for each instruction set, all with bitwise equal results ------------ */

typedef cb_formula_fn formula_table[CB_FORMULA_COUNT];

extern const formula_table cb_formulas_baseline;
#if defined(__x86_64__)
extern const formula_table cb_formulas_avx2, cb_formulas_avx512;
static const formula_table *const tables[CB_ISA_COUNT] = {&cb_formulas_baseline, &cb_formulas_avx2,
                                                          &cb_formulas_avx512};
#else
static const formula_table *const tables[CB_ISA_COUNT] = {&cb_formulas_baseline};
#endif

cb_formula_fn cb_formula_of(cb_formula formula) { return (*tables[cb_cpu_kernel_isa()])[formula]; }

/* ---- the step -------------------------------------------------------------------------------- */

typedef struct region {
    cb_split split;
    cb_formula_fn update;
    const cb_half_fns *halves;
    const cb_extra_fns *extras;
} region;

void cb_factors_of(const cb_optim_table *table, const cb_optim_row *row, double *factor) {
    memset(factor, 0, CB_MAX_FACTORS * sizeof *factor);
    table->optimizer->factors(table->hyper + (size_t)row->group * table->n_hyper, row->t,
                              row->number, factor);
    factor[CB_GRAD_SCALE] *= table->grad_factor;
}

static bool have_same_factors(const cb_optim_row *a, const cb_optim_row *b) {
    return a->group == b->group && a->t == b->t &&
           memcmp(a->number, b->number, sizeof a->number) == 0;
}

static void update_halves(const region *x, const double *factor, uint32_t at_row, int64_t at,
                          int64_t n) {
    const cb_optim_table *table = x->split.table;
    cb_halves_room room;
    const cb_optim_row whole = cb_halves_open(x->halves, &table->rows[at_row], at, n, &room);
    x->update(factor, &whole, at, n);
    if (table->extras) cb_extras_of(x->extras, table, at_row, &whole, at, n);
    cb_halves_close(x->halves, &table->rows[at_row], &whole, at, n);
}

static void update(const region *x, const double *factor, const cb_stretch *part) {
    const cb_optim_table *table = x->split.table;
    const cb_optim_row *row = &table->rows[part->row];
    const bool halves = cb_optim_is_half(row->dtype);
    const int64_t end = part->from + part->n;
    if (!table->extras && !halves) {
        x->update(factor, row, part->from, part->n);
        return;
    }
    for (int64_t at = part->from; at < end; at += CB_EXTRAS_BLOCK) {
        const int64_t n = end - at < CB_EXTRAS_BLOCK ? end - at : CB_EXTRAS_BLOCK;
        if (halves) {
            update_halves(x, factor, part->row, at, n);
        } else {
            x->update(factor, row, at, n);
            cb_extras_of(x->extras, table, part->row, row, at, n);
        }
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
        if (!known || !have_same_factors(known, row)) cb_factors_of(table, row, factor);
        known = row;
        update(x, factor, &part);
    }
}

void cb_step_elements(const cb_optim_table *table, cb_threads *pool) {
    region x = {.split = cb_split_of(table, pool, CB_STATE_BLOCK),
                .update = cb_formula_of((cb_formula)table->optimizer->formula),
                .halves = cb_halves_functions(),
                .extras = cb_extras_functions()};
    cb_parallel(pool, x.split.n_tasks, run_task, &x);
}
