/* Chains of ops that run by rows, in pieces: which chains are found, what the pieces are, where
 * gradients go. */
#include "ad/strips/find.h"

#include "ad/joint.h"
#include "ir/ir.h"
#include "oom.h"

/* tanh(x[600, 4]) @ w[4, 9] -> cross_entropy -> sum */
static const char *head =
    "cutback.graph 1\n"
    "%0 = input {role=param, name=\"w\"} : f32[4,9]\n"
    "%1 = input {role=data, name=\"x\"} : f32[600,4]\n"
    "%2 = input {role=data, name=\"label\"} : i64[600]\n"
    "%3 = tanh(%1) : f32[600,4] @\"model.py:1\"\n"
    "%4 = matmul(%3, %0) : f32[600,9] @\"model.py:2\"\n"
    "%5, %6 = cross_entropy(%4, %2) {ignore=-100} : f32[600], f32[600] @\"model.py:3\"\n"
    "%7 = sum(%5) {axes=[0], keepdims=0} : f32[]\n";
#define LOSS "output \"loss\" %7 result\n"

/* silu(x @ up) * (x @ gate) @ down, over tokens [2, 300]; the bias is repeated */
static const char *perceptron = "cutback.graph 1\n"
                                "%0 = input {role=param, name=\"up\"} : f32[4,16]\n"
                                "%1 = input {role=param, name=\"down\"} : f32[16,4]\n"
                                "%2 = input {role=param, name=\"bias\"} : f32[16]\n"
                                "%3 = input {role=data, name=\"x\"} : f32[2,300,4]\n"
                                "%4 = reshape(%3) {shape=[600,4]} : f32[600,4]\n"
                                "%5 = matmul(%4, %0) : f32[600,16]\n"
                                "%6 = reshape(%5) {shape=[2,300,16]} : f32[2,300,16]\n"
                                "%7 = expand(%2) {shape=[2,300,16]} : f32[2,300,16]\n"
                                "%8 = add(%6, %7) : f32[2,300,16]\n"
                                "%9 = silu(%8) : f32[2,300,16]\n"
                                "%10 = matmul(%4, %0) : f32[600,16]\n"
                                "%11 = reshape(%10) {shape=[2,300,16]} : f32[2,300,16]\n"
                                "%12 = mul(%9, %11) : f32[2,300,16]\n"
                                "%13 = reshape(%12) {shape=[600,16]} : f32[600,16]\n"
                                "%14 = matmul(%13, %1) : f32[600,4] @\"model.py:9\"\n"
                                "%15 = square(%14) : f32[600,4]\n"
                                "%16 = sum(%15) {axes=[0,1], keepdims=0} : f32[]\n"
                                "output \"loss\" %16 result\n";

static cb_graph *parse(const char *text, const char *more) {
    char all[4096];
    cb_graph *g = NULL;
    snprintf(all, sizeof all, "%s%s", text, more);
    CHECK_OK(cb_graph_parse(&ir_alloc, all, strlen(all), &g, &err));
    return g;
}

typedef struct made {
    cb_graph *joint;
    cb_arena arena;
    cb_str lines;
} made;

static made build(const cb_graph *g, uint32_t n_wrt, bool tangents) {
    static const uint32_t wrt[] = {0, 1, 2};
    made m = {0};
    cb_arena_init(&m.arena, &ir_alloc);
    cb_str_init(&m.lines, &m.arena);
    const cb_joint_options options = {
        .wrt = wrt, .n_wrt = n_wrt, .tangent_inputs = tangents, .slices = true, .sliced = &m.lines};
    CHECK_OK(cb_joint_build(g, &options, &ir_alloc, &m.joint, &err));
    return m;
}

#define CHECK_LINES(m, text) CHECK((m).lines.at &&strcmp((m).lines.at, text) == 0)

static void drop(made *m, cb_graph *g) {
    cb_graph_free(m->joint);
    cb_graph_free(g);
    cb_arena_free(&m->arena);
}

static size_t count(const cb_graph *g, cb_opcode code, cb_phase phase) {
    size_t n = 0;
    for (size_t i = 0; i < g->ops.len; i++)
        n += g->ops.at[i].code == code && g->ops.at[i].phase == phase;
    return n;
}

/* Returns the largest number of elements of a value that an op of this code makes. */
static int64_t largest(const cb_graph *g, cb_opcode code) {
    int64_t most = 0;
    for (size_t i = 0; i < g->values.len; i++) {
        const int64_t n = cb_numel(&g->values.at[i].shape);
        if (ir_code(g, (cb_value_id)i) == code && n > most) most = n;
    }
    return most;
}

TEST(pieces_begin_at_multiples_of_256_rows) {
    static const int64_t rows[] = {512, 600, 1023, 2048, 2049, 2303, 5000, 1 << 20};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int64_t blocks = rows[i] / CB_PIECE_ROWS;
        const uint32_t n = (uint32_t)(blocks < CB_MAX_PIECES ? blocks : CB_MAX_PIECES);
        CHECK(cb_piece_begins(rows[i], n, 0) == 0 && cb_piece_begins(rows[i], n, n) == rows[i]);
        for (uint32_t k = 0; k < n; k++) {
            CHECK(cb_piece_begins(rows[i], n, k) % CB_PIECE_ROWS == 0);
            CHECK(cb_piece_begins(rows[i], n, k) < cb_piece_begins(rows[i], n, k + 1));
        }
    }
}

