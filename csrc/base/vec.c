#include "vec.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>

#define FIRST_CAP 8

bool cb_vec_reserve(cb_arena *arena, void **data, size_t len, size_t *cap, size_t extra,
                    size_t size) {
    size_t need;
    if (!cb_add_size(len, extra, &need)) return false;
    if (need <= *cap) return true;
    size_t grown = *cap < FIRST_CAP / 2 ? FIRST_CAP : 2 * *cap;
    if (grown < need) grown = need;
    void *fresh = cb_arena_get(arena, grown, size), *old;
    if (!fresh) return false;
    /* `data` points to a T *. Accessing it as a void * would break strict aliasing, so its bytes
     * are copied. */
    memcpy(&old, (const void *)data, sizeof old);
    if (len) memcpy(fresh, old, len * size);
    memcpy((void *)data, &fresh, sizeof fresh);
    if (old) cb_arena_return(arena, old, *cap * size);
    *cap = grown;
    return true;
}

void cb_str_init(cb_str *s, cb_arena *arena) { *s = (cb_str){.arena = arena}; }

/* Makes room for `extra` more bytes and the final 0. */
static bool reserve_text(cb_str *s, size_t extra) {
    if (s->failed) return false;
    void *data = s->at;
    s->failed =
        extra == SIZE_MAX || !cb_vec_reserve(s->arena, &data, s->len, &s->cap, extra + 1, 1);
    s->at = data;
    return !s->failed;
}

void cb_str_add(cb_str *s, const char *text, size_t length) {
    if (!reserve_text(s, length)) return;
    if (length) memcpy(s->at + s->len, text, length);
    s->len += length;
    s->at[s->len] = '\0';
}

/* Formats in the C locale, so that text does not depend on the user's locale. In glibc, musl and
 * macOS newlocale("C") returns a constant, at no cost. */
void cb_str_addf(cb_str *s, const char *format, ...) {
    char small[256];
    va_list args, again;
    if (s->failed) return;
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = uselocale(plain);
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (length < 0) {
        s->failed = true;
    } else if ((size_t)length < sizeof small) {
        cb_str_add(s, small, (size_t)length);
    } else if (reserve_text(s, (size_t)length)) {
        (void)vsnprintf(s->at + s->len, (size_t)length + 1, format, again);
        s->len += (size_t)length;
    }
    va_end(again);
    uselocale(before);
    if (plain) freelocale(plain);
}

cb_status cb_text_give(cb_alloc *alloc, const cb_str *text, char **out, cb_error *err) {
    if (text->failed) return cb_no_memory(err);
    char *copy = cb_malloc(alloc, text->len + 1);
    if (!copy) return cb_no_memory(err);
    if (text->len) memcpy(copy, text->at, text->len);
    copy[text->len] = '\0';
    *out = copy;
    return CB_OK;
}
