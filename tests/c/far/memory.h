/* memory.h: memory that the host cannot touch. A block has two addresses at a fixed distance. The
 * far one, which is handed out, has no readable or writable pages; the near one has the bytes, and
 * only the kernels use it.
 *
 *     near   |rw|..|rw..rw|..          pages of allocated blocks; a free page between two
 *     far    |..|..|......|..          = near + FAR_BYTES, never accessible
 */
#ifndef CB_TESTS_FAR_MEMORY_H
#define CB_TESTS_FAR_MEMORY_H

#include "base/alloc.h"

typedef struct far_block {
    struct far_block *next; /* in order of address */
    size_t page, n_page;
} far_block;

typedef struct far_memory {
    cb_alloc *alloc;
    char *near;
    far_block *first;
} far_memory;

cb_status far_memory_open(far_memory *m, cb_alloc *alloc, cb_error *err);
void far_memory_close(far_memory *m); /* all blocks must have been given back */
/* Allocates memory aligned to pages. The first 64 MiB are filled with ones: NaN in every float
 * type. */
cb_status far_memory_take(far_memory *m, size_t bytes, void **far, cb_error *err);
void far_memory_give(far_memory *m, void *far);
/* Finds the near address of a far address; NULL for NULL. CB_INVALID: not an address of this
 * memory. */
cb_status far_near(const far_memory *m, const void *far, void **near, cb_error *err);
void *far_of(const far_memory *m, void *near); /* the reverse; NULL for NULL */

#endif
