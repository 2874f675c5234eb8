/* The reader is a loop over values with a stack of open containers:
 *
 *     read a value -> close what ends here, step over a comma, read a key -> read a value -> ...
 *
 * so nesting uses no C stack, and every error knows its position. Duplicate keys are found by
 * sorting when an object closes: unlike a hash table's, the time is bounded for any keys. */
#include "json.h"

#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

#include "utf8.h"

#define MOST_DEPTH 64
#define MOST_BYTES (UINT64_C(1) << 31)
#define MOST_NUMBER 1000 /* characters */
#define A_VALUE "a value (null, true, false, a number, a string, '[' or '{')"
#define FEW_KEYS 8          /* compared pair by pair */
#define EXACT_DOUBLE 0x1p53 /* doubles represent all whole numbers up to this exactly */

typedef struct reader {
    cb_arena *arena;
    cb_arena *scratch;
    const char *at, *end;
    const char *line_start;
    uint32_t line;
    locale_t plain;
    cb_error *err;
    cb_json *root;
    const char *key; /* key of the value about to be read */
    cb_json_fold *fold;
    uint32_t n_fold;
    bool is_part; /* more text may follow the value */
    int depth;
    struct {
        cb_json *node, *last; /* the current container, and its newest child */
    } open[MOST_DEPTH];
} reader;

/* Columns count characters, from 1. */
static size_t column_of(const reader *r, const char *at) {
    size_t column = 1;
    for (const char *c = r->line_start; c < at; c++) column += (*c & 0xC0) != 0x80;
    return column;
}

static cb_status fail_at(const reader *r, const char *at, const char *problem) {
    return cb_fail(r->err, CB_INVALID, "JSON, line %u, column %zu: %s", r->line, column_of(r, at),
                   problem);
}

/* Fails with "expected X, found Y", where Y is the text at r->at. */
static cb_status fail_expected(const reader *r, const char *expected) {
    char found[16] = "end of text";
    if (r->at < r->end) {
        size_t length = cb_utf8_length(r->at, (size_t)(r->end - r->at));
        bool printable = length > 0 && (uint8_t)*r->at >= 0x20;
        if (printable) snprintf(found, sizeof found, "'%.*s'", (int)length, r->at);
        else snprintf(found, sizeof found, "byte 0x%02X", (uint8_t)*r->at);
    }
    return cb_fail(r->err, CB_INVALID, "JSON, line %u, column %zu: expected %s, found %s", r->line,
                   column_of(r, r->at), expected, found);
}

static void skip_space(reader *r) {
    for (; r->at < r->end; r->at++) {
        if (*r->at == '\n') {
            r->line++;
            r->line_start = r->at + 1;
        } else if (*r->at != ' ' && *r->at != '\t' && *r->at != '\r') {
            return;
        }
    }
}

static bool is_next(const reader *r, char c) { return r->at < r->end && *r->at == c; }

static bool is_digit(const reader *r) { return r->at < r->end && *r->at >= '0' && *r->at <= '9'; }

/* ---- strings --------------------------------------------------------------------------------- */

/* Returns the value of the four hexadecimal digits at `at`; -1 if there are not four. */
static int32_t hex_of(const reader *r, const char *at) {
    int32_t code = 0;
    if (r->end - at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit;
        if (c >= '0' && c <= '9') digit = c - '0';
        else if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
        else if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
        else return -1;
        code = code * 16 + digit;
    }
    return code;
}

/* Reads "\uXXXX", or a surrogate pair of two of them; r->at is at the backslash. */
static cb_status read_unicode(reader *r, char **out) {
    int32_t code = hex_of(r, r->at + 2);
    size_t length = 6;
    if (code < 0) return fail_at(r, r->at, "\\u takes four hexadecimal digits");
    if (code == 0) return fail_at(r, r->at, "a string may not contain \\u0000");
    if (code >= 0xD800 && code <= 0xDFFF) {
        bool pair = r->end - r->at >= 12 && r->at[6] == '\\' && r->at[7] == 'u';
        int32_t low = pair ? hex_of(r, r->at + 8) : -1;
        if (code >= 0xDC00 || low < 0xDC00 || low > 0xDFFF)
            return fail_at(r, r->at, "one half of a surrogate pair is missing");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        length = 12;
    }
    *out += cb_utf8_encode((uint32_t)code, *out);
    r->at += length;
    return CB_OK;
}

