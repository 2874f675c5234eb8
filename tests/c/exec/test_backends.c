/* One small program, written by hand, on every backend: an embedding, a product, a convolution with
 * scratch, and a value held to the end.
 *
 *     g0  e = embedding(weight, index)    b0 [5,4], scratch b5 for a copy of index
 *     g1  h = matmul(e, w)                b1 [5,3]
 *     g2  y = conv2d(h as [1,1,5,3], k)   b2 [1,2,5,3], scratch b3
 *     g3  z = mul(y, y)                   the caller's
 *     g4  s = mul(h, h)                   b4 [5,3], held
 */
#include "base/sanitize.h"
#include "exec/executable.h"
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
    const void *inputs[4];
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
    /*                       bytes, offset, made, last; it takes nothing over */
    f->buffer[0] = (cb_buffer){80, 0, 0, 1, false, 0};
    f->buffer[1] = (cb_buffer){60, 128, 1, 4, false, 0};
    f->buffer[2] = (cb_buffer){120, 192, 2, 3, false, 0};
    f->buffer[3] = (cb_buffer){scratch, 320, 2, 2, false, 0};
    f->buffer[4] = (cb_buffer){60, 0, 4, N_GROUP, false, 0};
    f->buffer[5] = (cb_buffer){64, 128, 0, 0, false, 0};
    f->p.align = 64;
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
    const void *inputs[4] = {f->weight, f->index, f->w, f->k};
    memcpy(f->inputs, inputs, sizeof inputs);
    return f;
}

/* ---- a device with its arguments ------------------------------------------------------------- */

typedef struct session {
    const cb_backend *b;
    cb_runtime runtime;
    void *device, *inputs[4], *outputs[2], *arena;
    cb_event *began, *ended;
} session;

static cb_status put(session *s, const void *from, size_t bytes, void **block, cb_error *e) {
    CB_TRY(s->b->alloc(s->device, bytes, block, e));
    return s->b->copy(s->device, NULL, CB_WAY_IN, *block, from, bytes, e);
}

static cb_status open_session(session *s, const cb_backend *b, cb_alloc *alloc, cb_threads *pool,
                              const fixture *f, cb_error *e) {
    *s = (session){.b = b, .runtime = {.alloc = alloc, .pool = pool}};
    CB_TRY(b->open(&s->runtime, &s->device, e));
    for (int i = 0; i < 4 && f->inputs[i]; i++)
        CB_TRY(put(s, f->inputs[i], (size_t)f->input[i].bytes, &s->inputs[i], e));
    CB_TRY(put(s, f->z, sizeof f->z, &s->outputs[0], e));
    if (b->uses_arena) CB_TRY(b->alloc(s->device, (size_t)f->p.arena_bytes, &s->arena, e));
    CB_TRY(b->event_new(s->device, &s->began, e));
    CB_TRY(b->event_new(s->device, &s->ended, e));
    return b->sync(s->device, NULL, e);
}

static void close_session(session *s) {
    if (!s->device) return;
    CHECK_OK(s->b->sync(s->device, NULL, &err));
    s->b->event_free(s->device, s->began);
    s->b->event_free(s->device, s->ended);
    for (int i = 0; i < 4; i++) s->b->free(s->device, s->inputs[i]);
    s->b->free(s->device, s->outputs[0]);
    s->b->free(s->device, s->arena);
    s->b->close(s->device);
}

static cb_bindings bindings_of(const session *s) {
    return (cb_bindings){.inputs = s->inputs, .outputs = s->outputs, .arena = s->arena};
}

static void fetch(session *s, const void *from, void *to, size_t bytes) {
    CHECK_OK(s->b->copy(s->device, NULL, CB_WAY_OUT, to, from, bytes, &err));
    CHECK_OK(s->b->sync(s->device, NULL, &err));
}

