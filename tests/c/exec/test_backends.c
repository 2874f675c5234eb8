/* One small program, laid out by hand, on every backend: an embedding, a product, a convolution
 * with scratch, and a value that is held to the end.
 *
 *     g0  e = embedding(weight, index)    b0 [5,4], scratch b5 for a copy of index
 *     g1  h = matmul(e, w)                b1 [5,3]
 *     g2  y = conv2d(h as [1,1,5,3], k)   b2 [1,2,5,3], scratch b3
 *     g3  z = mul(y, y)                   the caller's
 *     g4  s = mul(h, h)                   b4 [5,3], held
 */
#include "base/sanitize.h"
#include "exec/backend.h"
#include "kernel_test.h"
#include "oom.h"

enum { WEIGHT, INDEX, W, K, E, H, H_IMAGE, Y, Z, S, N_OPERAND };
enum { N_GROUP = 5, N_BUFFER = 6 };

typedef struct fixture {
    cb_program p;
    cb_group group[N_GROUP];
    cb_instr instr[N_GROUP];
    cb_operand operand[N_OPERAND];
    uint32_t operand_id[3 * N_GROUP];
    cb_buffer buffer[N_BUFFER];
    cb_argument input[4], output[2];
    float weight[6 * 4], w[4 * 3], k[2 * 9], z[2 * 5 * 3];
    int64_t index[5];
    void *inputs[4], *outputs[2];
} fixture;

static cb_operand operand(cb_space space, uint32_t buffer, cb_dtype dtype, int32_t rank,
                          const int64_t *dims) {
    cb_operand o = {
        .dtype = dtype, .shape = cb_shape_make(rank, dims), .space = space, .buffer = buffer};
    cb_shape_strides(&o.shape, o.stride);
    return o;
}
#define OPERAND(space, buffer, dtype, rank, ...) \
    operand((space), (buffer), (dtype), (rank), (int64_t[]){__VA_ARGS__})

static void add_instr(fixture *f, cb_opcode code, uint32_t a, uint32_t b, uint32_t out,
                      uint32_t scratch) {
    uint32_t i = f->p.n_group++, at = 3 * i;
    f->p.n_instr++;
    f->instr[i] = (cb_instr){.code = code,
                             .in_begin = at,
                             .n_in = 2,
                             .out_begin = at + 2,
                             .n_out = 1,
                             .step = i,
                             .scratch = scratch,
                             .location = i == 0 ? "model.py:12" : ""};
    f->operand_id[at] = a;
    f->operand_id[at + 1] = b;
    f->operand_id[at + 2] = out;
    f->group[i] = (cb_group){.instr_begin = i, .n_instr = 1};
}

static cb_argument argument(const char *name, const cb_operand *o, uint32_t id) {
    return (cb_argument){.name = name,
                         .dtype = o->dtype,
                         .shape = o->shape,
                         .operand = id,
                         .input = CB_NONE,
                         .bytes = (uint64_t)cb_numel(&o->shape) * cb_dtype_size(o->dtype)};
}

static void lay_out(fixture *f) {
    f->operand[WEIGHT] = OPERAND(CB_SPACE_INPUT, 0, CB_F32, 2, 6, 4);
    f->operand[INDEX] = OPERAND(CB_SPACE_INPUT, 1, CB_I64, 1, 5);
    f->operand[W] = OPERAND(CB_SPACE_INPUT, 2, CB_F32, 2, 4, 3);
    f->operand[K] = OPERAND(CB_SPACE_INPUT, 3, CB_F32, 4, 2, 1, 3, 3);
    f->operand[E] = OPERAND(CB_SPACE_ARENA, 0, CB_F32, 2, 5, 4);
    f->operand[H] = OPERAND(CB_SPACE_ARENA, 1, CB_F32, 2, 5, 3);
    f->operand[H_IMAGE] = OPERAND(CB_SPACE_ARENA, 1, CB_F32, 4, 1, 1, 5, 3);
    f->operand[Y] = OPERAND(CB_SPACE_ARENA, 2, CB_F32, 4, 1, 2, 5, 3);
    f->operand[Z] = OPERAND(CB_SPACE_OUTPUT, 0, CB_F32, 4, 1, 2, 5, 3);
    f->operand[S] = OPERAND(CB_SPACE_ARENA, 4, CB_F32, 2, 5, 3);
    add_instr(f, CB_OP_EMBEDDING, WEIGHT, INDEX, E, 5);
    add_instr(f, CB_OP_MATMUL, E, W, H, CB_NONE);
    add_instr(f, CB_OP_CONV2D, H_IMAGE, K, Y, 3);
    add_instr(f, CB_OP_MUL, Y, Y, Z, CB_NONE);
    add_instr(f, CB_OP_MUL, H, H, S, CB_NONE);
    const cb_attrs conv = {.i = {1, 1, 1, 1, 1, 1, 1}};
    f->instr[2].attrs = conv;
    const cb_conv_tiles tiles =
        cb_conv2d_tiles(CB_OP_CONV2D, &f->operand[H_IMAGE].shape, &f->operand[K].shape,
                        &f->operand[Y].shape, &conv, CB_F32);
    uint64_t scratch = cb_conv2d_scratch(&tiles);
    /*                       bytes, offset, made, last */
    f->buffer[0] = (cb_buffer){80, 0, 0, 1};
    f->buffer[1] = (cb_buffer){60, 128, 1, 4};
    f->buffer[2] = (cb_buffer){120, 192, 2, 3};
    f->buffer[3] = (cb_buffer){scratch, 320, 2, 2};
    f->buffer[4] = (cb_buffer){60, 0, 4, N_GROUP};
    f->buffer[5] = (cb_buffer){64, 128, 0, 0};
    f->p.arena_bytes = 320 + scratch;
    f->p.live_bytes = 60 + 120 + scratch;
    for (uint32_t i = 0; i < 4; i++)
        f->input[i] = argument((const char *[]){"weight", "index", "w", "k"}[i], &f->operand[i], i);
    f->output[0] = argument("z", &f->operand[Z], Z);
    f->output[1] = argument("s", &f->operand[S], S);
}

