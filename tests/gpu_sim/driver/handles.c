/* handles.c: lists by hash of the address. */
#include "handles.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct header {
    struct header *next;
    sim_handle_kind kind;
    bool is_live;
} header;
enum { N_LISTS = 1024, HEADER = (sizeof(header) + 15) / 16 * 16 };

static header *lists[N_LISTS];

static header **list_of(const void *handle) { return &lists[(uintptr_t)handle / 16 % N_LISTS]; }

static header *find(const void *handle) {
    for (header *h = *list_of(handle); h; h = h->next)
        if ((char *)h + HEADER == handle) return h;
    return NULL;
}

void *sim_handle_new(sim_handle_kind kind, size_t bytes) {
    header *made = calloc(1, HEADER + bytes);
    if (!made) return NULL;
    void *handle = (char *)made + HEADER;
    *made = (header){*list_of(handle), kind, true};
    *list_of(handle) = made;
    return handle;
}

void *sim_handle(const void *handle, sim_handle_kind kind) {
    header *h = find(handle);
    return h && h->is_live && h->kind == kind ? (char *)h + HEADER : NULL;
}

void sim_handle_end(void *handle) {
    header *h = find(handle);
    if (h) h->is_live = false;
}