TEST(a_loss_is_followed_by_its_gradients) {
    cb_graph *g = parse(head, LOSS);
    made m = build(g, 2, false);
    CHECK_LINES(m,
                "model.py:3 cross_entropy: 600 rows in 2 pieces, each followed by its gradients\n");
    CHECK(count(m.joint, CB_OP_CROSS_ENTROPY, CB_FORWARD) == 2);
    CHECK(count(m.joint, CB_OP_CROSS_ENTROPY_BWD, CB_FORWARD) == 2);
    CHECK(count(m.joint, CB_OP_MATMUL, CB_FORWARD) == 5); /* dw of the first piece, dx of both */
    CHECK(count(m.joint, CB_OP_MATMUL_ADD, CB_FORWARD) == 1);
    CHECK(count(m.joint, CB_OP_TANH_BWD, CB_BACKWARD) == 1);
    CHECK(largest(m.joint, CB_OP_CROSS_ENTROPY_BWD) == 344 * 9);
    CHECK(m.joint->ops.at[m.joint->backward_starts].phase == CB_BACKWARD);
    drop(&m, g);
}

TEST(with_a_tangent_they_come_in_the_backward) {
    cb_graph *g = parse(head, LOSS);
    made m = build(g, 2, true);
    CHECK_LINES(m, "model.py:3 cross_entropy: 600 rows in 2 pieces\n");
    CHECK(count(m.joint, CB_OP_CROSS_ENTROPY_BWD, CB_BACKWARD) == 2);
    CHECK(count(m.joint, CB_OP_MATMUL_ADD, CB_BACKWARD) == 1);
    drop(&m, g);
}

TEST(without_gradients) {
    cb_graph *g = parse(head, LOSS);
    made m = build(g, 0, false);
    CHECK(count(m.joint, CB_OP_CROSS_ENTROPY, CB_FORWARD) == 2);
    CHECK(m.joint->backward_starts == m.joint->ops.len);
    drop(&m, g);
}

TEST(gradients_that_depend_on_the_loss_stay_in_the_backward) {
    cb_graph *g = parse(head, "%8 = square(%7) : f32[]\noutput \"loss\" %8 result\n");
    made m = build(g, 2, false);
    CHECK_LINES(m, "model.py:3 cross_entropy: 600 rows in 2 pieces\n");
    CHECK(count(m.joint, CB_OP_CROSS_ENTROPY_BWD, CB_BACKWARD) == 2);
    drop(&m, g);
}

TEST(a_perceptron_over_tokens) {
    cb_graph *g = parse(perceptron, "");
    made m = build(g, 3, false);
    CHECK_LINES(m, "model.py:9 matmul: 600 rows in 2 pieces\n");
    CHECK(largest(m.joint, CB_OP_SILU) == 344 * 16);
    CHECK(count(m.joint, CB_OP_MATMUL_ADD, CB_BACKWARD) == 4); /* up is read four times */
    drop(&m, g);
}

/* c = a + b, and both c and a are multiplied: the gradient of c is a product, which `add` passes to
 * a and b. Adding it to that of a in one op would compute it twice. */
TEST(a_product_with_two_readers_is_made_once) {
    cb_graph *g = parse("cutback.graph 1\n"
                        "%0 = input {role=param, name=\"a\"} : f32[8,4]\n"
                        "%1 = input {role=param, name=\"b\"} : f32[8,4]\n"
                        "%2 = input {role=data, name=\"w\"} : f32[4,4]\n"
                        "%3 = add(%0, %1) : f32[8,4]\n"
                        "%4 = matmul(%3, %2) : f32[8,4]\n"
                        "%5 = matmul(%0, %2) : f32[8,4]\n"
                        "%6 = mul(%4, %5) : f32[8,4]\n"
                        "%7 = sum(%6) {axes=[0,1], keepdims=0} : f32[]\n",
                        LOSS);
    made m = build(g, 2, false);
    CHECK(count(m.joint, CB_OP_MATMUL, CB_BACKWARD) == 2);
    CHECK(count(m.joint, CB_OP_MATMUL_ADD, CB_BACKWARD) == 0);
    drop(&m, g);
}

TEST(what_stays_whole) {
    cb_graph *g = parse(head, LOSS "output \"logits\" %4 result\n");
    made m = build(g, 2, false);
    CHECK_LINES(m, "model.py:3 cross_entropy: whole, as no matrix product by rows leads here, or "
                   "its result is read elsewhere\n");
    CHECK(largest(m.joint, CB_OP_CROSS_ENTROPY_BWD) == 600 * 9);
    drop(&m, g);
}

static cb_status joint_in_pieces(cb_alloc *alloc, void *user) {
    static const uint32_t wrt[] = {0, 1};
    cb_graph *out = NULL;
    cb_arena arena;
    cb_str lines;
    cb_arena_init(&arena, alloc);
    cb_str_init(&lines, &arena);
    const cb_joint_options options = {.wrt = wrt, .n_wrt = 2, .slices = true, .sliced = &lines};
    cb_status status = cb_joint_build(user, &options, alloc, &out, &err);
    if (status == CB_OK && lines.failed) status = CB_NOMEM;
    cb_graph_free(out);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    cb_graph *g = parse(head, LOSS);
    check_oom(joint_in_pieces, g);
    cb_graph_free(g);
    g = parse(perceptron, "");
    check_oom(joint_in_pieces, g);
    cb_graph_free(g);
}

int main(void) {
    cb_alloc_init(&ir_alloc);
    RUN(pieces_begin_at_multiples_of_256_rows);
    RUN(a_loss_is_followed_by_its_gradients);
    RUN(with_a_tangent_they_come_in_the_backward);
    RUN(without_gradients);
    RUN(gradients_that_depend_on_the_loss_stay_in_the_backward);
    RUN(a_perceptron_over_tokens);
    RUN(a_product_with_two_readers_is_made_once);
    RUN(what_stays_whole);
    RUN(out_of_memory);
    return ir_report();
}