static fixture *make_fixture(fixture *f) {
    *f = (fixture){0};
    lay_out(f);
    f->p.n_operand = N_OPERAND;
    f->p.n_buffer = N_BUFFER;
    f->p.n_input = 4;
    f->p.n_output = 2;
    f->p.backward_starts = N_GROUP;
    f->p.group = f->group;
    f->p.instr = f->instr;
    f->p.operand = f->operand;
    f->p.operand_id = f->operand_id;
    f->p.buffer = f->buffer;
    f->p.input = f->input;
    f->p.output = f->output;
    for (int i = 0; i < 24; i++) f->weight[i] = (float)(i % 7) - 3;
    for (int i = 0; i < 12; i++) f->w[i] = (float)(i % 5) * 0.5f - 1;
    for (int i = 0; i < 18; i++) f->k[i] = (float)(i % 4) - 1.5f;
    for (int i = 0; i < 5; i++) f->index[i] = (i * 4 + 1) % 6;
    void *inputs[4] = {f->weight, f->index, f->w, f->k};
    memcpy(f->inputs, inputs, sizeof inputs);
    f->outputs[0] = f->z;
    return f;
}

static cb_runtime runtime_with(cb_alloc *alloc, cb_threads *pool) {
    return (cb_runtime){.alloc = alloc, .pool = pool};
}

/* What the program computes, by loops; all numbers are small multiples of 1/4, so every sum is
 * exact. */
static void expect(const fixture *f, float s[15], float z[30]) {
    float h[15];
    for (int i = 0; i < 15; i++) {
        h[i] = 0;
        for (int p = 0; p < 4; p++)
            h[i] += f->weight[f->index[i / 3] * 4 + p] * f->w[p * 3 + i % 3];
        s[i] = h[i] * h[i];
    }
    for (int i = 0; i < 30; i++) {
        float y = 0;
        for (int t = 0; t < 9; t++) {
            int row = i / 3 % 5 + t / 3 - 1, column = i % 3 + t % 3 - 1;
            if (row >= 0 && row < 5 && column >= 0 && column < 3)
                y += h[row * 3 + column] * f->k[i / 15 * 9 + t];
        }
        z[i] = y * y;
    }
}

static void check_backend(const cb_backend *b) {
    fixture f;
    make_fixture(&f);
    cb_alloc alloc;
    cb_threads *pool = NULL;
    void *state = NULL;
    double seconds[N_GROUP] = {-1, -1, -1, -1, -1};
    float s[15], z[30];
    cb_run_stats stats = {0};
    cb_alloc_init(&alloc);
    CHECK_OK(cb_threads_new(&alloc, 2, &pool, &err));
    const cb_runtime runtime = runtime_with(&alloc, pool);
    const cb_bindings bindings = {
        .inputs = f.inputs, .outputs = f.outputs, .group_seconds = seconds};
    CHECK(cb_backend_find(b->name) == b);
    CHECK_OK(b->supports(&f.p, &err));
    CHECK_OK(b->compile(&f.p, &runtime, &state, &err));
    for (int run = 0; run < 2; run++) {
        memset(f.z, 0, sizeof f.z);
        CHECK_OK(b->run(state, &bindings, &stats, &err));
        expect(&f, s, z);
        CHECK(stats.n_group == N_GROUP);
        for (int i = 0; i < N_GROUP; i++) CHECK(seconds[i] >= 0);
        if (b == &cb_backend_null) continue;
        CHECK(memcmp(f.z, z, sizeof z) == 0);
        CHECK(b->address(state, S) && memcmp(b->address(state, S), s, sizeof s) == 0);
        CHECK(b->address(state, Z) == NULL);
    }
    if (b == &cb_backend_cpu) CHECK(stats.peak_bytes == f.p.arena_bytes && stats.n_alloc == 0);
    if (b == &cb_backend_debug) CHECK(stats.peak_bytes == f.p.live_bytes);
    b->destroy(state);
    b->destroy(NULL);
    cb_threads_free(pool);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
}

