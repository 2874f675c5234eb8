#include "optim/table.h"

#include "rows.h"

enum { N = 300, MOST = 40 };

static const double adamw[2][7] = {{1e-2, 0.9, 0.999, 1e-8, 0.1, 0, 0},
                                   {1e-3, 0.8, 0.99, 1e-6, 0.0, 1, 1}};
static const double sgd[2][6] = {{0.1, 0.0, 0.0, 0.0, 0, 0}, {0.1, 0.9, 0.5, 0.01, 0, 0}};
static cb_alloc alloc;
static cb_threads *pool;

/* Tensors of random sizes and types in separate blocks, at all alignments that their types allow.
 * The slow twin of a table's step is one step per tensor. */
typedef struct tensors {
    char *memory;
    size_t bytes;
    cb_optim_row row[N];
} tensors;

static uint32_t drawn = 1;
static uint32_t draw(uint32_t n) {
    drawn = drawn * 1664525u + 1013904223u;
    return (drawn >> 8) % n;
}

static void *take(tensors *x, size_t *at, size_t bytes, size_t size) {
    *at = (*at + size - 1) / size * size;
    void *data = x->memory ? x->memory + *at : NULL;
    *at += bytes;
    return data;
}

static size_t lay_out(tensors *x) {
    size_t at = 0;
    for (int r = 0; r < N; r++) {
        cb_optim_row *row = &x->row[r];
        size_t size = cb_dtype_size(row->dtype), bytes = (size_t)row->n * size;
        row->param = take(x, &at, bytes, size);
        for (int k = 0; k < 3; k++) row->state[k] = take(x, &at, bytes, size);
        row->grad = take(x, &at, bytes, size);
    }
    return at;
}

static void fill(tensors *x) {
    for (int r = 0; r < N; r++) {
        cb_optim_row *row = &x->row[r];
        void *const arrays[] = {row->param, (void *)row->grad, row->state[0], row->state[1],
                                row->state[2]};
        for (int k = 0; k < 5; k++) {
            for (int64_t i = 0; i < row->n; i++)
                put(row, arrays[k], i, value_at(k, (size_t)r * 31 + (size_t)i));
        }
    }
}

static void tensors_init(tensors *x, uint32_t seed, bool large) {
    memset(x, 0, sizeof *x);
    drawn = seed;
    for (int r = 0; r < N; r++) {
        x->row[r].n = draw(8) == 0 ? 0 : large && draw(60) == 0 ? 30000 + draw(9) : draw(MOST);
        x->row[r].t = 1 + draw(3);
        x->row[r].dtype = draw(3) ? CB_F32 : CB_F64;
        x->row[r].group = draw(2);
    }
    x->bytes = lay_out(x);
    x->memory = calloc(1, x->bytes + 1);
    (void)lay_out(x);
    fill(x);
}

static cb_tensor_table *table_of(const tensors *x, const cb_optimizer *o) {
    cb_tensor_table *t = NULL;
    CHECK_OK(cb_table_new(&alloc, &pool, o, N, &t, &err));
    for (uint32_t r = 0; r < N; r++) cb_tensor_table_set(t, r, &x->row[r]);
    return t;
}

static void check_random(const cb_optimizer *o, const double *hyper, uint32_t seed) {
    tensors x, y;
    tensors_init(&x, seed, true);
    tensors_init(&y, seed, true);
    cb_tensor_table *t = table_of(&x, o);
    for (int step = 0; step < 3; step++) {
        CHECK_OK(cb_tensor_table_step(t, hyper, 2, &err));
        for (uint32_t r = 0; r < N; r++) {
            CHECK_OK(step_rows(o, NULL, hyper, 2, &y.row[r], 1, &err));
            x.row[r].t++;
            y.row[r].t++;
            cb_tensor_table_set(t, r, &x.row[r]);
        }
        CHECK(memcmp(x.memory, y.memory, x.bytes) == 0);
    }
    cb_tensor_table_free(t);
    free(x.memory);
    free(y.memory);
}

