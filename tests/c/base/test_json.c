#include "base/json.h"

#include <locale.h>
#include <stdlib.h>

#include "base/philox.h"
#include "base/utf8.h"
#include "oom.h"

static cb_alloc alloc;
static cb_arena arena; /* reset for each test */

static void begin(void) {
    cb_alloc_init(&alloc);
    cb_arena_init(&arena, &alloc);
}

static void end(void) {
    cb_arena_free(&arena);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
}

/* Parses a copy of the text in a block of exactly its size, so that reading past it is detected. */
static cb_status parse_bytes(const char *text, size_t length, const cb_json **out) {
    char *block = malloc(length ? length : 1);
    if (!block) return CB_NOMEM;
    if (length) memcpy(block, text, length);
    cb_status status = cb_json_parse(&arena, block, length, out, &err);
    free(block);
    return status;
}

static cb_status parse(const char *text, const cb_json **out) {
    return parse_bytes(text, strlen(text), out);
}

static const cb_json *doc_of(const char *text) {
    static const cb_json nothing;
    const cb_json *doc = &nothing;
    CHECK_OK(parse(text, &doc));
    return doc;
}

TEST(structure) {
    begin();
    const cb_json *doc = doc_of(
        " {\"a\": [1, -2.5, \"x\\n\", true, false, null],\n \"b\": {}, \"c\": [], \"\": 3} ");
    CHECK(doc->kind == CB_JSON_OBJECT && doc->n == 4 && !doc->key && !doc->next);
    const cb_json *a = cb_json_get(doc, "a"), *item = a->as.child;
    CHECK(a->kind == CB_JSON_ARRAY && a->n == 6 && strcmp(a->key, "a") == 0);
    CHECK(item->kind == CB_JSON_INT && item->as.integer == 1 && !item->key);
    item = item->next;
    CHECK(item->kind == CB_JSON_DOUBLE && item->as.number == -2.5);
    item = item->next;
    CHECK(item->kind == CB_JSON_STRING && item->n == 2 && strcmp(item->as.string, "x\n") == 0);
    item = item->next;
    CHECK(item->kind == CB_JSON_BOOL && item->as.boolean);
    item = item->next;
    CHECK(item->kind == CB_JSON_BOOL && !item->as.boolean);
    item = item->next;
    CHECK(item->kind == CB_JSON_NULL && !item->next);
    CHECK(cb_json_get(doc, "b")->kind == CB_JSON_OBJECT && cb_json_get(doc, "b")->n == 0);
    CHECK(cb_json_get(doc, "c")->kind == CB_JSON_ARRAY && cb_json_get(doc, "c")->line == 2);
    CHECK(cb_json_get(doc, "")->as.integer == 3);
    CHECK(!cb_json_get(doc, "d") && !cb_json_get(a, "a"));
    CHECK(doc_of("7")->as.integer == 7 && doc_of("\"\"")->n == 0 &&
          doc_of("null")->kind == CB_JSON_NULL);
    end();
}

TEST(numbers) {
    static const struct {
        const char *text;
        double value;
    } doubles[] = {{"0.5", 0.5},
                   {"-0.0", -0.0},
                   {"1e3", 1000},
                   {"1E-3", 1e-3},
                   {"2.5e+1", 25},
                   {"1e-999", 0},
                   {"9223372036854775808", 0x1p63},
                   {"-9223372036854775809", -0x1p63},
                   {"1.7976931348623157e308", 1.7976931348623157e308},
                   {"5e-324", 5e-324}};
    begin();
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++) {
        const cb_json *doc = doc_of(doubles[i].text);
        CHECK(doc->kind == CB_JSON_DOUBLE &&
              memcmp(&doc->as.number, &doubles[i].value, sizeof(double)) == 0);
    }
    CHECK(doc_of("9223372036854775807")->as.integer == INT64_MAX);
    CHECK(doc_of("-9223372036854775808")->as.integer == INT64_MIN);
    CHECK(doc_of("-9223372036854775808")->kind == CB_JSON_INT);
    CHECK(doc_of("0")->kind == CB_JSON_INT && doc_of("-0")->as.integer == 0);
    end();
}

