/* target.h: shared by the fuzz targets. A target is one source file with
 *
 *     int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { ... EXPECT(...); return 0; }
 *
 * libFuzzer calls it, or without libFuzzer main.c does, with the files of a folder. A failed
 * expectation prints its place and aborts, so that the fuzzer keeps the input. The first bytes of
 * most inputs are choices (which preset, which budget), taken by `take`; an input that is too short
 * reads as zeros. */
#ifndef CB_FUZZ_TARGET_H
#define CB_FUZZ_TARGET_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/vec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static cb_error err; /* the error of the last call */

#define EXPECT(condition)                                                                \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "%s:%d: EXPECT(%s)\n  last error: %s\n", __FILE__, __LINE__, \
                    #condition, err.text);                                               \
            abort();                                                                     \
        }                                                                                \
    } while (0)
#define EXPECT_OK(expression) EXPECT((expression) == CB_OK)

/* The rest of an input. */
typedef struct bytes {
    const uint8_t *at;
    size_t n;
} bytes;

static inline uint32_t take(bytes *b) {
    if (b->n == 0) return 0;
    b->n--;
    return *b->at++;
}

/* Returns a number below `n`, which is at most 256. */
static inline uint32_t take_below(bytes *b, uint32_t n) { return take(b) % n; }

/* Checks that the status is one of the refusals, and that the error has a text. */
static inline void expect_refusal(cb_status status) {
    EXPECT(status == CB_INVALID || status == CB_TYPE || status == CB_UNSUPPORTED ||
           status == CB_INFEASIBLE || status == CB_CANCELLED);
    EXPECT(err.text[0] && memchr(err.text, 0, sizeof err.text));
    EXPECT(err.status == status);
}

/* Returns the rest of an input as a text in a block of exactly its size, without a terminator that
 * readers could rely on. */
static inline char *exact_text(const bytes *b) {
    char *text = malloc(b->n ? b->n : 1);
    if (!text) abort();
    if (b->n) memcpy(text, b->at, b->n);
    return text;
}

/* A poll function that continues `left` times, then always returns `then`. */
typedef struct patience {
    uint32_t left;
    int then;
} patience;

static inline int run_out(void *user) {
    patience *p = user;
    if (p->left == 0) return p->then;
    p->left--;
    return CB_POLL_GO;
}

static inline bool same_text(const cb_str *a, const cb_str *b) {
    return !a->failed && !b->failed && a->len == b->len && memcmp(a->at, b->at, a->len) == 0;
}

#endif
