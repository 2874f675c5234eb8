/* Rows of windows are packed one after another, because all windows of a row begin at one row of
 * the plane. Numbers are unsigned and wrap around where a window begins outside of the plane. */
#include "packed_index.h"

typedef struct row {               /* the windows of one row */
    uint32_t first, second, third; /* where the next window begins; `third` grows by `step` */
    uint32_t step, height, width;  /* of the plane */
    uint32_t kernel_h, kernel_w;
    uint32_t dilation[3];
} row;

static row row_of(const cb_packed_index *x, int64_t at) {
    const int64_t in_row = at % x->windows[2], rows = at / x->windows[2],
                  index[3] = {rows / x->windows[1] % x->windows[0], rows % x->windows[1], in_row};
    uint32_t start[3];
    for (int k = 0; k < 3; k++) start[k] = (uint32_t)(index[k] * x->stride[k] - x->pad[k]);
    return (row){
        .first = start[0],
        .second = start[1],
        .third = start[2],
        .step = (uint32_t)x->stride[2],
        .height = (uint32_t)x->plane[1],
        .width = (uint32_t)x->plane[2],
        .kernel_h = (uint32_t)x->kernel[1],
        .kernel_w = (uint32_t)x->kernel[2],
        .dilation = {(uint32_t)x->dilation[0], (uint32_t)x->dilation[1], (uint32_t)x->dilation[2]}};
}

/* Returns the position in its window of an element of the plane. */
static uint32_t to_window(const row *r, uint32_t index) {
    const uint32_t line = index / r->width, plane = line / r->height;
    const uint32_t i = (plane - r->first) / r->dilation[0],
                   j = (line - plane * r->height - r->second) / r->dilation[1],
                   k = (index - line * r->width - r->third) / r->dilation[2];
    return (i * r->kernel_h + j) * r->kernel_w + k;
}

static uint32_t to_plane(const row *r, uint32_t position) {
    const uint32_t line = position / r->kernel_w, i = line / r->kernel_h;
    const uint32_t j = line - i * r->kernel_h, k = position - line * r->kernel_w;
    const uint32_t plane = r->first + i * r->dilation[0];
    return (plane * r->height + r->second + j * r->dilation[1]) * r->width + r->third +
           k * r->dilation[2];
}

static void put_bytes(uint8_t *to, int64_t bytes, uint32_t x) {
    for (int64_t k = 0; k < bytes; k++) to[k] = (uint8_t)(x >> 8 * k);
}

static uint32_t get_bytes(const uint8_t *from, int64_t bytes) {
    uint32_t x = from[0];
    for (int64_t k = 1; k < bytes; k++) x |= (uint32_t)from[k] << 8 * k;
    return x;
}

/* Returns the end of the run of indices from `at` that belong to one row of windows. */
static int64_t end_of(const cb_packed_index *x, int64_t at, int64_t last) {
    const int64_t end = x->has_windows ? (at / x->windows[2] + 1) * x->windows[2] : last;
    return end < last ? end : last;
}

void cb_pack_index(const cb_packed_index *x, const void *indices, int64_t first, int64_t last,
                   uint8_t *packed) {
    const int64_t *wide = indices;
    const int32_t *narrow = indices;
    for (int64_t at = first, end; at < last; at = end) {
        row r = x->has_windows ? row_of(x, at) : (row){0};
        end = end_of(x, at, last);
        for (int64_t i = at; i < end; i++, r.third += r.step) {
            const uint32_t index = x->is_wide ? (uint32_t)wide[i] : (uint32_t)narrow[i];
            put_bytes(packed + i * x->bytes, x->bytes,
                      x->has_windows ? to_window(&r, index) : index);
        }
    }
}

void cb_unpack_index(const cb_packed_index *x, const uint8_t *packed, int64_t first, int64_t last,
                     void *indices) {
    int64_t *wide = indices;
    int32_t *narrow = indices;
    for (int64_t at = first, end; at < last; at = end) {
        row r = x->has_windows ? row_of(x, at) : (row){0};
        end = end_of(x, at, last);
        for (int64_t i = at; i < end; i++, r.third += r.step) {
            const uint32_t number = get_bytes(packed + i * x->bytes, x->bytes),
                           index = x->has_windows ? to_plane(&r, number) : number;
            if (x->is_wide) wide[i] = index;
            else narrow[i] = (int32_t)index;
        }
    }
}
