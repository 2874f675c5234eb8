/* How tables are cut. Only sizes matter, so the elements are not allocated. */
#include "optim/split.h"

#include "check.h"

enum { MANY = 10000 };
static cb_alloc alloc;

/* Checks that each element of each row is in exactly one stretch, in order, that rows are cut at
 * multiples of the grain, and that no task exceeds its share by more than a grain and one row. */
static void check_cut(const cb_optim_row *rows, uint32_t n, int threads, int64_t grain) {
    cb_threads *pool = NULL;
    CHECK_OK(cb_threads_new(&alloc, threads, &pool, &err));
    const cb_optim_table table = {.rows = rows, .n_rows = n};
    const cb_split split = cb_split_of(&table, pool, grain);
    uint32_t row = 0;
    int64_t at = 0, most = 0, all = 0;
    bool good = true;
    for (int64_t task = 0; task < split.n_tasks; task++) {
        cb_stretches parts = cb_stretches_of(&split, task);
        int64_t some = 0;
        for (cb_stretch part; cb_next_stretch(&parts, &part);) {
            while (row < n && at == rows[row].n) row++, at = 0;
            good &= row < n && part.row == row && part.from == at && part.n > 0 &&
                    part.from % grain == 0 && part.n <= rows[row].n - at;
            at += part.n;
            some += part.n;
        }
        all += some;
        most = some > most ? some : most;
    }
    while (row < n && at == rows[row].n) row++, at = 0;
    CHECK(good && row == n);
    CHECK(most <= split.task + grain);
    CHECK(all == 0 || split.n_tasks <= 2 * threads);
    cb_threads_free(pool);
}

TEST(more_than_two_to_the_31_elements) {
    const int64_t sizes[] = {3, (INT64_C(1) << 31) + 5, 0,   1, (INT64_C(1) << 33) + 1,
                             7, INT64_C(1) << 40,       4096};
    enum { N = sizeof sizes / sizeof *sizes };
    cb_optim_row rows[N] = {{0}};
    for (int i = 0; i < N; i++) rows[i].n = sizes[i];
    for (int threads = 1; threads <= 4; threads++) {
        check_cut(rows, N, threads, 1);
        check_cut(rows, N, threads, CB_STATE_BLOCK);
        check_cut(rows, N, threads, 1 << 14);
    }
}

TEST(ten_thousand_rows) {
    static cb_optim_row rows[MANY];
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < MANY; i++) {
            rows[i].n = turn == 0      ? 0
                        : turn == 1    ? 1
                        : turn == 2    ? i % 7
                        : i % 900 == 0 ? 100000
                                       : 5;
        }
        for (int threads = 1; threads <= 4; threads++) check_cut(rows, MANY, threads, 256);
    }
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(more_than_two_to_the_31_elements);
    RUN(ten_thousand_rows);
    return check_report();
}
