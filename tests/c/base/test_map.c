/* Maps, interned names, the hash, the random generator and the processor's name. */
#include "base/map.h"

#include "base/cpu.h"
#include "base/philox.h"
#include "oom.h"

TEST(map_holds_what_was_put) {
    cb_alloc a;
    cb_arena arena;
    cb_map map;
    uint32_t value = 77;
    cb_alloc_init(&a);
    cb_arena_init(&arena, &a);
    cb_map_init(&map, &arena);
    CHECK(!cb_map_get(&map, 0, &value) && value == 77);
    for (uint64_t i = 0; i < 5000; i++) CHECK(cb_map_put(&map, i * i << 20, (uint32_t)i));
    CHECK(cb_map_put(&map, UINT64_MAX, 1) && cb_map_put(&map, 0, 9));
    CHECK(map.len == 5001);
    for (uint64_t i = 1; i < 5000; i++) CHECK(cb_map_get(&map, i * i << 20, &value) && value == i);
    CHECK(cb_map_get(&map, 0, &value) && value == 9);
    CHECK(cb_map_get(&map, UINT64_MAX, &value) && value == 1);
    CHECK(!cb_map_get(&map, 3, &value) && value == 1);
    cb_arena_free(&arena);
}

TEST(names_are_numbered_by_first_use) {
    cb_alloc a;
    cb_arena arena;
    cb_names names;
    uint32_t id = 99;
    char text[16];
    cb_alloc_init(&a);
    cb_arena_init(&arena, &a);
    cb_names_init(&names, &arena);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 1000; i++) {
            int length = snprintf(text, sizeof text, "value_%u", i);
            CHECK(cb_names_intern(&names, text, (size_t)length, &id) && id == i);
        }
    }
    CHECK(names.len == 1000 && strcmp(names.text[123], "value_123") == 0);
    CHECK(cb_names_intern(&names, "", 0, &id) && id == 1000);
    CHECK(cb_names_intern(&names, "value_12345", 9, &id) && id == 123);
    CHECK(cb_names_intern(&names, "value_1\0zzz", 11, &id) && id == 1);
    cb_arena_free(&arena);
}

static cb_status fill(cb_alloc *alloc, void *user) {
    (void)user;
    cb_arena arena;
    cb_names names;
    cb_status status = CB_OK;
    cb_arena_init(&arena, alloc);
    cb_names_init(&names, &arena);
    for (uint32_t i = 0; i < 2000 && status == CB_OK; i++) {
        char text[300];
        uint32_t id = 0, length = (uint32_t)snprintf(text, sizeof text, "%0200u", i);
        if (!cb_names_intern(&names, text, length, &id)) status = CB_NOMEM;
        else CHECK(id == i);
        CHECK(names.len == (status == CB_OK ? i + 1 : i));
    }
    cb_arena_free(&arena);
    return status;
}
TEST(out_of_memory) { check_oom(fill, NULL); }

/* Hashes are stored in files, so their values must never change. */
TEST(hash_is_stable) {
    CHECK(cb_hash_bytes("", 0, 0) != cb_hash_bytes("", 0, 1));
    CHECK(cb_hash_bytes("a", 1, 0) != cb_hash_bytes("a\0", 2, 0));
    CHECK(cb_hash_bytes("abcdefgh", 8, 0) != cb_hash_bytes("abcdefgh\0", 9, 0));
    CHECK(cb_hash_bytes("cutback", 7, 0) == UINT64_C(0xA38031A67A39DEED));
    CHECK(cb_hash_bytes("a longer text than eight", 24, 42) == UINT64_C(0x93CC8845C3EF07EC));
}

/* Compares with the authors' known answers for philox4x32-7 (Random123, kat_vectors). */
TEST(philox_known_answers) {
    static const uint32_t rows[][10] = {
        {0, 0, 0, 0, 0, 0, 0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662},
        {0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0, 0x4DFCCABA,
         0x190A87F0, 0xC47362BA, 0xB6B5242A},
    };
    for (size_t i = 0; i < 3; i++) {
        const uint32_t *counter = rows[i], *key = rows[i] + 4;
        const cb_philox p = {
            .seed = (uint64_t)key[1] << 32 | key[0], .stream = counter[2], .step = counter[3]};
        uint32_t out[4];
        cb_philox_block(&p, (uint64_t)counter[1] << 32 | counter[0], out);
        CHECK(memcmp(out, rows[i] + 6, sizeof out) == 0);
    }
}

TEST(philox_elements) {
    const cb_philox p = {.seed = UINT64_C(0x0123456789ABCDEF), .stream = 3, .step = 9};
    uint32_t words[4], kept = 0, threshold = cb_dropout_threshold(0.25);
    cb_philox_block(&p, 5, words);
    for (uint32_t j = 0; j < 8; j++) {
        CHECK(cb_philox_u16(&p, 40 + j) == (words[j / 2] >> 16 * (j % 2) & 0xFFFF));
    }
    for (uint64_t i = 0; i < 40000; i++) kept += cb_philox_u16(&p, i) >= threshold;
    CHECK(threshold == 16384 && kept > 29600 && kept < 30400); /* 30000 expected, sigma 87 */
    CHECK(cb_dropout_threshold(0) == 0 && cb_dropout_threshold(1) == 65536);
}

TEST(cpu) {
    CHECK(cb_cpu_isa() < CB_ISA_COUNT);
    CHECK(strcmp(cb_isa_name(CB_ISA_AVX2), "avx2") == 0);
    CHECK(strcmp(cb_isa_name(CB_ISA_COUNT), "unknown") == 0);
}

int main(void) {
    RUN(map_holds_what_was_put);
    RUN(names_are_numbered_by_first_use);
    RUN(out_of_memory);
    RUN(hash_is_stable);
    RUN(philox_known_answers);
    RUN(philox_elements);
    RUN(cpu);
    return check_report();
}