TEST(all) {
    check_backend(&cb_backend_cpu);
    check_backend(&cb_backend_debug);
    check_backend(&cb_backend_ref);
    check_backend(&cb_backend_null);
    CHECK(cb_backend_find("cuda") == NULL);
}

/* ---- what can go wrong ----------------------------------------------------------------------- */

static void check_run_fails(const cb_backend *b, fixture *f, cb_bindings bindings, cb_status want,
                            const char *text) {
    cb_alloc alloc;
    void *state = NULL;
    cb_alloc_init(&alloc);
    const cb_runtime runtime = runtime_with(&alloc, NULL);
    CHECK_OK(b->compile(&f->p, &runtime, &state, &err));
    CHECK_FAIL(b->run(state, &bindings, NULL, &err), want, text);
    CHECK(b->run(state, &bindings, NULL, NULL) == want); /* an error text is optional */
    b->destroy(state);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
}

static int stop_at_once(void *user) {
    ++*(int *)user;
    return 1;
}

TEST(errors) {
    const cb_backend *backends[] = {&cb_backend_cpu, &cb_backend_debug, &cb_backend_ref};
    for (int i = 0; i < 3; i++) {
        fixture f;
        make_fixture(&f);
        int asked = 0;
        cb_bindings bindings = {
            .inputs = f.inputs, .outputs = f.outputs, .poll = stop_at_once, .poll_user = &asked};
        check_run_fails(backends[i], &f, bindings, CB_CANCELLED, "cancelled");
        CHECK(asked == 2);
        bindings.poll = NULL;
        f.index[3] = 300;
        check_run_fails(backends[i], &f, bindings, CB_INVALID, "embedding: index 300 out of range");
        check_run_fails(backends[i], &f, bindings, CB_INVALID, " at model.py:12");
        f.inputs[2] = NULL;
        f.index[3] = 0;
        check_run_fails(backends[i], &f, bindings, CB_INVALID, "no buffer was given for input 2");
    }
}

TEST(unsupported) {
    fixture f;
    make_fixture(&f);
    cb_alloc alloc;
    void *state = NULL;
    cb_alloc_init(&alloc);
    const cb_runtime runtime = runtime_with(&alloc, NULL);
    f.instr[0].code = CB_OP_MATMUL;
    f.operand[WEIGHT].dtype = f.operand[E].dtype = CB_I32;
    CHECK_FAIL(cb_backend_cpu.supports(&f.p, &err), CB_UNSUPPORTED,
               "matmul: no cpu kernel for i32 at model.py:12");
    CHECK_FAIL(cb_backend_cpu.compile(&f.p, &runtime, &state, &err), CB_UNSUPPORTED, "matmul");
    CHECK_FAIL(cb_backend_debug.compile(&f.p, &runtime, &state, &err), CB_UNSUPPORTED, "matmul");
    CHECK(state == NULL && cb_alloc_stats(&alloc).live_bytes == 0);
}

static cb_status compile_and_run(cb_alloc *alloc, void *user) {
    const cb_backend *b = user;
    fixture f;
    make_fixture(&f);
    void *state = NULL;
    const cb_runtime runtime = runtime_with(alloc, NULL);
    const cb_bindings bindings = {.inputs = f.inputs, .outputs = f.outputs};
    cb_status status = b->compile(&f.p, &runtime, &state, NULL);
    if (status == CB_OK) status = b->run(state, &bindings, NULL, NULL);
    b->destroy(state);
    return status;
}

TEST(out_of_memory) {
    cb_backend backends[] = {cb_backend_cpu, cb_backend_debug, cb_backend_ref, cb_backend_null};
    for (int i = 0; i < 4; i++) check_oom(compile_and_run, &backends[i]);
}

/* A buffer that is too small for what is written: a sanitizer would stop the program here, the
 * guards name the op. */
TEST(guards) {
    if (CB_ASAN) return;
    fixture f;
    make_fixture(&f);
    f.buffer[0].bytes -= 8;
    const cb_bindings bindings = {.inputs = f.inputs, .outputs = f.outputs};
    check_run_fails(&cb_backend_debug, &f, bindings, CB_INTERNAL, "buffer 0");
}

int main(void) {
    RUN(all);
    RUN(errors);
    RUN(unsupported);
    RUN(out_of_memory);
    RUN(guards);
    return check_report();
}
