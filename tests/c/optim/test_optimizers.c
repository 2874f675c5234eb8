#include "optim/elements.h"

#include "rows.h"

#include <math.h>

/* True if all states are arrays like the parameter; other optimizers have their own tests. */
static bool is_alike(const cb_optimizer *o) { return o->kind == NULL && !o->axes; }

/* Makes two groups of numbers that are valid for every range: flags off, flags on. Nesterov's
 * momentum is left out because it requires more. */
static uint32_t rows_of(const cb_optimizer *o, double *hyper) {
    for (uint32_t i = 0; i < o->n_hyper; i++) {
        const cb_hyper *h = &o->hyper[i];
        bool flag = h->high == 1.0 && !h->below && strcmp(h->name, "rho") != 0;
        hyper[i] = flag ? 0.0 : h->high == 1.0 ? 0.75 : fmax(h->low, 0.01);
        hyper[o->n_hyper + i] = flag ? strcmp(h->name, "nesterov") != 0 : fmax(h->low, 0.5);
    }
    return cb_optimizer_n_used(o, hyper + o->n_hyper);
}

TEST(same_bits_for_any_threads_and_any_build) {
    for (uint32_t i = 0; cb_optimizer_at(i); i++) {
        double hyper[2 * 16];
        if (!is_alike(cb_optimizer_at(i))) continue;
        (void)rows_of(cb_optimizer_at(i), hyper);
        check_threads(cb_optimizer_at(i), hyper, 2);
    }
}

TEST(many_small_rows) {
    for (uint32_t i = 0; cb_optimizer_at(i); i++) {
        double hyper[2 * 16];
        const cb_optimizer *o = cb_optimizer_at(i);
        if (!is_alike(o)) continue;
        uint32_t n_state = rows_of(o, hyper);
        check_many_rows(o, hyper + o->n_hyper, n_state);
    }
}

/* A step writes every parameter and every state of its group, and no other byte. */
TEST(what_is_written) {
    for (uint32_t i = 0; cb_optimizer_at(i); i++) {
        double hyper[2 * 16];
        const cb_optimizer *o = cb_optimizer_at(i);
        if (!is_alike(o)) continue;
        (void)rows_of(o, hyper);
        table s, before;
        table_init(&s);
        table_init(&before);
        CHECK_OK(step_table(o, NULL, hyper, 2, s.row, ROWS, &err));
        CHECK(memcmp(s.block[1], before.block[1], s.bytes) == 0);
        for (int r = 0; r < ROWS; r++) {
            const cb_optim_row *row = &s.row[r];
            uint32_t n_used = cb_optimizer_n_used(o, hyper + row->group * o->n_hyper);
            size_t at = (size_t)((char *)row->param - s.block[0]), size = 8 * (size_t)row->n;
            for (uint32_t k = 0; k < 3; k++) {
                bool same = memcmp(s.block[2 + k] + at, before.block[2 + k] + at, size) == 0;
                if (k >= n_used || size == 0) CHECK(same);
                else CHECK(!same || row->n < 100); /* a maximum may stay the same */
            }
            bool same = memcmp(s.block[0] + at, before.block[0] + at, size) == 0;
            CHECK(!same || row->n < 100); /* Rprop skips elements whose sign changed */
        }
        table_free(&s);
        table_free(&before);
    }
}

/* Factors that an optimizer does not set are 0, whatever was in memory before. */
TEST(factors_are_all_set) {
    for (uint32_t i = 0; cb_optimizer_at(i); i++) {
        double hyper[2 * 16], factor[CB_MAX_FACTORS];
        const cb_optimizer *o = cb_optimizer_at(i);
        if (!o->factors) continue;
        (void)rows_of(o, hyper);
        for (uint32_t group = 0; group < 2; group++) {
            const cb_optim_row row = {.t = 3, .number = {0.5, 0.25}, .group = group};
            const cb_optim_table one = {
                .optimizer = o, .hyper = hyper, .grad_factor = 1, .n_hyper = o->n_hyper};
            for (int k = 0; k < CB_MAX_FACTORS; k++) factor[k] = NAN;
            cb_factors_of(&one, &row, factor);
            for (int k = 0; k < CB_MAX_FACTORS; k++)
                CHECK(!isnan(factor[k])); /* a limit may be infinite */
        }
    }
}

int main(void) {
    RUN(factors_are_all_set);
    RUN(same_bits_for_any_threads_and_any_build);
    RUN(many_small_rows);
    RUN(what_is_written);
    return check_report();
}
