/* fuzz.h: a mutation fuzzer for readers of text. Deterministic: the same count gives the same
 * inputs.
 *
 *     static const char *const seeds[] = {"{\"a\": 1}", "[1, 2]"};
 *     static bool try_one(const char *text, size_t length) { ...; return was_accepted; }
 *     int main(int argc, char **argv) { return fuzz_main(argc, argv, seeds, 2, try_one); }
 *
 * The program takes the number of inputs as its argument (default: `check_rounds(8000, 30000)`).
 * Each input is a seed with one to six mutations, in a block of exactly its size, so that
 * AddressSanitizer sees a read past the end. A test with several formats calls fuzz_run for each
 * instead of fuzz_main.
 *
 * With `--seeds FOLDER` it writes its seeds there instead, as <format>-<seed>, for coverage-guided
 * fuzzers (tests/fuzz). */
#ifndef CB_TESTS_FUZZ_H
#define CB_TESTS_FUZZ_H

#include <stdint.h>
#include <stdlib.h>

#include "check.h"

#define FUZZ_ROOM 65536 /* longest input */

typedef struct fuzz {
    const char *const *seeds; /* [n_seeds] */
    size_t n_seeds;
    uint64_t state; /* state of the random generator */
    size_t length;
    char text[FUZZ_ROOM];
} fuzz;

/* Returns a number below `n` > 0 (splitmix64). */
static inline size_t fuzz_draw(fuzz *f, size_t n) {
    uint64_t x = f->state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return (size_t)((x ^ x >> 31) % n);
}

/* Replaces `n_out` bytes at `at` by `text`; if the result would be too long, changes nothing. */
static inline void fuzz_replace(fuzz *f, size_t at, size_t n_out, const char *text, size_t length) {
    if (f->length - n_out + length > FUZZ_ROOM) return;
    memmove(f->text + at + length, f->text + at + n_out, f->length - at - n_out);
    memcpy(f->text + at, text, length);
    f->length += length - n_out;
}

/* Draws a position and a length within the text; short lengths are more likely. */
static inline void fuzz_span(fuzz *f, size_t *at, size_t *length) {
    *at = fuzz_draw(f, f->length + 1);
    size_t most = f->length - *at,
           wanted = fuzz_draw(f, 4) ? fuzz_draw(f, 9) : fuzz_draw(f, f->length + 1);
    *length = wanted < most ? wanted : most;
}

static inline void fuzz_byte(fuzz *f) {
    if (f->length == 0) return;
    size_t at = fuzz_draw(f, f->length);
    unsigned char byte = (unsigned char)f->text[at];
    if (fuzz_draw(f, 2)) byte ^= (unsigned char)(1u << fuzz_draw(f, 8));
    else byte = (unsigned char)fuzz_draw(f, 256);
    f->text[at] = (char)byte;
}

/* Returns a number or punctuation that readers often get wrong. */
static inline const char *fuzz_word(fuzz *f) {
    static const char *const words[] = {
        "0",
        "-1",
        "1",
        "255",
        "2147483647",
        "2147483648",
        "4294967295",
        "4294967296",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "18446744073709551615",
        "4611686018427387904",
        "1e999",
        "-0",
        "0.5",
        "1e-400",
        "nan",
        "inf",
        "null",
        "true",
        "[]",
        "{}",
        "\"\"",
        "\"",
        "\\",
        "\\ud800",
        "\\u0000",
        "\n",
        "\r\n",
        "\t",
        " ",
        ",",
        ":",
        "=",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "%",
        "#",
        "->",
        "\xEF\xBB\xBF",
        "\xC0\x80",
        "\xED\xA0\x80",
        "\xF4\x90\x80\x80",
        "%7",
        "%99999999",
        "f32",
        "f32[2,3]",
    };
    return words[fuzz_draw(f, sizeof words / sizeof *words)];
}

/* Replaces a run of digits by another number. */
static inline void fuzz_number(fuzz *f) {
    size_t at = fuzz_draw(f, f->length + 1), end;
    while (at < f->length && (f->text[at] < '0' || f->text[at] > '9')) at++;
    for (end = at; end < f->length && f->text[end] >= '0' && f->text[end] <= '9';) end++;
    const char *word = fuzz_word(f);
    if (end > at) fuzz_replace(f, at, end - at, word, strlen(word));
}