/* Computes the program's results by loops. All numbers are small multiples of 1/4, so every sum is
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

static void check_run(session *on, const fixture *f, void *state) {
    const cb_backend *b = on->b;
    double seconds[N_GROUP] = {-1, -1, -1, -1, -1}, took = -1;
    float s[15], z[30], got[30];
    cb_run_stats stats = {0};
    cb_bindings bindings = bindings_of(on);
    bindings.group_seconds = seconds;
    expect(f, s, z);
    CHECK_OK(b->record(on->device, NULL, on->began, &err));
    CHECK_OK(b->run(state, &bindings, &stats, &err));
    CHECK_OK(b->record(on->device, NULL, on->ended, &err));
    CHECK_OK(b->finish(state, NULL, &err));
    CHECK_OK(b->seconds(on->device, on->began, on->ended, &took, &err));
    CHECK(stats.n_group == N_GROUP && took >= 0);
    for (int i = 0; i < N_GROUP; i++) CHECK(seconds[i] >= 0 && seconds[i] <= took);
    CHECK(b->address(state, Z) == NULL);
    if (b == &cb_backend_null) return;
    fetch(on, on->outputs[0], got, sizeof z);
    CHECK(memcmp(got, z, sizeof z) == 0);
    CHECK(b->address(state, S));
    fetch(on, b->address(state, S), got, sizeof s);
    CHECK(memcmp(got, s, sizeof s) == 0);
    if (b == &cb_backend_cpu) CHECK(stats.peak_bytes == f->p.arena_bytes);
    if (b == &cb_backend_debug) CHECK(stats.peak_bytes == f->p.live_bytes);
}

/* Checks that a run uses the arena it is given and leaves others unchanged. */
static void check_other_arena(session *on, const fixture *f, void *state) {
    const size_t bytes = (size_t)f->p.arena_bytes;
    void *first = on->arena;
    if (!on->b->uses_arena) return;
    char *before = calloc(2, bytes);
    fetch(on, first, before, bytes);
    CHECK_OK(on->b->alloc(on->device, bytes, &on->arena, &err));
    check_run(on, f, state);
    on->b->free(on->device, on->arena);
    on->arena = first;
    fetch(on, first, before + bytes, bytes);
    CHECK(memcmp(before, before + bytes, bytes) == 0);
    check_run(on, f, state);
    free(before);
}

static void check_backend(const cb_backend *b) {
    fixture f;
    make_fixture(&f);
    cb_alloc alloc;
    cb_threads *pool = NULL;
    void *state = NULL;
    session s;
    cb_alloc_init(&alloc);
    CHECK_OK(cb_threads_new(&alloc, 2, &pool, &err));
    CHECK_OK(open_session(&s, b, &alloc, pool, &f, &err));
    CHECK(cb_backend_find(b->name) == b);
    CHECK_OK(cb_backend_supports(b, &f.p, &err));
    const uint64_t before = cb_alloc_stats(&alloc).live_bytes;
    CHECK_OK(b->compile(&f.p, s.device, &state, &err));
    CHECK(b->bytes(state) == cb_alloc_stats(&alloc).live_bytes - before);
    check_run(&s, &f, state);
    const uint64_t n_alloc = cb_alloc_stats(&alloc).n_alloc;
    check_run(&s, &f, state);
    if (b != &cb_backend_debug) CHECK(cb_alloc_stats(&alloc).n_alloc == n_alloc);
    check_other_arena(&s, &f, state);
    b->destroy(state);
    b->destroy(NULL);
    close_session(&s);
    cb_threads_free(pool);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
}

/* Returns false for the GPU, which not every machine has; tests/c/gpu tests its backend. */
static bool is_here(const cb_backend *b) { return b != &cb_backend_cuda; }

TEST(all) {
    for (int i = 0; cb_backends[i]; i++)
        if (is_here(cb_backends[i])) check_backend(cb_backends[i]);
    CHECK(cb_backend_find("tpu") == NULL);
}

TEST(a_gpu_needs_its_libraries_named) {
    cb_alloc alloc;
    void *device = NULL;
    cb_alloc_init(&alloc);
    cb_runtime runtime = {.alloc = &alloc};
    CHECK_FAIL(cb_backend_cuda.open(&runtime, &device, &err), CB_UNSUPPORTED,
               "has no path to the driver");
    runtime.cuda.driver = "/nowhere/libcuda.so.1";
    CHECK_FAIL(cb_backend_cuda.open(&runtime, &device, &err), CB_UNSUPPORTED,
               "has no path to the library NVRTC");
    runtime.cuda.nvrtc = "/nowhere/libnvrtc.so";
    CHECK_FAIL(cb_backend_cuda.open(&runtime, &device, &err), CB_UNSUPPORTED,
               "/nowhere/libcuda.so.1");
    CHECK(device == NULL);
}

/* ---- memory, streams and events -------------------------------------------------------------- */

/* Uses two streams: after an event, the second copies back what the first has copied in. Waits only
 * for the second. */