static cb_status read_escape(reader *r, char **out) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (r->end - r->at < 2) return fail_at(r, r->at, "unterminated string");
    if (r->at[1] == 'u') return read_unicode(r, out);
    const char *name = r->at[1] ? strchr(names, r->at[1]) : NULL;
    if (!name)
        return fail_at(r, r->at,
                       "unknown escape; use one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX");
    *(*out)++ = values[name - names];
    r->at += 2;
    return CB_OK;
}

/* Reads the string that starts at r->at. No escape is shorter than the character it represents, so
 * the raw length is enough room. */
static cb_status read_text(reader *r, const char **text, uint32_t *length) {
    const char *start = r->at++, *close = r->at;
    while (close < r->end && *close != '"') close += *close == '\\' && close + 1 < r->end ? 2 : 1;
    if (close == r->end) return fail_at(r, start, "unterminated string");
    char *copy = cb_arena_get(r->arena, (size_t)(close - r->at) + 1, 1), *out = copy;
    if (!copy) return cb_no_memory(r->err);
    while (*r->at != '"') {
        if (*r->at == '\\') {
            CB_TRY(read_escape(r, &out));
            continue;
        }
        size_t n = cb_utf8_length(r->at, (size_t)(r->end - r->at));
        if (n == 0) return fail_at(r, r->at, "the string is not UTF-8");
        if ((uint8_t)*r->at < 0x20)
            return fail_at(r, r->at, "a control character in a string must be escaped");
        memcpy(out, r->at, n);
        out += n;
        r->at += n;
    }
    r->at++;
    *text = copy;
    *length = (uint32_t)(out - copy);
    return CB_OK;
}

static cb_status read_string(reader *r, cb_json *node) {
    node->kind = CB_JSON_STRING;
    return read_text(r, &node->as.string, &node->n);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static cb_status skip_digits(reader *r) {
    if (!is_digit(r)) return fail_expected(r, "a digit");
    while (is_digit(r)) r->at++;
    return CB_OK;
}

/* Skips a number; sets `whole` if it has neither fraction nor exponent. */
static cb_status skip_number(reader *r, bool *whole) {
    const char *start = r->at;
    *whole = true;
    if (is_next(r, '-')) r->at++;
    if (is_next(r, '0')) {
        r->at++;
        if (is_digit(r)) return fail_at(r, start, "a number may not start with 0");
    } else {
        CB_TRY(skip_digits(r));
    }
    if (is_next(r, '.')) {
        *whole = false;
        r->at++;
        CB_TRY(skip_digits(r));
    }
    if (is_next(r, 'e') || is_next(r, 'E')) {
        *whole = false;
        r->at++;
        if (is_next(r, '+') || is_next(r, '-')) r->at++;
        CB_TRY(skip_digits(r));
    }
    return CB_OK;
}

/* Returns false if the integer does not fit. Accumulates a negative value, because the smallest
 * integer has no positive counterpart. */
static bool parse_integer(const char *text, int64_t *out) {
    bool negative = *text == '-';
    int64_t value = 0;
    for (text += negative; *text; text++) {
        if (__builtin_mul_overflow(value, 10, &value)) return false;
        if (__builtin_sub_overflow(value, *text - '0', &value)) return false;
    }
    if (!negative && value == INT64_MIN) return false;
    *out = negative ? value : -value;
    return true;
}

static cb_status read_number(reader *r, cb_json *node) {
    const char *start = r->at;
    char text[MOST_NUMBER + 1];
    bool whole;
    CB_TRY(skip_number(r, &whole));
    size_t length = (size_t)(r->at - start);
    if (length > MOST_NUMBER)
        return fail_at(r, start, "a number must have at most 1000 characters");
    memcpy(text, start, length);
    text[length] = '\0';
    node->kind = CB_JSON_INT;
    if (whole && parse_integer(text, &node->as.integer)) return CB_OK;
    node->kind = CB_JSON_DOUBLE;
    node->as.number = strtod_l(text, NULL, r->plain);
    if (node->as.number - node->as.number != 0)
        return fail_at(r, start, "the number is too large for a double");
    return CB_OK;
}

/* ---- arrays that stay text ------------------------------------------------------------------- */

/* Moves to the end of the string. */
static cb_status skip_text(reader *r) {
    const char *start = r->at++;
    while (r->at < r->end && *r->at != '"') r->at += *r->at == '\\' && r->at + 1 < r->end ? 2 : 1;
    if (r->at == r->end) return fail_at(r, start, "unterminated string");
    r->at++;
    return CB_OK;
}

static uint64_t *count_of(cb_json_fold *fold, const char *key, size_t length) {
    for (int i = 0; i < CB_JSON_COUNTS && fold->list[i]; i++)
        if (strlen(fold->list[i]) == length && memcmp(fold->list[i], key, length) == 0)
            return &fold->count[i];
    return NULL;
}

enum { IN_ARRAY = 1, IN_ELEMENT, IN_LIST }; /* nesting depths */

/* Moves from the bracket to the end of the array. */
static cb_status fold_array(reader *r, cb_json *node, cb_json_fold *fold) {
    const char *key = r->at; /* the last string of the element itself */
    size_t length = 0;
    uint64_t *count = NULL;
    int depth = 0;
    bool starts = false; /* inside a list to be counted that has no item yet */
    fold->at = r->at + 1;
    fold->end = r->end;
    fold->line = r->line;
    do {
        skip_space(r);
        if (r->at == r->end) return fail_expected(r, "']'");
        const char c = *r->at;
        if (starts && c != ']') ++*count;
        starts = false;
        if (c == '"') {
            const char *start = r->at + 1;
            CB_TRY(skip_text(r));
            if (depth != IN_ELEMENT) continue;
            key = start;
            length = (size_t)(r->at - 1 - start);
            continue;
        }
        r->at++;
        if (c == ',' && depth == IN_LIST && count) ++*count;
        if (c == ']' || c == '}') depth--;
        if (c != '[' && c != '{') continue;
        if (++depth == MOST_DEPTH) return fail_at(r, r->at - 1, "nested more than 64 deep");
        node->n += depth == IN_ELEMENT;
        if (depth == IN_LIST) count = c == '[' ? count_of(fold, key, length) : NULL;
        starts = depth == IN_LIST && count;
    } while (depth > 0);
    fold->node = node;
    return CB_OK;
}

static cb_json_fold *fold_of(const reader *r, const cb_json *node) {
    for (uint32_t i = 0; r->depth == 1 && node->key && i < r->n_fold; i++)
        if (strcmp(r->fold[i].key, node->key) == 0 && !r->fold[i].node) return &r->fold[i];
    return NULL;
}

static cb_status open_container(reader *r, cb_json *node, cb_json_kind kind) {
    cb_json_fold *fold = kind == CB_JSON_ARRAY ? fold_of(r, node) : NULL;
    if (r->depth == MOST_DEPTH) return fail_at(r, r->at, "nested more than 64 deep");
    node->kind = kind;
    if (fold) return fold_array(r, node, fold);
    r->open[r->depth].node = node;
    r->open[r->depth++].last = NULL;
    r->at++;
    return CB_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static cb_status read_word(reader *r, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length) != 0)
        return fail_expected(r, A_VALUE);
    r->at += length;
    return CB_OK;
}

