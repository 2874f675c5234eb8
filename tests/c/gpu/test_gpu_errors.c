/* Errors of a device: each driver entry that fails once gives a clean error and leaves nothing
 * behind, and so do an old device, a full one, and a wrong index. */
#include <stdlib.h>
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
#include <malloc.h>
#define HAS_MALLINFO2
#endif

#include "check.h"
#include "gpu.h"
#include "ir/builder.h"
#include "numbers.h"
#include "pipeline.h"

static gpu_hooks hooks;

/* Builds loss = sum((x @ w)^2 weight[index]), with gradients kept inside the step. */
static cb_status make_graph(cb_context *ctx, cb_graph **g) {
    const cb_shape rows = {2, {4, 8}}, square = {2, {8, 8}}, line = {1, {4}};
    cb_value_id x, w, index, y, e, loss;
    CB_TRY(cb_graph_new(ctx, g, &err));
    CB_TRY(cb_graph_append_input(*g, "x", CB_ROLE_PARAM, CB_F32, &rows, &x, &err));
    CB_TRY(cb_graph_append_input(*g, "w", CB_ROLE_PARAM, CB_F32, &square, &w, &err));
    CB_TRY(cb_graph_append_input(*g, "index", CB_ROLE_DATA, CB_I32, &line, &index, &err));
    CB_TRY(cb_build2(*g, CB_OP_MATMUL, x, w, &y, &err));
    CB_TRY(cb_build2(*g, CB_OP_EMBEDDING, w, index, &e, &err));
    CB_TRY(cb_build2(*g, CB_OP_MUL, y, e, &y, &err));
    CB_TRY(cb_build_sum(*g, y, 0, NULL, false, &loss, &err));
    return cb_graph_append_output(*g, loss, "loss", CB_OUTPUT_RESULT, CB_NONE, &err);
}

typedef struct memory {
    float x[32], w[64], loss, moment[64];
    int32_t index[4];
} memory;

static cb_status step_once(cb_step *step, memory *m) {
    void *inputs[] = {m->x, m->w, m->index}, *outputs[] = {&m->loss, NULL};
    void *params[] = {m->w}, *moments[] = {m->moment};
    void *const *states[] = {moments};
    static const double hyper[] = {0.1, 0.9, 0.0, 0.0, 0.0, 0.0};
    static const uint32_t group[] = {0};
    const cb_run run = {.inputs = inputs, .outputs = outputs, .on_host = true};
    const cb_update update = {.optimizer = cb_optimizer_find("sgd"),
                              .params = params,
                              .states = states,
                              .hyper = hyper,
                              .n_groups = 1,
                              .group = group,
                              .t = 1,
                              .on_host = true};
    CB_TRY(cb_step_run(step, &run, NULL, &err));
    CB_TRY(cb_step_update(step, &update, &err));
    return cb_step_wait(step, NULL, &err);
}

static void fill(memory *m) {
    memset(m, 0, sizeof *m);
    for (int i = 0; i < 32; i++) m->x[i] = (float)(i % 5) - 2;
    for (int i = 0; i < 64; i++) m->w[i] = (float)(i % 7) - 3;
    for (int i = 0; i < 4; i++) m->index[i] = 2 * i;
}

/* Goes from a new context to a finished step, and frees everything. */
static cb_status whole_on(int device, memory *m) {
    const cb_context_options options = {.n_threads = 1};
    cb_cuda_options cuda;
    cb_context *ctx = NULL;
    cb_graph *g = NULL;
    cb_step *step = NULL;
    uint32_t wrt[] = {1};
    const cb_compile_options compile = {.wrt = wrt, .n_wrt = 1, .keep_gradients = true};
    fill(m);
    CHECK_OK(cb_context_new(&options, &ctx, &err));
    cuda = cb_context_cuda(ctx);
    cuda.device = device;
    cb_status status = cb_context_set_cuda(ctx, &cuda, &err);
    if (status == CB_OK) status = make_graph(ctx, &g);
    if (status == CB_OK) status = cb_compile(ctx, g, &compile, &step, &err);
    if (status == CB_OK) status = step_once(step, m);
    const cb_error kept = err;
    cb_step_free(step);
    cb_graph_free(g);
    cb_context_free(ctx);
    err = kept;
    return status;
}

static cb_status whole(memory *m) { return whole_on(0, m); }

static void forget(void) {
    char text[4096];
    hooks.recover();
    (void)hooks.reports(text, sizeof text);
}

