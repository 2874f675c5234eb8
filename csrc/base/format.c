#include "format.h"

#include <locale.h>
#include <stdio.h>

void cb_format_list(char *out, size_t size, const char *format, va_list args) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = uselocale(plain);
    (void)vsnprintf(out, size, format, args);
    uselocale(before);
    if (plain) freelocale(plain);
}

void cb_format(char *out, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    cb_format_list(out, size, format, args);
    va_end(args);
}