static cb_status read_boolean(reader *r, cb_json *node, const char *word) {
    node->kind = CB_JSON_BOOL;
    node->as.boolean = *word == 't';
    return read_word(r, word);
}

/* Links a new node as the root or the next child of the innermost container. */
static cb_json *add_node(reader *r) {
    cb_json *node = CB_NEW(r->arena, cb_json, 1);
    if (!node) return NULL;
    node->key = r->key;
    node->line = r->line;
    r->key = NULL;
    if (r->depth == 0) {
        r->root = node;
        return node;
    }
    cb_json *parent = r->open[r->depth - 1].node, **last = &r->open[r->depth - 1].last;
    if (*last) (*last)->next = node;
    else parent->as.child = node;
    *last = node;
    parent->n++;
    return node;
}

static cb_status read_value(reader *r) {
    cb_json *node = add_node(r);
    if (!node) return cb_no_memory(r->err);
    char first = r->at < r->end ? *r->at : '\0';
    switch (first) {
        case '{': return open_container(r, node, CB_JSON_OBJECT);
        case '[': return open_container(r, node, CB_JSON_ARRAY);
        case '"': return read_string(r, node);
        case 't': return read_boolean(r, node, "true");
        case 'f': return read_boolean(r, node, "false");
        case 'n': return read_word(r, "null");
        default: break;
    }
    if (first == '-' || is_digit(r)) return read_number(r, node);
    return fail_expected(r, A_VALUE);
}

/* ---- duplicate keys -------------------------------------------------------------------------- */

