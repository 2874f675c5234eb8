#include "place_within.h"

static cb_status find_fullest(const cb_pack_life *life, uint32_t n, cb_arena *scratch,
                              cb_placed *out, cb_error *err) {
    uint64_t sum = 0, live = 0, *change;
    uint32_t n_moment = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (life[i].bytes > INT64_MAX - sum)
            return cb_fail(err, CB_INVALID, "place: the sizes of %u buffers add up to 2^63 or more",
                           n);
        sum += life[i].bytes;
        if (life[i].last >= n_moment) n_moment = life[i].last + 1;
    }
    CB_TRY_NEW(change, scratch, (size_t)n_moment + 1, err);
    for (uint32_t i = 0; i < n; i++) {
        change[life[i].made] += life[i].bytes;
        change[life[i].last + 1] -= life[i].bytes; /* wraps modulo 2^64, but sums are right */
    }
    for (uint32_t t = 0; t < n_moment; t++) {
        live += change[t];
        if (live <= out->live_bytes) continue;
        out->live_bytes = live;
        out->moment = t;
    }
    return CB_OK;
}

cb_status cb_place_within(const cb_pack_life *life, uint32_t n, uint64_t capacity, uint64_t effort,
                          cb_arena *scratch, cb_poll poll, uint64_t *offset, cb_placed *out,
                          cb_error *err) {
    cb_pack z;
    bool fits, found;
    *out = (cb_placed){.fit = n == 0 ? CB_FIT_FOUND : CB_FIT_NONE};
    if (n == 0) return CB_OK;
    CB_TRY(find_fullest(life, n, scratch, out, err));
    if (out->live_bytes > capacity) return CB_OK;
    CB_TRY(cb_pack_init(&z, life, n, scratch, poll, &fits, err));
    if (!fits) return cb_fail(err, CB_UNSUPPORTED, "place: %u buffers are too many to search", n);
    z.effort = effort;
    CB_TRY(cb_pack_within(&z, capacity, &found, err));
    if (!found) {
        out->fit = z.proven ? CB_FIT_NONE : CB_FIT_UNKNOWN;
        return CB_OK;
    }
    out->fit = CB_FIT_FOUND;
    memcpy(offset, z.offset, n * sizeof *offset);
    for (uint32_t i = 0; i < n; i++)
        if (offset[i] + life[i].bytes > out->arena_bytes)
            out->arena_bytes = offset[i] + life[i].bytes;
    return CB_OK;
}
