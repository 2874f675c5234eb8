/* Reads the text form: one statement per line, one pass, no recursion. Types in a line are checked
 * against the result of the shape rule, so a file cannot contain anything the builder would
 * refuse. */
#include <inttypes.h>
#include <math.h>

#include "../base/json.h"
#include "form.h"
#include "text.h"

typedef struct parser {
    const char *at, *end;
    size_t line;
    cb_graph *graph;
    cb_arena scratch;         /* memory of strings and lists of inputs */
    CB_VEC(cb_value_id) ins;  /* inputs of the op being read */
    cb_op_id backward_starts; /* CB_NONE: the mark has not been seen */
    cb_error *err;
} parser;

/* A run of characters of the text. */
typedef struct slice {
    const char *at;
    size_t length;
} slice;

/* ---- errors ---------------------------------------------------------------------------------- */

static cb_status bad(const parser *p, const char *what) {
    return cb_fail(p->err, CB_INVALID, "line %zu: %s", p->line, what);
}

/* Adds the line to an error that has none. */
static cb_status blame(const parser *p, cb_status status, const cb_error *why) {
    if (status == CB_NOMEM) return cb_no_memory(p->err);
    return cb_fail(p->err, status, "line %zu: %s", p->line, why->text);
}

static cb_status expected(const parser *p, const char *what) {
    slice rest = {p->at, (size_t)(p->end - p->at)};
    size_t shown = 0; /* about one word, printable characters only */
    while (shown < rest.length && shown < 20 && rest.at[shown] > ' ' && rest.at[shown] <= '~')
        shown++;
    if (shown == 0) return cb_fail(p->err, CB_INVALID, "line %zu: expected %s", p->line, what);
    return cb_fail(p->err, CB_INVALID, "line %zu: expected %s, found '%.*s'", p->line, what,
                   (int)shown, rest.at);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static void skip_blanks(parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\r')) p->at++;
}

static bool accept(parser *p, char c) {
    skip_blanks(p);
    if (p->at == p->end || *p->at != c) return false;
    p->at++;
    return true;
}

static cb_status expect(parser *p, char c, const char *what) {
    return accept(p, c) ? CB_OK : expected(p, what);
}

static bool next_is(parser *p, char c) {
    skip_blanks(p);
    return p->at < p->end && *p->at == c;
}

static bool at_line_end(parser *p) {
    skip_blanks(p);
    return p->at == p->end || *p->at == '\n';
}

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
}

/* Reads a name, or an empty slice. */
static slice word(parser *p) {
    skip_blanks(p);
    slice w = {.at = p->at};
    while (p->at < p->end && is_word(*p->at)) p->at++;
    w.length = (size_t)(p->at - w.at);
    return w;
}

static bool same(slice w, const char *text) {
    return strlen(text) == w.length && memcmp(w.at, text, w.length) == 0;
}

static cb_status read_int(parser *p, int64_t *out) {
    uint64_t value = 0;
    skip_blanks(p);
    const char *begin = p->at;
    const bool negative = p->at < p->end && *p->at == '-';
    const char *digits = p->at += negative;
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++) {
        unsigned digit = (unsigned)(*p->at - '0');
        if (value > ((uint64_t)INT64_MAX - digit) / 10)
            return bad(p, "a number does not fit 64 bits");
        value = 10 * value + digit;
    }
    if (p->at == digits) {
        p->at = begin;
        return expected(p, "an integer");
    }
    *out = negative ? -(int64_t)value : (int64_t)value;
    return CB_OK;
}

/* Reads an id; CB_NONE is refused. */
static cb_status read_id(parser *p, const char *what, uint32_t *out) {
    int64_t value;
    CB_TRY(read_int(p, &value));
    if (value < 0 || value >= CB_NONE)
        return cb_fail(p->err, CB_INVALID, "line %zu: unknown %s", p->line, what);
    *out = (uint32_t)value;
    return CB_OK;
}

/* The JSON reader parses numbers and strings; this only finds where they end. */
static cb_status read_json(parser *p, slice text, const cb_json **out) {
    cb_error why = {0};
    cb_status status = cb_json_parse(&p->scratch, text.at, text.length, out, &why);
    if (status == CB_OK || status == CB_NOMEM)
        return status == CB_OK ? CB_OK : cb_no_memory(p->err);
    return blame(p, status, &why);
}