static cb_status fail_duplicate(const reader *r, const cb_json *a, const cb_json *b) {
    uint32_t first = a->line < b->line ? a->line : b->line, second = a->line ^ b->line ^ first;
    return cb_fail(r->err, CB_INVALID, "JSON, line %u: duplicate key \"%.80s\", first on line %u",
                   second, a->key, first);
}

/* Sifts item[at] down to its place in a max-heap of n items. */
static void sift(const cb_json **item, size_t at, size_t n) {
    const cb_json *moved = item[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && strcmp(item[child]->key, item[child + 1]->key) < 0) child++;
        if (strcmp(moved->key, item[child]->key) >= 0) break;
        item[at] = item[child];
    }
    item[at] = moved;
}

static cb_status sort_and_compare(reader *r, const cb_json *object) {
    const cb_json **item = CB_NEW(r->scratch, const cb_json *, object->n);
    if (!item) return cb_no_memory(r->err);
    size_t n = 0;
    for (const cb_json *c = object->as.child; c; c = c->next) item[n++] = c;
    for (size_t i = n / 2; i-- > 0;) sift(item, i, n);
    /* Keys leave the heap in descending order, so equal keys are adjacent. */
    for (const cb_json *larger = NULL; n > 0; sift(item, 0, n)) {
        if (larger && strcmp(item[0]->key, larger->key) == 0)
            return fail_duplicate(r, item[0], larger);
        larger = item[0];
        item[0] = item[--n];
    }
    return CB_OK;
}

static cb_status check_keys(reader *r, const cb_json *object) {
    if (object->n > FEW_KEYS) return sort_and_compare(r, object);
    for (const cb_json *a = object->as.child; a; a = a->next) {
        for (const cb_json *b = a->next; b; b = b->next)
            if (strcmp(a->key, b->key) == 0) return fail_duplicate(r, a, b);
    }
    return CB_OK;
}

/* ---- documents ------------------------------------------------------------------------------- */

static cb_status read_key(reader *r) {
    uint32_t length;
    if (!is_next(r, '"')) return fail_expected(r, "a key in quotes");
    CB_TRY(read_text(r, &r->key, &length));
    skip_space(r);
    if (!is_next(r, ':')) return fail_expected(r, "':' after the key");
    r->at++;
    skip_space(r);
    return CB_OK;
}

/* Called after a value or an opening bracket: closes the containers that end here and advances to
 * the next value. */
static cb_status next_value(reader *r, bool *more) {
    for (;;) {
        skip_space(r);
        *more = r->depth > 0;
        if (r->depth == 0)
            return r->at == r->end || r->is_part ? CB_OK : fail_expected(r, "the end of the text");
        const cb_json *node = r->open[r->depth - 1].node;
        bool object = node->kind == CB_JSON_OBJECT;
        if (is_next(r, object ? '}' : ']')) {
            if (object) CB_TRY(check_keys(r, node));
            r->depth--;
            r->at++;
            continue;
        }
        if (node->n > 0) {
            if (!is_next(r, ',')) return fail_expected(r, object ? "',' or '}'" : "',' or ']'");
            r->at++;
            skip_space(r);
        }
        return object ? read_key(r) : CB_OK;
    }
}

static cb_status read_document(reader *r) {
    bool more = true;
    skip_space(r);
    while (more) {
        CB_TRY(read_value(r));
        /* An opened container continues with its first child, or closes. */
        CB_TRY(next_value(r, &more));
    }
    return CB_OK;
}

static cb_status read_with(reader *r, cb_arena *arena, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, arena->alloc);
    r->arena = arena;
    r->scratch = &scratch;
    r->err = err;
    /* In the user's locale strtod may expect a decimal comma. */
    r->plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    cb_status status = r->plain ? read_document(r) : cb_no_memory(err);
    if (r->plain) freelocale(r->plain);
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_json_parse_folded(cb_arena *arena, const char *text, size_t length, cb_json_fold *fold,
                               uint32_t n_fold, const cb_json **out, cb_error *err) {
    if (length > MOST_BYTES)
        return cb_fail(err, CB_INVALID, "JSON: the text has %zu bytes; the limit is 2^31", length);
    reader r = {.at = text, .end = text + length, .line_start = text, .line = 1};
    r.fold = fold;
    r.n_fold = n_fold;
    CB_TRY(read_with(&r, arena, err));
    *out = r.root;
    return CB_OK;
}

cb_status cb_json_parse(cb_arena *arena, const char *text, size_t length, const cb_json **out,
                        cb_error *err) {
    return cb_json_parse_folded(arena, text, length, NULL, 0, out, err);
}