TEST(a_table_is_its_rows_one_by_one) {
    for (int threads = 1; threads <= 3; threads++) {
        CHECK_OK(cb_threads_new(&alloc, threads, &pool, &err));
        for (uint32_t seed = 1; seed <= (uint32_t)check_rounds(8, 200); seed++) {
            check_random(&cb_optimizer_adamw, adamw[0], seed);
            check_random(&cb_optimizer_sgd, sgd[0], seed);
        }
        cb_threads_free(pool);
        pool = NULL;
    }
}

TEST(shared_memory_is_found_after_every_move) {
    tensors x;
    tensors_init(&x, 7, false);
    cb_tensor_table *t = table_of(&x, &cb_optimizer_adamw);
    CHECK_OK(cb_tensor_table_step(t, adamw[0], 2, &err));
    char *before = malloc(x.bytes);
    memcpy(before, x.memory, x.bytes);
    for (int round = 0; round < 200; round++) {
        uint32_t r = draw(N), other = draw(N), array = draw(4);
        cb_optim_row moved = x.row[r], *from = &x.row[other];
        size_t size = cb_dtype_size(moved.dtype);
        bool fits = moved.n > 0 && from->n > 0 && from->group == 0 && moved.group == 0 &&
                    r != other && from->dtype == moved.dtype;
        if (!fits) continue;
        char *target = (char *)(array == 0 ? from->param : from->state[array % 2]);
        target += (size_t)draw((uint32_t)from->n) * size; /* inside it, or across its end */
        if (array == 0) moved.grad = target;
        else if (array == 1) moved.param = target;
        else moved.state[array % 2] = target;
        cb_tensor_table_set(t, r, &moved);
        CHECK_FAIL(cb_tensor_table_step(t, adamw[0], 2, &err), CB_INVALID,
                   array == 0 ? "overlaps" : "share memory");
        cb_tensor_table_set(t, r, &x.row[r]);
    }
    CHECK(memcmp(before, x.memory, x.bytes) == 0);
    CHECK_OK(cb_tensor_table_step(t, adamw[0], 2, &err));
    CHECK(memcmp(before, x.memory, x.bytes) != 0);
    free(before);
    cb_tensor_table_free(t);
    free(x.memory);
}

TEST(gradients_may_share_memory) {
    float p[3] = {1, 2, 3}, g = 0.5f;
    cb_tensor_table *t = NULL;
    CHECK_OK(cb_table_new(&alloc, &pool, &cb_optimizer_sgd, 3, &t, &err));
    for (uint32_t i = 0; i < 3; i++) {
        cb_optim_row row = {.param = &p[i], .grad = &g, .n = i != 1, .t = 1, .dtype = CB_F32};
        cb_tensor_table_set(t, i, &row);
    }
    CHECK_OK(cb_tensor_table_step(t, sgd[0], 1, &err));
    CHECK(p[0] == 1 - 0.1f * 0.5f && p[1] == 2 && p[2] == 3 - 0.1f * 0.5f);
    cb_tensor_table_free(t);
}

TEST(numbers_that_change_are_looked_at) {
    float p = 1, g = 0.5f, b = 0;
    cb_optim_row row = {.param = &p, .grad = &g, .n = 1, .t = 1, .dtype = CB_F32};
    cb_tensor_table *t = NULL;
    CHECK_OK(cb_table_new(&alloc, &pool, &cb_optimizer_sgd, 1, &t, &err));
    cb_tensor_table_set(t, 0, &row);
    CHECK_OK(cb_tensor_table_step(t, sgd[0], 1, &err));
    CHECK_FAIL(cb_tensor_table_step(t, sgd[1], 1, &err), CB_INVALID, "has no momentum_buffer");
    CHECK_FAIL(cb_tensor_table_step(t, sgd[0], 0, &err), CB_INVALID, "there are only 0 groups");
    row.t = 0;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, sgd[0], 1, &err), CB_INVALID, "counts from 1");
    row.t = 1;
    row.state[0] = &b;
    cb_tensor_table_set(t, 0, &row);
    CHECK_OK(cb_tensor_table_step(t, sgd[1], 1, &err));
    cb_tensor_table_set(t, 1, &row); /* no such row */
    CHECK(b != 0);
    cb_tensor_table_free(t);
}

