/* memory.h: device memory: allocations, the state of each byte, and what lies at an address. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "../runtime/sim_thread.h"

bool sim_memory_map(void); /* reserves the ranges of sim_thread.h; false: the system refuses */

/* Addresses for `bytes`, which nobody may use before sim_memory_open; 0: there is no room. `what`
 * is the word for it in reports. Two steps, as an allocation in stream order has its address
 * before it happens. */
uint64_t sim_memory_reserve(uint64_t bytes, const char *what);
void sim_memory_open(uint64_t address);
/* False: not the beginning of an allocation that is open. */
bool sim_memory_close(uint64_t address);

typedef struct sim_block_of_memory {
    uint64_t address, bytes;
    unsigned number; /* the n-th that was made */
    enum { SIM_RESERVED, SIM_OPEN, SIM_CLOSED } state;
    const char *what;
    int device; /* whose it is: the current context's */
} sim_block_of_memory;
const sim_block_of_memory *
sim_memory_find(uint64_t address); /* that begins at it or before; or NULL */

uint64_t sim_memory_in_use(void);
void sim_memory_set_states(uint64_t address, uint64_t bytes, uint8_t state);
/* Checks an access of the driver itself, reports what is wrong, and notes what is written. */
sim_fault sim_memory_access(uint64_t address, uint64_t bytes, int access, const char *what);
/* "byte 12 of memory 3 (1024 bytes)". */
void sim_memory_describe(uint64_t address, char *text, size_t n);

#endif
