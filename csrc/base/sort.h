/* sort.h: in-place sorting that allocates nothing. It is not stable, so `compare` should be a total
 * order: results must not depend on how ties are broken. */
#ifndef CB_BASE_SORT_H
#define CB_BASE_SORT_H

#include <stddef.h>
#include <stdint.h>

/* `compare` as for qsort: negative, zero or positive. */
void cb_sort(void *items, size_t n, size_t size, int (*compare)(const void *a, const void *b));
/* Sorts in ascending order. */
void cb_sort_ids(uint32_t *ids, size_t n);

#endif