static cb_status read_double(parser *p, double *out) {
    const cb_json *node;
    skip_blanks(p);
    slice text = {.at = p->at};
    while (p->at < p->end && (is_word(*p->at) || *p->at == '-' || *p->at == '+')) p->at++;
    text.length = (size_t)(p->at - text.at);
    if (same(text, "nan")) *out = (double)NAN;
    else if (same(text, "inf")) *out = (double)INFINITY;
    else if (same(text, "-inf")) *out = -(double)INFINITY;
    else {
        CB_TRY(read_json(p, text, &node));
        cb_error why = {0};
        cb_status status = cb_json_as_double(node, "number", out, &why);
        if (status != CB_OK) return blame(p, status, &why);
    }
    return CB_OK;
}

/* Reads a quoted string as a name of the graph. */
static cb_status read_string(parser *p, uint32_t *id) {
    const cb_json *node;
    if (!next_is(p, '"')) return expected(p, "a quoted string");
    slice text = {.at = p->at++};
    while (p->at < p->end && *p->at != '"' && *p->at != '\n')
        p->at += *p->at == '\\' && p->end - p->at > 1 ? 2 : 1;
    if (p->at >= p->end || *p->at != '"') return bad(p, "unterminated string");
    p->at++;
    text.length = (size_t)(p->at - text.at);
    CB_TRY(read_json(p, text, &node));
    return cb_graph_intern(p->graph, node->as.string, id, p->err);
}

static cb_status read_dims(parser *p, cb_shape *out) {
    cb_shape s = {0};
    CB_TRY(expect(p, '[', "'['"));
    while (!accept(p, ']')) {
        if (s.rank == CB_MAX_RANK) return bad(p, "more than 8 axes");
        if (s.rank > 0) CB_TRY(expect(p, ',', "',' or ']'"));
        CB_TRY(read_int(p, &s.dim[s.rank]));
        s.rank++;
    }
    *out = s;
    return CB_OK;
}

static cb_status read_dtype(parser *p, cb_dtype *out) {
    slice w = word(p);
    if (cb_dtype_parse(w.at, w.length, out)) return CB_OK;
    p->at = w.at;
    return expected(p, "an element type such as f32");
}

static cb_status read_word_of(parser *p, const cb_words *set, uint32_t *out) {
    cb_error why = {0};
    slice w = word(p);
    cb_status status = cb_word_find(set, w.at, w.length, out, &why);
    return status == CB_OK ? CB_OK : blame(p, status, &why);
}

static cb_status read_value(parser *p, cb_value_id *out) {
    CB_TRY(expect(p, '%', "a value such as %3"));
    CB_TRY(read_id(p, "value", out));
    if (*out < p->graph->values.len) return CB_OK;
    return cb_fail(p->err, CB_INVALID, "line %zu: there is no value %%%" PRIu32 " yet", p->line,
                   *out);
}

/* ---- statements: ops ------------------------------------------------------------------------- */

static cb_status read_out_ids(parser *p, uint32_t *n) {
    uint32_t id = 0;
    *n = 0;
    do {
        CB_TRY(expect(p, '%', "a value such as %3"));
        CB_TRY(read_id(p, "value", &id));
        if (id != p->graph->values.len + *n) {
            return cb_fail(p->err, CB_INVALID,
                           "line %zu: values must count up: expected %%%zu, found %%%" PRIu32,
                           p->line, p->graph->values.len + *n, id);
        }
        if (++*n > CB_MAX_OUTS) return bad(p, "too many outputs for any op");
    } while (accept(p, ','));
    return CB_OK;
}

static cb_status read_ins(parser *p) {
    cb_value_id id = 0;
    p->ins.len = 0;
    if (!accept(p, '(')) return CB_OK;
    do {
        CB_TRY(read_value(p, &id));
        if (!CB_PUSH(&p->scratch, p->ins, id)) return cb_no_memory(p->err);
    } while (accept(p, ','));
    return expect(p, ')', "',' or ')'");
}

