/* check.h: the whole C test framework. A test program defines TESTs and runs them in main:
 *
 *     TEST(adds) { CHECK(1 + 1 == 2); CHECK_OK(cb_do(&err)); }
 *     int main(void) { RUN(adds); return check_report(); }
 */
#ifndef CB_TESTS_CHECK_H
#define CB_TESTS_CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sanitize.h"
#include "base/status.h"

static int check_failures, check_count;
static cb_error err; /* pass &err to whatever CHECK_OK and CHECK_FAIL judge */

static inline bool check_wishes(const char *wanted) {
    const char *wish = getenv("CUTBACK_TESTS");
    return wish && strcmp(wish, wanted) == 0;
}

/* Returns the number of random cases: `part`, or `all` if CUTBACK_TESTS=all (as `make test-slow`
 * sets it). */
static inline uint64_t check_rounds(uint64_t part, uint64_t all) {
    return check_wishes("all") ? all : part;
}

/* True under sanitizers, which check memory, and with CUTBACK_TESTS=few (as `make test-arm` sets
 * it, because emulation is slow): fewer cases take the same paths, and the plain build compares
 * their results. */
static inline bool check_is_brief(void) { return CB_ASAN || CB_TSAN || check_wishes("few"); }

/* Returns a quarter of `n`, or `n` if CUTBACK_TESTS=all and tests are not brief; for cases that
 * take long. */
static inline uint32_t check_few(uint32_t n) {
    return check_wishes("all") && !check_is_brief() ? n : (n + 3) / 4;
}

/* True if the test is to run: CUTBACK_ONLY names the only one; if it is unset, all run. */
static inline bool check_is_wanted(const char *name) {
    const char *only = getenv("CUTBACK_ONLY");
    return !only || strcmp(only, name) == 0;
}

#define TEST(name) static void test_##name(void)
#define RUN(name)                                                                   \
    do {                                                                            \
        if (!check_is_wanted(#name)) break;                                         \
        int check_before = check_failures;                                          \
        test_##name();                                                              \
        printf("%s %s\n", check_failures == check_before ? "ok  " : "FAIL", #name); \
    } while (0)

#define CHECK(condition)                                                  \
    do {                                                                  \
        check_count++;                                                    \
        if (!(condition)) {                                               \
            check_failures++;                                             \
            printf("%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #condition); \
        }                                                                 \
    } while (0)

#define CHECK_OK(expression)                                                 \
    do {                                                                     \
        cb_status check_status = (expression);                               \
        check_count++;                                                       \
        if (check_status != CB_OK) {                                         \
            check_failures++;                                                \
            printf("%s:%d: %s -> %s: %s\n", __FILE__, __LINE__, #expression, \
                   cb_status_name(check_status), err.text);                  \
        }                                                                    \
    } while (0)

/* The call fails with `want`, and the error text contains `part`. */
#define CHECK_FAIL(expression, want, part)                                   \
    do {                                                                     \
        cb_status check_status = (expression);                               \
        check_count++;                                                       \
        if (check_status != (want) || !strstr(err.text, (part))) {           \
            check_failures++;                                                \
            printf("%s:%d: %s -> %s: %s\n", __FILE__, __LINE__, #expression, \
                   cb_status_name(check_status), err.text);                  \
        }                                                                    \
    } while (0)

static inline int check_report(void) {
    (void)err;
    printf("%d checks, %d failed\n", check_count, check_failures);
    return check_failures != 0;
}

#endif
