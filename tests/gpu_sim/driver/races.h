/* races.h: tracks who has read and written each byte of device memory, and reports conflicting
 * accesses that are not ordered: by a barrier or warp operation within a block, by fences and
 * atomics between blocks, by streams, events and the host between operations. */
#ifndef SIM_RACES_H
#define SIM_RACES_H

#include "block.h"

/* Called before each operation on device memory; `stamp` identifies it (queue.h). */
void sim_races_begin(uint32_t stamp, uint32_t n_blocks);
void sim_races_block(uint32_t block);       /* a block begins */
void sim_races_barrier(uint32_t n_threads); /* this many threads have met */
void sim_races_fence(sim_fiber *f);
void sim_races_access(sim_thread *t, uint32_t site, uint64_t address, uint32_t bytes, int access);
/* Checks an access of a copy or a memset; `what` is its name in the report. */
sim_fault sim_races_range(uint64_t address, uint64_t bytes, int access, const char *what);
void sim_races_forget(uint64_t address, uint64_t bytes); /* the addresses will be reused */

#endif
