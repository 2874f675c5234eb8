/* json.h: RFC 8259 reader and writer. The reader treats its input as hostile: bounded depth and
 * size, errors with line and column, duplicate keys refused, no recursion. */
#ifndef CB_BASE_JSON_H
#define CB_BASE_JSON_H

#include "vec.h"

typedef enum cb_json_kind {
    CB_JSON_NULL = 0,
    CB_JSON_BOOL,
    CB_JSON_INT,
    CB_JSON_DOUBLE,
    CB_JSON_STRING,
    CB_JSON_ARRAY,
    CB_JSON_OBJECT
} cb_json_kind;

/* A node of the document. Children of one parent form a list. Nodes live in the arena that was
 * passed to cb_json_parse. */
typedef struct cb_json {
    cb_json_kind kind;
    uint32_t n;      /* children, or bytes of the string */
    const char *key; /* name inside an object, NULL otherwise; 0-terminated */
    union {
        bool boolean;
        int64_t integer; /* number without '.' or 'e' that fits; larger ones become doubles */
        double number;
        const char *string; /* UTF-8, 0-terminated; an embedded 0 is refused */
        const struct cb_json *child;
    } as;
    const struct cb_json *next; /* sibling */
    uint32_t line;
} cb_json;

CB_MUST_CHECK cb_status cb_json_parse(cb_arena *arena, const char *text, size_t length,
                                      const cb_json **out, cb_error *err);

/* Parses the outline of a document and leaves large arrays of objects in the root as text. Their
 * elements are parsed and checked one at a time, so they need not be in memory together. Errors of
 * cb_json_parse are more precise. */
#define CB_JSON_COUNTS 4

typedef struct cb_json_fold {
    const char *key;
    const char
        *list[CB_JSON_COUNTS]; /* keys of the lists in the elements whose items are counted; NULL:
                                  no more */
    /* results */
    const cb_json *node;            /* an array with `n`, but without children; NULL: no such key */
    uint64_t count[CB_JSON_COUNTS]; /* items of all these lists; keys with escapes are ignored */
    const char *at, *end;           /* after the last element read */
    uint32_t line, n_read;
} cb_json_fold;

CB_MUST_CHECK cb_status cb_json_parse_folded(cb_arena *arena, const char *text, size_t length,
                                             cb_json_fold *fold, uint32_t n_fold,
                                             const cb_json **out, cb_error *err);
/* Reads the next element into `arena`; sets NULL after the last one. */
CB_MUST_CHECK cb_status cb_json_unfold(cb_arena *arena, cb_json_fold *fold, const cb_json **out,
                                       cb_error *err);

/* Returns NULL if `object` is not an object or has no such key. */
const cb_json *cb_json_get(const cb_json *object, const char *key);
const char *cb_json_kind_name(cb_json_kind kind);

/* Typed access. Errors name the key, the value found and the line. If a number is expected
 * (CB_JSON_DOUBLE, cb_json_as_double), an integer is accepted; if an integer is expected, so is
 * 1e9. */
CB_MUST_CHECK cb_status cb_json_want(const cb_json *object, const char *key, cb_json_kind kind,
                                     const cb_json **out, cb_error *err);
CB_MUST_CHECK cb_status cb_json_as_u64(const cb_json *node, const char *what, uint64_t max,
                                       uint64_t *out, cb_error *err);
CB_MUST_CHECK cb_status cb_json_as_i64(const cb_json *node, const char *what, int64_t *out,
                                       cb_error *err);
CB_MUST_CHECK cb_status cb_json_as_double(const cb_json *node, const char *what, double *out,
                                          cb_error *err);

/* Writer; it adds commas and quotes. Errors are recorded in the string (`failed`). */
typedef struct cb_json_writer {
    cb_str *out;
    bool need_comma;
} cb_json_writer;
/* `bracket` is '{' or '[' at the beginning, '}' or ']' at the end. `key` is NULL inside arrays. */
void cb_json_begin(cb_json_writer *w, const char *key, char bracket);
void cb_json_end(cb_json_writer *w, char bracket);
void cb_json_put_int(cb_json_writer *w, const char *key, int64_t v);
void cb_json_put_u64(cb_json_writer *w, const char *key, uint64_t v);
/* Writes the shortest text that reads back as the same double; NaN and infinities become null. */
void cb_json_put_double(cb_json_writer *w, const char *key, double v);
void cb_json_put_string(cb_json_writer *w, const char *key, const char *v); /* NULL becomes null */
void cb_json_put_bool(cb_json_writer *w, const char *key, bool v);
void cb_json_put_null(cb_json_writer *w, const char *key);

#endif
