/* Attention and its gradients: compares the kernels with their twins. Bits are the same for every
 * number of threads (thus in one pass and in two) and every instruction set. */
#include "kernel_twin.h"

typedef enum mask {
    NO_MASK,
    BOOLS,
    ADDED,
    FOR_KEYS /* one mask for all queries */
} mask;

typedef struct row {
    int64_t h, few, l, s, e, d; /* q [2, h, l, e], k [2, few, s, e], v [2, few, s, d] */
    bool is_causal;
    mask mask;
    double p;
} row;

static const row rows[] = {
    {1, 1, 1, 1, 1, 1, true, NO_MASK, 0},     {2, 1, 5, 3, 2, 3, false, BOOLS, 0},
    {1, 1, 97, 13, 16, 16, false, ADDED, 0},  {1, 1, 13, 97, 20, 5, true, NO_MASK, 0.25},
    {4, 2, 50, 30, 7, 32, true, NO_MASK, 0},  {1, 1, 100, 100, 4, 4, true, BOOLS, 0.5},
    {2, 1, 20, 99, 3, 6, false, FOR_KEYS, 0}, {3, 3, 0, 4, 3, 2, false, NO_MASK, 0},
    {3, 1, 4, 0, 3, 2, false, NO_MASK, 0},    {0, 0, 4, 4, 3, 2, true, NO_MASK, 0},
    {1, 1, 3, 4, 0, 2, true, NO_MASK, 0},     {1, 1, 3, 2, 256, 256, false, NO_MASK, 0.1},
};

static cb_tensor new_mask(const row *r, cb_dtype dtype) {
    const cb_shape shape = SHAPE(2, r->h, r->l, r->s);
    if (r->mask == BOOLS) return input(CB_BOOL, shape, PLAIN, SMALL);
    cb_tensor t = input(dtype, shape, r->mask == ADDED ? PLAIN : FIRST_REPEATED, SMALL);
    if (r->mask == FOR_KEYS) t.stride[1] = t.stride[2] = 0;
    for (int64_t j = 0; j < r->s && r->mask == ADDED; j++)
        set(&t, j, -INFINITY); /* masks a whole row */
    return t;
}

/* Checks the forward, then the backward on its inputs and outputs. */
static void check_row(const row *r, cb_dtype dtype, layout how) {
    const bool is_masked = r->mask != NO_MASK;
    test_op op = {.code = CB_OP_ATTENTION,
                  .n_in = is_masked ? 4 : 3,
                  .attrs = {.f = {0.1, r->p}, .i = {3, r->is_causal}},
                  .random = {.seed = 5, .stream = 3, .step = 2}};
    op.in[0] = input(dtype, SHAPE(2, r->h, r->l, r->e), how, SMALL);
    op.in[1] = input(dtype, SHAPE(2, r->few, r->s, r->e), how, SMALL);
    op.in[2] = input(dtype, SHAPE(2, r->few, r->s, r->d), how, SMALL);
    if (is_masked) op.in[3] = new_mask(r, dtype);
    CHECK_TWIN_KEEP(&op, 16, 4);
    test_op bwd = {.code = CB_OP_ATTENTION_BWD,
                   .n_in = op.n_in + 3,
                   .attrs = op.attrs,
                   .random = op.random,
                   .in = {input(dtype, op.out[0].shape, how, SMALL), op.in[0], op.in[1], op.in[2],
                          op.out[0], op.out[1], op.in[3]}};
    CHECK_TWIN(&bwd, 32, 4 * (double)(r->l + 1));
}

TEST(kernels_beside_their_twins) {
    for (int d = 0; d < COUNT(floats); d++)
        for (int i = 0; i < COUNT(rows); i++)
            check_row(&rows[i], floats[d], (i + d) % 3 == 0 ? PLAIN : i % 2 ? SLICED : REVERSED);
}

/* NaN and infinities reach the rows they belong to, and no others. */
TEST(special_values) {
    test_op op = {.code = CB_OP_ATTENTION, .n_in = 3, .attrs = {.f = {0.5}, .i = {0, 1}}};
    for (int i = 0; i < 3; i++) op.in[i] = input(CB_F32, SHAPE(3, 40, 8), PLAIN, SMALL);
    set(&op.in[0], 8 * 5, NAN);
    set(&op.in[0], 8 * 46, INFINITY);
    set(&op.in[1], 8 * 100 + 3, NAN);
    CHECK_OK(run_op(&op, 1, NULL));
    for (int64_t i = 0; i < 120; i++) {
        const bool is_wrong = i == 5 || i == 46 || (i >= 100 && i < 120);
        CHECK(isfinite(get(&op.out[0], i * 8)) == !is_wrong);
        CHECK(isfinite(get(&op.out[1], i)) == !is_wrong);
    }
    free_tensors();
}

int main(void) {
    RUN(kernels_beside_their_twins);
    RUN(special_values);
    return check_report();
}
