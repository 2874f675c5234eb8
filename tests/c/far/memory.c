/* One reservation of addresses, twice as long as the memory. Taking a block makes its pages
 * accessible in the near half; giving it back closes them and returns them to the system. In the
 * far half no page is ever accessible. The mapping is private, so a forked child has its own. */
#include "memory.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)1 << 16) /* a multiple of the page on every machine */
#define FAR_BYTES ((size_t)1 << 32)
#define FILLED_MOST ((size_t)1 << 26)
#define FAR_PAGES (FAR_BYTES / PAGE)

cb_status far_memory_open(far_memory *m, cb_alloc *alloc, cb_error *err) {
    void *at =
        mmap(NULL, 2 * FAR_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return cb_no_memory(err);
    *m = (far_memory){.alloc = alloc, .near = at};
    return CB_OK;
}

void far_memory_close(far_memory *m) { munmap(m->near, 2 * FAR_BYTES); }

/* Finds the first gap of `n_page` pages with one more on each side; returns the link where the
 * block is inserted. */
static far_block **find_gap(far_memory *m, size_t n_page, size_t *page) {
    far_block **link = &m->first;
    *page = 1;
    while (*link && (*link)->page < *page + n_page + 1) {
        *page = (*link)->page + (*link)->n_page + 1;
        link = &(*link)->next;
    }
    return link;
}

cb_status far_memory_take(far_memory *m, size_t bytes, void **far, cb_error *err) {
    const size_t n_page = bytes / PAGE + 1;
    size_t page;
    if (bytes > FAR_BYTES / 2) return cb_no_memory(err);
    far_block **link = find_gap(m, n_page, &page);
    if (page + n_page > FAR_PAGES) return cb_no_memory(err);
    far_block *block = cb_malloc(m->alloc, sizeof *block);
    if (!block) return cb_no_memory(err);
    char *near = m->near + page * PAGE;
    if (mprotect(near, n_page * PAGE, PROT_READ | PROT_WRITE) != 0) {
        cb_free(m->alloc, block);
        return cb_no_memory(err);
    }
    memset(near, 0xFF, bytes < FILLED_MOST ? bytes : FILLED_MOST);
    *block = (far_block){.next = *link, .page = page, .n_page = n_page};
    *link = block;
    *far = near + FAR_BYTES;
    return CB_OK;
}

void far_memory_give(far_memory *m, void *far) {
    if (!far) return;
    char *near = (char *)far - FAR_BYTES;
    far_block **link = &m->first;
    while (m->near + (*link)->page * PAGE != near) link = &(*link)->next;
    far_block *block = *link;
    *link = block->next;
    madvise(near, block->n_page * PAGE, MADV_DONTNEED);
    mprotect(near, block->n_page * PAGE, PROT_NONE);
    cb_free(m->alloc, block);
}

cb_status far_near(const far_memory *m, const void *far, void **near, cb_error *err) {
    const uintptr_t at = (uintptr_t)far, begin = (uintptr_t)m->near + FAR_BYTES;
    if (far && (at < begin || at >= begin + FAR_BYTES)) {
        return cb_fail(err, CB_INVALID, "far: %p is not an address of the backend's memory", far);
    }
    *near = far ? (char *)(at - FAR_BYTES) : NULL;
    return CB_OK;
}

void *far_of(const far_memory *m, void *near) {
    (void)m;
    return near ? (char *)near + FAR_BYTES : NULL;
}