TEST(each_entry_that_fails_is_a_clean_error) {
    memory good, m;
    CHECK_OK(whole(&good));
    size_t before = hooks.allocated();
    int n_failed = 0;
    for (int i = 0; hooks.entry(i); i++) {
        const char *entry = hooks.entry(i);
        if (strstr(entry, "GetError") || strstr(entry, "Destroy") || strstr(entry, "Free") ||
            strstr(entry, "Unload") || strstr(entry, "Release") || strstr(entry, "Pop"))
            continue; /* entries that describe errors or free resources cannot report a failure */
        for (int nth = 1; nth < 200; nth++) {
            hooks.fail(entry, nth, strstr(entry, "Alloc") ? 2 : 999);
            const cb_status status = whole(&m);
            hooks.fail(entry, 0, 0);
            forget();
            /* Without a context nothing can be freed. */
            if (hooks.allocated() != before && !strstr(entry, "Push")) {
                printf("  %s %d leaves %d bytes\n", entry, nth, (int)(hooks.allocated() - before));
                check_failures++;
            }
            before = hooks.allocated();
            if (status == CB_OK) break; /* there was no n-th call */
            n_failed++;
            CHECK(status == (strstr(entry, "Alloc") ? CB_NOMEM
                             : strstr(entry, "ProcAddress") || strstr(entry, "Version")
                                 ? CB_UNSUPPORTED
                                 : CB_INTERNAL));
            if (status != CB_UNSUPPORTED && strncmp(err.text, "cu", 2) != 0)
                printf("  %s: %s\n", entry, err.text), check_failures++;
        }
    }
    printf("  %d failures\n", n_failed);
    CHECK(n_failed > 40);
    CHECK_OK(whole(&m));
    CHECK(memcmp(&m, &good, sizeof m) == 0);
}

TEST(an_old_device_names_the_way_out) {
    memory m;
    hooks.set("capability", 70);
    CHECK_FAIL(whole(&m), CB_UNSUPPORTED, "this device has 7.0: install NVRTC of CUDA 12");
    hooks.set("capability", 90);
}

TEST(a_device_that_does_not_exist) {
    memory m;
    CHECK_FAIL(whole_on(1, &m), CB_INVALID, "device 1 was requested, but there is 1");
    CHECK_FAIL(whole_on(-1, &m), CB_INVALID, "device -1 was requested, but there is 1");
    hooks.set("devices", 2);
    CHECK_FAIL(whole_on(2, &m), CB_INVALID, "device 2 was requested, but there are 2");
    hooks.set("devices", 1);
}

/* Returns the allocated bytes; 0 if this C library does not report them. */
static size_t heap(void) {
#ifdef HAS_MALLINFO2
    return mallinfo2().uordblks;
#else
    return 0;
#endif
}

TEST(a_device_that_is_gone_keeps_no_memory) {
    enum { TRIES = 50, PAGE = 4096 }; /* the device's list of kept blocks takes a page */
    memory m;
    CHECK_FAIL(whole_on(1, &m), CB_INVALID, "device 1");
    const size_t unopened = heap();
    for (int i = 0; i < TRIES; i++) CHECK_FAIL(whole_on(1, &m), CB_INVALID, "device 1");
    CHECK(heap() < unopened + TRIES * PAGE / 2);
    CHECK_OK(whole(&m));
    const size_t closed = heap();
    for (int i = 0; i < TRIES; i++) CHECK_OK(whole(&m));
    CHECK(heap() < closed + TRIES * PAGE * 3 / 4);
}

TEST(a_device_that_is_full) {
    memory m;
    hooks.set("memory", (long)hooks.allocated() + 64);
    CHECK_FAIL(whole(&m), CB_NOMEM, "cuMemAlloc");
    CHECK(strstr(err.text, "OUT_OF_MEMORY"));
    hooks.set("memory", 8l << 30);
    CHECK_OK(whole(&m));
}

TEST(an_index_out_of_range_is_told_once_and_changes_nothing) {
    const cb_context_options options = {.n_threads = 1};
    cb_context *ctx = NULL;
    cb_graph *g = NULL;
    cb_step *step = NULL;
    memory m, before;
    uint32_t wrt[] = {1};
    const cb_compile_options compile = {.wrt = wrt, .n_wrt = 1, .keep_gradients = true};
    CHECK_OK(cb_context_new(&options, &ctx, &err));
    CHECK_OK(make_graph(ctx, &g));
    CHECK_OK(cb_compile(ctx, g, &compile, &step, &err));
    fill(&m);
    m.index[2] = 11;
    before = m;
    CHECK_FAIL(step_once(step, &m), CB_INVALID, "index 11 out of range for 8 rows");
    CHECK(memcmp(m.w, before.w, sizeof m.w) == 0);
    m.index[2] = 1;
    CHECK_OK(step_once(step, &m));
    CHECK(memcmp(m.w, before.w, sizeof m.w) != 0);
    cb_step_free(step);
    cb_graph_free(g);
    cb_context_free(ctx);
}

/* ---- captures -------------------------------------------------------------------------------- */

static void *library;

/* Calls an entry that only tests need, with arguments of eight bytes. */
typedef int (*entry_fn)(uintptr_t a, uintptr_t b, uintptr_t c);
static int call(const char *name, uintptr_t a, uintptr_t b, uintptr_t c) {
    entry_fn entry;
    void *found = dlsym(library, name);
    memcpy(&entry, &found, sizeof entry);
    return entry(a, b, c);
}

typedef struct placed { /* a step with its arguments on the device */
    cb_step *step;
    void *inputs[3], *outputs[2], *arena;
} placed;