static void check_order(const cb_backend *b) {
    cb_stream *one = (cb_stream *)(uintptr_t)1, *two = (cb_stream *)(uintptr_t)2;
    enum { N = 1000 };
    char from[N], to[N] = {0};
    void *device = NULL, *x = NULL, *y = NULL;
    cb_event *event = NULL;
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    const cb_runtime runtime = {.alloc = &alloc};
    for (int i = 0; i < N; i++) from[i] = (char)i;
    CHECK_OK(b->open(&runtime, &device, &err));
    CHECK_OK(b->alloc(device, N, &x, &err));
    CHECK_OK(b->alloc(device, N, &y, &err));
    CHECK(x != y && (uintptr_t)x % b->alignment == 0 && (uintptr_t)y % b->alignment == 0);
    CHECK_OK(b->event_new(device, &event, &err));
    CHECK_OK(b->wait(device, one, event, &err)); /* never recorded: nothing to wait for */
    CHECK_OK(b->copy(device, one, CB_WAY_IN, x, from, N, &err));
    CHECK_OK(b->record(device, one, event, &err));
    CHECK_OK(b->wait(device, two, event, &err));
    CHECK_OK(b->copy(device, two, CB_WAY_OUT, to, x, N, &err));
    CHECK_OK(b->sync(device, two, &err));
    CHECK(memcmp(from, to, N) == 0);
    for (int i = 0; i < 1000; i++) CHECK_OK(b->copy(device, one, CB_WAY_IN, y, from, N, &err));
    CHECK_OK(b->record(device, one, event, &err));
    CHECK_OK(b->wait(device, two, event, &err));
    b->event_free(device, event); /* while work is waiting for it */
    b->event_free(device, NULL);
    CHECK_OK(b->sync(device, two, &err));
    CHECK_OK(b->copy(device, NULL, CB_WAY_OUT, to, x, 0, &err));
    CHECK_OK(b->sync(device, NULL, &err));
    b->free(device, x);
    b->free(device, y);
    b->free(device, NULL);
    b->close(device);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
}

TEST(order) {
    for (int i = 0; cb_backends[i]; i++)
        if (is_here(cb_backends[i])) check_order(cb_backends[i]);
}

enum { ASKED = 64 };

typedef struct asking {
    cb_devices devices;
    const cb_backend *b;
    void *device[ASKED];
} asking;

static void ask(void *user, int64_t task, int thread) {
    asking *a = user;
    (void)thread;
    (void)!cb_devices_get(&a->devices, a->b, &a->device[task], NULL);
}

/* Threads that open a device at the same time get the same one; surplus devices are closed. */
TEST(devices) {
    cb_alloc alloc;
    cb_threads *pool = NULL;
    cb_alloc_init(&alloc);
    CHECK_OK(cb_threads_new(&alloc, 4, &pool, &err));
    const uint64_t before = cb_alloc_stats(&alloc).live_bytes;
    const cb_runtime runtime = {.alloc = &alloc};
    for (int i = 0; cb_backends[i]; i++) {
        if (!is_here(cb_backends[i])) continue;
        asking a = {.devices.runtime = &runtime, .b = cb_backends[i]};
        cb_parallel(pool, ASKED, ask, &a);
        CHECK(a.device[0] != NULL);
        for (int k = 1; k < ASKED; k++) CHECK(a.device[k] == a.device[0]);
        cb_devices_close(&a.devices);
        cb_devices_close(&a.devices);
        CHECK(cb_alloc_stats(&alloc).live_bytes == before);
    }
    cb_threads_free(pool);
}

/* ---- what can go wrong ----------------------------------------------------------------------- */

static cb_status run_and_finish(const cb_backend *b, void *state, const cb_bindings *bindings,
                                cb_error *e) {
    CB_TRY(b->run(state, bindings, NULL, e));
    return b->finish(state, bindings->stream, e);
}

/* Checks that the run fails, reports the error once, and leaves nothing behind. */
static void check_run_fails(const cb_backend *b, fixture *f, cb_poll_fn poll, void *user,
                            cb_status want, const char *text) {
    cb_alloc alloc;
    void *state = NULL;
    session s;
    cb_alloc_init(&alloc);
    CHECK_OK(open_session(&s, b, &alloc, NULL, f, &err));
    CHECK_OK(b->compile(&f->p, s.device, &state, &err));
    cb_bindings bindings = bindings_of(&s);
    bindings.poll = poll;
    bindings.poll_user = user;
    CHECK_FAIL(run_and_finish(b, state, &bindings, &err), want, text);
    CHECK(run_and_finish(b, state, &bindings, NULL) == want); /* the error is optional */
    CHECK_OK(b->finish(state, NULL, &err));
    b->destroy(state);
    close_session(&s);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
}

static int stop_at_once(void *user) {
    ++*(int *)user;
    return 1;
}

TEST(errors) {
    for (int i = 0; cb_backends[i]; i++) {
        const cb_backend *b = cb_backends[i];
        if (!is_here(b)) continue;
        fixture f;
        make_fixture(&f);
        int asked = 0;
        check_run_fails(b, &f, stop_at_once, &asked, CB_CANCELLED, "cancelled");
        CHECK(asked == 2);
        if (b == &cb_backend_null) continue;
        f.index[3] = 300;
        check_run_fails(b, &f, NULL, NULL, CB_INVALID, "embedding: index 300 out of range");
        check_run_fails(b, &f, NULL, NULL, CB_INVALID, " at model.py:12");
        f.inputs[2] = NULL;
        f.index[3] = 0;
        check_run_fails(b, &f, NULL, NULL, CB_INVALID, "no buffer was given for input 2");
    }
}

