/* memory.c: addresses are assigned cyclically, with gaps between allocations, so that an address is
 * reused only after all others, and an access past an end or to freed memory hits nothing else.
 * Records of freed memory stay until their addresses are reused. */
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "entries.h"
#include "races.h"
#include "report.h"

#define FIRST (SIM_ARENA + (1ull << 20))
enum { ALIGNMENT = 256, PAGE = 4096, POISONED = 16 << 20 };

static struct {
    sim_block_of_memory *block; /* sorted by address */
    size_t n, cap;
    uint64_t next; /* where the next search begins */
    uint64_t in_use;
    unsigned made;
} memory;

static bool reserve_range(uint64_t address, uint64_t bytes, int protection) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    return mmap((void *)address, bytes, protection, flags, -1, 0) == (void *)address;
}

bool sim_memory_map(void) {
    const int both = PROT_READ | PROT_WRITE;
    memory.next = FIRST;
    return reserve_range(SIM_ARENA, SIM_ARENA_BYTES, PROT_NONE) &&
           reserve_range(SIM_ARENA + SIM_BYTES_AT, SIM_ARENA_BYTES, both) &&
           reserve_range(SIM_STATES, SIM_ARENA_BYTES + PAGE, both) &&
           reserve_range(SIM_CELLS, SIM_ARENA_BYTES * 20, both);
}

