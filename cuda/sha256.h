/* sha256.h: SHA-256 (FIPS 180-4), for the names and the checks of cached kernels. */
#ifndef CB_CUDA_SHA256_H
#define CB_CUDA_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct cb_sha256 {
    uint32_t state[8];
    uint64_t bytes; /* number of bytes added so far */
    uint8_t block[64];
} cb_sha256;

void cb_sha256_init(cb_sha256 *s);
void cb_sha256_add(cb_sha256 *s, const void *data, size_t bytes);
void cb_sha256_end(cb_sha256 *s, uint8_t digest[32]);

#endif
