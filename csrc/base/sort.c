/* Heapsort: n log n time for any input, which may be hostile, and no recursion. */
#include "sort.h"

#include <string.h>

static void swap(uint8_t *a, uint8_t *b, size_t size) {
    for (; size >= sizeof(uint64_t); size -= sizeof(uint64_t)) {
        uint64_t x, y;
        memcpy(&x, a, sizeof x);
        memcpy(&y, b, sizeof y);
        memcpy(a, &y, sizeof y);
        memcpy(b, &x, sizeof x);
        a += sizeof x;
        b += sizeof x;
    }
    for (size_t i = 0; i < size; i++) {
        uint8_t byte = a[i];
        a[i] = b[i];
        b[i] = byte;
    }
}

/* Sifts items[at] down to its place in a max-heap of n items. */
static void sift(uint8_t *items, size_t at, size_t n, size_t size,
                 int (*compare)(const void *, const void *)) {
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && compare(items + child * size, items + (child + 1) * size) < 0) child++;
        if (compare(items + at * size, items + child * size) >= 0) return;
        swap(items + at * size, items + child * size, size);
    }
}

void cb_sort(void *items, size_t n, size_t size, int (*compare)(const void *a, const void *b)) {
    uint8_t *bytes = items;
    for (size_t i = n / 2; i-- > 0;) sift(bytes, i, n, size, compare);
    while (n > 1) {
        n--;
        swap(bytes, bytes + n * size, size);
        sift(bytes, 0, n, size, compare);
    }
}

static int by_id(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

void cb_sort_ids(uint32_t *ids, size_t n) { cb_sort(ids, n, sizeof *ids, by_id); }