/* Returns the index of the first block that begins after `address`. */
static size_t upper(uint64_t address) {
    size_t low = 0, high = memory.n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (memory.block[middle].address <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

const sim_block_of_memory *sim_memory_find(uint64_t address) {
    const size_t i = upper(address);
    return i ? &memory.block[i - 1] : NULL;
}

/* Returns the size with a gap after the block, half as large as the block, which catches accesses
 * past its end. */
static uint64_t with_room(uint64_t bytes) {
    return bytes + PAGE + (bytes > 65536 ? bytes : 65536) / 2;
}

/* Returns the first address from `address` on where `bytes` overlap no block in use; 0: none. */
static uint64_t place_from(uint64_t address, uint64_t bytes) {
    size_t i = upper(address);
    if (i > 0) {
        const sim_block_of_memory *b = &memory.block[i - 1];
        const uint64_t end = b->address + with_room(b->bytes);
        if (b->state != SIM_CLOSED && end > address) address = end;
    }
    for (;; i++) {
        address = (address + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        while (i < memory.n && memory.block[i].state == SIM_CLOSED) i++;
        const uint64_t end =
            i < memory.n ? memory.block[i].address : SIM_ARENA + sim_device.addresses;
        if (address + bytes <= end && end <= SIM_ARENA + sim_device.addresses) return address;
        if (i >= memory.n) return 0;
        address = memory.block[i].address + with_room(memory.block[i].bytes);
    }
}

uint64_t sim_memory_reserve(uint64_t bytes, const char *what) {
    const uint64_t needed = with_room(bytes);
    uint64_t address = place_from(memory.next, needed);
    if (!address) address = place_from(FIRST, needed);
    if (!address) return 0;
    /* Closed blocks at these addresses are forgotten, with their states. */
    size_t first = upper(address - 1), last = first;
    if (first > 0 && memory.block[first - 1].state == SIM_CLOSED &&
        memory.block[first - 1].address + memory.block[first - 1].bytes > address)
        first--;
    while (last < memory.n && memory.block[last].address < address + needed) last++;
    for (size_t i = first; i < last; i++) {
        sim_memory_set_states(memory.block[i].address, memory.block[i].bytes, 0);
        sim_races_forget(memory.block[i].address, memory.block[i].bytes);
    }
    if (last == first && memory.n == memory.cap) {
        const size_t cap = memory.cap ? 2 * memory.cap : 256;
        sim_block_of_memory *more = realloc(memory.block, cap * sizeof *more);
        if (!more) return 0;
        memory.block = more;
        memory.cap = cap;
    }
    memmove(memory.block + first + 1, memory.block + last,
            (memory.n - last) * sizeof *memory.block);
    memory.n = memory.n - (last - first) + 1;
    memory.block[first] = (sim_block_of_memory){address,      bytes, ++memory.made,
                                                SIM_RESERVED, what,  sim_current_device()};
    memory.next = address + needed;
    return address;
}

void sim_memory_set_states(uint64_t address, uint64_t bytes, uint8_t state) {
    memset(sim_state(address), state, bytes);
}

static sim_block_of_memory *block_at(uint64_t address) {
    const size_t i = upper(address);
    return i && memory.block[i - 1].address == address ? &memory.block[i - 1] : NULL;
}

void sim_memory_open(uint64_t address) {
    sim_block_of_memory *b = block_at(address);
    b->state = SIM_OPEN;
    sim_memory_set_states(address, b->bytes, SIM_ADDRESSABLE);
    /* NaNs, for programs that may read unwritten memory. */
    memset(sim_host(address), 0xff, b->bytes < POISONED ? b->bytes : POISONED);
    memory.in_use += b->bytes;
}

bool sim_memory_close(uint64_t address) {
    sim_block_of_memory *b = block_at(address);
    if (!b || b->state != SIM_OPEN) return false;
    b->state = SIM_CLOSED;
    sim_memory_set_states(address, b->bytes, SIM_FREED);
    const uint64_t begin = (address + PAGE - 1) / PAGE * PAGE;
    const uint64_t end = (address + b->bytes) / PAGE * PAGE;
    if (end > begin) (void)madvise(sim_host(begin), end - begin, MADV_DONTNEED);
    memory.in_use -= b->bytes;
    return true;
}

uint64_t sim_memory_in_use(void) { return memory.in_use; }

void sim_memory_describe(uint64_t address, char *text, size_t n) {
    typedef unsigned long long big;
    if (address - SIM_ARENA >= SIM_ARENA_BYTES) {
        snprintf(text, n, "%#llx is no device address", (big)address);
        return;
    }
    if (address >= SIM_LOCAL) {
        const bool is_shared = address >= SIM_SHARED, is_param = address >= SIM_PARAMS;
        const uint64_t from = is_shared ? SIM_SHARED : is_param ? SIM_PARAMS : SIM_LOCAL;
        const char *what = is_shared  ? "shared memory"
                           : is_param ? "the parameters"
                                      : "local memory";
        snprintf(text, n, "byte %llu of %s", (big)(address - from), what);
        return;
    }
    const sim_block_of_memory *b = sim_memory_find(address);
    if (!b) {
        snprintf(text, n, "%#llx, before all memory", (big)address);
        return;
    }
    const char *state = b->state == SIM_CLOSED ? ", freed" : "";
    if (b->state == SIM_RESERVED) state = ", not yet allocated in the order of its stream";
    if (address < b->address + b->bytes)
        snprintf(text, n, "byte %llu of %s %u (%llu bytes%s)", (big)(address - b->address), b->what,
                 b->number, (big)b->bytes, state);
    else
        snprintf(text, n, "%llu bytes past the end of %s %u (%llu bytes%s)",
                 (big)(address - b->address - b->bytes), b->what, b->number, (big)b->bytes, state);
}

sim_fault sim_memory_access(uint64_t address, uint64_t bytes, int access, const char *what) {
    sim_fault fault = SIM_FINE;
    uint64_t at = address;
    if (address - SIM_ARENA >= SIM_ARENA_BYTES || bytes > SIM_ARENA_BYTES) fault = SIM_BOUNDS;
    for (; fault == SIM_FINE && at < address + bytes; at++) {
        const uint8_t state = *sim_state(at);
        if (!(state & SIM_ADDRESSABLE)) fault = SIM_BOUNDS;
        else if (access & SIM_READ && !(state & SIM_WRITTEN) && !sim_device.may_read_unwritten)
            fault = SIM_UNWRITTEN;
        if (fault != SIM_FINE) break;
    }
    if (fault != SIM_FINE) {
        char place[200];
        sim_memory_describe(at, place, sizeof place);
        sim_report("%s: %s of %s", what,
                   fault == SIM_UNWRITTEN ? "read of unwritten memory" : "access out of bounds",
                   place);
        return fault;
    }
    if (access & SIM_WRITE) sim_memory_set_states(address, bytes, SIM_ADDRESSABLE | SIM_WRITTEN);
    return SIM_FINE;
}
