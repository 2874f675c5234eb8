/* packed_bits.h: arrays of bools as bits. Bit k of byte i is element 8 i + k; unused bits of the
 * last byte are 0. */
#ifndef CB_EXEC_PACKED_BITS_H
#define CB_EXEC_PACKED_BITS_H

#include <stdint.h>

static inline uint64_t cb_packed_bytes(uint64_t n) { return n / 8 + (n % 8 != 0); }

/* Packs n bools of one byte each (any byte but 0 is true) into cb_packed_bytes(n) bytes. */
void cb_pack_bits(const uint8_t *bools, uint64_t n, uint8_t *packed);
/* Unpacks n bits to bools of 0 or 1. */
void cb_unpack_bits(const uint8_t *packed, uint64_t n, uint8_t *bools);

/* Packs a bit for each of n floats, 1 for those above 0 and for NaNs. `width`: bytes of a float, 2,
 * 4 or 8; `infinity`: its bits of +infinity. */
void cb_pack_signs(const void *floats, uint64_t n, unsigned width, uint64_t infinity,
                   uint8_t *packed);
/* Copies the elements whose bit is set; the others become +0. */
void cb_keep_by_bits(const void *from, const uint8_t *packed, uint64_t n, unsigned width, void *to);

#endif
