/* For any bytes, the reader returns a document or an error with its position; a document that is
 * written and read again is unchanged. */
#include "base/map.h"
#include "fuzz.h"
#include "json_again.h"

static const char *const seeds[] = {
    "{\"format\": \"cutback-problem\", \"version\": 1, \"ops\": [{\"flops\": 1e9, \"bytes\": 4096, "
    "\"in\": [0, 1]}]}",
    "[1, -2, 3.5, 1e10, -0.0, 9223372036854775807, true, false, null, \"\", [], {}]",
    "{\"a\": {\"b\": {\"c\": [[[[1]]]]}}, \"d\\u0041\\ud83d\\ude00\\n\": "
    "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"}",
    "{\"k1\":1,\"k2\":2,\"k3\":3,\"k4\":4,\"k5\":5,\"k6\":6,\"k7\":7,\"k8\":8,\"k9\":9,\"k10\":10,"
    "\"k11\":11}",
    "  \n\t{ }  ",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"
    "]]]]]]]]]]]]]]]]]]]]]]]]",
    "\"only a string with \\\"escapes\\\" \\\\ \\/ \\b \\f \\n \\r \\t\"",
    "-123456789012345678901234567890.125E+17",
};

static bool is_same(const cb_json *a, const cb_json *b) {
    if (a->n != b->n || !a->key != !b->key || (a->key && strcmp(a->key, b->key) != 0)) return false;
    if (a->kind == CB_JSON_DOUBLE && b->kind == CB_JSON_INT)
        return a->as.number == (double)b->as.integer;
    if (a->kind != b->kind) return false;
    switch (a->kind) {
        case CB_JSON_NULL: return true;
        case CB_JSON_BOOL: return a->as.boolean == b->as.boolean;
        case CB_JSON_INT: return a->as.integer == b->as.integer;
        case CB_JSON_DOUBLE: return a->as.number == b->as.number;
        case CB_JSON_STRING: return strcmp(a->as.string, b->as.string) == 0;
        case CB_JSON_ARRAY:
        case CB_JSON_OBJECT: break;
    }
    const cb_json *x = a->as.child, *y = b->as.child;
    for (; x && y; x = x->next, y = y->next) {
        if (!is_same(x, y)) return false;
    }
    return !x && !y;
}

static void check_round_trip(cb_arena *arena, const cb_json *doc) {
    cb_str text;
    const cb_json *again = NULL;
    cb_str_init(&text, arena);
    cb_json_writer w = {.out = &text};
    write_node(&w, doc);
    CHECK(!text.failed);
    CHECK_OK(cb_json_parse(arena, text.at, text.len, &again, &err));
    CHECK(again && is_same(doc, again));
}

static bool try_one(const char *text, size_t length) {
    cb_alloc alloc;
    cb_arena arena;
    const cb_json *doc = NULL;
    cb_alloc_init(&alloc);
    cb_arena_init(&arena, &alloc);
    cb_status status = cb_json_parse(&arena, text, length, &doc, &err);
    if (status == CB_OK) {
        check_round_trip(&arena, doc);
    } else {
        CHECK(status == CB_INVALID && !doc && strncmp(err.text, "JSON, line ", 11) == 0);
    }
    cb_arena_free(&arena);
    /* Try again with an allocation that fails: the answer is the same, or CB_NOMEM. */
    cb_alloc_fail(&alloc, 1 + cb_hash_bytes(text, length, 0) % 4);
    cb_status second = cb_json_parse(&arena, text, length, &doc, &err);
    CHECK(second == status || second == CB_NOMEM);
    cb_arena_free(&arena);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return status == CB_OK;
}

int main(int argc, char **argv) {
    return fuzz_main(argc, argv, seeds, sizeof seeds / sizeof *seeds, try_one);
}
