/* memory.h: device memory: allocations, the state of each byte, and the block at an address. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "../runtime/sim_thread.h"

bool sim_memory_map(void); /* reserves the ranges of sim_thread.h; false: the system refuses */

/* Reserves addresses for `bytes`, which must not be used before sim_memory_open; 0: no space.
 * `what` is its name in reports. There are two steps because a stream-ordered allocation has its
 * address before it happens. */
uint64_t sim_memory_reserve(uint64_t bytes, const char *what);
void sim_memory_open(uint64_t address);
/* Returns false if the address is not the start of an open allocation. */
bool sim_memory_close(uint64_t address);

typedef struct sim_block_of_memory {
    uint64_t address, bytes;
    unsigned number; /* n for the n-th allocation */
    enum { SIM_RESERVED, SIM_OPEN, SIM_CLOSED } state;
    const char *what;
    int device; /* device of the context that allocated it */
} sim_block_of_memory;
const sim_block_of_memory *
sim_memory_find(uint64_t address); /* the last one that starts at or before it; or NULL */

uint64_t sim_memory_in_use(void);
void sim_memory_set_states(uint64_t address, uint64_t bytes, uint8_t state);
/* Checks an access by the driver itself, reports faults, and records writes. */
sim_fault sim_memory_access(uint64_t address, uint64_t bytes, int access, const char *what);
/* Writes "byte 12 of memory 3 (1024 bytes)". */
void sim_memory_describe(uint64_t address, char *text, size_t n);

#endif
