/* The writer. cb_json_parse reads its output back: bytes that are not valid UTF-8 are replaced, and
 * doubles are written with enough digits to give the same double. */
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "json.h"
#include "utf8.h"

static void put_text(cb_str *s, const char *text) { cb_str_add(s, text, strlen(text)); }

static void put_escaped(cb_str *s, const char *text) {
    static const char names[] = "\"\\bfnrt", values[] = "\"\\\b\f\n\r\t";
    put_text(s, "\"");
    for (size_t left = strlen(text); left > 0;) {
        size_t length = cb_utf8_length(text, left);
        const char *special = strchr(values, *text);
        if (length == 0) {
            length = 1;
            put_text(s, "\xEF\xBF\xBD"); /* U+FFFD, the replacement character */
        } else if (special) {
            cb_str_addf(s, "\\%c", names[special - values]);
        } else if ((uint8_t)*text < 0x20) {
            cb_str_addf(s, "\\u%04x", (unsigned)(uint8_t)*text);
        } else {
            cb_str_add(s, text, length);
        }
        text += length;
        left -= length;
    }
    put_text(s, "\"");
}

static void put_key(cb_json_writer *w, const char *key) {
    if (w->need_comma) put_text(w->out, ",");
    w->need_comma = true;
    if (!key) return;
    put_escaped(w->out, key);
    put_text(w->out, ":");
}

void cb_json_begin(cb_json_writer *w, const char *key, char bracket) {
    put_key(w, key);
    cb_str_add(w->out, &bracket, 1);
    w->need_comma = false;
}

void cb_json_end(cb_json_writer *w, char bracket) {
    cb_str_add(w->out, &bracket, 1);
    w->need_comma = true;
}

void cb_json_put_int(cb_json_writer *w, const char *key, int64_t v) {
    put_key(w, key);
    cb_str_addf(w->out, "%" PRId64, v);
}

void cb_json_put_u64(cb_json_writer *w, const char *key, uint64_t v) {
    put_key(w, key);
    cb_str_addf(w->out, "%" PRIu64, v);
}

/* Fifteen digits suffice for most numbers that people write, seventeen for every double. */
static void put_shortest(cb_str *s, double v) {
    char text[32];
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) {
        s->failed = true;
        return;
    }
    locale_t before = uselocale(plain);
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    uselocale(before);
    freelocale(plain);
    put_text(s, text);
}

void cb_json_put_double(cb_json_writer *w, const char *key, double v) {
    put_key(w, key);
    if (!isfinite(v)) put_text(w->out, "null");
    else if (v == 0 && signbit(v)) put_text(w->out, "-0.0"); /* "-0" would be read as an integer */
    else put_shortest(w->out, v);
}

void cb_json_put_string(cb_json_writer *w, const char *key, const char *v) {
    put_key(w, key);
    if (v) put_escaped(w->out, v);
    else put_text(w->out, "null");
}

void cb_json_put_bool(cb_json_writer *w, const char *key, bool v) {
    put_key(w, key);
    put_text(w->out, v ? "true" : "false");
}

void cb_json_put_null(cb_json_writer *w, const char *key) {
    put_key(w, key);
    put_text(w->out, "null");
}
