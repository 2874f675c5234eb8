/* utf8.h: decodes and encodes UTF-8 one character at a time. */
#ifndef CB_BASE_UTF8_H
#define CB_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length in bytes (1..4) of the character at `text`, or 0 if it is malformed: a stray or missing
 * continuation byte, an overlong form, a surrogate, or a code past U+10FFFF. `room` > 0 bytes may
 * be read. */
size_t cb_utf8_length(const char *text, size_t room);
/* Writes `code` (a valid scalar value) and returns its length; `out` has room for 4 bytes. */
size_t cb_utf8_encode(uint32_t code, char *out);

#endif