TEST(strings) {
    begin();
    CHECK(strcmp(doc_of("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"")->as.string, "\"\\/\b\f\n\r\t") == 0);
    CHECK(strcmp(doc_of("\"\\u0041\\u00e9\\u20AC\\ud83d\\uDE00\"")->as.string,
                 "A\u00e9\u20ac\U0001F600") == 0);
    CHECK(strcmp(doc_of("\"\u00e9\u20ac\U0010FFFF\"")->as.string, "\u00e9\u20ac\U0010FFFF") == 0);
    const cb_json *doc = doc_of("{\"k\\u0065y\": 1}");
    CHECK(cb_json_get(doc, "key") != NULL);
    end();
}

/* Every error gives the position, what was expected and what was found. */
TEST(errors_are_precise) {
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"", "line 1, column 1: expected a value"},
        {" \n\n  ", "line 3, column 3: expected a value (null, true, false, a number, a string, "
                    "'[' or '{'), found end of text"},
        {"[1,]", "column 4: expected a value"},
        {"[1 2]", "column 4: expected ',' or ']', found '2'"},
        {"[1,\n 2}", "line 2, column 3: expected ',' or ']', found '}'"},
        {"{\"a\":1,}", "column 8: expected a key in quotes, found '}'"},
        {"{a:1}", "column 2: expected a key in quotes, found 'a'"},
        {"{\"a\" 1}", "column 6: expected ':' after the key, found '1'"},
        {"{\"a\":1 \"b\":2}", "column 8: expected ',' or '}', found '\"'"},
        {"{\"a\":}", "column 6: expected a value"},
        {"[\"\u00e9\u20ac\", x]", "column 8: expected a value"},
        {"[", "column 2: expected a value"},
        {"{", "column 2: expected a key in quotes, found end of text"},
        {"]", "column 1: expected a value"},
        {"[]]", "column 3: expected the end of the text, found ']'"},
        {"1 1", "column 3: expected the end of the text"},
        {"nul", "expected a value"},
        {"truE", "expected a value"},
        {"01", "a number may not start with 0"},
        {"-01", "a number may not start with 0"},
        {"-", "column 2: expected a digit, found end of text"},
        {"+1", "found '+'"},
        {".5", "found '.'"},
        {"1.", "expected a digit"},
        {"1.e3", "expected a digit, found 'e'"},
        {"1e", "expected a digit"},
        {"1e+", "expected a digit"},
        {"0x10", "found 'x'"},
        {"1e999", "too large for a double"},
        {"NaN", "expected a value"},
        {"Infinity", "expected a value"},
        {"\"abc", "column 1: unterminated string"},
        {"\"abc\\", "unterminated string"},
        {"\"abc\\\"", "unterminated string"},
        {"\"a\\x\"", "column 3: unknown escape"},
        {"\"\\u12\"", "four hexadecimal digits"},
        {"\"\\u12G4\"", "four hexadecimal digits"},
        {"\"\\u0000\"", "may not contain \\u0000"},
        {"\"\\ud800\"", "half of a surrogate pair"},
        {"\"\\ud800\\u0041\"", "half of a surrogate pair"},
        {"\"\\ud800\\ud800\"", "half of a surrogate pair"},
        {"\"\\udc00\\ud800\"", "half of a surrogate pair"},
        {"\"a\tb\"", "a control character in a string must be escaped"},
        {"\"a\nb\"", "a control character in a string must be escaped"},
        {"\"\x80\"", "not UTF-8"},
        {"\"\xC0\x80\"", "not UTF-8"},
        {"\"\xED\xA0\x80\"", "not UTF-8"},
        {"\"\xF4\x90\x80\x80\"", "not UTF-8"},
        {"\"\xE2\x82\"", "not UTF-8"},
        {"\xEF\xBB\xBF{}", "column 1: expected a value"},
        {"[\x01]", "found byte 0x01"},
        {"[\xFF]", "found byte 0xFF"},
        {"{\"a\": 1,\n\"b\": 2,\n\"a\": 3}", "line 3: duplicate key \"a\", first on line 1"},
        {"{\"a\": {\"b\": 1, \"b\": 1}}", "duplicate key \"b\""},
    };
    begin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const cb_json *doc = NULL;
        CHECK_FAIL(parse(rows[i].text, &doc), CB_INVALID, rows[i].part);
        CHECK(!doc && strncmp(err.text, "JSON, line ", 11) == 0);
    }
    const cb_json *doc = NULL;
    CHECK_FAIL(parse_bytes("[\0]", 3, &doc), CB_INVALID, "found byte 0x00");
    CHECK_FAIL(parse_bytes("\"\0\"", 3, &doc), CB_INVALID, "control character");
    CHECK_FAIL(parse_bytes("\"\\\0\"", 4, &doc), CB_INVALID, "unknown escape");
    CHECK_FAIL(cb_json_parse(&arena, "", ((size_t)1 << 31) + 1, &doc, &err), CB_INVALID,
               "2147483649 bytes");
    end();
}