static void place(placed *p, cb_step *step, const memory *m) {
    const void *from[] = {m->x, m->w, m->index};
    const size_t bytes[] = {sizeof m->x, sizeof m->w, sizeof m->index};
    *p = (placed){.step = step};
    for (int i = 0; i < 3; i++) {
        CHECK_OK(step->backend->alloc(step->device, bytes[i], &p->inputs[i], &err));
        CHECK_OK(step->backend->copy(step->device, NULL, CB_WAY_IN, p->inputs[i], from[i], bytes[i],
                                     &err));
    }
    CHECK_OK(step->backend->alloc(step->device, sizeof(float), &p->outputs[0], &err));
    CHECK_OK(
        step->backend->alloc(step->device, (size_t)step->program->arena_bytes, &p->arena, &err));
    CHECK_OK(step->backend->sync(step->device, NULL, &err));
}

static void take_away(placed *p) {
    for (int i = 0; i < 3; i++) p->step->backend->free(p->step->device, p->inputs[i]);
    p->step->backend->free(p->step->device, p->outputs[0]);
    p->step->backend->free(p->step->device, p->arena);
}

static float fetch_loss(const placed *p) {
    float loss = 0;
    CHECK_OK(p->step->backend->copy(p->step->device, NULL, CB_WAY_OUT, &loss, p->outputs[0],
                                    sizeof loss, &err));
    CHECK_OK(p->step->backend->sync(p->step->device, NULL, &err));
    return loss;
}

/* Captures the first run. Calls the backend directly, because functions of a step record events,
 * which a capture of one stream cannot contain. */
static void check_capture(cb_step *step, placed *p, void *stream) {
    enum { GLOBAL = 0 };
    void *graph = NULL, *executable = NULL;
    const uintptr_t at = (uintptr_t)stream;
    const float nothing = 0;
    const cb_bindings bindings = {
        .stream = stream, .inputs = p->inputs, .outputs = p->outputs, .arena = p->arena, .seed = 3};
    CHECK_OK(step->backend->copy(step->device, stream, CB_WAY_IN, p->outputs[0], &nothing,
                                 sizeof nothing, &err));
    CHECK_OK(step->backend->sync(step->device, stream, &err));
    CHECK(call("cuStreamBeginCapture_v2", at, GLOBAL, 0) == 0);
    CHECK_OK(step->backend->run(step->state, &bindings, NULL, &err));
    CHECK(call("cuStreamEndCapture", at, (uintptr_t)&graph, 0) == 0);
    CHECK(fetch_loss(p) == 0); /* it was recorded and has not run */
    CHECK(call("cuGraphInstantiateWithFlags", (uintptr_t)&executable, (uintptr_t)graph, 0) == 0);
    CHECK(call("cuGraphLaunch", (uintptr_t)executable, at, 0) == 0);
    CHECK_OK(step->backend->finish(step->state, stream, &err));
    const float loss = fetch_loss(p);
    CHECK_OK(step->backend->copy(step->device, stream, CB_WAY_IN, p->outputs[0], &nothing,
                                 sizeof nothing, &err));
    CHECK_OK(step->backend->run(step->state, &bindings, NULL, &err));
    CHECK_OK(step->backend->finish(step->state, stream, &err));
    CHECK(loss != 0 && fetch_loss(p) == loss);
    CHECK(call("cuGraphExecDestroy", (uintptr_t)executable, 0, 0) == 0);
}

TEST(a_run_can_be_captured) {
    const cb_context_options options = {.n_threads = 1};
    const cb_compile_options compile = {0};
    cb_context *ctx = NULL;
    cb_graph *g = NULL;
    cb_step *step = NULL;
    memory m;
    placed p;
    void *stream = NULL, *context = NULL;
    fill(&m);
    CHECK_OK(cb_context_new(&options, &ctx, &err));
    CHECK_OK(make_graph(ctx, &g));
    CHECK_OK(cb_compile(ctx, g, &compile, &step, &err));
    library = dlopen(CB_STAND_IN, RTLD_NOW | RTLD_LOCAL);
    CHECK(call("cuDevicePrimaryCtxRetain", (uintptr_t)&context, 0, 0) == 0);
    CHECK(call("cuCtxSetCurrent", (uintptr_t)context, 0, 0) == 0);
    CHECK(call("cuStreamCreate", (uintptr_t)&stream, 1, 0) == 0);
    place(&p, step, &m);
    check_capture(step, &p, stream);
    take_away(&p);
    cb_step_free(step);
    cb_graph_free(g);
    cb_context_free(ctx);
    char text[4096];
    CHECK(hooks.reports(text, sizeof text) == 0);
}

int main(void) {
    hooks = gpu_hooks_of();
    hooks.set("quiet", 1);
    RUN(each_entry_that_fails_is_a_clean_error);
    RUN(an_old_device_names_the_way_out);
    RUN(a_device_that_does_not_exist);
    RUN(a_device_that_is_gone_keeps_no_memory);
    RUN(a_device_that_is_full);
    RUN(an_index_out_of_range_is_told_once_and_changes_nothing);
    RUN(a_run_can_be_captured);
    return check_report();
}
