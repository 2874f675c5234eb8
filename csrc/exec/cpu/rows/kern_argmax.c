/* argmax along one axis: x is [outer, n, inner]. A task holds the best so far for a tile of the
 * inner axis and iterates over the axis; an element replaces it only if it is larger, so the first
 * of equal elements stays. Elements are compared as integer keys (kern_rows.h): a NaN is the
 * largest, and -0 becomes +0 because they are equal. */
#include "../move/kern_copy.h"

#define REAL_BITS 32
#include "kern_rows.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "kern_rows.h"

typedef struct argmax {
    const cb_tensor *in;
    int64_t *out;
    int64_t outer, n, inner, tiles, units, units_in_task;
} argmax;

typedef struct best_tile {
    int64_t key[CB_TILE], index[CB_TILE];
} best_tile;

/* `see` processes n columns of the rows of the axis from `first` on, `step` elements apart. Along a
 * contiguous axis (one column), a loop that vectorises first finds the largest key of a tile;
 * another one then finds its first position. */
#define ARGMAX_LOOP(see, type, lift)                                                             \
    static void see##_line(best_tile *best, const type *from, int64_t first, int64_t n) {        \
        int64_t largest = INT64_MIN, i = 0;                                                      \
        for (int64_t j = 0; j < n; j++) {                                                        \
            type x = from[j];                                                                    \
            int64_t key = lift;                                                                  \
            largest = key > largest ? key : largest;                                             \
        }                                                                                        \
        if (first > 0 && largest <= best->key[0]) return;                                        \
        for (; i < n - 1; i++) {                                                                 \
            type x = from[i];                                                                    \
            if (lift == largest) break;                                                          \
        }                                                                                        \
        best->key[0] = largest;                                                                  \
        best->index[0] = first + i;                                                              \
    }                                                                                            \
    static void see(best_tile *best, const void *elements, int64_t step, int64_t first,          \
                    int64_t rows, int64_t n) {                                                   \
        for (int64_t r = 0; step == 1 && r < rows; r += CB_TILE) {                               \
            see##_line(best, (const type *)elements + r, first + r, min_i64(CB_TILE, rows - r)); \
        }                                                                                        \
        for (int64_t r = 0; step != 1 && r < rows; r++) {                                        \
            const type *restrict from = (const type *)elements + r * step;                       \
            for (int64_t i = 0; i < n; i++) {                                                    \
                type x = from[i];                                                                \
                int64_t key = lift;                                                              \
                bool larger = key > best->key[i];                                                \
                best->key[i] = larger ? key : best->key[i];                                      \
                best->index[i] = larger ? first + r : best->index[i];                            \
            }                                                                                    \
        }                                                                                        \
    }
ARGMAX_LOOP(see_f32, float, key_f32(x + 0.0f))
ARGMAX_LOOP(see_f64, double, key_f64(x + 0.0))
ARGMAX_LOOP(see_u8, uint8_t, x)
ARGMAX_LOOP(see_i32, int32_t, x)
ARGMAX_LOOP(see_i64, int64_t, x)

static void see(const argmax *a, best_tile *best, int64_t at, int64_t first, int64_t rows,
                int64_t n) {
    const void *x = cb_at(a->in, at);
    switch (a->in->dtype) {
        case CB_F32: see_f32(best, x, a->inner, first, rows, n); break;
        case CB_F64: see_f64(best, x, a->inner, first, rows, n); break;
        case CB_I32: see_i32(best, x, a->inner, first, rows, n); break;
        case CB_I64: see_i64(best, x, a->inner, first, rows, n); break;
        case CB_BOOL:
        case CB_U8: see_u8(best, x, a->inner, first, rows, n); break;
        default: /* 16-bit floats: row by row, or many rows of one column */
            for (int64_t r = 0; r < rows;) {
                float wide[CB_TILE];
                int64_t count = a->inner == 1 ? min_i64(CB_TILE, rows - r) : 1;
                half_widen(a->in->dtype, cb_at(a->in, at + r * a->inner), wide, count * n);
                see_f32(best, wide, a->inner, first + r, count, n);
                r += count;
            }
    }
}

static void argmax_task(void *user, int64_t task, int thread) {
    (void)thread;
    const argmax *a = user;
    best_tile best;
    int64_t end = min_i64((task + 1) * a->units_in_task, a->units);
    for (int64_t unit = task * a->units_in_task; unit < end; unit++) {
        int64_t place = unit / a->tiles, column = unit % a->tiles * CB_TILE,
                n = min_i64(CB_TILE, a->inner - column);
        for (int64_t i = 0; i < n; i++) {
            best.key[i] = INT64_MIN;
            best.index[i] = 0;
        }
        see(a, &best, place * a->n * a->inner + column, 0, a->n, n);
        memcpy(a->out + place * a->inner + column, best.index, (size_t)n * sizeof(int64_t));
    }
}

static cb_status run_argmax(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    const cb_shape *s = &args->in[0].shape;
    int64_t axis = args->attrs->i[0];
    argmax a = {.in = &args->in[0], .out = args->out[0].data, .n = s->dim[axis]};
    a.outer = cb_numel_of(s, 0, axis), a.inner = cb_numel_of(s, axis + 1, s->rank);
    a.tiles = div_up(a.inner, CB_TILE);
    a.units = a.outer * a.tiles;
    a.units_in_task = max_i64(CB_CHUNK / max_i64(a.n * min_i64(a.inner, CB_TILE), 1), 1);
    cb_parallel(args->pool, div_up(a.units, a.units_in_task), argmax_task, &a);
    return CB_OK;
}

cb_kernel_fn CB_KERN(argmax)(cb_opcode code, cb_dtype dtype) {
    (void)dtype;
    return code == CB_OP_ARGMAX ? run_argmax : NULL;
}
