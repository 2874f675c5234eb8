/* format.h: snprintf and vsnprintf that always use the C locale, so that text does not depend on
 * the program's locale. */
#ifndef CB_BASE_FORMAT_H
#define CB_BASE_FORMAT_H

#include <stdarg.h>

#include "../include/cutback.h"

void cb_format(char *out, size_t size, const char *format, ...) CB_PRINTF(3, 4);
void cb_format_list(char *out, size_t size, const char *format, va_list args) CB_PRINTF(3, 0);

#endif
