/* Applies the formulas of the standard to blocks of 64 bytes. */
#include "sha256.h"

#include <string.h>

static const uint32_t constants[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u,
    0xab1c5ed5u, 0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu,
    0x9bdc06a7u, 0xc19bf174u, 0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu,
    0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau, 0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u,
    0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u, 0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu,
    0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u, 0xa2bfe8a1u, 0xa81a664bu,
    0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u, 0x19a4c116u,
    0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u,
    0xc67178f2u};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void expand(const uint8_t *block, uint32_t w[64]) {
    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
}

static void mix(cb_sha256 *s) {
    uint32_t w[64], v[8];
    expand(s->block, w);
    memcpy(v, s->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t sum1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25),
                       choice = (v[4] & v[5]) ^ (~v[4] & v[6]),
                       t1 = v[7] + sum1 + choice + constants[i] + w[i],
                       sum0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22),
                       most = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + sum0 + most;
    }
    for (int i = 0; i < 8; i++) s->state[i] += v[i];
}

void cb_sha256_init(cb_sha256 *s) {
    *s = (cb_sha256){.state = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au, 0x510e527fu,
                               0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u}};
}

void cb_sha256_add(cb_sha256 *s, const void *data, size_t bytes) {
    const uint8_t *from = data;
    while (bytes > 0) {
        const size_t at = (size_t)(s->bytes % 64), room = 64 - at, n = bytes < room ? bytes : room;
        memcpy(s->block + at, from, n);
        from += n;
        bytes -= n;
        s->bytes += n;
        if (s->bytes % 64 == 0) mix(s);
    }
}

void cb_sha256_end(cb_sha256 *s, uint8_t digest[32]) {
    static const uint8_t padding[64] = {0x80};
    const uint64_t bits = s->bytes * 8;
    uint8_t length[8];
    cb_sha256_add(s, padding, 1 + (size_t)((119 - s->bytes % 64) % 64));
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    cb_sha256_add(s, length, sizeof length);
    for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}