TEST(unsupported) {
    for (int i = 0; cb_backends[i]; i++) {
        const cb_backend *b = cb_backends[i];
        if (!is_here(b)) continue;
        fixture f;
        make_fixture(&f);
        cb_alloc alloc;
        void *state = NULL, *device = NULL;
        cb_alloc_init(&alloc);
        cb_runtime runtime = {.alloc = &alloc};
        CHECK_OK(b->open(&runtime, &device, &err));
        f.instr[0].code = CB_OP_MATMUL;
        f.operand[WEIGHT].dtype = f.operand[E].dtype = CB_I32;
        if (b->supports == cb_executable_supports) {
            CHECK_FAIL(b->supports(&f.p, 0, &err), CB_UNSUPPORTED,
                       "matmul: no cpu kernel for i32 at model.py:12");
            CHECK_FAIL(b->compile(&f.p, device, &state, &err), CB_UNSUPPORTED, "matmul");
        }
        CHECK_OK(b->supports(&f.p, 1, &err)); /* the other programs can run */
        b->close(device);
        CHECK(state == NULL && cb_alloc_stats(&alloc).live_bytes == 0);
    }
}

/* Indices of the caller are copied before use, which needs scratch. */
TEST(no_room_for_indices) {
    fixture f;
    make_fixture(&f);
    f.buffer[5].bytes = 32;
    CHECK_FAIL(cb_backend_cpu.supports(&f.p, 0, &err), CB_INTERNAL,
               "embedding: the copy of its indices takes 64 bytes, but its scratch has 32");
    f.instr[0].scratch = CB_NONE;
    CHECK_FAIL(cb_backend_cpu.supports(&f.p, 0, &err), CB_INTERNAL, "but its scratch has 0");
}

static cb_status compile_and_run(cb_alloc *alloc, void *user) {
    const cb_backend *b = user;
    fixture f;
    make_fixture(&f);
    void *state = NULL;
    session s;
    cb_status status = open_session(&s, b, alloc, NULL, &f, NULL);
    const cb_bindings bindings = bindings_of(&s);
    if (status == CB_OK) status = b->compile(&f.p, s.device, &state, NULL);
    if (status == CB_OK) status = run_and_finish(b, state, &bindings, NULL);
    b->destroy(state);
    close_session(&s);
    return status;
}

TEST(out_of_memory) {
    for (int i = 0; cb_backends[i]; i++) {
        if (!is_here(cb_backends[i])) continue;
        cb_backend b = *cb_backends[i];
        check_oom(compile_and_run, &b);
    }
}

/* The kernel writes past a buffer that is too small: a sanitizer would stop the program, the guards
 * name the op. */
TEST(guards) {
    if (CB_ASAN) return;
    fixture f;
    make_fixture(&f);
    f.buffer[0].bytes -= 8;
    check_run_fails(&cb_backend_debug, &f, NULL, NULL, CB_INTERNAL, "buffer 0");
}

typedef struct changes { /* something changes during a run of slow groups */
    uint32_t first;      /* the group after which it changes */
    int polled;
} changes;

static cb_status take_a_while(void *user, uint32_t group, cb_error *e) {
    (void)user, (void)group, (void)e;
    const double begin = cb_host_clock();
    while (cb_host_clock() - begin < 6e-3) continue;
    return CB_OK;
}

static bool has_changed(void *user, uint32_t group) {
    return group >= ((const changes *)user)->first;
}

static int count_polls(void *user) {
    ((changes *)user)->polled++;
    return 0;
}

TEST(nobody_polls_after_a_change) {
    for (uint32_t first = 0; first <= 4; first++) {
        changes c = {.first = first};
        const cb_bindings bindings = {
            .poll = count_polls, .poll_user = &c, .after_group = has_changed, .after_user = &c};
        CHECK_OK(cb_run_groups(4, &bindings, take_a_while, NULL, &err));
        CHECK(c.polled == (first < 4 ? (int)first + 1 : 4));
    }
}

int main(void) {
    RUN(all);
    RUN(a_gpu_needs_its_libraries_named);
    RUN(order);
    RUN(devices);
    RUN(errors);
    RUN(unsupported);
    RUN(no_room_for_indices);
    RUN(out_of_memory);
    RUN(guards);
    RUN(nobody_polls_after_a_change);
    return check_report();
}