/* Copies a piece of some seed over a piece of this text. */
static inline void fuzz_splice(fuzz *f) {
    const char *seed = f->seeds[fuzz_draw(f, f->n_seeds)];
    size_t at, n_out, from = fuzz_draw(f, strlen(seed) + 1),
                      length = fuzz_draw(f, strlen(seed) - from + 1);
    fuzz_span(f, &at, &n_out);
    fuzz_replace(f, at, n_out, seed + from, length);
}

/* Repeats a piece many times: depth, and long lists. */
static inline void fuzz_repeat(fuzz *f) {
    char piece[64];
    size_t at, length, times = 1 + fuzz_draw(f, fuzz_draw(f, 8) ? 4 : 100);
    fuzz_span(f, &at, &length);
    if (length > sizeof piece) length = sizeof piece;
    memcpy(piece, f->text + at, length);
    for (size_t i = 0; i < times; i++) fuzz_replace(f, at, 0, piece, length);
}

static inline void fuzz_mutate(fuzz *f) {
    size_t at, length;
    const char *word;
    switch (fuzz_draw(f, 8)) {
        case 0:
        case 1: fuzz_byte(f); break;
        case 2: fuzz_number(f); break;
        case 3: fuzz_splice(f); break;
        case 4: fuzz_repeat(f); break;
        case 5: /* delete */
            fuzz_span(f, &at, &length);
            fuzz_replace(f, at, length, "", 0);
            break;
        case 6:
            word = fuzz_word(f);
            fuzz_replace(f, fuzz_draw(f, f->length + 1), 0, word, strlen(word));
            break;
        default: /* truncate, rarely, because it hides what follows */
            if (fuzz_draw(f, 4) == 0) f->length = fuzz_draw(f, f->length + 1);
            break;
    }
}

static const char *fuzz_folder; /* where seeds are written; NULL: seeds are mutated instead */
static int fuzz_formats;

static inline void fuzz_write_seeds(const char *const *seeds, size_t n_seeds) {
    char path[4096];
    for (size_t i = 0; i < n_seeds; i++) {
        (void)snprintf(path, sizeof path, "%s/%d-%zu", fuzz_folder, fuzz_formats, i);
        FILE *f = fopen(path, "wb");
        CHECK(f && fwrite(seeds[i], 1, strlen(seeds[i]), f) == strlen(seeds[i]));
        if (f) fclose(f);
    }
    fuzz_formats++;
}

/* Runs `try_one` on `count` inputs. `try_one` returns whether the text was accepted. */
static inline void fuzz_run(const char *const *seeds, size_t n_seeds, uint64_t count,
                            bool (*try_one)(const char *text, size_t length)) {
    static fuzz f; /* too large for a stack */
    uint64_t n_accepted = 0;
    if (fuzz_folder) {
        fuzz_write_seeds(seeds, n_seeds);
        return;
    }
    f.seeds = seeds;
    f.n_seeds = n_seeds;
    for (uint64_t i = 0; i < count; i++) {
        int failures = check_failures;
        f.state = i << 32; /* input i depends only on i: it can be run without those before it */
        const char *seed = seeds[fuzz_draw(&f, n_seeds)];
        f.length = 0;
        fuzz_replace(&f, 0, 0, seed, strlen(seed));
        for (size_t n = 1 + fuzz_draw(&f, 6); n > 0 && i > 0; n--) fuzz_mutate(&f);
        char *exact = malloc(f.length ? f.length : 1);
        if (!exact) break;
        memcpy(exact, f.text, f.length);
        n_accepted += try_one(exact, f.length);
        free(exact);
        if (check_failures != failures) {
            printf("input %llu was: %.*s\n", (unsigned long long)i, (int)f.length, f.text);
            break;
        }
    }
    printf("%llu inputs, %llu accepted\n", (unsigned long long)count,
           (unsigned long long)n_accepted);
}

static inline uint64_t fuzz_count(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--seeds") == 0) {
        fuzz_folder = argv[2];
        return 0;
    }
    return argc > 1 ? strtoull(argv[1], NULL, 10) : check_rounds(8000, 30000);
}

static inline int fuzz_main(int argc, char **argv, const char *const *seeds, size_t n_seeds,
                            bool (*try_one)(const char *text, size_t length)) {
    fuzz_run(seeds, n_seeds, fuzz_count(argc, argv), try_one);
    return check_report();
}

#endif
