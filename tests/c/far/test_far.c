/* Tests of the far backend itself: each mistake that a real device would punish is detected. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sanitize.h"
#include "check.h"
#include "far.h"

typedef struct far_test {
    const cb_backend *b;
    cb_alloc alloc;
    cb_runtime runtime;
    void *device;
    char *x, *y; /* 100 bytes each, in the device's memory */
    char from[100];
} far_test;

static void begin(far_test *t) {
    *t = (far_test){.b = &cb_backend_far};
    cb_alloc_init(&t->alloc);
    t->runtime.alloc = &t->alloc;
    void *x = NULL, *y = NULL;
    CHECK_OK(t->b->open(&t->runtime, &t->device, &err));
    CHECK_OK(t->b->alloc(t->device, 100, &x, &err));
    CHECK_OK(t->b->alloc(t->device, 100, &y, &err));
    t->x = x;
    t->y = y;
    memset(t->from, 7, sizeof t->from);
}

static void end(far_test *t) {
    for (uintptr_t stream = 0; stream < 3; stream++)
        CHECK_OK(t->b->sync(t->device, far_stream(stream), &err));
    t->b->free(t->device, t->x);
    t->b->free(t->device, t->y);
    t->b->close(t->device);
    CHECK(cb_alloc_stats(&t->alloc).live_bytes == 0);
}

/* Returns the signal that ends a child which touches this address; 0: none. */
static int signal_of_touching(volatile char *at, bool writes) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer would print a report */
        if (writes) *at = 1;
        _exit(*at == 0 ? 0 : 1);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(the_host_cannot_touch_it) {
    far_test t;
    char mine = 0;
    begin(&t);
    for (int writes = 0; writes < 2; writes++) {
        CHECK(signal_of_touching(t.x, writes) == SIGSEGV);
        CHECK(signal_of_touching(t.x + 99, writes) == SIGSEGV);
        CHECK(signal_of_touching(&mine, writes) == 0);
    }
    end(&t);
}

TEST(nothing_is_done_before_somebody_waits) {
    far_test t;
    char to[100] = {0};
    begin(&t);
    CHECK_OK(t.b->copy(t.device, NULL, CB_WAY_IN, t.x, t.from, 100, &err));
    CHECK_OK(t.b->copy(t.device, NULL, CB_WAY_OUT, to, t.x, 100, &err));
    CHECK(to[0] == 0);
    CHECK_OK(t.b->sync(t.device, far_stream(1), &err)); /* another stream */
    CHECK(to[0] == 0);
    CHECK_OK(t.b->sync(t.device, NULL, &err));
    CHECK(memcmp(to, t.from, 100) == 0);
    end(&t);
}

TEST(a_stream_without_an_event_comes_too_late) {
    for (int ordered = 0; ordered < 2; ordered++) {
        far_test t;
        char to[100] = {0};
        cb_event *event = NULL;
        begin(&t);
        CHECK_OK(t.b->event_new(t.device, &event, &err));
        CHECK_OK(t.b->copy(t.device, far_stream(1), CB_WAY_IN, t.x, t.from, 100, &err));
        CHECK_OK(t.b->record(t.device, far_stream(1), event, &err));
        if (ordered) CHECK_OK(t.b->wait(t.device, far_stream(2), event, &err));
        CHECK_OK(t.b->copy(t.device, far_stream(2), CB_WAY_OUT, to, t.x, 100, &err));
        CHECK_OK(t.b->sync(t.device, far_stream(2), &err));
        CHECK((to[0] == 7) == ordered);
        t.b->event_free(t.device, event);
        end(&t);
    }
}

TEST(memory_of_the_host_is_refused) {
    far_test t;
    char mine[100];
    begin(&t);
    CHECK_FAIL(t.b->copy(t.device, NULL, CB_WAY_IN, mine, t.from, 100, &err), CB_INVALID,
               "not an address of the backend's memory");
    CHECK_FAIL(t.b->copy(t.device, NULL, CB_WAY_OUT, mine, t.from, 100, &err), CB_INVALID, "far:");
    end(&t);
}

/* Blocks are allocated and freed in random order, and keep their bytes. */
TEST(blocks) {
    enum { N = 60 };
    far_test t;
    void *block[N] = {0};
    char to[N][3];
    uint32_t state = 1;
    begin(&t);
    for (int turn = 0; turn < 1000; turn++) {
        state = state * 1664525u + 1013904223u;
        const uint32_t k = (state >> 8) % N;
        if (block[k]) {
            CHECK_OK(t.b->copy(t.device, NULL, CB_WAY_OUT, to[k], block[k], 3, &err));
            CHECK_OK(t.b->sync(t.device, NULL, &err));
            CHECK(to[k][0] == (char)k && to[k][2] == (char)k);
            t.b->free(t.device, block[k]);
            block[k] = NULL;
            continue;
        }
        const char bytes[3] = {(char)k, (char)k, (char)k};
        CHECK_OK(t.b->alloc(t.device, 3 + (state >> 20) * 200, &block[k], &err));
        CHECK_OK(t.b->copy(t.device, NULL, CB_WAY_IN, block[k], bytes, 3, &err));
        CHECK_OK(t.b->sync(t.device, NULL, &err));
    }
    for (int k = 0; k < N; k++) t.b->free(t.device, block[k]);
    end(&t);
}

int main(void) {
    if (!CB_TSAN) RUN(the_host_cannot_touch_it); /* ThreadSanitizer does not support this fork */
    RUN(nothing_is_done_before_somebody_waits);
    RUN(a_stream_without_an_event_comes_too_late);
    RUN(memory_of_the_host_is_refused);
    RUN(blocks);
    return check_report();
}