TEST(many_keys) {
    begin();
    for (int twist = 0; twist < 3; twist++) {
        cb_str text;
        cb_str_init(&text, &arena);
        cb_json_writer w = {.out = &text};
        cb_json_begin(&w, NULL, '{');
        for (int i = 0; i < 3000; i++) {
            char key[16];
            snprintf(key, sizeof key, "k%d", twist == 1 && i == 2500 ? 17 : i * 7919 % 3000);
            cb_json_put_int(&w, key, i);
        }
        if (twist == 2) cb_json_put_int(&w, "k0", 1);
        cb_json_end(&w, '}');
        const cb_json *doc = NULL;
        CHECK(!text.failed);
        cb_status status = parse_bytes(text.at, text.len, &doc);
        if (twist == 0) CHECK(status == CB_OK && doc->n == 3000 && cb_json_get(doc, "k2999"));
        else CHECK(status == CB_INVALID && strstr(err.text, twist == 1 ? "\"k17\"" : "\"k0\""));
    }
    end();
}

TEST(depth_is_bounded) {
    char text[131];
    const cb_json *doc = NULL;
    begin();
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    CHECK_OK(parse_bytes(text + 1, 128, &doc));
    CHECK_FAIL(parse_bytes(text, 130, &doc), CB_INVALID, "column 65: nested more than 64 deep");
    end();
}

TEST(long_numbers) {
    char text[1002];
    const cb_json *doc = NULL;
    begin();
    memset(text, '1', sizeof text);
    text[1] = '.';
    CHECK_OK(parse_bytes(text, 1000, &doc));
    CHECK(doc->as.number == 1.1111111111111111);
    CHECK_FAIL(parse_bytes(text, 1001, &doc), CB_INVALID, "at most 1000 characters");
    end();
}

