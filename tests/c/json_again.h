/* json_again.h: writes a parsed JSON document back as text. */
#ifndef CB_TEST_JSON_AGAIN_H
#define CB_TEST_JSON_AGAIN_H

#include "base/json.h"

/* Recursion is at most 64 deep, as the reader guarantees. */
static inline void write_node(cb_json_writer *w, const cb_json *node) {
    switch (node->kind) {
        case CB_JSON_NULL: cb_json_put_null(w, node->key); return;
        case CB_JSON_BOOL: cb_json_put_bool(w, node->key, node->as.boolean); return;
        case CB_JSON_INT: cb_json_put_int(w, node->key, node->as.integer); return;
        case CB_JSON_DOUBLE: cb_json_put_double(w, node->key, node->as.number); return;
        case CB_JSON_STRING: cb_json_put_string(w, node->key, node->as.string); return;
        case CB_JSON_ARRAY:
        case CB_JSON_OBJECT: break;
    }
    bool object = node->kind == CB_JSON_OBJECT;
    cb_json_begin(w, node->key, object ? '{' : '[');
    for (const cb_json *c = node->as.child; c; c = c->next) write_node(w, c);
    cb_json_end(w, object ? '}' : ']');
}

#endif
