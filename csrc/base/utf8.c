#include "utf8.h"

/* The range of the second byte excludes overlong forms, surrogates and codes past U+10FFFF (The
 * Unicode Standard, table 3-7). */
size_t cb_utf8_length(const char *text, size_t room) {
    const uint8_t *at = (const uint8_t *)text;
    uint8_t first = at[0], low = 0x80, high = 0xBF;
    size_t length;
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return 0;
    if (first < 0xE0) length = 2;
    else if (first < 0xF0) length = 3;
    else length = 4;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
    if (room < length || at[1] < low || at[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if ((at[i] & 0xC0) != 0x80) return 0;
    return length;
}

size_t cb_utf8_encode(uint32_t code, char *out) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    uint32_t mark = length == 2 ? 0xC0 : length == 3 ? 0xE0 : 0xF0;
    for (size_t i = length - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(mark | code);
    return length;
}
