/* sort.h: sorting in place, without memory of its own. Equal items end up in any order, so
 * `compare` should order all items totally: results must not hang on a tie. */
#ifndef CB_BASE_SORT_H
#define CB_BASE_SORT_H

#include <stddef.h>
#include <stdint.h>

/* `compare` as for qsort: negative, zero or positive. */
void cb_sort(void *items, size_t n, size_t size, int (*compare)(const void *a, const void *b));
/* Rising. */
void cb_sort_ids(uint32_t *ids, size_t n);

#endif