/* The ranges that a step writes are known in advance, sorted, and belong to rows with gradients. */
TEST(a_check_lists_what_the_step_writes) {
    float p[3] = {1, 2, 3}, g[3] = {0.5f, 0.5f, 0.5f}, b[3] = {0, 0, 0};
    cb_tensor_table *t = NULL;
    const cb_written *written = NULL;
    uint32_t n = 0;
    CHECK_OK(cb_table_new(&alloc, &pool, &cb_optimizer_sgd, 3, &t, &err));
    for (uint32_t i = 0; i < 3; i++) {
        const cb_optim_row row = {.param = &p[2 - i],
                                  .grad = &g[i],
                                  .state = {&b[i]},
                                  .n = i != 1,
                                  .t = 2,
                                  .dtype = CB_F32};
        cb_tensor_table_set(t, i, &row);
    }
    CHECK_OK(cb_tensor_table_check(t, sgd[1], 1, &written, &n, &err));
    CHECK(n == 4 && p[0] == 1 && b[0] == 0);
    for (uint32_t k = 0; k < n; k++) {
        const void *at = written[k].array ? (void *)&b[written[k].row] : &p[2 - written[k].row];
        CHECK(written[k].begin == (uintptr_t)at && written[k].end == written[k].begin + 4);
        CHECK(k == 0 || written[k].begin >= written[k - 1].end);
    }
    CHECK_OK(cb_tensor_table_step(t, sgd[1], 1, &err));
    CHECK(p[0] < 1 && p[1] == 2 && b[0] != 0 && b[1] == 0);
    CHECK_FAIL(cb_tensor_table_check(t, sgd[1], 0, &written, &n, &err), CB_INVALID, "0 groups");
    CHECK_FAIL(cb_tensor_table_step(t, sgd[1], 0, &err), CB_INVALID, "there are only 0 groups");
    cb_tensor_table_free(t);
}

/* Only sizes matter: no element is read. */
TEST(more_elements_than_can_be_counted) {
    char some[64] = {0};
    cb_tensor_table *t = NULL;
    CHECK_OK(cb_table_new(&alloc, &pool, &cb_optimizer_sgd, 2, &t, &err));
    cb_optim_row row = {.param = some, .grad = some, .n = INT64_MAX / 100, .t = 1, .dtype = CB_F32};
    for (uint32_t i = 0; i < 2; i++) cb_tensor_table_set(t, i, &row);
    CHECK_FAIL(cb_tensor_table_step(t, sgd[0], 1, &err), CB_INVALID, "cannot be counted");
    row.n = -1;
    cb_tensor_table_set(t, 1, &row);
    CHECK_FAIL(cb_tensor_table_step(t, sgd[0], 1, &err), CB_INVALID, "row 1 has -1 elements");
    cb_tensor_table_free(t);
}

TEST(no_memory) {
    for (uint64_t nth = 1;; nth++) {
        cb_tensor_table *t = NULL;
        cb_alloc_fail(&alloc, nth);
        cb_status status = cb_table_new(&alloc, &pool, &cb_optimizer_adamw, 1000, &t, &err);
        uint64_t left = cb_alloc_left(&alloc);
        cb_alloc_fail(&alloc, 0);
        cb_tensor_table_free(t);
        CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
        CHECK(status == (left ? CB_OK : CB_NOMEM));
        if (status == CB_OK) break;
    }
    cb_tensor_table_free(NULL);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(a_table_is_its_rows_one_by_one);
    RUN(shared_memory_is_found_after_every_move);
    RUN(gradients_may_share_memory);
    RUN(numbers_that_change_are_looked_at);
    RUN(a_check_lists_what_the_step_writes);
    RUN(more_elements_than_can_be_counted);
    RUN(no_memory);
    return check_report();
}
