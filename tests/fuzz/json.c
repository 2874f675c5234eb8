/* The JSON reader: an accepted document gives the same bytes when it is written, read and written
 * again; a refusal names a line. */
#include "target.h"

#include "base/map.h"
#include "json_again.h"

static void write(const cb_json *doc, cb_arena *arena, cb_str *out) {
    cb_str_init(out, arena);
    cb_json_writer w = {.out = out};
    write_node(&w, doc);
}

/* Checks that each child of an object is found by its key, and that typed access returns a value or
 * an error. */
static void look_up(const cb_json *node) {
    uint64_t u;
    int64_t i;
    double d;
    if (node->kind == CB_JSON_OBJECT) {
        for (const cb_json *c = node->as.child; c; c = c->next)
            EXPECT(cb_json_get(node, c->key) == c);
    }
    cb_status status = cb_json_as_u64(node, "it", 1000, &u, &err);
    if (status == CB_OK) EXPECT(u <= 1000);
    else expect_refusal(status);
    status = cb_json_as_i64(node, "it", &i, &err);
    if (status != CB_OK) expect_refusal(status);
    status = cb_json_as_double(node, "it", &d, &err);
    if (status == CB_OK) EXPECT(d == d);
    else expect_refusal(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cb_alloc alloc;
    cb_arena arena;
    cb_str first, second;
    const cb_json *doc = NULL, *again = NULL;
    cb_alloc_init(&alloc);
    cb_arena_init(&arena, &alloc);
    cb_status status = cb_json_parse(&arena, (const char *)data, size, &doc, &err);
    if (status == CB_OK) {
        look_up(doc);
        if (doc->kind == CB_JSON_OBJECT || doc->kind == CB_JSON_ARRAY)
            for (const cb_json *c = doc->as.child; c; c = c->next) look_up(c);
        write(doc, &arena, &first);
        EXPECT_OK(cb_json_parse(&arena, first.at, first.len, &again, &err));
        write(again, &arena, &second);
        EXPECT(same_text(&first, &second));
    } else {
        EXPECT(status == CB_INVALID && !doc && strncmp(err.text, "JSON, line ", 11) == 0);
    }
    cb_arena_free(&arena);
    cb_alloc_fail(&alloc, 1 + cb_hash_bytes((const char *)data, size, 0) % 8);
    cb_status starved = cb_json_parse(&arena, (const char *)data, size, &doc, &err);
    EXPECT(starved == status || starved == CB_NOMEM);
    cb_arena_free(&arena);
    EXPECT(cb_alloc_stats(&alloc).live_bytes == 0);
    return 0;
}