cb_status cb_json_unfold(cb_arena *arena, cb_json_fold *fold, const cb_json **out, cb_error *err) {
    reader r = {.at = fold->at, .end = fold->end, .line_start = fold->at, .line = fold->line};
    r.err = err;
    r.is_part = true;
    const bool ends = fold->n_read == fold->node->n;
    skip_space(&r);
    *out = NULL;
    if (ends) return is_next(&r, ']') ? CB_OK : fail_expected(&r, "']'");
    if (fold->n_read++ > 0) {
        if (!is_next(&r, ',')) return fail_expected(&r, "','");
        r.at++;
        skip_space(&r);
    }
    CB_TRY(read_with(&r, arena, err));
    *out = r.root;
    fold->at = r.at;
    fold->line = r.line;
    return CB_OK;
}

/* ---- access ---------------------------------------------------------------------------------- */

const cb_json *cb_json_get(const cb_json *object, const char *key) {
    if (object->kind != CB_JSON_OBJECT) return NULL;
    for (const cb_json *c = object->as.child; c; c = c->next)
        if (strcmp(c->key, key) == 0) return c;
    return NULL;
}

const char *cb_json_kind_name(cb_json_kind kind) {
    switch (kind) {
        case CB_JSON_NULL: return "null";
        case CB_JSON_BOOL: return "boolean";
        case CB_JSON_INT: return "integer";
        case CB_JSON_DOUBLE: return "number";
        case CB_JSON_STRING: return "string";
        case CB_JSON_ARRAY: return "array";
        case CB_JSON_OBJECT: return "object";
    }
    return "unknown";
}

cb_status cb_json_want(const cb_json *object, const char *key, cb_json_kind kind,
                       const cb_json **out, cb_error *err) {
    const cb_json *found = cb_json_get(object, key);
    if (!found) {
        return cb_fail(err, CB_INVALID, "line %u: the %s has no \"%s\"", object->line,
                       cb_json_kind_name(object->kind), key);
    }
    /* The writer omits the decimal point of whole doubles, so an integer is accepted here. */
    if (found->kind != kind && !(kind == CB_JSON_DOUBLE && found->kind == CB_JSON_INT)) {
        return cb_fail(err, CB_INVALID, "line %u: \"%s\" must be of kind %s, not %s", found->line,
                       key, cb_json_kind_name(kind), cb_json_kind_name(found->kind));
    }
    *out = found;
    return CB_OK;
}

static cb_status fail_kind(const cb_json *node, const char *what, const char *wanted,
                           cb_error *err) {
    return cb_fail(err, CB_INVALID, "line %u: %s must be %s, not of kind %s", node->line, what,
                   wanted, cb_json_kind_name(node->kind));
}

/* Accepts whole numbers in any notation: 1000000000 and 1e9 are the same number. */
cb_status cb_json_as_i64(const cb_json *node, const char *what, int64_t *out, cb_error *err) {
    if (node->kind == CB_JSON_INT) {
        *out = node->as.integer;
        return CB_OK;
    }
    if (node->kind != CB_JSON_DOUBLE) return fail_kind(node, what, "a whole number", err);
    double number = node->as.number;
    if (number < -EXACT_DOUBLE || number > EXACT_DOUBLE || number != (double)(int64_t)number) {
        return cb_fail(err, CB_INVALID,
                       "line %u: %s is %.17g, not a whole number that a file can hold exactly",
                       node->line, what, number);
    }
    *out = (int64_t)number;
    return CB_OK;
}

cb_status cb_json_as_u64(const cb_json *node, const char *what, uint64_t max, uint64_t *out,
                         cb_error *err) {
    int64_t value = 0;
    CB_TRY(cb_json_as_i64(node, what, &value, err));
    if (value < 0 || (uint64_t)value > max) {
        return cb_fail(err, CB_INVALID, "line %u: %s is %" PRId64 ", not in 0..%" PRIu64,
                       node->line, what, value, max);
    }
    *out = (uint64_t)value;
    return CB_OK;
}

cb_status cb_json_as_double(const cb_json *node, const char *what, double *out, cb_error *err) {
    if (node->kind == CB_JSON_INT) *out = (double)node->as.integer;
    else if (node->kind == CB_JSON_DOUBLE) *out = node->as.number;
    else return fail_kind(node, what, "a number", err);
    return CB_OK;
}