static cb_status read_attr(parser *p, cb_op_form *form) {
    cb_attr_slot slot;
    cb_error why = {0};
    slice key = word(p);
    if (key.length == 0) return expected(p, "an attribute");
    CB_TRY(expect(p, '=', "'='"));
    if (same(key, "name")) {
        if (form->name != CB_NONE) return bad(p, "name is given twice");
        return read_string(p, &form->name);
    }
    cb_status status = cb_form_attr(form, key.at, key.length, &slot, &why);
    if (status != CB_OK) return blame(p, status, &why);
    switch (slot.kind) {
        case CB_ATTR_F: return read_double(p, &form->attrs.f[slot.index]);
        case CB_ATTR_DIMS: return read_dims(p, &form->attrs.dims);
        case CB_ATTR_DTYPE: return read_dtype(p, &form->attrs.dtype);
        case CB_ATTR_I: break;
    }
    if (form->code != CB_OP_INPUT) return read_int(p, &form->attrs.i[slot.index]);
    uint32_t role;
    CB_TRY(read_word_of(p, &cb_role_words, &role));
    form->attrs.i[slot.index] = role;
    return CB_OK;
}

static cb_status read_attrs(parser *p, cb_op_form *form) {
    if (!accept(p, '{')) return CB_OK;
    do CB_TRY(read_attr(p, form));
    while (accept(p, ','));
    return expect(p, '}', "',' or '}'");
}

static cb_status read_types(parser *p, cb_op_form *form, uint32_t n) {
    CB_TRY(expect(p, ':', "':' and the types of the outputs"));
    for (uint32_t k = 0; k < n; k++) {
        if (k > 0) CB_TRY(expect(p, ',', "one type for each output"));
        CB_TRY(read_dtype(p, &form->dtype[k]));
        CB_TRY(read_dims(p, &form->shape[k]));
    }
    form->n_out = n;
    return CB_OK;
}

/* Reads the marks after the types: @"location", phase=, region=, constraint=, origin=. If one is
 * repeated, the last counts. */
static cb_status read_marks(parser *p, cb_op_form *form) {
    while (!at_line_end(p)) {
        if (accept(p, '@')) {
            CB_TRY(read_string(p, &form->location));
            continue;
        }
        slice key = word(p);
        if (key.length == 0) return expected(p, "the end of the line");
        CB_TRY(expect(p, '=', "'='"));
        if (same(key, "phase")) CB_TRY(read_word_of(p, &cb_phase_words, &form->phase));
        else if (same(key, "region")) CB_TRY(read_id(p, "region", &form->region));
        else if (same(key, "constraint"))
            CB_TRY(read_word_of(p, &cb_constraint_words, &form->constraint));
        else if (same(key, "origin")) CB_TRY(read_id(p, "origin", &form->origin));
        else return bad(p, "unknown mark; use phase, region, constraint or origin");
    }
    return CB_OK;
}

static cb_status read_op(parser *p) {
    cb_op_form form = CB_OP_FORM_EMPTY;
    cb_error why = {0};
    uint32_t n_out;
    CB_TRY(read_out_ids(p, &n_out));
    CB_TRY(expect(p, '=', "'='"));
    slice name = word(p);
    if (!cb_op_find(name.at, name.length, &form.code)) {
        p->at = name.at;
        return expected(p, "the name of an op");
    }
    CB_TRY(read_ins(p));
    CB_TRY(read_attrs(p, &form));
    CB_TRY(read_types(p, &form, n_out));
    CB_TRY(read_marks(p, &form));
    cb_status status = cb_form_append(p->graph, &form, (uint32_t)p->ins.len, p->ins.at, &why);
    return status == CB_OK ? CB_OK : blame(p, status, &why);
}

/* ---- statements: the rest -------------------------------------------------------------------- */

static cb_status read_key(parser *p, const char *key) {
    slice w = word(p);
    if (same(w, key) && accept(p, '=')) return CB_OK;
    return cb_fail(p->err, CB_INVALID, "line %zu: expected %s=", p->line, key);
}

/* Reads a number, or the word `none`. */
static cb_status read_optional(parser *p, bool *given, int64_t *out) {
    const char *before = p->at;
    *given = !same(word(p), "none");
    if (!*given) return CB_OK;
    p->at = before;
    return read_int(p, out);
}