TEST(typed_access) {
    const cb_json *node = NULL;
    int64_t i = 0;
    uint64_t u = 0;
    double d = 0;
    begin();
    const cb_json *doc = doc_of(
        "{\"i\": -3,\n\"u\": 12, \"d\": 0.5, \"e\": 2e3, \"s\": \"x\", \"big\": 1e300, \"a\": []}");
    CHECK_OK(cb_json_want(doc, "s", CB_JSON_STRING, &node, &err));
    CHECK(strcmp(node->as.string, "x") == 0);
    CHECK_OK(cb_json_want(doc, "i", CB_JSON_DOUBLE, &node, &err));
    CHECK_FAIL(cb_json_want(doc, "z", CB_JSON_INT, &node, &err), CB_INVALID,
               "line 1: the object has no \"z\"");
    CHECK_FAIL(cb_json_want(doc, "u", CB_JSON_STRING, &node, &err), CB_INVALID,
               "line 2: \"u\" must be of kind string, not integer");
    CHECK_FAIL(cb_json_want(cb_json_get(doc, "a"), "u", CB_JSON_INT, &node, &err), CB_INVALID,
               "the array has no");
    CHECK_OK(cb_json_as_i64(cb_json_get(doc, "i"), "i", &i, &err));
    CHECK_OK(cb_json_as_u64(cb_json_get(doc, "u"), "u", 12, &u, &err));
    CHECK_OK(cb_json_as_double(cb_json_get(doc, "u"), "u", &d, &err));
    CHECK(i == -3 && u == 12 && d == 12);
    CHECK_OK(cb_json_as_double(cb_json_get(doc, "d"), "d", &d, &err));
    CHECK_OK(cb_json_as_u64(cb_json_get(doc, "e"), "e", UINT64_MAX, &u, &err));
    CHECK(d == 0.5 && u == 2000);
    CHECK_FAIL(cb_json_as_u64(cb_json_get(doc, "i"), "i", 5, &u, &err), CB_INVALID,
               "i is -3, not in 0..5");
    CHECK_FAIL(cb_json_as_u64(cb_json_get(doc, "u"), "u", 11, &u, &err), CB_INVALID,
               "u is 12, not in 0..11");
    CHECK_FAIL(cb_json_as_i64(cb_json_get(doc, "d"), "d", &i, &err), CB_INVALID,
               "d is 0.5, not a whole number");
    CHECK_FAIL(cb_json_as_i64(cb_json_get(doc, "big"), "big", &i, &err), CB_INVALID,
               "not a whole number");
    CHECK_FAIL(cb_json_as_i64(cb_json_get(doc, "s"), "s", &i, &err), CB_INVALID,
               "s must be a whole number, not of kind string");
    CHECK_FAIL(cb_json_as_double(cb_json_get(doc, "a"), "a", &d, &err), CB_INVALID,
               "a must be a number, not of kind array");
    CHECK(i == -3 && u == 2000 && d == 0.5);
    end();
}

TEST(writer) {
    cb_str text;
    begin();
    cb_str_init(&text, &arena);
    cb_json_writer w = {.out = &text};
    cb_json_begin(&w, NULL, '{');
    cb_json_put_int(&w, "i", INT64_MIN);
    cb_json_put_u64(&w, "u", UINT64_MAX);
    cb_json_begin(&w, "list", '[');
    cb_json_put_double(&w, NULL, 0.1);
    cb_json_put_double(&w, NULL, NAN);
    cb_json_put_double(&w, NULL, -INFINITY);
    cb_json_put_double(&w, NULL, 3);
    cb_json_begin(&w, NULL, '{');
    cb_json_end(&w, '}');
    cb_json_begin(&w, NULL, '[');
    cb_json_end(&w, ']');
    cb_json_end(&w, ']');
    cb_json_put_string(&w, "s\"", "a\\b\n\x01\x7F\u00e9\xFFz");
    cb_json_put_string(&w, "none", NULL);
    cb_json_put_bool(&w, "t", true);
    cb_json_put_null(&w, "n");
    cb_json_end(&w, '}');
    CHECK(!text.failed);
    CHECK(strcmp(text.at, "{\"i\":-9223372036854775808,\"u\":18446744073709551615,"
                          "\"list\":[0.1,null,null,3,{},[]],"
                          "\"s\\\"\":\"a\\\\b\\n\\u0001\x7F\u00e9\uFFFDz\",\"none\":null,\"t\":"
                          "true,\"n\":null}") == 0);
    const cb_json *doc = doc_of(text.at);
    CHECK(strcmp(cb_json_get(doc, "s\"")->as.string, "a\\b\n\x01\x7F\u00e9\uFFFDz") == 0);
    end();
}

static void check_round_trip(double x) {
    cb_str text;
    double back = 0;
    cb_str_init(&text, &arena);
    cb_json_writer w = {.out = &text};
    cb_json_put_double(&w, NULL, x);
    CHECK(!text.failed);
    CHECK_OK(cb_json_as_double(doc_of(text.at), "x", &back, &err));
    CHECK(memcmp(&x, &back, sizeof x) == 0);
}

