#include "pair.h"

#include "../../base/sort.h"

static int compare_pairs(const void *a, const void *b) {
    cb_pair x = *(const cb_pair *)a, y = *(const cb_pair *)b;
    return x < y ? -1 : x > y;
}

void cb_sort_pairs(cb_pair *pair, size_t n) {
    if (n > 1) cb_sort(pair, n, sizeof *pair, compare_pairs);
}
