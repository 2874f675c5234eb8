/* Bools as bits, compared with one bool at a time. */
#include "check.h"

#include "exec/packed_bits.h"

#include <math.h>
#include <string.h>

enum { MOST = 75 };

static uint32_t state = 1;

static uint32_t next(void) { return (state = state * 1664525u + 1013904223u) >> 16; }

/* Tests every length up to a few vectors, at every offset, between bytes that must not change. */
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

/* Tests all values of a byte of the packed array, and of a bool. */
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

/* Compares the bits with a comparison of the floats, and tests which floats the bits keep. */
TEST(signs_of_floats) {
    const float special[] = {0.0f, -0.0f, 1e-45f, -1e-45f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN};
    enum { N = 37, KINDS = sizeof special / sizeof *special };
    for (uint64_t n = 0; n <= N; n++) {
        float x[N + 1] = {0}, kept[N + 1];
        double y[N + 1] = {0}, wide[N + 1];
        uint16_t z[N + 1] = {0}, narrow[N + 1];
        uint8_t packed[3][N / 8 + 2];
        memset(packed, 77, sizeof packed);
        for (uint64_t i = 0; i < n; i++) {
            uint32_t bits;
            x[i] = special[next() % KINDS];
            if (x[i] != x[i] && next() % 2) x[i] = -x[i];
            memcpy(&bits, &x[i], sizeof bits);
            y[i] = (double)x[i];
            z[i] = (uint16_t)(bits >> 16 | (bits & 0x7fff ? 1 : 0)); /* as bf16 */
        }
        cb_pack_signs(x, n, 4, 0x7f800000, packed[0]);
        cb_pack_signs(y, n, 8, UINT64_C(0x7ff0000000000000), packed[1]);
        cb_pack_signs(z, n, 2, 0x7f80, packed[2]);
        cb_keep_by_bits(x, packed[0], n, 4, kept);
        cb_keep_by_bits(y, packed[1], n, 8, wide);
        cb_keep_by_bits(z, packed[2], n, 2, narrow);
        for (uint64_t i = 0; i < n; i++) {
            const float none = 0;
            const double nothing = 0;
            const bool has = !(x[i] <= 0);
            for (int k = 0; k < 3; k++) CHECK((packed[k][i / 8] >> i % 8 & 1) == has);
            CHECK(memcmp(&kept[i], has ? &x[i] : &none, sizeof none) == 0);
            CHECK(memcmp(&wide[i], has ? &y[i] : &nothing, sizeof nothing) == 0);
            CHECK(narrow[i] == (has ? z[i] : 0));
        }
        for (int k = 0; k < 3; k++) CHECK(packed[k][cb_packed_bytes(n)] == 77);
    }
}

int main(void) {
    RUN(bits_of_every_length);
    RUN(all_bytes);
    RUN(signs_of_floats);
    return check_report();
}