TEST(doubles_read_back) {
    static const double values[] = {0,
                                    -0.0,
                                    1,
                                    -1,
                                    0.1,
                                    1e15,
                                    1e16,
                                    1e17,
                                    0x1p53,
                                    0x1p53 + 2,
                                    0x1p62,
                                    0x1p63,
                                    -0x1p63,
                                    5e-324,
                                    1.7976931348623157e308,
                                    1e21,
                                    123456789012345678.0};
    cb_philox random = {.seed = 3};
    begin();
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) check_round_trip(values[i]);
    for (uint64_t i = 0; i < 20000; i++) {
        uint32_t words[4];
        double x;
        cb_philox_block(&random, i, words);
        memcpy(&x, words, sizeof x);
        if (isfinite(x)) check_round_trip(x);
        check_round_trip(
            (double)((uint64_t)words[2] << 32 | words[3])); /* whole numbers of 64 bits */
    }
    end();
}

/* A decimal comma in the user's locale changes neither what is read nor what is written. */
TEST(locale_does_not_matter) {
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "nl_NL.UTF-8"};
    bool found = false;
    for (size_t i = 0; i < 4 && !found; i++) found = setlocale(LC_ALL, names[i]) != NULL;
    if (!found) printf("     (no locale with a decimal comma on this machine)\n");
    begin();
    check_round_trip(0.1);
    CHECK(doc_of("2.5")->as.number == 2.5);
    cb_str text;
    cb_str_init(&text, &arena);
    cb_str_addf(&text, "%g", 2.5);
    CHECK(strcmp(text.at, "2.5") == 0);
    end();
    setlocale(LC_ALL, "C");
}

/* Tests all valid codes, and everything that is not valid. */
TEST(utf8) {
    char text[4];
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        if (code >= 0xD800 && code <= 0xDFFF) continue;
        size_t length = cb_utf8_encode(code, text);
        CHECK(cb_utf8_length(text, length) == length);
        if (length > 1) CHECK(cb_utf8_length(text, length - 1) == 0);
    }
    size_t n_pairs = 0; /* well-formed two-byte characters: 30 first bytes x 64 */
    for (int first = 0x80; first < 256; first++) {
        for (int second = 0; second < 256; second++) {
            text[0] = (char)first, text[1] = (char)second;
            n_pairs += cb_utf8_length(text, 2) == 2;
        }
    }
    CHECK(n_pairs == 30 * 64);
}

static cb_status read_and_write(cb_alloc *a, void *user) {
    cb_arena local;
    const cb_json *doc = NULL;
    cb_arena_init(&local, a);
    cb_status status = cb_json_parse(&local, user, strlen(user), &doc, &err);
    if (status == CB_OK) {
        cb_str text;
        cb_str_init(&text, &local);
        cb_json_writer w = {.out = &text};
        cb_json_begin(&w, NULL, '[');
        for (int i = 0; i < 4000; i++) cb_json_put_double(&w, NULL, i + 0.5);
        cb_json_end(&w, ']');
        if (text.failed) status = CB_NOMEM;
    } else {
        CHECK(!doc);
    }
    cb_arena_free(&local);
    return status;
}

TEST(out_of_memory) {
    cb_str text;
    begin();
    cb_str_init(&text, &arena);
    cb_str_addf(&text, "[");
    for (int i = 0; i < 300; i++) cb_str_addf(&text, "{\"key %d\": [1, 2, \"three\", {}]},", i);
    cb_str_addf(&text, "{");
    for (int i = 0; i < 1000; i++) cb_str_addf(&text, "\"key %d\": %d,", i, i);
    cb_str_addf(&text, "\"last\": null}]");
    CHECK(!text.failed);
    check_oom(read_and_write, text.at);
    end();
}

int main(void) {
    RUN(structure);
    RUN(numbers);
    RUN(strings);
    RUN(errors_are_precise);
    RUN(many_keys);
    RUN(depth_is_bounded);
    RUN(long_numbers);
    RUN(typed_access);
    RUN(writer);
    RUN(doubles_read_back);
    RUN(locale_does_not_matter);
    RUN(utf8);
    RUN(out_of_memory);
    return check_report();
}