static cb_status read_region(parser *p) {
    uint32_t id = 0, name = CB_NONE, fresh;
    int64_t parent = 0, limit = 0;
    bool has_parent, has_limit;
    cb_error why = {0};
    CB_TRY(read_id(p, "region", &id));
    if (id != p->graph->regions.len) return bad(p, "regions must count up from 0");
    if (next_is(p, '"')) CB_TRY(read_string(p, &name));
    CB_TRY(read_key(p, "parent"));
    CB_TRY(read_optional(p, &has_parent, &parent));
    CB_TRY(read_key(p, "limit"));
    CB_TRY(read_optional(p, &has_limit, &limit));
    if (parent < 0 || parent >= CB_NONE || limit < 0)
        return bad(p, "a region's parent or limit is out of range");
    cb_status status =
        cb_graph_append_region(p->graph, name == CB_NONE ? NULL : cb_graph_name(p->graph, name),
                               has_parent ? (uint32_t)parent : CB_NONE,
                               has_limit ? (uint64_t)limit : UINT64_MAX, &fresh, &why);
    return status == CB_OK ? CB_OK : blame(p, status, &why);
}

static cb_status read_output(parser *p) {
    uint32_t name = CB_NONE, kind, input = CB_NONE;
    cb_value_id value = 0;
    cb_error why = {0};
    if (next_is(p, '"')) CB_TRY(read_string(p, &name));
    CB_TRY(read_value(p, &value));
    CB_TRY(read_word_of(p, &cb_output_kind_words, &kind));
    if (!at_line_end(p)) {
        CB_TRY(read_key(p, "input"));
        CB_TRY(read_id(p, "input", &input));
    }
    cb_status status = cb_graph_append_output(
        p->graph, value, name == CB_NONE ? NULL : cb_graph_name(p->graph, name),
        (cb_output_kind)kind, input, &why);
    return status == CB_OK ? CB_OK : blame(p, status, &why);
}

static cb_status read_mark_of_backward(parser *p) {
    while (accept(p, '-')) continue;
    if (!same(word(p), "backward")) return expected(p, "--- backward");
    if (p->backward_starts != CB_NONE) return bad(p, "there is already a --- backward");
    p->backward_starts = (cb_op_id)p->graph->ops.len;
    return CB_OK;
}

static cb_status read_header(parser *p) {
    int64_t version = 0;
    if (!same(word(p), CB_FORM_NAME))
        return bad(p, "not a graph: the first line must be 'cutback.graph 1'");
    CB_TRY(read_int(p, &version));
    if (version == CB_FORM_VERSION) return CB_OK;
    return cb_fail(p->err, CB_UNSUPPORTED,
                   "line %zu: format version %" PRId64 "; this library reads version %d", p->line,
                   version, CB_FORM_VERSION);
}

static cb_status read_statement(parser *p) {
    if (next_is(p, '%')) return read_op(p);
    if (next_is(p, '-')) return read_mark_of_backward(p);
    const char *before = p->at;
    slice key = word(p);
    if (same(key, "region")) return read_region(p);
    if (same(key, "output")) return read_output(p);
    p->at = before;
    return expected(p, "a value, region, output or --- backward");
}

/* Reads all lines; skips blank lines and those that begin with #. */
static cb_status read_lines(parser *p) {
    bool header = true;
    for (; p->at < p->end; p->line++) {
        if (next_is(p, '#')) {
            while (p->at < p->end && *p->at != '\n') p->at++;
        } else if (!at_line_end(p)) {
            CB_TRY(header ? read_header(p) : read_statement(p));
            header = false;
            if (!at_line_end(p)) return expected(p, "the end of the line");
        }
        if (p->at < p->end) p->at++; /* the newline */
    }
    return header ? read_header(p) : CB_OK; /* an empty text has no header either */
}

cb_status cb_graph_parse(cb_alloc *alloc, const char *text, size_t length, cb_graph **out,
                         cb_error *err) {
    parser p = {
        .at = text, .end = text + length, .line = 1, .backward_starts = CB_NONE, .err = err};
    cb_status status;
    cb_arena_init(&p.scratch, alloc);
    CB_TRY_DONE(cb_graph_create(alloc, &p.graph, err));
    CB_TRY_DONE(read_lines(&p));
    cb_form_reset_current(p.graph);
    if (p.backward_starts != CB_NONE) p.graph->backward_starts = p.backward_starts;
    *out = p.graph;
    p.graph = NULL;
done:
    cb_graph_free(p.graph);
    cb_arena_free(&p.scratch);
    return status;
}
