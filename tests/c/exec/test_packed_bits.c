/* Bools as bits, compared with one bool at a time. */
#include "check.h"

#include "exec/packed_bits.h"

#include <string.h>

enum { MOST = 75 };

static uint32_t state = 1;

static uint32_t next(void) { return (state = state * 1664525u + 1013904223u) >> 16; }

/* Every length up to a few vectors, at every offset, between bytes that must not change. */
TEST(bits_of_every_length) {
    for (uint64_t n = 0; n <= MOST; n++) {
        for (unsigned offset = 0; offset < 8; offset++) {
            uint8_t bools[MOST + 8], packed[MOST / 8 + 3], again[MOST + 10];
            const uint64_t bytes = cb_packed_bytes(n);
            CHECK(bytes == (n + 7) / 8);
            for (uint64_t i = 0; i < n; i++)
                bools[offset + i] = (uint8_t)(next() % 2 ? next() % 255 + 1 : 0);
            memset(packed, 77, sizeof packed);
            memset(again, 77, sizeof again);
            cb_pack_bits(bools + offset, n, packed + 1);
            CHECK(packed[0] == 77 && packed[bytes + 1] == 77);
            for (uint64_t i = 0; i < 8 * bytes; i++) {
                const int bit = packed[1 + i / 8] >> i % 8 & 1;
                CHECK(bit == (i < n && bools[offset + i] != 0));
            }
            cb_unpack_bits(packed + 1, n, again + 1 + offset);
            CHECK(again[offset] == 77 && again[1 + offset + n] == 77);
            for (uint64_t i = 0; i < n; i++)
                CHECK(again[1 + offset + i] == (bools[offset + i] != 0));
        }
    }
}

/* All values of a byte of the packed array, and of a bool. */
TEST(all_bytes) {
    for (unsigned x = 0; x < 256; x++) {
        const uint8_t packed = (uint8_t)x;
        uint8_t bools[8], again, same[16];
        cb_unpack_bits(&packed, 8, bools);
        for (int k = 0; k < 8; k++) CHECK(bools[k] == (x >> k & 1));
        cb_pack_bits(bools, 8, &again);
        CHECK(again == packed);
        memset(same, (int)x, sizeof same);
        uint8_t two[2];
        cb_pack_bits(same, 16, two);
        CHECK(two[0] == (x ? 255 : 0) && two[1] == two[0]);
        cb_pack_bits(same, 8, two);
        CHECK(two[0] == (x ? 255 : 0));
    }
}

int main(void) {
    RUN(bits_of_every_length);
    RUN(all_bytes);
    return check_report();
}
