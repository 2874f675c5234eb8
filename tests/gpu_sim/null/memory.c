/* memory.c: device memory as address space. A reserved range that nothing may read or write is
 * handed out in blocks of powers of two, so a host program that follows a device pointer faults.
 * As with a real driver, the address of a freed block is soon returned again. */
#include <stdlib.h>
#include <sys/mman.h>

#include "null.h"

enum { SMALLEST = 9, CLASSES = 48, NONE = -1 };
#define RANGE ((uint64_t)1 << 42)
/* A preferred address, far from the memory of programs and of the stand-in, so that tests of both
 * can run in one process. */
#define WANTED ((uint64_t)1 << 45)

typedef struct block {
    uint64_t address, bytes; /* bytes: as requested */
    int64_t next_free;       /* next block in the list of its class */
    bool is_live;
} block;

/* Blocks are in ascending order of address and never removed. */
static struct {
    uint64_t start, end; /* the reserved range; start 0: none yet */
    uint64_t next;
    block *blocks;
    int64_t n, room, free_list[CLASSES];
    uint64_t live, peak;
} memory;

uint64_t null_live(void) { return memory.live; }
uint64_t null_peak(void) { return memory.peak; }
void null_reset_peak(void) { memory.peak = memory.live; }

static bool reserve(void) {
    if (memory.start) return true;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *at = mmap((void *)(uintptr_t)WANTED, RANGE, PROT_NONE, flags, -1, 0);
    if (at == MAP_FAILED) return false;
    const uint64_t mask = (1 << SMALLEST) - 1;
    memory.start = memory.next = ((uint64_t)(uintptr_t)at + mask) & ~mask;
    memory.end = (uint64_t)(uintptr_t)at + RANGE;
    for (int i = 0; i < CLASSES; i++) memory.free_list[i] = NONE;
    return true;
}

static int class_of(uint64_t bytes) {
    int class = SMALLEST;
    while (class < CLASSES - 1 && ((uint64_t)1 << class) < bytes) class++;
    return class;
}

static block *new_block(int class) {
    const uint64_t size = (uint64_t)1 << class;
    if (size > memory.end - memory.next) return NULL;
    if (memory.n == memory.room) {
        const int64_t room = memory.room ? 2 * memory.room : 1024;
        block *larger = realloc(memory.blocks, (size_t)room * sizeof *larger);
        if (!larger) return NULL;
        memory.blocks = larger;
        memory.room = room;
    }
    block *made = &memory.blocks[memory.n++];
    *made = (block){.address = memory.next, .next_free = NONE};
    memory.next += size;
    return made;
}

int null_allocate(uint64_t *address, size_t bytes) {
    if (!address || bytes == 0) return SIM_ERROR_INVALID_VALUE;
    const uint64_t free_bytes = (uint64_t)null_device.memory - memory.live;
    if (memory.live > (uint64_t)null_device.memory || bytes > free_bytes || !reserve())
        return SIM_ERROR_OUT_OF_MEMORY;
    const int class = class_of(bytes);
    const int64_t first = memory.free_list[class];
    block *taken = first == NONE ? new_block(class) : &memory.blocks[first];
    if (!taken) return SIM_ERROR_OUT_OF_MEMORY;
    if (first != NONE) memory.free_list[class] = taken->next_free;
    taken->bytes = bytes;
    taken->is_live = true;
    memory.live += bytes;
    if (memory.live > memory.peak) memory.peak = memory.live;
    *address = taken->address;
    return 0;
}

/* Returns the last block that starts at or below an address. */
static block *block_before(uint64_t address) {
    int64_t low = 0, high = memory.n;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (memory.blocks[middle].address <= address) low = middle + 1;
        else high = middle;
    }
    return low ? &memory.blocks[low - 1] : NULL;
}

int null_free(uint64_t address) {
    block *freed = block_before(address);
    if (address == 0) return 0;
    if (!freed || freed->address != address || !freed->is_live) return SIM_ERROR_INVALID_VALUE;
    const int class = class_of(freed->bytes);
    null_now.bytes = freed->bytes;
    memory.live -= freed->bytes;
    freed->is_live = false;
    freed->next_free = memory.free_list[class];
    memory.free_list[class] = freed - memory.blocks;
    return 0;
}

bool null_find_block(uint64_t address, null_block *out) {
    const block *found = block_before(address);
    if (!found || !found->is_live || address - found->address >= found->bytes) return false;
    *out = (null_block){.address = found->address, .bytes = found->bytes};
    return true;
}
